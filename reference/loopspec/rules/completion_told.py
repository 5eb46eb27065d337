"""Completion, second half: how a caller learns what a run came to.

The first half says what follows from a reply. Here stands what is told of it: that a failure is
told as one, in which form, with whose words, and where the answer is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.replies import (
    accepted,
    calls_of,
    end_of,
    evidence,
    excused,
    failed,
    limit_reached,
    outcome_words,
    reason_of,
    reply_words,
    starts_in,
    text_of,
)
from loopspec.trace import Settled
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import EventType, FailureReason, FaultKind, Form, Level, Outcome, StopReason


@rule(
    "completion.failure-is-told",
    "A run that did not complete MUST NOT be reported as completed.",
    source="B",
)
def failure_is_told(index: TraceIndex) -> Iterator[Finding]:
    """Success is what callers act on.

    Replies that ended with `length`, a refusal, `deferred` or an unknown reason, and runs ended by
    a limit, have rules of their own; here stands what no choice of a loop can make complete: a
    failed reply, one that never ended, a batch that a cancellation left without an answer, and a
    run that asked nothing.
    """
    for run in index.runs:
        if run.settled is None or excused(index, run, by_cancel=False):
            continue
        why = _did_not_complete(index, run)
        if why is None:
            continue
        words, at = why
        if run.completed:
            yield Broke(f"{words}, but {outcome_words(run)}", *evidence(at, run.settled_at))
        else:
            yield Held(*evidence(at, run.settled_at))


def _did_not_complete(index: TraceIndex, run: Run) -> tuple[str, int] | None:
    """Why the run cannot have completed, and the entry that shows it; ``None`` if it may have."""
    last = run.last
    if last is None:
        asked = any(run.at < other.at < (run.end or run.at) for other in index.auxiliary)
        return None if asked else ("the run asked the model nothing", run.at)
    reason = reason_of(last)
    if failed(last):
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
    """A caller writes `except` or `if`, once.

    Cancellations and failing tools have rules of their own for how they are told. Limits and
    lengths are left out where their own claim says another way than failing.
    """
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
    if (length and index.claim("length") != "fails") or (limit and index.claim("max_turns") != "fails"):
        return True
    apart = (
        FailureReason.CANCELLED, FailureReason.BUSY, FailureReason.INVALID, FailureReason.TOOL,
        FailureReason.LISTENER,
    )  # fmt: skip
    return raised or settled.reason in apart


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
        if message is None or not failed(last) or excused(index, run):
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
