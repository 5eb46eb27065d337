"""Completion: what a reply's end means.

A reply ends with a reason. Two reasons accept it, ``stop`` and ``toolUse``; then its calls decide
what comes next, never the label. All other reasons end the run or change it, and none of them lets
a call of the reply start. What a run came to must be told as what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
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
    limit_reached,
    missing_results,
    must_fail,
    ordinary_batch,
    outcome_words,
    reason_of,
    reply_words,
    sound,
    starts_in,
    text_of,
    turn_of,
    waits_for_tool,
)
from loopspec.trace import Settled
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import (
    KNOWN_REASONS,
    UNFINISHED_REASONS,
    EventType,
    FailureReason,
    FaultKind,
    Form,
    Level,
    Outcome,
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
    if run is None or run.end is None or excused(index, run):
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
    """Providers label replies with calls in either way. A loop that trusts the label, or only the
    first piece, drops calls that the model asked for; one that leaves after the batch never shows
    the model what it asked for."""
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
    """The same question gets the same reply. A loop that believes the label asks without end, and
    a cancellation and a retry only fall into it again."""
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


@rule(
    "completion.empty-stop",
    f"""A reply that ends with `stop` and has neither text nor tool calls MUST have the claimed
    outcome (the run completes, fails, or asks again), and the number of requests on unchanged
    history MUST be bounded (here: at most {EMPTY_AT_MOST} in a row).""",
    source="CMP11, CMP12",
    claim="empty_stop",
)
def empty_stop(index: TraceIndex) -> Iterator[Finding]:
    """Whether nothing is an answer is a choice, but it is to be made and told. Asking on without
    bound is no choice: it spends money until somebody looks."""
    for run in index.runs:
        chain: list[Exchange] = []
        for exchange in run.exchanges:
            if not _empty_stop(exchange):
                chain = []
                continue
            chain.append(exchange)
            again = asked_again(index, exchange)
            if again is not None and len(chain) == EMPTY_AT_MOST:
                yield Broke(
                    f"{EMPTY_AT_MOST} requests in a row on unchanged history got empty replies, and "
                    f"request {again.number} asked once more",
                    *evidence(*(item.at for item in chain), again.at),
                )
            if index.next_in_run(exchange) is None or index.claim("empty_stop") == "completes":
                yield from _empty_outcome(index, exchange, len(chain))
            elif index.claim("empty_stop") == "asks-again" and len(chain) == 1:
                yield Held(*evidence(end_of(exchange), again.at if again else None))


def _empty_stop(exchange: Exchange) -> bool:
    nothing = not calls_of(exchange) and not text_of(exchange)
    return nothing and accepted(exchange) and reason_of(exchange) == StopReason.STOP


def _empty_outcome(index: TraceIndex, exchange: Exchange, asked: int) -> Iterator[Finding]:
    """The outcome after the last of ``asked`` empty replies in a row."""
    run = _ending(index, exchange)
    if run is None:
        return
    following = index.next_in_run(exchange)
    claimed = index.claim("empty_stop")
    came = f"request {following.number} followed" if following is not None else outcome_words(run)
    places = evidence(end_of(exchange), following.at if following is not None else run.end)
    if claimed == "asks-again":
        # After the first of them the loop asks again; when it gives up, any outcome will do.
        if asked > 1 or limit_reached(index, run, exchange):
            return
        held = False
    elif claimed == "completes":
        held = following is None and run.completed
    else:
        held = run.settled is not None and not run.completed
    if held:
        yield Held(*places)
    else:
        wanted = {"completes": "complete the run", "fails": "fail the run"}.get(
            claimed or "", "be asked again"
        )
        yield Broke(f"{reply_words(exchange)} is empty; it was to {wanted}, but {came}", *places)


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
    """Only the user's decision is a cancellation. A provider that gives up is a failure, and a
    caller that is told otherwise does not try again."""
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        if reason_of(exchange) != StopReason.ABORTED or run is None or run.cancels:
            continue
        what = reply_words(exchange)
        told = run.settled.reason if run.settled is not None else None
        last = index.next_in_run(exchange) is None
        yield from (
            found
            for found in executes_nothing(index, exchange, what)
            if isinstance(found, Broke)
        )
        if last and told == FailureReason.CANCELLED and not excused(index, run):
            yield Broke(
                f"{what} was the provider's doing, but the run was told as cancelled",
                *evidence(end_of(exchange), run.settled_at),
            )
        else:
            yield from must_fail(index, exchange, what)


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
    Nobody can tell from a cut reply which of its calls are what the model meant."""
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
    """A truncated answer looks like an answer. The three ways differ, but none of them passes it
    off as complete."""
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        if reason_of(exchange) != StopReason.LENGTH or run is None or exchange.cancelled_at:
            continue
        if index.claim("length") == "answers":
            yield from _length_answers(index, run, exchange)
        elif _ending(index, exchange) is not None:
            yield from _ends_without_asking(index, run, exchange, index.claim("length") == "marked")


def _ends_without_asking(
    index: TraceIndex, run: Run, exchange: Exchange, marked: bool = False
) -> Iterator[Finding]:
    """The run fails, with no further request; ``marked``: and without raising."""
    following = index.next_in_run(exchange)
    what = reply_words(exchange)
    if following is not None:
        yield Broke(
            f"{what} was to end the run, but request {following.number} followed",
            *evidence(end_of(exchange), following.at),
        )
        return
    raised = run.settled is not None and run.settled.form == Form.RAISED
    if run.settled is None or run.completed or (marked and raised):
        wanted = "settle with a mark" if marked else "fail"
        yield Broke(
            f"after {what} the run was to {wanted}, but {outcome_words(run)}",
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
    """Such a reply is a receipt: the provider is still working. What it holds so far is neither
    the answer nor a call to be run."""
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
    """Polling costs requests, and failing costs the work already done: a caller has to know which
    of the two happens."""
    for exchange in index.exchanges:
        if reason_of(exchange) not in UNFINISHED_REASONS or exchange.cancelled_at:
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
                f"{reply_words(exchange)} was to be resumed by a further request, but "
                f"{outcome_words(run)}",
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
    """A refusal may carry no text, or text that reads like an answer. Asked the same, the model
    refuses again."""
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
    """New reasons are invented for new ways not to finish. Taking them for a stop turns each into
    a silent success."""
    for exchange in index.exchanges:
        reason = reason_of(exchange)
        if reason is None or reason in KNOWN_REASONS:
            continue
        what = reply_words(exchange)
        broken = [f for f in executes_nothing(index, exchange, what) if isinstance(f, Broke)]
        yield from broken
        outcome = list(must_fail(index, exchange, what))
        yield from (found for found in outcome if not (broken and isinstance(found, Held)))


# --------------------------------------------------------------------------------------------
# How an outcome is told


@rule(
    "completion.failure-is-told",
    "A run that did not complete MUST NOT be reported as completed.",
    source="B",
)
def failure_is_told(index: TraceIndex) -> Iterator[Finding]:
    """Success is what callers act on. Replies that ended with `length`, a refusal, `deferred` or
    an unknown reason, and runs ended by a limit, have rules of their own; here stands what
    no choice of a loop can make complete: a failed reply, one that never ended, a batch that a
    cancellation left without an answer, and a run that asked nothing."""
    for run in index.runs:
        if run.settled is None or excused_by_others(index, run):
            continue
        why = _did_not_complete(index, run)
        if why is None:
            continue
        words, at = why
        if run.completed:
            yield Broke(f"{words}, but {outcome_words(run)}", *evidence(at, run.settled_at))
        else:
            yield Held(*evidence(at, run.settled_at))


def excused_by_others(index: TraceIndex, run: Run) -> bool:
    """As :func:`excused`, but a cancellation is no excuse: it does not make a run complete."""
    undisturbed = Run(run.prompted, run.at, settled=run.settled, settled_at=run.settled_at)
    undisturbed.listener_raised_at = run.listener_raised_at
    others = [other for other in index.runs if other is not run]
    return excused(_Only(index, undisturbed, others), undisturbed)


def _did_not_complete(index: TraceIndex, run: Run) -> tuple[str, int] | None:
    """Why the run cannot have completed, and the entry that shows it; ``None`` if it may have."""
    last = run.last
    if last is None:
        asked = any(run.at < other.at < (run.end or run.at) for other in index.auxiliary)
        return None if asked else ("the run asked the model nothing", run.at)
    reason = reason_of(last)
    if last.failed:
        return f"{reply_words(last)} failed", end_of(last)
    if reason is None:
        return f"{reply_words(last)} never ended", end_of(last)
    if run.cancels and accepted(last) and calls_of(last):
        words = f"{reply_words(last)} has calls, and a cancellation left them without an answer"
        return words, end_of(last)
    return None


@rule(
    "completion.failure-form",
    """A run that failed MUST raise (`raises`) or settle with an error mark (`marked`), as
    claimed.""",
    source="B",
    claim="failure",
)
def failure_form(index: TraceIndex) -> Iterator[Finding]:
    """A caller writes `except` or `if`, once. Cancellation, limits, lengths and failing tools have
    claims or rules of their own for how they are told, and are left out here."""
    for run in index.runs:
        settled = run.settled
        if settled is None or settled.outcome != Outcome.FAILED or excused(index, run):
            continue
        if _form_is_claimed_apart(index, run, settled):
            continue
        raised = settled.form == Form.RAISED
        if raised == (index.claim("failure") == "raises"):
            yield Held(*evidence(run.settled_at))
        else:
            wanted = "raise" if index.claim("failure") == "raises" else "settle with a mark"
            yield Broke(
                f"a run that failed was to {wanted}, but {outcome_words(run)}",
                *evidence(run.settled_at),
            )


def _form_is_claimed_apart(index: TraceIndex, run: Run, settled: Settled) -> bool:
    raised = any(
        start.settled is not None and start.settled.how != "returned"
        for exchange in run.exchanges
        for start in starts_in(index, exchange)
    )
    last = run.last
    length = last is not None and reason_of(last) == StopReason.LENGTH
    limit = last is not None and bool(calls_of(last)) and limit_reached(index, run, last)
    apart = (
        FailureReason.CANCELLED, FailureReason.BUSY, FailureReason.INVALID, FailureReason.LENGTH,
        FailureReason.LIMIT, FailureReason.TOOL, FailureReason.LISTENER,
    )  # fmt: skip
    return raised or length or limit or settled.reason in apart


@rule(
    "completion.failure-carries-message",
    """Where the provider gave an error message, the failure that the caller gets SHOULD contain
    it.""",
    source="B",
    level=Level.ADVISORY,
)
def failure_carries_message(index: TraceIndex) -> Iterator[Finding]:
    """The provider's words are often the only way to learn what was wrong with a request."""
    for run in index.runs:
        last, settled = run.last, run.settled
        if last is None or settled is None or settled.outcome != Outcome.FAILED:
            continue
        message = _provider_message(last)
        if message is None or not last.failed or excused(index, run):
            continue
        told = [settled.message or "", *_texts(settled.raw)]
        if any(message in text for text in told):
            yield Held(*evidence(end_of(last), run.settled_at))
        else:
            yield Broke(
                f"the provider said {message!r}, but the failure says {settled.message!r}",
                *evidence(end_of(last), run.settled_at),
            )


def _provider_message(exchange: Exchange) -> str | None:
    """The provider's own words, without the status that the bench writes before them."""
    fault = exchange.fault
    if not exchange.error:
        return None
    if fault is not None and fault.fault == FaultKind.STATUS:
        status, colon, words = exchange.error.partition(": ")
        return words or None if colon and status.isdigit() else exchange.error
    return exchange.error


def _texts(value: Any) -> Iterator[str]:
    """Every text inside plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


@rule(
    "completion.answer-form",
    """A completed run MUST return its last message (`returned`) or tell it in its events or end
    (`told`), as claimed.""",
    source="B",
    claim="answer",
)
def answer_form(index: TraceIndex) -> Iterator[Finding]:
    """The last message is the answer: neither the first one nor all of them run together."""
    for run in index.runs:
        last, settled = run.last, run.settled
        if last is None or settled is None or not run.completed or excused(index, run):
            continue
        want = text_of(last).strip()
        if not want or calls_of(last) or not accepted(last):
            continue
        places = evidence(end_of(last), run.settled_at)
        back = settled.answer is not None and settled.answer.strip() == want
        if index.claim("answer") == "returned":
            held = back and settled.form == Form.RETURNED
        else:
            held = back or _shown(index, run, want)
            if not held and not index.observes("events") and settled.answer is None:
                yield Hidden("the answer is told in events, which this variant does not show")
                continue
        if held:
            yield Held(*places)
        else:
            yield Broke(
                f"the last message is {want!r}; it was to be {index.claim('answer')}, but "
                f"{outcome_words(run)} with the answer {settled.answer!r}",
                *places,
            )


def _shown(index: TraceIndex, run: Run, want: str) -> bool:
    """The text was told in the run's events, whole or in deltas."""
    deltas = ""
    for _, event in index.run_events(run):
        if event.type == EventType.TEXT_DELTA:
            deltas += event.text or ""
        elif event.role == "assistant" and (event.text or "").strip() == want:
            return True
    return want in deltas


__all__ = ["EMPTY_AT_MOST", "turn_of"]
