"""Run: the loop's own state, before, during and after a run.

Whatever becomes of a run, the loop has to come back: idle, with a history that the next request
can be made from, and with nothing left over that still acts. The rules of this chapter look at
what comes after a run, and at two prompts that meet. A run is *untroubled* where nothing went
wrong that anybody but the loop is to blame for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.cuts import breaks, quote, starts_of, unknown_starts
from loopspec.rules.delivered import at_rest
from loopspec.rules.replies import limit_reached, overlapped, sound, start_words
from loopspec.rules.turns import (
    after_end,
    has_prompt,
    messages_of,
    next_request,
    overlapping,
    treated_otherwise,
    turned_away,
    unanswered,
)
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import (
    ACCEPTING_REASONS,
    AssistantMessage,
    EventType,
    FailureReason,
    Form,
    Message,
    Outcome,
    ToolResult,
)

_HARD = frozenset({"error", "disconnect", "malformed", "status"})
"""Faults that a loop meets as an exception of its stream."""


def untroubled(index: TraceIndex, run: Run) -> bool:
    """Whether nothing happened to this run that may keep it from completing."""
    if run.cancels or run.listener_raised_at or run.lost_at is not None:
        return False
    for exchange in run.exchanges:
        calls = [index.start_of(call) for call in exchange.calls]
        settled = [start.settled for start in calls if start is not None]
        odd = any(item is None or item.how != "returned" for item in settled)
        ids = [call.id for call in exchange.calls]
        if not exchange.accepted or odd or None in calls or len(set(ids)) < len(ids):
            return False
        if not exchange.calls and not exchange.text.strip():
            return False
        if not all(sound(exchange, call) for call in exchange.calls):
            return False
        if exchange.calls and limit_reached(index, run, exchange):
            return False
    return True


def _followers(index: TraceIndex) -> Iterator[tuple[Run, Run]]:
    """Each run that settled, with the next prompt, if all before that had settled by then."""
    for run in index.runs:
        following = index.next_run(run)
        if following is None or following.prompted.running or following.prompted.fork:
            continue
        earlier = [item for item in index.runs if item.at < following.at]
        if all(item.settled_at is not None and item.settled_at < following.at for item in earlier):
            yield run, following


def _still_busy(run: Run) -> str | None:
    """How a prompt was not accepted because something was still running, in words."""
    settled = run.settled
    if run.refused and settled is not None and settled.reason != FailureReason.INVALID:
        return f"was refused ({settled.message or settled.reason or 'no reason given'})"
    if run.hung_at is not None and not run.exchanges and not run.cancels:
        return "was never taken up"
    return None


# --------------------------------------------------------------------------------------------
# After a run


@rule(
    "run.released",
    "After every settlement the loop MUST be idle, and MUST accept the next prompt.",
    source="B, CMP23, STA05, STA07",
)
def released(index: TraceIndex) -> Iterator[Finding]:
    """A loop that stays busy after a run can only be thrown away, with its conversation."""
    for run, following in _followers(index):
        if run.refused:
            continue
        busy = _still_busy(following)
        if busy:
            yield Broke(
                f"run {run.number} had settled, so prompt {following.number} was to be accepted,"
                f" but it {busy}",
                run.settled_at or run.at,
                following.at,
                following.end or following.at,
            )
        elif following.exchanges or following.settled is not None:
            yield Held(run.settled_at or run.at, following.at)


@rule(
    "run.recovers",
    "The next prompt after a failed run MUST send a request that the provider's API accepts, and"
    " MUST complete.",
    source="B, CMP23",
)
def recovers(index: TraceIndex) -> Iterator[Finding]:
    """A failure may cost a run, and never the conversation."""
    for run, following in _followers(index):
        failed = run.settled is not None and run.settled.outcome == Outcome.FAILED
        if not failed or not (following.exchanges or untroubled(index, following)):
            continue
        settled = following.settled
        if settled is not None and settled.reason in (FailureReason.INVALID, FailureReason.LIMIT):
            continue
        first = following.exchanges[0] if following.exchanges else None
        where = (run.settled_at or run.at, following.at)
        if first is not None and first.request.findings:
            told = "; ".join(f"{item.code}: {item.text}" for item in first.request.findings)
            yield Broke(
                f"request {first.number}, the first after the failure of run {run.number}, was to"
                f" be acceptable to the API, but: {told}",
                *where,
                first.at,
            )
        elif not untroubled(index, following) or following.end is None:
            continue
        elif following.completed and first is not None:
            yield Held(*where, following.end)
        else:
            yield Broke(
                f"prompt {following.number} was to complete after the failure of run {run.number},"
                f" but {_came_to(following)}",
                *where,
                following.end,
            )


def _came_to(run: Run) -> str:
    asked = "" if run.exchanges else " without asking anything"
    if run.settled is None:
        return "it never settled" + asked
    reason = f" ({run.settled.message or run.settled.reason or 'no reason'})"
    return f"it {run.settled.outcome}{reason if run.settled.outcome != 'completed' else ''}{asked}"


@rule(
    "run.no-late-activity",
    "After a run has settled, nothing more MUST be asked, started, told or recorded for it.",
    source="D, EVT07",
)
def no_late_activity(index: TraceIndex) -> Iterator[Finding]:
    """A settlement means that the caller may look at what there is, and act on it.

    What still comes after it falls into the next run, where nobody expects it.
    """
    for run in index.runs:
        if run.settled_at is None or run.refused:
            continue
        late = _late(index, run)
        if late is not None:
            yield Broke(f"run {run.number} had settled, but {late[0]}", run.settled_at, late[1])
        elif run.exchanges:
            following = index.next_run(run)
            yield Held(run.settled_at, following.at if following is not None else len(index.trace) - 1)


def _late(index: TraceIndex, run: Run) -> tuple[str, int] | None:
    """The first thing that was done for a run after it had settled, in words."""
    settled_at = run.settled_at or 0
    for exchange in run.exchanges:
        if exchange.at > settled_at:
            return f"request {exchange.number} was made for it afterwards", exchange.at
    others = [other for other in index.runs if other is not run and after_end(other, index) > settled_at]
    alone = not any(other.at < settled_at for other in others)
    starts = [*starts_of(index, run), *(unknown_starts(index, run) if alone else [])]
    for start in starts:
        if start.at > settled_at:
            return f"{start_words(start)} was entered afterwards", start.at
    if not alone:
        return None
    ends = {EventType.RUN_END} if run.settled and run.settled.form == Form.TOLD else set()
    for at, event in index.run_events(run):
        if at > settled_at and event.type not in ends:
            return f"{event.type} was told afterwards", at
    return _recorded_late(index, run)


def _recorded_late(index: TraceIndex, run: Run) -> tuple[str, int] | None:
    """Whether a later reading of history has more of this run than the one after it.

    A result for a call that had none is no news of the run: that is how history is put in order
    when the next request is made.
    """
    first = at_rest(index, run)
    if first is None:
        return None
    before = messages_of(index, first[1].messages, run)
    repaired = unanswered(before)
    for at, read in index.histories:
        mine = messages_of(index, read.messages, run) if at > first[0] else ()
        if _count(mine, repaired) > _count(before, repaired):
            return "a message of it was recorded afterwards", at
    return None


def _count(messages: Sequence[Message], repaired: Collection[str]) -> int:
    """The run's own messages, without results for calls that had been left without one."""
    return sum(
        isinstance(message, AssistantMessage)
        or (isinstance(message, ToolResult) and message.call_id not in repaired)
        for message in messages
    )


@rule(
    "run.unexpected-stream-exception",
    "A run whose stream fails in a way that nobody foresaw MUST fail, and MUST be released.",
    source="B",
)
def unexpected_stream_exception(index: TraceIndex) -> Iterator[Finding]:
    """An exception in the middle of a reply is no end of a reply.

    Neither is it a reason to stay busy, or to wait for something that cannot come any more.
    """
    for run in index.runs:
        last = run.last
        if last is None or run.cancels or run.listener_raised_at or run.lost_at is not None:
            continue
        places = [(at, fault) for at, fault in breaks(last) if fault in _HARD]
        if not places or last.reason_at is not None or run.end is None:
            continue
        at, fault = places[0]
        following = index.next_run(run)
        busy = following is not None and (run, following) in list(_followers(index))
        words = _still_busy(following) if busy and following is not None else None
        if run.settled is None or run.completed:
            yield Broke(
                f"the stream of request {last.number} broke ({fault}); run {run.number} was to fail,"
                f" but {'it completed' if run.completed else 'it never settled'}",
                at,
                run.end,
            )
        elif words and following is not None:
            yield Broke(
                f"the stream of request {last.number} broke ({fault}); run {run.number} was to be"
                f" released, but prompt {following.number} {words}",
                at,
                run.end,
                following.at,
            )
        else:
            yield Held(at, run.end)


# --------------------------------------------------------------------------------------------
# Two prompts at once


@rule(
    "run.busy",
    "A prompt that is given while another runs MUST be refused at once and leave no trace, or wait"
    " for its turn, or run apart, as the target claims.",
    source="B",
    claim="concurrent_prompt",
)
def busy(index: TraceIndex) -> Iterator[Finding]:
    """A caller that gives two prompts at once, on purpose or not, has to know what it gets."""
    for first, second in overlapping(index):
        cancelled = any(cancel.sent_at < second.at for cancel in first.cancels)
        stuck = first.settled is None and index.claim("concurrent_prompt") == "queued"
        if cancelled or stuck or first.lost_at is not None or second.end is None:
            continue
        wrong = treated_otherwise(index, first, second)
        if wrong is None and index.claim("concurrent_prompt") == "refused":
            wrong = _trace_of(index, second)
        if wrong is not None:
            yield Broke(
                f"prompt {second.number} was given while run {first.number} ran; {wrong[0]}",
                second.at,
                wrong[1],
            )
        else:
            yield Held(second.at, second.end)


def _trace_of(index: TraceIndex, run: Run) -> tuple[str, int] | None:
    """Where a refused prompt shows up all the same, in words."""
    for exchange in index.exchanges:
        if exchange.at > run.at and has_prompt(exchange.request.messages, run):
            return f"it was refused, but stands in request {exchange.number}", exchange.at
    for at, read in index.histories:
        if at > run.at and has_prompt(read.messages, run):
            return "it was refused, but stands in history", at
    return None


@rule(
    "run.concurrent-prompts-do-not-corrupt",
    "Two prompts at once MUST NOT lose a message, separate a call from its result, or end each other.",
    source="STA05",
)
def concurrent_prompts_do_not_corrupt(index: TraceIndex) -> Iterator[Finding]:
    """Which of them runs, and when, is the target's choice.

    That both see a whole history is not: a history with a lost or torn message is of no use to
    either.
    """
    for first, second in overlapping(index):
        if first.lost_at is not None or second.lost_at is not None:
            continue
        wrong = _ended(index, first) or _ended(index, second)
        wrong = wrong or _torn(index, second) or _lost_message(index, first, second)
        if wrong is not None:
            yield Broke(
                f"prompt {second.number} was given while run {first.number} ran; {wrong[0]}",
                second.at,
                wrong[1],
            )
        elif first.end is not None and second.end is not None:
            yield Held(second.at, first.end, second.end)


def _ended(index: TraceIndex, run: Run) -> tuple[str, int] | None:
    """How a run that nothing else had disturbed was ended before its time."""
    if turned_away(run) or not run.exchanges or run.end is None or run.cancels:
        return None
    last = run.exchanges[-1]
    if last.ended_at is not None and last.ended_at > run.end:
        return f"run {run.number} settled while its request {last.number} was open", run.end
    if untroubled(index, run) and not run.completed:
        return f"run {run.number} was to complete, but {_came_to(run)}", run.end
    return None


def _torn(index: TraceIndex, second: Run) -> tuple[str, int] | None:
    """A later request in which something stands between a call and its result."""
    for exchange in index.exchanges:
        messages = exchange.request.messages
        if exchange.at < second.at:
            continue
        results = {item.call_id for item in messages if isinstance(item, ToolResult)}
        torn = [call_id for call_id in unanswered(messages) if call_id in results]
        if torn:
            return (
                f"request {exchange.number} has something between call {torn[0]} and its result",
                exchange.at,
            )
    return None


def _lost_message(index: TraceIndex, first: Run, second: Run) -> tuple[str, int] | None:
    """A prompt or an answer that the next request after both runs lacks."""
    over = max(after_end(first, index), after_end(second, index))
    request = next((item for item in index.later_requests(over) if item.request.prompt), None)
    apart = index.claim("concurrent_prompt") == "apart"
    if request is None or _forked(index, request):
        return None
    messages = request.request.messages
    for run in (first,) if apart else (first, second):
        if turned_away(run) or not run.exchanges or run.cancels or not run.completed:
            continue  # what a failed run leaves in history is another chapter's question
        if not has_prompt(messages, run):
            return f"request {request.number} has lost prompt {run.number}", request.at
        answer = run.exchanges[-1]
        texts = [item.text for item in messages if isinstance(item, AssistantMessage)]
        whole = untroubled(index, run) and run.completed and not answer.calls
        if whole and not any(answer.text in text for text in texts):
            return (
                f"request {request.number} has lost the answer {quote(answer.text)} of run {run.number}",
                request.at,
            )
    return None


def _forked(index: TraceIndex, request: Exchange) -> bool:
    run = index.run_of(request)
    return run is not None and run.prompted.fork


# --------------------------------------------------------------------------------------------
# Listeners


@rule(
    "run.listener-failure",
    "An exception in a listener MUST fail the run, or MUST be ignored, as the target claims.",
    source="B, LIS02",
    claim="listener_failure",
)
def listener_failure(index: TraceIndex) -> Iterator[Finding]:
    """Listeners draw and log, or they guard; a target knows which.

    It has to say what their failure means, because only one of the two lets a listener stop a run.
    """
    fails = index.claim("listener_failure") == "fails"
    for run in index.runs:
        raised = run.listener_raised_at
        if not raised or run.cancels or run.settled is None or run.settled_at is None:
            continue
        if overlapped(index, run):
            continue  # whose event it was is not known
        if any(_over_before(exchange, raised[0]) for exchange in run.exchanges):
            continue  # the run was failing anyway
        if fails and run.completed and not _at_the_end(index, run, raised[0]):
            yield Broke(
                f"a listener raised in run {run.number}, which was to fail, but it completed",
                raised[0],
                run.settled_at,
            )
        elif not fails and _failed_by_listener(index, run):
            yield Broke(
                f"a listener raised in run {run.number}, which was to ignore it, but {_came_to(run)}",
                raised[0],
                run.settled_at,
            )
        elif run.completed != fails:
            yield Held(raised[0], run.settled_at)


def _over_before(exchange: Exchange, at: int) -> bool:
    return exchange.failed and any(
        place < at for place in (exchange.reason_at, *(p for p, _ in breaks(exchange))) if place
    )


def _at_the_end(index: TraceIndex, run: Run, raised_at: int) -> bool:
    """Whether the listener raised on the end of the last turn or of the run.

    The run has its answer by then, and what a failure may still change is open.
    """
    told = [event for at, event in index.run_events(run) if at < raised_at]
    asked = [exchange for exchange in run.exchanges if exchange.at < raised_at]
    # Without a terminator a reply whose reason came may be whole as well.
    answered = bool(asked) and asked[-1].reason in ACCEPTING_REASONS and not asked[-1].calls
    ends = (EventType.RUN_END, EventType.TURN_END) if answered else (EventType.RUN_END,)
    return bool(told) and told[-1].type in ends


def _failed_by_listener(index: TraceIndex, run: Run) -> bool:
    if run.settled is None or run.settled.outcome != Outcome.FAILED:
        return False
    quiet = all(item.accepted or not (item.sent or item.failed) for item in run.exchanges)
    last = run.last
    if last is not None and last.accepted and not last.calls and not last.text.strip():
        quiet = False  # an empty reply may have failed it
    ends = [start.settled for start in starts_of(index, run)]
    fine = all(end is not None and end.how == "returned" for end in ends)
    limit = run.last is not None and limit_reached(index, run, run.last)
    return run.settled.reason == FailureReason.LISTENER or (quiet and fine and not limit)


@rule(
    "run.listener-failure-contained",
    "Whatever an exception in a listener means for the run, the loop MUST be released afterwards,"
    " and every call MUST have its result.",
    source="B, LIS01",
)
def listener_failure_contained(index: TraceIndex) -> Iterator[Finding]:
    """A listener is not part of the conversation, so it must not be able to spoil it."""
    for run in index.runs:
        raised = run.listener_raised_at
        if not raised or run.lost_at is not None or run.end is None or overlapped(index, run):
            continue
        if run.hung_at is not None:
            if all(start.settled is not None for start in starts_of(index, run)):
                yield Broke(
                    f"a listener raised in run {run.number}, which was to settle, but never did",
                    raised[0],
                    run.hung_at,
                )
            continue
        yield from _contained(index, run, raised[0])


def _contained(index: TraceIndex, run: Run, raised_at: int) -> Iterator[Finding]:
    following = index.next_run(run)
    after = [pair for pair in _followers(index) if pair[0] is run]
    words = _still_busy(after[0][1]) if after else None
    if words and following is not None:
        yield Broke(
            f"a listener raised in run {run.number}; the loop was to be released, but prompt"
            f" {following.number} {words}",
            raised_at,
            following.at,
        )
        return
    request = next_request(index, run) or next_request(index, run, fork=True)
    history = at_rest(index, run)
    if request is not None:
        where, at, messages = f"request {request.number}", request.at, request.request.messages
    elif history is not None:
        where, at, messages = "history", history[0], history[1].messages
    else:
        yield Hidden("neither a later request nor history shows whether the calls are paired")
        return
    ids = {call.id for exchange in run.exchanges for call in exchange.calls}
    missing = [call_id for call_id in unanswered(messages) if call_id in ids]
    if missing:
        yield Broke(
            f"a listener raised in run {run.number}; every call was to have its result, but"
            f" {where} has none for {', '.join(missing)}",
            raised_at,
            at,
        )
    else:
        yield Held(raised_at, at)
