"""Where a run stands in a message list, and how prompts meet: readings for several chapters.

Every prompt has a unique text, so the messages of a run are those between the user message that
has its text and the one that has a later prompt's. Adjacent user messages may be merged: where one
message has both texts, nothing stands between them. No rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import (
    AssistantMessage,
    Message,
    Outcome,
    ToolResult,
    UserMessage,
)


def has_prompt(messages: Sequence[Message], run: Run) -> bool:
    """Whether the run's prompt stands in a user message of this list."""
    return any(isinstance(m, UserMessage) and run.prompted.text in m.text for m in messages)


def messages_of(index: TraceIndex, messages: Sequence[Message], run: Run) -> tuple[Message, ...]:
    """The messages of a run in this list, after its prompt; none if its prompt is not there."""
    others = [other.prompted.text for other in index.runs if other.at > run.at]
    found: list[Message] | None = None
    for message in messages:
        if isinstance(message, UserMessage):
            later = any(text in message.text for text in others)
            if run.prompted.text in message.text:
                if later:
                    return ()
                found = []
                continue
            if later and found is not None:
                break
        if found is not None:
            found.append(message)
    return tuple(found or ())


def after_end(run: Run, index: TraceIndex) -> int:
    """The position after which a run is over (the trace's length, if it never was)."""
    return run.end if run.end is not None else len(index.trace)


def next_request(index: TraceIndex, run: Run, *, fork: bool = False) -> Exchange | None:
    """The first request that another run made after this one was over; ``fork``: a fork's."""
    for exchange in index.later_requests(after_end(run, index)):
        other = index.run_of(exchange)
        if other is None or other is run or (other.prompted.running and _apart(index)):
            continue
        if other.prompted.fork == fork:
            return exchange
        if fork or other.prompted.fork:
            return None  # what comes after a fork is another conversation's
    return None


def _apart(index: TraceIndex) -> bool:
    return index.claim("concurrent_prompt") == "apart"


def unanswered(messages: Sequence[Message]) -> list[str]:
    """The ids of calls that have no result directly after their message."""
    open_ids: list[str] = []
    missing: list[str] = []
    for message in messages:
        if isinstance(message, ToolResult):
            if message.call_id in open_ids:
                open_ids.remove(message.call_id)
            continue
        missing += open_ids
        open_ids = [c.id for c in message.calls] if isinstance(message, AssistantMessage) else []
    return missing + open_ids


def turned_away(run: Run) -> bool:
    """Whether a prompt was refused.

    A failure without a request is also a refusal: one whose meaning the manifest does not map.
    """
    settled = run.settled
    return run.refused or (settled is not None and settled.outcome == Outcome.FAILED and not run.exchanges)


def overlapping(index: TraceIndex) -> list[tuple[Run, Run]]:
    """Pairs of runs of which the second was prompted while the first had not ended."""
    pairs = []
    for second in index.runs:
        if second.prompted.running:
            first = [
                run
                for run in index.runs
                if run.at < second.at and after_end(run, index) > second.at and not run.refused
            ]
            pairs += [(first[0], second)] if first else []
    return pairs


def treated_otherwise(index: TraceIndex, first: Run, second: Run) -> tuple[str, int] | None:
    """How a second prompt, given while ``first`` ran, was not treated as claimed.

    Returns the words and the position that shows it, or ``None`` if it was.
    """
    claim = index.claim("concurrent_prompt")
    asked = second.exchanges[0] if second.exchanges else None
    settled = second.settled_at if second.settled_at is not None else second.at
    if claim == "refused":
        if asked is not None:
            return f"it was to be refused, but request {asked.number} was made for it", asked.at
        if not turned_away(second):
            return "it was to be refused, but was not", second.end or second.at
        if settled > after_end(first, index):
            return f"it was to be refused at once, but only after run {first.number} was", settled
        return None
    wish = "wait for its turn" if claim == "queued" else "run apart"
    if second.refused:
        return f"it was to {wish}, but was refused", settled
    ended = [at for run in index.runs for at in run.listener_raised_at]
    ended += [cancel.sent_at for run in index.runs for cancel in run.cancels]
    if asked is None and any(second.at < at < settled for at in ended):
        return None  # a listener or a cancellation may have ended it before it asked anything
    if asked is None:
        return f"it was to {wish}, but no request was ever made for it", second.end or second.at
    if claim == "queued" and _at_work(index, first, asked.at):
        busy = f"while run {first.number} was at work"
        return f"it was to {wish}, but request {asked.number} was made for it {busy}", asked.at
    if second.hung_at is not None:
        return "it was taken up, but never settled", second.hung_at
    return None


def _at_work(index: TraceIndex, run: Run, at: int) -> bool:
    """Whether a run still waited for something, or did something later, at a position.

    A queued prompt may be asked for in the moment in which the run before it ends, and before the
    caller of that one has heard of it.
    """
    starts = [item for item in index.starts if item.exchange in run.exchanges]
    ends = [item.at for item in run.exchanges] + [item.at for item in starts]
    waited = not run.cancels or index.claim("cancelled_tool") == "waits"
    waits = [item.settled_at for item in starts if item.at < at and waited]
    cut_short = run.cancels or run.listener_raised_at
    waits += [item.ended_at for item in run.exchanges if not item.failed and not cut_short]
    return any(end > at for end in ends) or any(end is None or end > at for end in waits)
