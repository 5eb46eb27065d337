"""Completion: what a reply's end means.

A reply ends with a reason. Two reasons accept it, ``stop`` and ``toolUse``; then its calls decide
what comes next, never the label. All other reasons end the run or change it, and none of them lets
a call of the reply start. What a run came to must be told as what it was.
"""

from __future__ import annotations

from collections.abc import Iterator

from loopspec.rules.base import Broke, Finding, Held, rule
from loopspec.rules.replies import (
    accepted,
    asked_again,
    batch_may_end_run,
    body_left_open,
    calls_of,
    end_of,
    evidence,
    excused,
    executes_nothing,
    fails_and_executes_nothing,
    limit_reached,
    missing_results,
    ordinary_batch,
    outcome_words,
    over,
    reason_of,
    reply_words,
    sound,
    starts_in,
    terminator_at,
    text_of,
    waits_for_tool,
)
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import (
    KNOWN_REASONS,
    UNFINISHED_REASONS,
    FailureReason,
    StopReason,
    ToolResult,
)

EMPTY_AT_MOST = 8
"""So many requests in a row on unchanged history still count as bounded.

A trace is finite, so a number has to stand for "without bound". It is above what loops that ask
again by design do (one first request and up to five retries).
"""


def _ending(index: TraceIndex, exchange: Exchange) -> Run | None:
    """The run that this reply decides: nothing else may have ended it, and it is over."""
    run = index.run_of(exchange)
    if run is None or run.end is None or not over(exchange) or excused(index, run):
        return None
    return run


# --------------------------------------------------------------------------------------------
# Accepted replies


@rule(
    "completion.answer-without-calls",
    """A reply with text and without tool calls that ends with `stop` or `toolUse` MUST complete
    the run, and no further request follows in that run unless a claimed queue or hook asks for
    one.""",
    source="B, CMP04",
)
def answer_without_calls(index: TraceIndex) -> Iterator[Finding]:
    """An answer is final. A loop that asks on repeats it, and one that fails on it loses it."""
    for exchange in index.exchanges:
        if not accepted(exchange) or calls_of(exchange) or not text_of(exchange).strip():
            continue
        run = _ending(index, exchange)
        if run is None:
            continue
        what = f"{reply_words(exchange)} is an answer without calls"
        following = index.next_in_run(exchange)
        if following is not None:
            yield Broke(
                f"{what}; no request was to follow it, but request {following.number} did",
                *evidence(end_of(exchange), following.at),
            )
        elif run.completed:
            yield Held(*evidence(end_of(exchange), run.settled_at))
        elif run.settled is not None or not body_left_open(exchange):
            # A loop that waits for the body to end breaks stream.acts-without-end-of-body.
            yield Broke(
                f"{what}; the run was to complete, but {outcome_words(run)}",
                *evidence(end_of(exchange), run.end),
            )


@rule(
    "completion.calls-decide",
    """After a reply with tool calls that ends with `stop` or `toolUse` the loop MUST look at the
    whole reply, run its batch, and send exactly one request that carries the results, unless a
    limit, a cancellation, a claimed raise or a claimed concluding tool ends the run first.""",
    source="B, CMP01, CMP02, CMP03",
)
def calls_decide(index: TraceIndex) -> Iterator[Finding]:
    """Providers label replies with calls in either way.

    A loop that trusts the label, or only the first piece, drops calls that the model asked for; one
    that leaves after the batch never shows the model what it asked for.
    """
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        if run is None or not calls_of(exchange) or not accepted(exchange):
            continue
        following = index.next_in_run(exchange)
        before = following.at if following is not None else None
        if excused(index, run, before) or not ordinary_batch(index, exchange):
            continue
        if following is None:
            yield from _batch_was_last(index, run, exchange)
        else:
            yield from _results_are_sent(index, run, exchange, following)


def _batch_was_last(index: TraceIndex, run: Run, exchange: Exchange) -> Iterator[Finding]:
    waiting = run.settled is None and (waits_for_tool(index, exchange) or body_left_open(exchange))
    if run.end is None or waiting or limit_reached(index, run, exchange):
        return
    failed = run.settled is not None and not run.completed
    if failed and batch_may_end_run(index, exchange):
        return
    ids = ", ".join(call.id for call in calls_of(exchange))
    yield Broke(
        f"{reply_words(exchange)} has calls ({ids}); a request with their results was to follow, "
        f"but {outcome_words(run)}",
        *evidence(end_of(exchange), *(start.at for start in starts_in(index, exchange)), run.end),
    )


def _results_are_sent(
    index: TraceIndex, run: Run, exchange: Exchange, following: Exchange
) -> Iterator[Finding]:
    starts = starts_in(index, exchange)
    missing = missing_results(index, exchange, following.request.messages)
    extra = _sent_meanwhile(run, following)
    places = evidence(end_of(exchange), *(start.at for start in starts), following.at)
    if missing:
        ids = ", ".join(call.id for call in missing)
        yield Broke(
            f"request {following.number} was to carry the results of the calls of "
            f"{reply_words(exchange)}, but lacks those of {ids}",
            *places,
        )
    elif not starts and all(sound(exchange, call) for call in calls_of(exchange)):
        yield Broke(
            f"the batch of {reply_words(exchange)} was to run, but no tool started before request "
            f"{following.number} carried results",
            *places,
        )
    elif extra is not None:
        yield Broke(
            f"exactly one request was to carry the results of {reply_words(exchange)}, but request "
            f"{extra.number} was sent before request {following.number} was answered",
            *evidence(following.at, extra.at),
        )
    else:
        yield Held(*places)


def _sent_meanwhile(run: Run, first: Exchange) -> Exchange | None:
    """A request of the run that began while ``first`` was being answered."""
    if first.faults or first.cancelled_at is not None:
        return None
    for other in run.exchanges:
        closed = first.closed_at is not None and first.closed_at < other.at
        answered = first.ended_at is not None and first.ended_at < other.at
        if other.at > first.at and not closed and not answered:
            return other
    return None


@rule(
    "completion.tool-label-without-calls",
    """A reply that ends with `toolUse` but has no tool calls MUST NOT lead to a request on
    unchanged history.""",
    source="B, CMP06",
)
def tool_label_without_calls(index: TraceIndex) -> Iterator[Finding]:
    """The same question gets the same reply.

    A loop that believes the label asks without end, and a cancellation and a retry only fall into
    it again.
    """
    for exchange in index.exchanges:
        wrong = reason_of(exchange) == StopReason.TOOL_USE and not calls_of(exchange)
        if not wrong or not accepted(exchange):
            continue
        run = _ending(index, exchange)
        if run is None:
            continue
        again = asked_again(index, exchange)
        if again is not None:
            yield Broke(
                f"{reply_words(exchange)} has no calls; nothing new was there to ask with, but "
                f"request {again.number} asked again on unchanged history",
                *evidence(end_of(exchange), again.at),
            )
        else:
            yield Held(*evidence(end_of(exchange), run.end))


# --------------------------------------------------------------------------------------------
# Replies that fail


@rule(
    "completion.error-executes-nothing",
    "After a reply that ends with `error` the loop MUST NOT start any tool call of that reply.",
    source="B",
)
def error_executes_nothing(index: TraceIndex) -> Iterator[Finding]:
    """A reply that failed was not meant to be acted on: what it lacks may have changed the call."""
    for exchange in index.exchanges:
        if reason_of(exchange) == StopReason.ERROR:
            yield from executes_nothing(index, exchange, reply_words(exchange))


@rule(
    "completion.aborted-by-provider",
    """After a reply that ends with `aborted` although nobody cancelled the loop MUST NOT start any
    tool call of that reply, and the run MUST fail, with another reason than cancellation.""",
    source="A, B",
)
def aborted_by_provider(index: TraceIndex) -> Iterator[Finding]:
    """Only the user's decision is a cancellation.

    A provider that gives up is a failure, and a caller that is told otherwise does not try again.
    """
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        if reason_of(exchange) != StopReason.ABORTED or run is None or run.cancels:
            continue
        what = reply_words(exchange)
        told = run.settled.reason if run.settled is not None else None
        last = index.next_in_run(exchange) is None
        wrong = last and told == FailureReason.CANCELLED and not excused(index, run)
        if wrong:
            yield Broke(
                f"{what} was the provider's doing, but the run was told as cancelled",
                *evidence(end_of(exchange), run.settled_at),
            )
        for found in fails_and_executes_nothing(index, exchange, what):
            if not (wrong and isinstance(found, Held)):
                yield found


# --------------------------------------------------------------------------------------------
# Length


@rule(
    "completion.length-executes-nothing",
    """After a reply that ends with `length` the loop MUST NOT start any tool call of that reply,
    whether the call is whole or cut.""",
    source="B, CMP15, CMP19",
)
def length_executes_nothing(index: TraceIndex) -> Iterator[Finding]:
    """Arguments that were cut may still parse: `rm -r /tmp/x` may be the start of a longer path.

    Nobody can tell from a cut reply which of its calls are what the model meant.
    """
    for exchange in index.exchanges:
        if reason_of(exchange) == StopReason.LENGTH:
            yield from executes_nothing(index, exchange, reply_words(exchange))


@rule(
    "completion.length-outcome",
    """After a reply that ends with `length` the run MUST do what is claimed: fail (`fails`), settle
    with a mark that tells it from an answer (`marked`), or give each call an error result and go on
    (`answers`).""",
    source="B",
    claim="length",
)
def length_outcome(index: TraceIndex) -> Iterator[Finding]:
    """A truncated answer looks like an answer.

    The three ways differ, but none of them passes it off as complete.
    """
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        cut = exchange.cancelled_at is not None or terminator_at(exchange) is None
        if reason_of(exchange) != StopReason.LENGTH or run is None or cut:
            continue
        if index.claim("length") == "answers":
            yield from _length_answers(index, run, exchange)
        elif _ending(index, exchange) is not None:
            yield from _ends_without_asking(index, run, exchange)


def _ends_without_asking(index: TraceIndex, run: Run, exchange: Exchange) -> Iterator[Finding]:
    """The run fails, with no further request. Its form is for completion.failure-form."""
    following = index.next_in_run(exchange)
    what = reply_words(exchange)
    if following is not None:
        yield Broke(
            f"{what} was to end the run, but request {following.number} followed",
            *evidence(end_of(exchange), following.at),
        )
        return
    if run.settled is None or run.completed:
        yield Broke(
            f"after {what} the run was to be told from one that completed, but {outcome_words(run)}",
            *evidence(end_of(exchange), run.end),
        )
    else:
        yield Held(*evidence(end_of(exchange), run.settled_at))


def _length_answers(index: TraceIndex, run: Run, exchange: Exchange) -> Iterator[Finding]:
    """Each call gets an error result, and the model is asked again."""
    calls = calls_of(exchange)
    ids = [call.id for call in calls]
    following = index.next_in_run(exchange)
    before = following.at if following is not None else None
    told_apart = all(ids) and len(set(ids)) == len(ids)
    if not calls or not told_apart or excused(index, run, before):
        return
    if following is None:
        if run.end is not None and not limit_reached(index, run, exchange):
            yield Broke(
                f"the calls of {reply_words(exchange)} were to be answered by error results in a "
                f"further request, but {outcome_words(run)}",
                *evidence(end_of(exchange), run.end),
            )
        return
    results = [item for item in following.request.messages if isinstance(item, ToolResult)]
    missing = [call.id for call in missing_results(index, exchange, following.request.messages)]
    fine = [item.call_id for item in results if item.call_id in ids and item.is_error is False]
    if missing or fine:
        words = f"lacks those of {', '.join(missing)}" if missing else f"marks {fine} as no errors"
        yield Broke(
            f"request {following.number} was to carry error results for the calls of "
            f"{reply_words(exchange)}, but it {words}",
            *evidence(end_of(exchange), following.at),
        )
    else:
        yield Held(*evidence(end_of(exchange), following.at))


# --------------------------------------------------------------------------------------------
# Replies that are not finished, or refused


@rule(
    "completion.deferred-is-not-final",
    """A reply that ends with `deferred` or `pending` MUST NOT be taken as the answer, and no tool
    call of it MUST start.""",
    source="B, PAU03",
)
def deferred_is_not_final(index: TraceIndex) -> Iterator[Finding]:
    """Such a reply is a receipt: the provider is still working.

    What it holds so far is neither the answer nor a call to be run.
    """
    for exchange in index.exchanges:
        if reason_of(exchange) not in UNFINISHED_REASONS:
            continue
        what = reply_words(exchange)
        broken = [f for f in executes_nothing(index, exchange, what) if isinstance(f, Broke)]
        yield from broken
        run = _ending(index, exchange)
        if run is None:
            continue
        if index.next_in_run(exchange) is None and run.completed:
            yield Broke(
                f"{what} is not an answer, but {outcome_words(run)}",
                *evidence(end_of(exchange), run.settled_at),
            )
        elif not broken:
            yield Held(*evidence(end_of(exchange), run.end))


@rule(
    "completion.deferred-outcome",
    """After a reply that ends with `deferred` or `pending` the run MUST fail without polling
    (`fails`) or ask for the rest (`resumes`), as claimed.""",
    source="B",
    claim="deferred",
)
def deferred_outcome(index: TraceIndex) -> Iterator[Finding]:
    """Polling costs requests, and failing costs the work already done.

    A caller has to know which of the two happens.
    """
    for exchange in index.exchanges:
        cut = exchange.cancelled_at is not None or terminator_at(exchange) is None
        if reason_of(exchange) not in UNFINISHED_REASONS or cut:
            continue
        run = _ending(index, exchange)
        if run is None:
            continue
        following = index.next_in_run(exchange)
        if index.claim("deferred") == "fails":
            yield from _ends_without_asking(index, run, exchange)
        elif following is not None:
            yield Held(*evidence(end_of(exchange), following.at))
        elif not limit_reached(index, run, exchange):
            yield Broke(
                f"{reply_words(exchange)} was to be resumed by a further request, but {outcome_words(run)}",
                *evidence(end_of(exchange), run.end),
            )


@rule(
    "completion.refusal-executes-nothing",
    """After a reply that ends with a refusal or a content filter the loop MUST NOT start any tool
    call of that reply.""",
    source="CMP10",
)
def refusal_executes_nothing(index: TraceIndex) -> Iterator[Finding]:
    """A reply that the provider stopped on purpose is the last one whose calls should run."""
    for exchange in index.exchanges:
        if reason_of(exchange) == StopReason.REFUSAL:
            yield from executes_nothing(index, exchange, reply_words(exchange))


@rule(
    "completion.refusal-is-told",
    """A run that ends with a refusal or a content filter MUST be told from an answer by something
    other than text, and the same request MUST NOT be sent again.""",
    source="REF02",
)
def refusal_is_told(index: TraceIndex) -> Iterator[Finding]:
    """A refusal may carry no text, or text that reads like an answer.

    Asked the same, the model refuses again.
    """
    for exchange in index.exchanges:
        if reason_of(exchange) != StopReason.REFUSAL:
            continue
        run = _ending(index, exchange)
        if run is None:
            continue
        what = reply_words(exchange)
        following = index.next_in_run(exchange)
        if following is not None and following.request.messages == exchange.request.messages:
            yield Broke(
                f"after {what} the same messages were sent again as request {following.number}",
                *evidence(exchange.at, end_of(exchange), following.at),
            )
        elif following is None and (run.settled is None or run.completed):
            yield Broke(
                f"{what} was to be told from an answer, but {outcome_words(run)}",
                *evidence(end_of(exchange), run.end),
            )
        else:
            yield Held(*evidence(end_of(exchange), following.at if following else run.end))


@rule(
    "completion.unknown-reason-fails",
    """A reply that ends with a reason that the loop does not know MUST be taken as a failure of the
    run, and MUST NOT be taken as a stop.""",
    source="D",
)
def unknown_reason_fails(index: TraceIndex) -> Iterator[Finding]:
    """New reasons are invented for new ways not to finish.

    Taking them for a stop turns each into a silent success.
    """
    for exchange in index.exchanges:
        reason = reason_of(exchange)
        if reason is None or reason in KNOWN_REASONS:
            continue
        yield from fails_and_executes_nothing(index, exchange, reply_words(exchange))


# --------------------------------------------------------------------------------------------
# Replies with nothing in them


@rule(
    "completion.empty-stop",
    f"""A reply that ends with `stop` and has neither text nor tool calls MUST have the claimed
    outcome (the run completes, fails, or asks again), and the number of requests on unchanged
    history MUST be bounded (here: at most {EMPTY_AT_MOST} in a row).""",
    source="CMP11, CMP12",
    claim="empty_stop",
)
def empty_stop(index: TraceIndex) -> Iterator[Finding]:
    """Whether nothing is an answer is a choice, but it is to be made and told.

    Asking on without bound is no choice: it spends money until somebody looks.
    """
    for run in index.runs:
        in_a_row = 0
        same: list[Exchange] = []
        for exchange in run.exchanges:
            if not _empty_stop(exchange):
                in_a_row, same = 0, []
                continue
            in_a_row += 1
            again = asked_again(index, exchange)
            same.append(exchange)
            if again is not None and len(same) == EMPTY_AT_MOST:
                yield Broke(
                    f"{EMPTY_AT_MOST} requests in a row on unchanged history got empty replies, and "
                    f"request {again.number} asked once more",
                    *evidence(*(item.at for item in same), again.at),
                )
            yield from _empty_outcome(index, exchange, in_a_row)
            if again is None:
                same = []


def _empty_stop(exchange: Exchange) -> bool:
    nothing = not calls_of(exchange) and not text_of(exchange)
    return nothing and accepted(exchange) and reason_of(exchange) == StopReason.STOP


def _empty_outcome(index: TraceIndex, exchange: Exchange, in_a_row: int) -> Iterator[Finding]:
    """What came of this empty reply, the last of so many in a row."""
    run = _ending(index, exchange)
    if run is None:
        return
    following = index.next_in_run(exchange)
    claimed = index.claim("empty_stop")
    if claimed == "asks-again":
        # After the first of them the loop asks again; when it gives up, any outcome will do.
        if in_a_row > 1 or (following is None and limit_reached(index, run, exchange)):
            return
        held, wanted = following is not None, "be asked again"
    elif claimed == "completes":
        held, wanted = following is None and run.completed, "complete the run"
    else:
        # Another attempt at the same request is no other outcome: the last attempt's counts.
        if asked_again(index, exchange) is not None:
            return
        failed = run.settled is not None and not run.completed
        held, wanted = following is None and failed, "fail the run"
    places = evidence(end_of(exchange), following.at if following is not None else run.end)
    if held:
        yield Held(*places)
        return
    came = f"request {following.number} followed" if following is not None else outcome_words(run)
    yield Broke(f"{reply_words(exchange)} is empty; it was to {wanted}, but {came}", *places)


# The second half of the chapter. It registers its rules when it is imported, hence last.
from loopspec.rules import completion_told as _told  # noqa: E402, F401
