"""Runs that were cut by a cancellation: readings that several chapters share. No rules.

Three decisions are made here.

*Which cancellations are judged.* A :class:`Cut` is a run and the first cancellation that was sent
while it ran. A run that goes apart from the conversation is not the one that the conversation's
cancel is for. Where two runs were under way at once, nobody can say which of them the caller meant,
and there is no cut. A prompt that was given while another ran, and had not asked anything yet, was
not under way.

*From when.* "Nothing begins after" counts from the moment when the cancel call came back. What was
on its way until then is the target's good right.

*What is not judged.* Where the run's end was decided before the cancellation (its last reply was
whole and had no calls, or had failed), both outcomes are legal. At grade ``racing`` nobody knows
what the target had consumed when the cancellation reached it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopspec.rules.base import Hidden
from loopspec.rules.replies import sound
from loopspec.trace_index import Cancel, Exchange, Run, Start, TraceIndex
from loopspec.vocabulary import ACCEPTING_REASONS, EventType, Grade

RACES = Hidden("grade racing: what the target had consumed when it was cancelled is not known")
UNPLACED = Hidden("cancelled inside a listener: what the target had consumed by then is not known")


@dataclass(frozen=True, slots=True)
class Cut:
    """A run and the first cancellation that was sent while it ran."""

    run: Run
    cancel: Cancel

    @property
    def words(self) -> str:
        """The run and where it was cancelled, for a person."""
        return f"run {self.run.number}, cancelled at {self.cancel.at!r},"

    @property
    def last(self) -> Exchange | None:
        """The last exchange that had begun when the cancellation was sent."""
        before = [item for item in self.run.exchanges if item.at < self.cancel.sent_at]
        return before[-1] if before else None

    @property
    def reply(self) -> Exchange | None:
        """The exchange whose reply was still on its way.

        It was neither whole nor failed, and had not told yet why it ends.
        """
        last, sent_at = self.last, self.cancel.sent_at
        if last is None or last.cancelled_at != sent_at:
            return None
        told = last.reason_at is not None and last.reason_at < sent_at
        failed = any(at < sent_at for at, _ in breaks(last))
        return None if told or failed else last


def breaks(exchange: Exchange) -> list[tuple[int, str]]:
    """The faults that ended the reply, with their positions. A stall ends nothing."""
    return [(at, item.fault) for at, item in exchange.faults if item.fault != "stall"]


def _under_way(run: Run, at: int) -> bool:
    """Whether the target had taken up this prompt, and had not ended it, at a position."""
    if run.refused or run.at > at or (run.end is not None and run.end < at):
        return False
    return not run.prompted.running or any(item.at < at for item in run.exchanges)


def cuts(index: TraceIndex) -> list[Cut]:
    """All runs that were cancelled, where it is certain which run was meant."""
    found = []
    for run in index.runs:
        cancel = next((item for item in run.cancels if item.at != "idle"), None)
        if cancel is None or (run.prompted.running and index.claim("concurrent_prompt") == "apart"):
            continue
        if [item for item in index.runs if _under_way(item, cancel.sent_at)] == [run]:
            found.append(Cut(run, cancel))
    return found


def racing(index: TraceIndex) -> bool:
    """Whether cancellations cannot be placed in the target's run."""
    return index.header.grade == Grade.RACING


def exact(index: TraceIndex) -> bool:
    """Whether nothing moves in the target unless the bench lets it."""
    return index.header.grade == Grade.EXACT


def placed(index: TraceIndex, cut: Cut) -> bool:
    """Whether the target had consumed what was sent before the cancellation, and no more.

    A listener that cancels does so while the rest is still in the target's buffers, unless nothing
    moves by itself.
    """
    return exact(index) or not (racing(index) or "listener" in cut.cancel.at)


def owner(index: TraceIndex, start: Start) -> Exchange | None:
    """The exchange whose reply made the call that a tool was entered for.

    The trace names the latest request at the time; a tool that is entered late belongs to an
    earlier one, which is found by the call's id. ``None``: it serves no scripted call.
    """
    if start.call is not None:
        return start.exchange
    if start.entry.call_id is None:
        return None
    for exchange in reversed(index.exchanges):
        if exchange.at < start.at and any(c.id == start.entry.call_id for c in exchange.calls):
            return exchange
    return None


def starts_of(index: TraceIndex, run: Run) -> list[Start]:
    """The tools that were entered for calls of this run."""
    found = []
    for start in index.starts:
        exchange = owner(index, start)
        if exchange is not None and index.run_of(exchange) is run:
            found.append(start)
    return found


def unknown_starts(index: TraceIndex, run: Run) -> list[Start]:
    """The tools that were entered for no scripted call before the next prompt was given."""
    following = index.next_run(run)
    end = following.at if following is not None else len(index.trace)
    return [
        item
        for item in index.starts
        if item.entry.call_id is None and run.at < item.at < end and owner(index, item) is None
    ]


def running_tools(index: TraceIndex, cut: Cut) -> list[Start]:
    """The tools of the run that had started and not settled when the cancellation was sent."""
    at = cut.cancel.sent_at
    return [item for item in starts_of(index, cut.run) if item.at < at and outlives(item, at)]


def outlives(start: Start, at: int) -> bool:
    """Whether the tool had not settled at a position (or never did)."""
    return start.settled_at is None or start.settled_at > at


def call_names(starts: Sequence[Start]) -> str:
    """The calls that these tools serve, for a person."""
    return ", ".join(item.entry.call_id or item.entry.tool for item in starts)


def decided(index: TraceIndex, cut: Cut) -> bool:
    """Whether the run's end was settled by something else before the cancellation was sent."""
    last, at = cut.last, cut.cancel.sent_at
    ended = any(e.type == EventType.RUN_END and p < at for p, e in index.run_events(cut.run))
    if ended or any(raised < at for raised in cut.run.listener_raised_at):
        return True
    if last is None:
        return False
    failed = any(place < at for place, _ in breaks(last))
    if failed or last.reason_at is None or last.reason_at > at:
        return failed or (last.terminator_at is not None and last.terminator_at < at)
    if not last.calls or last.reason not in ACCEPTING_REASONS:
        return True
    return _limit_reached(index, cut, last) or _tool_ends_run(index, cut, last)


def _limit_reached(index: TraceIndex, cut: Cut, last: Exchange) -> bool:
    """Whether the last turn that the limit allows was over but for its end."""
    limit, at = index.header.max_turns, cut.cancel.sent_at
    turn = sum(item.at <= last.at for item in cut.run.exchanges)
    if limit is None or turn < limit:
        return False
    waiting = [call for call in last.calls if sound(last, call) and index.start_of(call) is None]
    return not waiting and not any(outlives(item, at) for item in index.starts_of(last))


def _tool_ends_run(index: TraceIndex, cut: Cut, last: Exchange) -> bool:
    """Whether a call of the batch may have ended the run, by what the target claims."""
    for call in last.calls:
        start = index.start_of(call)
        if start is None and not sound(last, call):
            if {index.claim("unknown_tool"), index.claim("invalid_arguments")} != {"answers"}:
                return True
        elif start is not None and start.settled is not None and start.settled.how == "raised":
            claim = index.claim("tool_exception")
            before = not outlives(start, cut.cancel.sent_at)
            if claim == "raises" or (before and claim != "answers"):
                return True
    return False


def quote(text: str, limit: int = 60) -> str:
    """The text in quotation marks, cut where it is long."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
