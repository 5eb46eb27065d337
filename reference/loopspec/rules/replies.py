"""What the rules about replies ask of a trace: readings that several chapters share. No rules.

Four readings need care.

**A reply ends at its terminator.** What the bench sends after that is no part of the reply, so
the functions ``reason_of``, ``text_of`` and ``calls_of`` read only what came before.

**A start belongs to a reply** if it serves one of its calls, or if it serves no scripted call at
all (the target changed the arguments) while this was the latest reply of the run.

**A run is excused** from a demanded outcome once something else may rightly have ended it: a
cancellation, a listener that raised, or a second accepted prompt at the same time. Those have
chapters of their own. What must *not* happen is judged all the same.

**A failed reply may be asked again.** A next request whose user messages and tool results are the
same is another attempt, and the outcome is then the last attempt's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from loopspec.rules.base import Broke, Finding, Held
from loopspec.trace import Faulted
from loopspec.trace_index import Exchange, Run, SentCall, Start, TraceIndex
from loopspec.vocabulary import (
    AssistantMessage,
    FailureReason,
    FaultKind,
    Message,
    ToolResult,
)

HARD_FAULTS = frozenset({FaultKind.ERROR.value, FaultKind.DISCONNECT.value, FaultKind.MALFORMED.value})
"""Faults that a reader meets as a failure, not as an end."""

CLEAN_ENDS = frozenset({FaultKind.END.value, FaultKind.HALF_FRAME.value})
"""Faults after which the body ends as a whole body does."""

_PROBES: dict[str, dict[str, type]] = {
    "probe": {"value": str},
    "probe_number": {"amount": int},
    "probe_optional": {"note": str},
}
_REQUIRED = {"probe": {"value"}, "probe_number": {"amount"}, "probe_optional": set[str]()}


# --------------------------------------------------------------------------------------------
# The reply as its reader has it


def terminator_at(exchange: Exchange) -> int | None:
    """Where the wire's end mark stands; its first one, if there are several."""
    return exchange.terminator_at


def _in_reply(exchange: Exchange, at: int) -> bool:
    end = exchange.terminator_at
    return end is None or at < end


def reason_at(exchange: Exchange) -> int | None:
    """Where the reply's own reason stands: the last one before the terminator."""
    return exchange.reason_at


def reason_of(exchange: Exchange) -> str | None:
    """The reason that came before the terminator."""
    return exchange.reason


def text_of(exchange: Exchange) -> str:
    """The text that came before the terminator."""
    return exchange.text


def calls_of(exchange: Exchange) -> list[SentCall]:
    """The calls that began before the terminator."""
    return exchange.calls


def accepted(exchange: Exchange) -> bool:
    """The reply ended whole with ``stop`` or ``toolUse``, before any cancellation."""
    return exchange.accepted


def failed(exchange: Exchange) -> bool:
    """A failed reply: its reason is error or aborted, or its stream failed."""
    return exchange.failed


def over(exchange: Exchange) -> bool:
    """Nothing more of the reply can come: its terminator did, or its stream ended or failed."""
    gone = any(fault.fault != FaultKind.STALL for _, fault in exchange.faults)
    return gone or terminator_at(exchange) is not None


def hard_fault(exchange: Exchange) -> tuple[int, Faulted] | None:
    """The fault that broke the reply before its terminator, and where."""
    for at, fault in exchange.faults:
        if fault.fault in HARD_FAULTS and _in_reply(exchange, at):
            return at, fault
    return None


def body_left_open(exchange: Exchange) -> bool:
    """The trace shows that the body stayed open after the terminator."""
    end = terminator_at(exchange)
    if end is None:
        return False
    stalled = any(fault.fault == FaultKind.STALL and at > end for at, fault in exchange.faults)
    return stalled or exchange.closed_by == "bench"


def evidence(*places: int | None) -> tuple[int, ...]:
    """The positions that exist, in order and once each."""
    return tuple(sorted({place for place in places if place is not None}))


def members_of(family: Iterable[TraceIndex], rule: str) -> list[TraceIndex]:
    """The traces that belong to a family of this rule (named as it, or as it and ``/more``)."""
    return [index for index in family if (index.header.family or "").partition("/")[0] == rule]


def end_of(exchange: Exchange) -> int:
    """Where the reply ended for its reader: its reason, its fault, or its request."""
    fault = exchange.faults[0][0] if exchange.faults else None
    return next((at for at in (reason_at(exchange), fault) if at is not None), exchange.at)


# --------------------------------------------------------------------------------------------
# Starts


def starts_in(index: TraceIndex, exchange: Exchange) -> list[Start]:
    """The starts that belong to this reply; see the module's text."""
    calls = calls_of(exchange)
    ids = {call.id for call in calls}
    run = index.run_of(exchange)
    alone = run is not None and not overlapped(index, run)
    found = []
    for start in index.starts:
        latest = start.exchange
        if latest is None or latest.at < exchange.at:
            continue
        call_id = start.entry.call_id
        if call_id is None:
            if latest is exchange and calls and alone:
                found.append(start)
        elif call_id in ids:
            later = latest is not exchange and index.run_of(latest) is run
            reused = call_id in {call.id for call in latest.calls}
            if latest is exchange or (later and not reused):
                found.append(start)
    return found


def executes_nothing(index: TraceIndex, exchange: Exchange, what: str) -> Iterator[Finding]:
    """No call of this reply starts. Silent for a reply without calls."""
    calls = calls_of(exchange)
    if not calls:
        return
    starts = starts_in(index, exchange)
    for start in starts:
        yield Broke(
            f"no call of {what} may start, but {start_words(start)} did",
            *evidence(end_of(exchange), start.at),
        )
    if not starts:
        yield Held(*evidence(calls[0].began_at, end_of(exchange)))


def altered_starts(index: TraceIndex, exchange: Exchange, suspects: list[SentCall]) -> list[Start]:
    """Starts with other arguments than any scripted call's, that only a suspect can have led to.

    A sibling of the same tool that has no start of its own may be behind such a start too; as many
    starts as there are such siblings are left out.
    """
    found = []
    for name in dict.fromkeys(call.name for call in suspects):
        siblings = [
            call
            for call in calls_of(exchange)
            if call.name == name
            and not any(call is suspect for suspect in suspects)
            and index.start_of(call) is None
        ]
        unknown = [
            start
            for start in starts_in(index, exchange)
            if start.entry.call_id is None and start.entry.tool == name
        ]
        found += unknown[len(siblings) :]
    return found


def start_words(start: Start) -> str:
    """A start for a person."""
    call = f"call {start.entry.call_id!r}" if start.entry.call_id is not None else "no scripted call"
    return f"tool {start.entry.tool!r} for {call} with arguments {start.entry.arguments}"


# --------------------------------------------------------------------------------------------
# Runs


def overlapped(index: TraceIndex, run: Run) -> bool:
    """Another accepted prompt was given while this run ran, or the other way round."""
    for other in index.runs:
        if other is run or other.refused:
            continue
        if run.at < other.at and (run.end is None or other.at < run.end):
            return True
        over = other.settled_at if other.settled_at is not None else other.lost_at
        if other.at < run.at and (over is None or over > run.at):
            return True
    return False


def excused(index: TraceIndex, run: Run, before: int | None = None, *, by_cancel: bool = True) -> bool:
    """Something other than a reply may have ended the run: before a position, if one is given.

    ``by_cancel`` says whether a cancellation counts.
    """
    places = list(run.listener_raised_at)
    if by_cancel:
        places += [cancel.sent_at for cancel in run.cancels]
    disturbed = any(before is None or place < before for place in places)
    return disturbed or run.refused or overlapped(index, run)


def outcome_words(run: Run) -> str:
    """What a run came to, for a person."""
    if run.settled is not None:
        reason = f", reason {run.settled.reason}" if run.settled.reason else ""
        return f"it settled as {run.settled.outcome} ({run.settled.form}{reason})"
    if run.hung_at is not None:
        return "it hung"
    return "the target was lost before it settled" if run.lost_at is not None else "it did not settle"


def inputs(messages: Iterable[Message]) -> tuple[Message, ...]:
    """A history without its assistant messages: what was said *to* the model."""
    return tuple(message for message in messages if not isinstance(message, AssistantMessage))


def asked_again(index: TraceIndex, exchange: Exchange) -> Exchange | None:
    """The next request of the run, if nothing new was said to the model in it."""
    following = index.next_in_run(exchange)
    if following is None:
        return None
    same = inputs(following.request.messages) == inputs(exchange.request.messages)
    return following if same else None


def must_fail(index: TraceIndex, exchange: Exchange, what: str) -> Iterator[Finding]:
    """After this reply the run fails; silent if it is asked again or something else ended it."""
    run = index.run_of(exchange)
    again = asked_again(index, exchange)
    if run is None or not over(exchange) or excused(index, run) or again is not None:
        return
    following = index.next_in_run(exchange)
    if following is not None:
        yield Broke(
            f"after {what} the run was to fail, but it went on with request {following.number}",
            *evidence(end_of(exchange), following.at),
        )
    elif run.end is None:
        return
    elif run.settled is None or run.completed:
        yield Broke(
            f"after {what} the run was to fail, but {outcome_words(run)}",
            *evidence(end_of(exchange), run.end),
        )
    else:
        yield Held(*evidence(end_of(exchange), run.end))


def fails_and_executes_nothing(index: TraceIndex, exchange: Exchange, what: str) -> Iterator[Finding]:
    """No call of this reply starts, and the run fails after it."""
    broken = [found for found in executes_nothing(index, exchange, what) if isinstance(found, Broke)]
    outcome = list(must_fail(index, exchange, what))
    yield from broken
    yield from (found for found in outcome if not (broken and isinstance(found, Held)))


def reply_words(exchange: Exchange) -> str:
    """A reply for a person."""
    reason = reason_of(exchange)
    return f"the reply to request {exchange.number} ({f'reason {reason}' if reason else 'no reason'})"


# --------------------------------------------------------------------------------------------
# Limits


def has_limits(index: TraceIndex) -> bool:
    """The target can be given a turn limit."""
    return index.observes("limit") or index.claim("max_turns") is not None


def valid_limit(limit: int | float | None) -> bool:
    """It is a positive whole number."""
    return limit is not None and limit >= 1 and float(limit).is_integer()


def limit_of(index: TraceIndex) -> int | None:
    """The turn limit in force: a positive whole number given to a target that has limits."""
    limit = index.header.max_turns
    return int(limit) if limit is not None and valid_limit(limit) and has_limits(index) else None


def turn_of(run: Run, exchange: Exchange) -> int:
    """Which request of its run this is, from 1."""
    return next(at for at, item in enumerate(run.exchanges, 1) if item is exchange)


def limit_reached(index: TraceIndex, run: Run, exchange: Exchange) -> bool:
    """No request may follow this one: it was the last that the limit allows."""
    limit = limit_of(index)
    said = run.settled is not None and run.settled.reason == FailureReason.LIMIT
    return said or (limit is not None and turn_of(run, exchange) >= limit)


# --------------------------------------------------------------------------------------------
# Batches


def _known(exchange: Exchange, call: SentCall) -> bool:
    return call.name in _PROBES or call.name in exchange.request.tools


def _sound_arguments(call: SentCall) -> bool:
    if not call.whole:
        return False
    value: Any = json.loads(call.arguments)
    if not isinstance(value, dict):
        return False
    fields = _PROBES.get(call.name)
    if fields is None:
        return True
    right = all(
        key in fields and isinstance(item, fields[key]) and not isinstance(item, bool)
        for key, item in value.items()
    )
    return right and set(value) >= _REQUIRED[call.name]


def sound(exchange: Exchange, call: SentCall) -> bool:
    """The call names a tool that exists and has arguments that fit it."""
    return _known(exchange, call) and _sound_arguments(call)


def ordinary_batch(index: TraceIndex, exchange: Exchange) -> bool:
    """Every call is whole and has an id of its own. Other batches have rules of their own."""
    calls = calls_of(exchange)
    ids = [call.id for call in calls]
    marks = "call_end" in index.header.can_express
    whole = all(call.whole and (call.ended_at is not None or not marks) for call in calls)
    return whole and all(ids) and len(set(ids)) == len(ids)


def batch_may_end_run(index: TraceIndex, exchange: Exchange) -> bool:
    """A call of this batch failed in a way after which the target may end the run.

    It may where it claims so, and it is not judged here where it claims nothing.
    """
    for call in calls_of(exchange):
        start = index.start_of(call)
        if not _known(exchange, call):
            claim = "unknown_tool"
        elif not _sound_arguments(call):
            claim = "invalid_arguments"
        elif start is not None and start.settled is not None and start.settled.how != "returned":
            claim = "tool_exception"
        else:
            continue
        if index.claim(claim) != "answers":
            return True
    return False


def waits_for_tool(index: TraceIndex, exchange: Exchange) -> bool:
    """A tool of this reply has not settled."""
    return any(start.settled is None for start in starts_in(index, exchange))


def missing_results(index: TraceIndex, exchange: Exchange, messages: Iterable[Message]) -> list[SentCall]:
    """The calls of this reply whose results a message list does not carry.

    A result is carried under its call's id, or, where the target gives ids of its own, by number,
    or as text. Whether ids are kept is a rule of another chapter.
    """
    have = list(messages)
    results = [message for message in have if isinstance(message, ToolResult)]
    before = [m for m in exchange.request.messages if isinstance(m, ToolResult)]
    calls = calls_of(exchange)
    ids = {result.call_id for result in results}
    kept = any(call.id in ids for call in calls)
    if not kept and len(results) - len(before) >= len(calls):
        return []
    missing = []
    for call in calls:
        start = index.start_of(call)
        said = start.settled.text if start is not None and start.settled is not None else ""
        told = bool(said.strip()) and any(said in message.text for message in have)
        if call.id not in ids and not told:
            missing.append(call)
    return missing
