"""Cancellation: what must end, what must not begin, and who must hear of it.

A cancellation is the only word that a caller has once a run goes wrong, so the chapter is about
whether that word counts: the run settles and says why, nothing more begins, those who work for it
hear of it, and nobody else does. Which cancellations are judged, and from when, is said in
``cuts.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.cuts import (
    RACES,
    Cut,
    breaks,
    call_names,
    cuts,
    decided,
    exact,
    outlives,
    quote,
    racing,
    running_tools,
    starts_of,
    unknown_starts,
)
from loopspec.rules.replies import sound
from loopspec.rules.sameness import difference, outcome
from loopspec.rules.turns import next_request, overlapping, treated_otherwise
from loopspec.trace_index import Cancel, Exchange, SentCall, Start, TraceIndex
from loopspec.vocabulary import (
    AssistantMessage,
    FailureReason,
    Level,
    Message,
    ToolResult,
)

# --------------------------------------------------------------------------------------------
# The run settles


@rule(
    "cancellation.settles-deaf-provider",
    "A run that is cancelled while it waits for the provider, be it for the reply to open, for its"
    " next piece or for its end, MUST settle although the provider never yields again.",
    source="B, STR04",
)
def settles_deaf_provider(index: TraceIndex) -> Iterator[Finding]:
    """A provider that fell silent is the commonest reason to cancel. A cancellation that needs
    the provider's help leaves the user with a run that nothing but a restart can end."""
    for cut in cuts(index):
        reply, run = cut.reply, cut.run
        if reply is None or any(item.settled is None for item in running_tools(index, cut)):
            continue
        if racing(index):
            yield RACES
        elif run.hung_at is not None or run.lost_at is not None:
            end = run.end or 0
            how = "the target was lost" if run.lost_at is not None else "it never settled"
            yield Broke(
                f"run {run.number} was cancelled while the reply to request {reply.number} was"
                f" open; it had to settle without the provider, but {how}",
                cut.cancel.sent_at, end,
            )  # fmt: skip
        elif run.settled_at is not None and not _ended_by_provider(reply, cut, run.settled_at):
            yield Held(cut.cancel.sent_at, run.settled_at)


def _ended_by_provider(reply: Exchange, cut: Cut, settled_at: int) -> bool:
    """Whether the reply came to its end between the cancellation and the settlement, so that the
    settlement does not show who was waited for."""
    ends = [reply.reason_at, reply.terminator_at, *(at for at, _ in reply.faults[:1])]
    stalled = reply.fault is not None and reply.fault.fault == "stall"
    return not stalled and any(
        at is not None and cut.cancel.sent_at < at < settled_at for at in ends
    )


@rule(
    "cancellation.tool",
    "A run that is cancelled while a tool runs MUST settle only after that tool has ended where"
    " the target claims to wait for it, and MUST settle although that tool never ends where it"
    " claims to race it.",
    source="B",
    claim="cancelled_tool",
)
def tool(index: TraceIndex) -> Iterator[Finding]:
    """Nothing can force local code to stop. A caller has to know which of the two honest answers
    it gets: a settlement that means that nothing runs any more, or one that comes in any case."""
    for cut in cuts(index):
        running, run = running_tools(index, cut), cut.run
        if not running or run.lost_at is not None:
            continue
        if racing(index):
            yield RACES
            continue
        names, sent_at = _call_names(running), cut.cancel.sent_at
        open_tools = [item for item in running if item.settled_at is None]
        if index.claim("cancelled_tool") == "races":
            if run.hung_at is not None:
                yield Broke(
                    f"run {run.number} was cancelled while {names} ran; it claims to race a tool,"
                    " but it never settled",
                    sent_at, run.hung_at,
                )  # fmt: skip
            elif run.settled_at is not None and any(_outlives(t, run.settled_at) for t in running):
                yield Held(sent_at, run.settled_at)
        elif run.settled_at is not None:
            early = [item for item in running if _outlives(item, run.settled_at)]
            if early:
                yield Broke(
                    f"run {run.number} claims to wait for a started tool, but it settled while"
                    f" {_call_names(early)} still ran",
                    sent_at, *(item.at for item in early), run.settled_at,
                )  # fmt: skip
            else:
                yield Held(sent_at, run.settled_at)
        elif run.hung_at is not None and open_tools:
            yield Held(sent_at, run.hung_at)
        elif run.hung_at is not None:
            yield Broke(
                f"run {run.number} was cancelled while {names} ran; every tool ended, but the run"
                " never settled",
                sent_at, run.hung_at,
            )  # fmt: skip


def _outlives(start: Start, at: int) -> bool:
    return start.settled_at is None or start.settled_at > at


@rule(
    "cancellation.reported-as-cancelled",
    "A cancelled run MUST be told as cancelled, and not as an error, a limit or a success, where"
    " the target's documentation names a way to tell.",
    source="B, CAN13, CAN14, EVT16",
)
def reported_as_cancelled(index: TraceIndex) -> Iterator[Finding]:
    """A caller retries an error, continues after a success and does neither after its own
    cancellation. It can only choose if it can tell them apart by something other than a text."""
    for cut in cuts(index):
        run = cut.run
        if run.settled is None or run.settled_at is None or _otherwise_ended(index, cut):
            continue
        if racing(index):
            yield RACES
        elif not index.observes("cancel_told"):
            yield Hidden("the target's documentation names no way to tell a cancellation")
        elif run.settled.reason == FailureReason.CANCELLED:
            yield Held(cut.cancel.sent_at, run.settled_at)
        else:
            told = run.settled.outcome + (f" ({run.settled.reason})" if run.settled.reason else "")
            yield Broke(
                f"run {run.number} was cancelled at {cut.cancel.at!r}; it had to be told as"
                f" cancelled, and was told as {told}",
                cut.cancel.sent_at, run.settled_at,
            )  # fmt: skip


def _otherwise_ended(index: TraceIndex, cut: Cut) -> bool:
    """Whether the outcome may legally be another one than cancelled."""
    return decided(index, cut) or bool(cut.run.listener_raised_at)


# --------------------------------------------------------------------------------------------
# Nothing begins


@rule(
    "cancellation.no-request-after",
    "Once the cancel call has returned, the cancelled run MUST NOT begin another model request.",
    source="B, EVT10, CAN05",
)
def no_request_after(index: TraceIndex) -> Iterator[Finding]:
    """A request costs money and its reply can start tools. Whoever cancelled has said that
    neither is wanted, and has no second way to say it."""
    for cut in cuts(index):
        returned = cut.cancel.returned_at
        if returned is None:
            continue
        if racing(index):
            yield RACES
            continue
        late = [item for item in cut.run.exchanges if item.at > returned]
        for item in late:
            yield Broke(
                f"run {cut.run.number} was cancelled at {cut.cancel.at!r} and the cancel call had"
                f" returned; no request was to follow, but request {item.number} did",
                returned, item.at,
            )  # fmt: skip
        if not late and cut.run.end is not None:
            yield Held(returned, cut.run.end)


@rule(
    "cancellation.no-tool-after",
    "Once the cancel call has returned, no tool of the cancelled run MUST start: a loop MUST look"
    " at the cancellation before each tool execution.",
    source="B, CAN01, CAN04",
)
def no_tool_after(index: TraceIndex) -> Iterator[Finding]:
    """Tools have effects that nothing undoes. Between a cancellation and the end of the run, each
    further start is an effect that the user had just forbidden."""
    for cut in cuts(index):
        returned, run = cut.cancel.returned_at, cut.run
        if returned is None or not any(item.calls for item in run.exchanges):
            continue
        if racing(index):
            yield RACES
            continue
        following = index.next_run(run)
        end = following.at if following is not None else len(index.trace)
        nameless = [item for item in index.starts if item.exchange is None and item.at < end]
        late = [item for item in [*starts_of(index, run), *nameless] if item.at > returned]
        for item in late:
            yield Broke(
                f"run {run.number} was cancelled at {cut.cancel.at!r} and the cancel call had"
                f" returned; no tool was to start, but {item.entry.tool} was entered for"
                f" {item.entry.call_id or 'no known call'}",
                returned, item.at,
            )  # fmt: skip
        if not late and run.end is not None:
            yield Held(returned, run.end)


@rule(
    "cancellation.outranks-tool-failure",
    "A tool that fails after the cancellation MUST NOT let the model go on: the cancellation MUST"
    " outrank the failure.",
    source="B",
)
def outranks_tool_failure(index: TraceIndex) -> Iterator[Finding]:
    """A tool failure normally goes back to the model as a result. A cancelled tool fails very
    often, just because it was cancelled, and that must not revive the run."""
    for cut in cuts(index):
        returned = cut.cancel.returned_at
        failed = [item for item in running_tools(index, cut) if _failed(item)]
        if returned is None or not failed:
            continue
        if racing(index):
            yield RACES
            continue
        start = failed[0]
        ended = start.settled_at or start.at
        late = [item for item in cut.run.exchanges if item.at > max(ended, returned)]
        if late:
            yield Broke(
                f"{_call_names([start])} failed after run {cut.run.number} was cancelled; the"
                f" model was not to go on, but request {late[0].number} followed",
                returned, ended, late[0].at,
            )  # fmt: skip
        elif cut.run.end is not None:
            yield Held(returned, ended, cut.run.end)


def _failed(start: Start) -> bool:
    return start.settled is not None and start.settled.how in ("raised", "cancelled")


@rule(
    "cancellation.before-first-request",
    "A run that is cancelled before its first request MUST settle without requesting anything.",
    source="B",
)
def before_first_request(index: TraceIndex) -> Iterator[Finding]:
    """The signal is looked at before each model request, and the first is one of them. A loop
    that looks only between turns asks once for nothing."""
    for cut in cuts(index):
        returned, run = cut.cancel.returned_at, cut.run
        if cut.last is not None or returned is None or run.lost_at is not None:
            continue
        asked = [item for item in run.exchanges if item.at > returned]
        if len(asked) < len(run.exchanges):
            continue  # the request was on its way before the cancel call had returned
        if racing(index):
            yield RACES
        elif asked:
            yield Broke(
                f"run {run.number} was cancelled before its first request; nothing was to be"
                f" requested, but request {asked[0].number} came",
                returned, asked[0].at,
            )  # fmt: skip
        elif run.hung_at is not None:
            yield Broke(
                f"run {run.number} was cancelled before its first request and never settled",
                returned, run.hung_at,
            )  # fmt: skip
        elif run.settled_at is not None:
            yield Held(returned, run.settled_at)


@rule(
    "cancellation.unstarted-call",
    "A call of an accepted reply that had not started when the run was cancelled MUST never run,"
    " and MUST get an error result under its own id, with a code of its own where the target"
    " claims result codes.",
    source="A, B",
)
def unstarted_call(index: TraceIndex) -> Iterator[Finding]:
    """The provider's API refuses a history in which a call has no answer, so a call that never
    ran still needs one. It must say that nothing was done: the model cannot tell otherwise."""
    for cut in cuts(index):
        last, returned = cut.last, cut.cancel.returned_at
        if last is None or returned is None or not last.accepted or cut.run.listener_raised_at:
            continue
        calls = _waiting(index, last, cut)
        if not calls:
            continue
        if racing(index):
            yield RACES
        elif any(item.exchange is None and item.at > last.at for item in index.starts):
            yield Hidden("a tool was entered that cannot be matched to a call")
        else:
            for call in calls:
                yield from _unstarted(index, cut, last, call)


def _waiting(index: TraceIndex, exchange: Exchange, cut: Cut) -> list[SentCall]:
    """The calls that had not started when the cancel call returned; repeated ids are left out."""
    ids = [call.id for call in exchange.calls]
    returned = cut.cancel.returned_at or 0
    found = []
    for call in exchange.calls:
        start = index.start_of(call)
        if call.id and ids.count(call.id) == 1 and (start is None or start.at > returned):
            found.append(call)
    return found


def _unstarted(index: TraceIndex, cut: Cut, exchange: Exchange, call: SentCall) -> Iterator[Finding]:
    start, returned = index.start_of(call), cut.cancel.returned_at or 0
    if start is not None:
        yield Broke(
            f"call {call.id} had not started when run {cut.run.number} was cancelled; it was never"
            " to run, but its tool was entered",
            returned, start.at,
        )  # fmt: skip
        return
    history = index.history_after(cut.run) if index.observes("history") else None
    request = next_request(index, cut.run)
    places: list[tuple[str, int, Sequence[Message]]] = []
    if history is not None:
        places.append(("history", history[0], history[1].messages))
    if request is not None:
        places.append((f"request {request.number}", request.at, request.request.messages))
    if not places:
        yield Hidden("neither history nor a later request shows what the call got")
        return
    for where, at, messages in places:
        result = _result(messages, call.id)
        wrong = _wrong_result(index, where, messages, exchange, call, result)
        if wrong:
            yield Broke(
                f"call {call.id} had not started when run {cut.run.number} was cancelled; {where}"
                f" had to hold an error result for it, and {wrong}",
                returned, at,
            )  # fmt: skip
            return
    yield Held(call.began_at, returned, places[-1][1])


def _result(messages: Sequence[Message], call_id: str) -> ToolResult | None:
    """The result that follows the last message with this call."""
    found: ToolResult | None = None
    for message in reversed(messages):
        if isinstance(message, ToolResult) and message.call_id == call_id:
            found = message
        if isinstance(message, AssistantMessage) and any(c.id == call_id for c in message.calls):
            return found
    return None


def _wrong_result(
    index: TraceIndex, where: str, messages: Sequence[Message], exchange: Exchange, call: SentCall,
    result: ToolResult | None,
) -> str | None:  # fmt: skip
    """What is wrong with the result of a call that never started, or None."""
    if result is None:
        return "there is none"
    if result.is_error is False and index.observes("error_marks"):
        return f"the result {quote(result.text)} is not marked as an error"
    started = [item for item in exchange.calls if index.start_of(item) is not None]
    passed_over = any(item.index > call.index for item in started)
    if where != "history" or index.claim("result_codes") is None or passed_over:
        return None  # a call that the batch had passed over was answered before the cancellation
    others = [_result(messages, item.id) for item in started]
    if result.code is None:
        return "it has no code, although result codes are claimed"
    if any(item is not None and item.code == result.code for item in others):
        return f"its code {result.code!r} is also that of a call that had started"
    return None


# --------------------------------------------------------------------------------------------
# The signal


@rule(
    "cancellation.reaches-provider",
    "A cancellation while a reply is on its way MUST reach the provider: its stream sees the"
    " signal, or its connection is closed.",
    source="B",
)
def reaches_provider(index: TraceIndex) -> Iterator[Finding]:
    """A stream that nobody reads goes on: it costs tokens, holds a connection, and in the end
    may block the process that forgot it."""
    for cut in cuts(index):
        reply = cut.reply
        if reply is None or cut.cancel.returned_at is None or cut.run.lost_at is not None:
            continue
        if racing(index):
            yield RACES
            continue
        ends = [at for at in (reply.terminator_at, *(at for at, _ in _breaks(reply))) if at]
        ended = min(ends, default=None)
        if reply.signalled_at is not None:
            yield Held(cut.cancel.sent_at, reply.signalled_at)
        elif reply.closed_at is not None and reply.closed_by == "target":
            if ended is None or reply.closed_at < ended:
                yield Held(cut.cancel.sent_at, reply.closed_at)
            else:
                yield from _unheard(index, cut, reply, ended)
        elif cut.run.end is not None:
            yield from _unheard(index, cut, reply, ended)


def _breaks(reply: Exchange) -> list[tuple[int, str]]:
    return [(at, item.fault) for at, item in reply.faults if item.fault != "stall"]


def _unheard(index: TraceIndex, cut: Cut, reply: Exchange, ended: int | None) -> Iterator[Finding]:
    """The provider saw nothing of the cancellation before its reply was over, if it ever was."""
    if ended is not None and (index.header.grade != Grade.EXACT or ended in dict(_breaks(reply))):
        yield Hidden("the reply was over before a closing of its connection could have been seen")
        return
    came = "it was sent to its end" if ended is not None else "it stayed open"
    yield Broke(
        f"run {cut.run.number} was cancelled while the reply to request {reply.number} was on its"
        f" way; the stream had to see the signal or be closed, but {came} and saw no signal",
        cut.cancel.sent_at, ended or cut.run.end or cut.cancel.sent_at,
    )  # fmt: skip


@rule(
    "cancellation.reaches-tools",
    "A tool that runs when the run is cancelled MUST see the signal.",
    source="B, CAN10",
    claim="tool_signal",
)
def reaches_tools(index: TraceIndex) -> Iterator[Finding]:
    """There is no forced interruption of local code: a tool can only stop itself, and it can do
    so only if it is told."""
    for cut in cuts(index):
        returned = cut.cancel.returned_at
        for start in running_tools(index, cut):
            if returned is None or cut.run.lost_at is not None:
                continue
            if racing(index):
                yield RACES
            elif not index.observes("tool_signal"):
                yield Hidden("tools of this variant are not shown the signal")
            elif start.signalled_at is not None:
                yield Held(cut.cancel.sent_at, start.signalled_at)
            elif start.settled is not None and start.settled.how == "cancelled":
                yield Held(cut.cancel.sent_at, start.settled_at or start.at)
            elif start.settled_at is None or (
                index.header.grade == Grade.EXACT and start.settled_at > returned
            ):
                yield Broke(
                    f"{_call_names([start])} ran when run {cut.run.number} was cancelled; its tool"
                    " had to see the signal, but saw none",
                    start.at, cut.cancel.sent_at,
                )  # fmt: skip


@rule(
    "cancellation.returns-at-once",
    "The cancel call SHOULD return at once, and SHOULD NOT wait for the run to settle.",
    source="B",
    level=Level.ADVISORY,
)
def returns_at_once(index: TraceIndex) -> Iterator[Finding]:
    """Cancel is called from places that cannot wait: signal handlers, tools and listeners of the
    run itself. A call that waits there waits for itself."""
    for cut in cuts(index):
        cancel, run = cut.cancel, cut.run
        if run.end is None or run.lost_at is not None:
            continue
        if racing(index):
            yield RACES
        elif cancel.returned_at is None:
            yield Broke(
                f"cancel {cancel.number} at {cancel.at!r} should return at once, but never did",
                cancel.sent_at, run.end,
            )  # fmt: skip
        elif cancel.returned_at < run.end:
            yield Held(cancel.sent_at, cancel.returned_at)
        elif _waited_for(index, cut, run.end):
            yield Broke(
                f"cancel {cancel.number} at {cancel.at!r} should return at once, but it returned"
                f" only after run {run.number} had settled",
                cancel.sent_at, run.end, cancel.returned_at,
            )  # fmt: skip


def _waited_for(index: TraceIndex, cut: Cut, end: int) -> bool:
    """Whether the environment had to move between the cancellation and the end of the run."""
    sent_at = cut.cancel.sent_at
    tools = [item.settled_at for item in running_tools(index, cut)]
    pieces = [at for at, _ in cut.last.sent] if cut.last is not None else []
    return any(at is not None and sent_at < at < end for at in [*tools, *pieces])


@rule(
    "cancellation.fresh-signal",
    "A cancellation MUST NOT leak into a later run: each run MUST start with a fresh signal.",
    source="B",
)
def fresh_signal(index: TraceIndex) -> Iterator[Finding]:
    """Each prompt has a controller of its own. A signal that stays set kills every later prompt;
    a flag that is reset too late kills the next one only, which is harder to find."""
    for run in index.runs:
        earlier = [item for item in index.cancels if item.sent_at < run.at]
        apart = any(item.end is None or item.end > run.at for item in index.runs if item.at < run.at)
        if not earlier or run.cancels or run.prompted.running or apart or run.refused:
            continue
        if racing(index):
            yield RACES
            continue
        seen = [item.signalled_at for item in run.exchanges if item.signalled_at is not None]
        seen += [t.signalled_at for t in starts_of(index, run) if t.signalled_at is not None]
        told = run.settled is not None and run.settled.reason == FailureReason.CANCELLED
        at = earlier[-1].sent_at
        if seen or told:
            what = "saw a signal" if seen else "was told as cancelled"
            yield Broke(
                f"run {run.number} was never cancelled, but {what}; the last cancellation"
                f" ({earlier[-1].at!r}) came before its prompt",
                at, *(seen[:1] or [run.settled_at or run.at]),
            )  # fmt: skip
        elif run.exchanges and run.settled_at is not None:
            yield Held(at, run.exchanges[0].at, run.settled_at)


@rule(
    "cancellation.busy-until-settled",
    "A prompt that is given between a cancellation and the settlement of its run MUST be treated"
    " as any prompt while running: refused, queued or run apart, as claimed.",
    source="B",
    claim="concurrent_prompt",
)
def busy_until_settled(index: TraceIndex) -> Iterator[Finding]:
    """The running state is cleared when the run has settled, not when it was asked to stop. A
    loop that is idle too early lets a new run meet what the old one still has to write."""
    for cut in cuts(index):
        run, returned = cut.run, cut.cancel.returned_at
        second = next(
            (item for item in index.runs if item.prompted.running and item.at > (returned or 0)), None
        )
        if returned is None or second is None or run.settled_at is None or second.at > run.settled_at:
            continue
        if racing(index):
            yield RACES
            continue
        wrong = treated_otherwise(index, run, second)
        if wrong:
            yield Broke(
                f"prompt {second.number} was given after run {run.number} was cancelled and before"
                f" it settled; {wrong[0]}",
                returned, second.at, wrong[1],
            )  # fmt: skip
        else:
            yield Held(returned, second.at, run.settled_at)


def treated_otherwise(index: TraceIndex, first: Run, second: Run) -> tuple[str, int] | None:
    """How a second prompt, given while ``first`` ran, was not treated as claimed.

    Returns the words and the position that shows it, or ``None`` if it was. A failure without a
    request before the first run ended is a refusal whose meaning the manifest does not map.
    """
    claim = index.claim("concurrent_prompt")
    ended = first.end if first.end is not None else len(index.trace)
    asked = second.exchanges[0] if second.exchanges else None
    settled = second.settled_at
    mapped_or_not = second.refused or (
        second.settled is not None and second.settled.outcome == "failed" and asked is None
    )
    if claim == "refused":
        if asked is not None:
            return f"it was to be refused, but request {asked.number} was made for it", asked.at
        if not mapped_or_not or settled is None:
            return "it was to be refused, but was not", second.end or second.at
        if settled > ended:
            return "it was to be refused at once, but was refused only after that run", settled
        return None
    if second.refused:
        return f"it was to be {'queued' if claim == 'queued' else 'run apart'}, but was refused", (
            settled or second.at
        )
    if asked is None:
        return "it was to be served, but no request was ever made for it", second.end or second.at
    if claim == "queued" and asked.at < ended:
        return f"it was to wait, but request {asked.number} was made for it at once", asked.at
    if second.hung_at is not None:
        return "it was taken up, but never settled", second.hung_at
    return None


# --------------------------------------------------------------------------------------------
# Relations: what a cancellation must not change


@rule(
    "cancellation.idle",
    "A cancellation while no run is under way MUST change nothing, now or in the next run.",
    source="B",
    relation=True,
)
def idle(family: Sequence[TraceIndex]) -> Iterator[Finding]:
    """A user who presses the key twice, or a moment too late, must not kill the next prompt. The
    same scenario with and without the idle cancellation has to come to the same."""
    plain = next((index for index in family if not index.cancels), None)
    for index in family:
        if plain is None or not index.cancels or any(run.cancels for run in index.runs):
            continue
        yield from _same(plain, index, index.cancels[-1], "a cancellation while idle")


@rule(
    "cancellation.twice",
    "A second cancellation of a run MUST change nothing: outcome, history and tools MUST be those"
    " of one cancellation.",
    source="B",
    relation=True,
)
def twice(family: Sequence[TraceIndex]) -> Iterator[Finding]:
    """Cancel buttons are pressed more than once. The second press meets a run that is winding
    down, which is where results are replaced twice and errors are thrown into cleanup code."""
    once = min((index for index in family if index.cancels), key=_cancels, default=None)
    for index in family:
        if once is None or _cancels(index) <= _cancels(once):
            continue
        yield from _same(once, index, index.cancels[-1], "a second cancellation")


def _cancels(index: TraceIndex) -> int:
    return len(index.cancels)


def _same(plain: TraceIndex, other: TraceIndex, cancel: Cancel, what: str) -> Iterator[Finding]:
    """Whether two traces of one family came to the same, apart from their prompts' texts."""
    if racing(other):
        yield RACES
        return
    member = other.header.member
    if len(plain.runs) != len(other.runs):
        yield Broke(
            f"{what} was to change nothing, but there are {len(other.runs)} runs instead of"
            f" {len(plain.runs)}",
            cancel.sent_at, member=member,
        )  # fmt: skip
        return
    for before, after in zip(plain.runs, other.runs, strict=True):
        difference = _difference(plain, before, other, after)
        if difference:
            yield Broke(
                f"{what} was to change nothing, but in run {after.number} {difference}",
                cancel.sent_at, after.end or after.at, member=member,
            )  # fmt: skip
            return
    yield Held(cancel.sent_at)


def _difference(plain: TraceIndex, before: Run, other: TraceIndex, after: Run) -> str | None:
    if _outcome(before) != _outcome(after):
        return f"the outcome is {_outcome(after)} instead of {_outcome(before)}"
    tools, others = _tools(plain, before), _tools(other, after)
    if tools != others:
        return f"the tools started are {others} instead of {tools}"
    asked, asks = before.exchanges, after.exchanges
    if len(asked) != len(asks):
        return f"{len(asks)} requests were made instead of {len(asked)}"
    for old, new in zip(asked, asks, strict=True):
        for was, now in zip(_said(plain, old), _said(other, new), strict=False):
            if was != now:
                return f"request {new.number} has {now} where {was} was expected"
        if len(_said(plain, old)) != len(_said(other, new)):
            return (
                f"request {new.number} has {len(_said(other, new))} messages instead of"
                f" {len(_said(plain, old))}"
            )
    ends, other_ends = _terminals(plain, before), _terminals(other, after)
    return None if ends == other_ends else f"{other_ends} ends were told instead of {ends}"


def _outcome(run: Run) -> str:
    if run.settled is not None:
        return run.settled.outcome + (f" ({run.settled.reason})" if run.settled.reason else "")
    return "a hang" if run.hung_at is not None else "no settlement"


def _tools(index: TraceIndex, run: Run) -> list[str]:
    return sorted(f"{t.entry.tool} {t.entry.arguments}" for t in starts_of(index, run))


def _terminals(index: TraceIndex, run: Run) -> int:
    return sum(event.type == EventType.RUN_END for _, event in index.run_events(run))


def _said(index: TraceIndex, exchange: Exchange) -> list[tuple[str, ...]]:
    """What a request says, without what differs from trace to trace: prompts become their
    numbers, figures in results become ``#``, and the results of one batch are sorted."""
    said: list[tuple[str, ...]] = []
    batch: list[tuple[str, ...]] = []
    for message in exchange.request.messages:
        if isinstance(message, ToolResult):
            batch.append(("result", message.call_id, re.sub(r"\d+(\.\d+)?", "#", message.text)))
            continue
        said += sorted(batch)
        batch = []
        if isinstance(message, UserMessage):
            prompts = [str(run.number) for run in index.runs if run.prompted.text in message.text]
            said.append(("user", *prompts))
        elif isinstance(message, AssistantMessage):
            calls = [f"{call.id} {call.name} {call.arguments}" for call in message.calls]
            said.append(("assistant", message.text, message.reasoning, *calls))
        elif not isinstance(message, SystemMessage):
            said.append(("other", message.text))
    return said + sorted(batch)
