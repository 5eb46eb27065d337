"""Stream: from bytes to a message.

The reply is whole when its reason and the wire's end mark are there, and not before, and not later.
Whatever cuts it short makes it a failure; whatever comes after its end changes nothing; and how it
was cut into pieces on the way says nothing at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.replies import (
    CLEAN_ENDS,
    HARD_FAULTS,
    accepted,
    altered_starts,
    batch_may_end_run,
    body_left_open,
    calls_of,
    end_of,
    evidence,
    excused,
    fails_and_executes_nothing,
    hard_fault,
    limit_reached,
    members_of,
    ordinary_batch,
    outcome_words,
    reason_at,
    reason_of,
    reply_words,
    sound,
    start_words,
    starts_in,
    terminator_at,
    text_of,
    waits_for_tool,
)
from loopspec.trace_index import Exchange, Run, SentCall, Start, TraceIndex
from loopspec.vocabulary import (
    ACCEPTING_REASONS,
    ArgumentsDelta,
    AssistantMessage,
    CallEnd,
    CallStart,
    FaultKind,
    Grade,
    Level,
    Message,
    ReasoningDelta,
    Terminator,
    TextDelta,
    ToolResult,
    Usage,
)

# --------------------------------------------------------------------------------------------
# Streams that end too early


@rule(
    "stream.missing-reason-fails",
    """A stream that ends without a reason MUST be taken as a failure of the run, and the loop MUST
    NOT start any tool call of it.""",
    source="D, STR02, STR03",
)
def missing_reason_fails(index: TraceIndex) -> Iterator[Finding]:
    """Nobody knows what the rest would have been.

    Client libraries report such an end as a quiet one, so the loop has to look for the reason
    itself.
    """
    for exchange in index.exchanges:
        ended = _ended_at(exchange)
        if ended is None or reason_of(exchange) is not None or exchange.cancelled_at is not None:
            continue
        what = f"the reply to request {exchange.number}, whose stream ended without a reason,"
        yield from fails_and_executes_nothing(index, exchange, what)


def _ended_at(exchange: Exchange) -> int | None:
    """Where the stream ended as a whole one does: its terminator, or the end of its body."""
    if hard_fault(exchange) is not None:
        return None
    clean = (at for at, fault in exchange.faults if fault.fault in CLEAN_ENDS)
    end = terminator_at(exchange)
    return end if end is not None else next(clean, None)


@rule(
    "stream.missing-terminator-tolerated",
    """A stream whose reason came and whose terminator did not, before its body ended, is taken for
    a whole reply (recorded, not judged).""",
    source="D",
    level=Level.OBSERVED,
)
def missing_terminator_tolerated(index: TraceIndex) -> Iterator[Finding]:
    """Both sources are silent, and compatible servers leave the terminator out.

    What a loop makes of it is worth knowing all the same.
    """
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        accepting = reason_of(exchange) in ACCEPTING_REASONS
        ends = [at for at, fault in exchange.faults if fault.fault == FaultKind.END]
        whole = terminator_at(exchange) is not None or not ends
        if run is None or not accepting or whole or excused(index, run):
            continue
        following = index.next_in_run(exchange)
        if starts_in(index, exchange) or following is not None or run.completed:
            yield Held(*evidence(reason_at(exchange), following.at if following else run.end))
        elif run.end is not None and not limit_reached(index, run, exchange):
            yield Broke(
                f"{reply_words(exchange)} had no terminator and was not taken for a whole reply: "
                f"{outcome_words(run)}",
                *evidence(reason_at(exchange), ends[0], run.end),
            )


@rule(
    "stream.error-before-first-event",
    """When the provider fails before the first piece of a reply, the run MUST fail and the loop
    MUST NOT start a tool call for that request.""",
    source="B",
)
def error_before_first_event(index: TraceIndex) -> Iterator[Finding]:
    """Opening the stream is the first thing that can fail.

    It is also what is most often left outside of the code that handles failures.
    """
    for exchange in index.exchanges:
        found = _first_failure(exchange)
        if found is None or found[1] or exchange.cancelled_at is not None:
            continue
        what = f"the failure ({found[0]}) of request {exchange.number} before its first piece"
        yield from fails_and_executes_nothing(index, exchange, what)


@rule(
    "stream.error-mid-reply",
    """When the stream of a reply fails before its end, the run MUST fail and the loop MUST NOT start
    any tool call of that reply, whatever was sent before.""",
    source="B, STR06, STR07",
)
def error_mid_reply(index: TraceIndex) -> Iterator[Finding]:
    """Half a reply is not a reply.

    Neither is its text an answer nor are its calls a batch, however whole they look.
    """
    for exchange in index.exchanges:
        found = _first_failure(exchange)
        if found is None or not found[1] or exchange.cancelled_at is not None:
            continue
        if reason_of(exchange) is not None and index.header.grade != Grade.EXACT:
            # On a socket a loop may rightly have acted on the reason before the failure came.
            continue
        what = f"the failure ({found[0]}) of the stream of request {exchange.number}"
        yield from fails_and_executes_nothing(index, exchange, what)


def _first_failure(exchange: Exchange) -> tuple[str, bool] | None:
    """The fault with which the stream failed before its end, and whether a piece came before."""
    for _, fault in exchange.faults:
        if fault.fault == FaultKind.STATUS and not exchange.request.findings:
            return f"{fault.fault} {fault.detail or ''}".strip(), False
    hard = hard_fault(exchange)
    if hard is None:
        return None
    at, fault = hard
    words = f"{fault.fault}: {fault.detail}" if fault.detail else fault.fault
    return words, any(place < at for place, _ in exchange.sent)


# --------------------------------------------------------------------------------------------
# Streams that go on after their end


@rule(
    "stream.acts-without-end-of-body",
    """Once the reason and the terminator of a reply are there, the loop MUST go on although the
    body stays open.""",
    source="STR05",
)
def acts_without_end_of_body(index: TraceIndex) -> Iterator[Finding]:
    """Servers and proxies keep bodies open.

    A loop that waits for the end of the body starts its tools a minute late, or never.
    """
    for exchange in index.exchanges:
        end = terminator_at(exchange)
        run = index.run_of(exchange)
        open_body = body_left_open(exchange) and reason_of(exchange) is not None
        if end is None or run is None or not open_body or excused(index, run):
            continue
        acted = _acted_at(index, run, exchange, end)
        late = exchange.closed_by == "bench" and exchange.closed_at is not None
        if acted is not None and not (late and acted > (exchange.closed_at or acted)):
            yield Held(*evidence(end, acted))
        elif acted is not None or run.hung_at is not None:
            came = "it waited until the bench closed the body" if acted else outcome_words(run)
            yield Broke(
                f"{reply_words(exchange)} was over with its terminator; the loop was to go on while "
                f"the body stayed open, but {came}",
                *evidence(end, exchange.closed_at, acted, run.hung_at),
            )


def _acted_at(index: TraceIndex, run: Run, exchange: Exchange, end: int) -> int | None:
    """Where the loop first did something that only the whole reply can have led to."""
    following = index.next_in_run(exchange)
    places = [start.at for start in starts_in(index, exchange) if start.at > end]
    places += [at for at in (following.at if following else None, run.settled_at) if at is not None]
    return min(places, default=None)


@rule(
    "stream.nothing-after-terminator",
    """What arrives after the terminator of a reply MUST change nothing: no later call starts, no
    later text is kept or answered, and no later reason or failure changes the outcome.""",
    source="D",
)
def nothing_after_terminator(index: TraceIndex) -> Iterator[Finding]:
    """The terminator is the provider's word that the reply is whole.

    Usage may stand between the reason and the terminator; after it nothing belongs to the reply.
    """
    for exchange in index.exchanges:
        late = _late(exchange)
        if not late:
            continue
        broken = [*_late_starts(index, exchange), *_late_text(index, exchange)]
        run = index.run_of(exchange)
        answer = accepted(exchange) and not calls_of(exchange) and text_of(exchange).strip()
        following = index.next_in_run(exchange)
        judged = run is not None and run.end is not None and not excused(index, run)
        if run is not None and judged and answer and following is None and not run.completed:
            broken.append(
                Broke(
                    f"{reply_words(exchange)} was an answer before its terminator; what came after "
                    f"was to change nothing, but {outcome_words(run)}",
                    *evidence(terminator_at(exchange), late[0], run.end),
                )
            )
        yield from broken
        if not broken and judged and run is not None:
            yield Held(*evidence(terminator_at(exchange), late[0], run.end))


def _late(exchange: Exchange) -> list[int]:
    """Where something other than usage, an end or a stall came after the terminator."""
    end = terminator_at(exchange)
    if end is None:
        return []
    pieces = [at for at, sent in exchange.sent if at > end and not isinstance(sent.piece, Usage | Terminator)]
    return sorted(pieces + [at for at, f in exchange.faults if at > end and f.fault in HARD_FAULTS])


def _late_starts(index: TraceIndex, exchange: Exchange) -> Iterator[Broke]:
    end = terminator_at(exchange) or 0
    own = {call.id for call in calls_of(exchange)}
    late = {
        sent.piece.id: at
        for at, sent in exchange.sent
        if at > end and isinstance(sent.piece, CallStart) and sent.piece.id not in own
    }
    for start in index.starts:
        call_id = start.entry.call_id
        run = index.run_of(start.exchange) if start.exchange is not None else None
        same_run = run is not None and run is index.run_of(exchange)
        if call_id in late and same_run and start.at > exchange.at:
            yield Broke(
                f"call {call_id!r} came after the terminator of {reply_words(exchange)} and was to "
                f"change nothing, but {start_words(start)} started",
                *evidence(end, late[call_id or ""], start.at),
            )


def _late_text(index: TraceIndex, exchange: Exchange) -> Iterator[Broke]:
    end = terminator_at(exchange) or 0
    run = index.run_of(exchange)
    pieces = [
        (at, sent.piece.text)
        for at, sent in exchange.sent
        if at > end and isinstance(sent.piece, TextDelta | ReasoningDelta) and sent.piece.text.strip()
    ]
    text = "".join(part for _, part in pieces)
    if not text or text in text_of(exchange) or run is None:
        return
    places = [(item.at, item.request.messages) for item in index.later_requests(exchange.at)]
    places += [(at, history.messages) for at, history in index.histories if at > exchange.at]
    for at, messages in sorted(places, key=lambda place: place[0]):
        if any(text in _said(message) for message in messages):
            yield Broke(
                f"{text!r} came after the terminator of {reply_words(exchange)} and was to change "
                f"nothing, but it was kept as the model's words",
                *evidence(pieces[0][0], at),
            )
            break
    if run.settled is not None and text in (run.settled.answer or ""):
        yield Broke(
            f"{text!r} came after the terminator of {reply_words(exchange)} and was to change "
            f"nothing, but the answer is {run.settled.answer!r}",
            *evidence(pieces[0][0], run.settled_at),
        )


def _said(message: Message) -> str:
    if not isinstance(message, AssistantMessage):
        return ""
    return message.text + message.reasoning


@rule(
    "stream.closed-on-every-exit",
    """The loop MUST close the stream of every reply that it opened, after completion, failure and
    cancellation.""",
    source="B, STR05",
)
def closed_on_every_exit(index: TraceIndex) -> Iterator[Finding]:
    """An open stream holds a connection, and the provider goes on working and charging for it."""
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        opened = exchange.opened_at is not None and exchange.request.streaming
        if run is None or run.settled is None or not opened:
            continue
        gone = [f for _, f in exchange.faults if f.fault != FaultKind.STALL]
        if exchange.closed_by == "target":
            yield Held(*evidence(end_of(exchange), exchange.closed_at))
        elif exchange.closed_by == "bench" and not gone:
            yield Broke(
                f"the stream of request {exchange.number} was to be closed by the loop, but it was "
                f"still open after {outcome_words(run)}",
                *evidence(exchange.at, run.settled_at, exchange.closed_at),
            )


# --------------------------------------------------------------------------------------------
# Calls that are not whole


@rule(
    "stream.unfinished-call-not-started",
    """Where the wire marks the end of a tool call, a call whose end did not come MUST NOT be
    started, whatever the reason of the reply.""",
    source="CMP24",
)
def unfinished_call_not_started(index: TraceIndex) -> Iterator[Finding]:
    """What was sent of its arguments may parse by accident.

    Only the end mark says that nothing is missing.
    """
    for exchange in index.exchanges:
        open_calls = [call for call in calls_of(exchange) if call.ended_at is None]
        if not open_calls:
            continue
        if "call_end" not in index.header.can_express:
            yield Hidden("this wire does not mark the end of a call")
            continue
        starts = _starts_of(index, exchange, open_calls)
        for start in starts:
            yield Broke(
                f"{_ids(open_calls)} in {reply_words(exchange)} never ended and was not to start, but "
                f"{start_words(start)} did",
                *evidence(open_calls[0].began_at, end_of(exchange), start.at),
            )
        if not starts:
            yield Held(*evidence(open_calls[0].began_at, end_of(exchange)))


def _starts_of(index: TraceIndex, exchange: Exchange, calls: Sequence[SentCall]) -> list[Start]:
    """The starts that serve one of these calls, also with altered arguments."""
    plain = [start for start in index.starts if any(start.call is call for call in calls)]
    return plain + altered_starts(index, exchange, list(calls))


def _ids(calls: Sequence[SentCall]) -> str:
    return "call " + ", ".join(repr(call.id) for call in calls)


@rule(
    "stream.cut-arguments-not-repaired",
    """A tool call whose arguments are not complete JSON MUST NOT start a tool with a repaired form
    of them.""",
    source="CMP21",
)
def cut_arguments_not_repaired(index: TraceIndex) -> Iterator[Finding]:
    """A repair invents what the model did not say: half a file is written, or the wrong one removed.

    No arguments at all are left out here, since an empty text is how some providers call a tool
    without parameters.
    """
    for exchange in index.exchanges:
        cut = [call for call in calls_of(exchange) if call.arguments.strip() and not call.whole]
        if not cut:
            continue
        repaired = [
            start
            for start in _starts_of(index, exchange, cut)
            if not any(start.entry.arguments == call.arguments for call in cut)
        ]
        sent = " or ".join(call.arguments for call in cut)
        for start in repaired:
            yield Broke(
                f"the arguments of {_ids(cut)} came as {sent}, which is not complete JSON, but "
                f"{start_words(start)} started",
                *evidence(cut[0].began_at, end_of(exchange), start.at),
            )
        if not repaired:
            yield Held(*evidence(cut[0].began_at, end_of(exchange)))


# --------------------------------------------------------------------------------------------
# Pieces


@rule(
    "stream.interleaved-calls",
    """Tool calls whose pieces interleave in the stream MUST be put together by their index, so that
    each starts with its own arguments.""",
    source="D",
)
def interleaved_calls(index: TraceIndex) -> Iterator[Finding]:
    """Parallel calls may be sent piece by piece in turn.

    Appending each piece to the latest call mixes their arguments.
    """
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        calls = calls_of(exchange)
        if run is None or not accepted(exchange) or not _interleave(exchange):
            continue
        if not ordinary_batch(index, exchange) or not all(sound(exchange, call) for call in calls):
            continue
        starts = starts_in(index, exchange)
        mixed = [start for start in starts if not _fits(start)]
        for start in mixed:
            yield Broke(
                f"the calls of {reply_words(exchange)} interleave and were to start with their own "
                f"arguments, but {start_words(start)} started",
                *evidence(calls[0].began_at, end_of(exchange), start.at),
            )
        absent = [call for call in calls if index.start_of(call) is None]
        if mixed or (absent and not _must_have_run(index, run, exchange)):
            continue
        if absent:
            yield Broke(
                f"the calls of {reply_words(exchange)} interleave and were each to start, but "
                f"{_ids(absent)} did not",
                *evidence(*(call.began_at for call in absent), end_of(exchange), run.end),
            )
        else:
            yield Held(*evidence(calls[0].began_at, end_of(exchange), *(s.at for s in starts)))


def _must_have_run(index: TraceIndex, run: Run, exchange: Exchange) -> bool:
    """Nothing ended the batch early, so each of its calls had to start."""
    if run.end is None or excused(index, run) or batch_may_end_run(index, exchange):
        return False
    stuck = run.settled is None and (waits_for_tool(index, exchange) or body_left_open(exchange))
    return not stuck


def _interleave(exchange: Exchange) -> bool:
    order: list[int] = []
    for _, sent in exchange.sent:
        piece = sent.piece
        if isinstance(piece, CallStart | ArgumentsDelta | CallEnd) and order[-1:] != [piece.index]:
            order.append(piece.index)
    content: list[int] = []
    for _, sent in exchange.sent:
        piece = sent.piece
        if isinstance(piece, ArgumentsDelta) and piece.text and content[-1:] != [piece.index]:
            content.append(piece.index)
    return len(order) > len(set(order)) and len(content) > len(set(content))


def _fits(start: Start) -> bool:
    """The start has the arguments of the call that it serves, as a JSON value."""
    return start.call is not None and _value(start.entry.arguments) == _value(start.call.arguments)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@rule(
    "stream.chunking-invariant",
    """Wherever the same reply is cut into pieces, the loop MUST make the same message, the same
    tool calls and the same outcome of it.""",
    source="D",
    relation=True,
)
def chunking_invariant(family: Sequence[TraceIndex]) -> Iterator[Finding]:
    """Where a reply is cut depends on the network and the tokenizer, and means nothing."""
    members = members_of(family, "stream.chunking-invariant")
    if len(members) < 2:
        return
    if not all(index.header.streaming for index in members):
        yield Hidden("this variant does not stream, so a reply is never cut")
        return
    first, *others = members
    expected = _made_of(first)
    broken = False
    for other in others:
        made = _made_of(other)
        for what, wanted in expected.items():
            if made[what] != wanted:
                broken = True
                yield Broke(
                    f"{what} differ with the cutting: {wanted!r} for {_member(first)}, but "
                    f"{made[what]!r} for {_member(other)}",
                    *_made_at(other, what),
                    member=other.header.member,
                )
    if not broken:
        yield Held()


def _member(index: TraceIndex) -> str:
    return f"member {index.header.member!r}"


def _made_of(index: TraceIndex) -> dict[str, Any]:
    """What the target made of the replies, without what differs from scenario to scenario."""
    return {
        "outcomes": [
            (run.settled.outcome, run.settled.reason) if run.settled else (outcome_words(run), None)
            for run in index.runs
        ],
        "answers": [run.settled.answer if run.settled else None for run in index.runs],
        "tool starts": sorted(
            (start.entry.call_id or "", start.entry.tool, _canonical(start.entry.arguments))
            for start in index.starts
        ),
        "requests": [_replayed(exchange.request.messages) for exchange in index.exchanges],
    }


def _made_at(index: TraceIndex, what: str) -> tuple[int, ...]:
    if what == "requests":
        return evidence(*(exchange.at for exchange in index.exchanges))
    if what == "tool starts":
        return evidence(*(start.at for start in index.starts))
    return evidence(*(run.end for run in index.runs))


def _canonical(text: str) -> str:
    return json.dumps(_value(text), sort_keys=True)


def _replayed(messages: Sequence[Message]) -> list[Any]:
    """The model's messages and the results of a request; prompts differ between scenarios."""
    out: list[Any] = []
    results: list[tuple[str, str]] = []
    for message in messages:
        if isinstance(message, ToolResult):
            results.append((message.call_id, message.text))
        elif isinstance(message, AssistantMessage):
            calls = [(call.id, call.name, _canonical(call.arguments)) for call in message.calls]
            out.append((message.text, message.reasoning, calls))
    return [out, sorted(results)]
