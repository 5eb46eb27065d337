"""Whether two traces of one family came to the same: what relation rules ask. No rules.

Two runs of the same scenario never have the same texts throughout. Prompts carry unique texts,
coding agents put the time of day into a user message, error results may say how long something
took. So a trace is first brought to what it *says*: prompts become their numbers, figures in
results become ``#``, system prompts are left out, and the results of one batch are sorted, because
their order is a rule of its own.
"""

from __future__ import annotations

import re

from loopspec.rules.cuts import starts_of
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import (
    AssistantMessage,
    EventType,
    Message,
    SystemMessage,
    ToolResult,
    UserMessage,
)

Said = tuple[str, ...]


def difference(plain: TraceIndex, other: TraceIndex) -> tuple[str, Run | None] | None:
    """The first thing in which ``other`` did not come to the same as ``plain``, in words.

    Returns the words and the run of ``other`` in which it shows, or ``None``.
    """
    if len(plain.runs) != len(other.runs):
        return f"{len(other.runs)} runs came to an end instead of {len(plain.runs)}", None
    for before, after in zip(plain.runs, other.runs, strict=True):
        words = _of_run(plain, before, other, after)
        if words:
            return f"in run {after.number} {words}", after
    return None


def _of_run(plain: TraceIndex, before: Run, other: TraceIndex, after: Run) -> str | None:
    if outcome(before) != outcome(after):
        return f"the outcome is {outcome(after)} instead of {outcome(before)}"
    tools, others = _tools(plain, before), _tools(other, after)
    if tools != others:
        return f"the tools started are {others} instead of {tools}"
    if len(before.exchanges) != len(after.exchanges):
        return f"{len(after.exchanges)} requests were made instead of {len(before.exchanges)}"
    for old, new in zip(before.exchanges, after.exchanges, strict=True):
        words = _of_request(_said(plain, old), _said(other, new))
        if words:
            return f"request {new.number} {words}"
    ends, other_ends = _ends_told(plain, before), _ends_told(other, after)
    return None if ends == other_ends else f"{other_ends} ends of it were told instead of {ends}"


def _of_request(was: list[Said], now: list[Said]) -> str | None:
    for old, new in zip(was, now, strict=False):
        if old != new:
            return f"has {new} where {old} was expected"
    return None if len(was) == len(now) else f"has {len(now)} messages instead of {len(was)}"


def outcome(run: Run) -> str:
    """What a run came to, for comparing and for a person."""
    if run.settled is not None:
        return run.settled.outcome + (f" ({run.settled.reason})" if run.settled.reason else "")
    return "a hang" if run.hung_at is not None else "no settlement"


def _tools(index: TraceIndex, run: Run) -> list[str]:
    return sorted(f"{item.entry.tool} {item.entry.arguments}" for item in starts_of(index, run))


def _ends_told(index: TraceIndex, run: Run) -> int:
    return sum(event.type == EventType.RUN_END for _, event in index.run_events(run))


def _said(index: TraceIndex, exchange: Exchange) -> list[Said]:
    said: list[Said] = []
    batch: list[Said] = []
    for message in exchange.request.messages:
        if isinstance(message, ToolResult):
            batch.append(("result", message.call_id, re.sub(r"\d+(\.\d+)?", "#", message.text)))
        else:
            said += sorted(batch)
            batch = []
            said += _message(index, message)
    return said + sorted(batch)


def _message(index: TraceIndex, message: Message) -> list[Said]:
    if isinstance(message, SystemMessage):
        return []
    if isinstance(message, UserMessage):
        prompts = [str(run.number) for run in index.runs if run.prompted.text in message.text]
        return [("user", *prompts)]
    if isinstance(message, AssistantMessage):
        calls = [f"{call.id} {call.name} {call.arguments}" for call in message.calls]
        return [("assistant", message.text, message.reasoning, *calls)]
    return [("other", getattr(message, "text", ""))]
