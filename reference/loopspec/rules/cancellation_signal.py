"""Cancellation, second half: who hears of it, and what it must leave alone.

The first half says what a cancellation ends. Here stands how far it reaches: to the provider and
the tools that work for the run, back to its caller at once, and not into any other run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.cuts import RACES, Cut, breaks, call_names, cuts, exact, racing, running_tools, starts_of
from loopspec.rules.sameness import difference
from loopspec.rules.turns import overlapping, treated_otherwise
from loopspec.trace_index import TraceIndex
from loopspec.vocabulary import FailureReason, Level

# --------------------------------------------------------------------------------------------
# The signal


@rule(
    "cancellation.reaches-provider",
    "A cancellation while a reply is on its way MUST reach the provider: its stream sees the"
    " signal, or its connection is closed.",
    source="B",
)
def reaches_provider(index: TraceIndex) -> Iterator[Finding]:
    """A stream that nobody reads goes on.

    It costs tokens, holds a connection, and in the end may block the process that forgot it.
    """
    for cut in cuts(index):
        reply, sent_at = cut.reply, cut.cancel.sent_at
        if reply is None or cut.cancel.returned_at is None or cut.run.lost_at is not None:
            continue
        places = [reply.terminator_at, *(at for at, _ in breaks(reply))]
        ended = min((at for at in places if at is not None), default=None)
        closed = reply.closed_at if reply.closed_by == "target" else None
        if racing(index):
            yield RACES
        elif reply.signalled_at is not None:
            yield Held(sent_at, reply.signalled_at)
        elif closed is not None and (ended is None or closed < ended):
            yield Held(sent_at, closed)
        elif ended is not None and (not exact(index) or ended != reply.terminator_at):
            yield Hidden("the reply was over before a closing of its connection could be seen")
        elif cut.run.end is not None:
            what = "it was sent to its end" if ended is not None else "it stayed open"
            yield Broke(
                f"{cut.words} had to reach the provider of request {reply.number} by a signal or"
                f" by closing its stream, but {what} and saw no signal",
                sent_at,
                ended or cut.run.end,
            )


@rule(
    "cancellation.reaches-tools",
    "A tool that runs when its run is cancelled MUST see the signal.",
    source="B, CAN10",
    claim="tool_signal",
)
def reaches_tools(index: TraceIndex) -> Iterator[Finding]:
    """There is no forced interruption of local code.

    A tool can only stop itself, and it can do so only if it is told.
    """
    for cut in cuts(index):
        returned, sent_at = cut.cancel.returned_at, cut.cancel.sent_at
        for start in running_tools(index, cut):
            if returned is None or cut.run.lost_at is not None:
                continue
            if racing(index):
                yield RACES
            elif not index.observes("tool_signal"):
                yield Hidden("tools of this variant are not shown the signal")
            elif start.signalled_at is not None:
                yield Held(sent_at, start.signalled_at)
            elif start.settled is not None and start.settled.how == "cancelled":
                yield Held(sent_at, start.settled_at or start.at)
            elif start.settled_at is None or (exact(index) and start.settled_at > returned):
                yield Broke(
                    f"{cut.words} had to be seen by {call_names([start])}, which ran, but its tool"
                    " saw no signal",
                    start.at,
                    sent_at,
                )


@rule(
    "cancellation.returns-at-once",
    "The cancel call SHOULD return at once, and SHOULD NOT wait for the run to settle.",
    source="B",
    level=Level.ADVISORY,
)
def returns_at_once(index: TraceIndex) -> Iterator[Finding]:
    """Cancel is called where nobody can wait: signal handlers, tools and listeners of the run.

    A call that waits there waits for itself.
    """
    for cut in cuts(index):
        cancel, run = cut.cancel, cut.run
        if run.end is None or run.lost_at is not None:
            continue
        if racing(index):
            yield RACES
        elif cancel.returned_at is None:
            yield Broke(
                f"cancel {cancel.number} at {cancel.at!r} should return at once, but never did",
                cancel.sent_at,
                run.end,
            )
        elif cancel.returned_at < run.end:
            yield Held(cancel.sent_at, cancel.returned_at)
        elif _environment_moved(index, cut, run.end):
            yield Broke(
                f"cancel {cancel.number} at {cancel.at!r} should return at once, but it returned"
                f" only after run {run.number} had settled",
                cancel.sent_at,
                run.end,
                cancel.returned_at,
            )


def _environment_moved(index: TraceIndex, cut: Cut, end: int) -> bool:
    """Whether a tool or the provider had to move before the run could end.

    Without that, a cancel call that comes back right after the settlement may not have waited.
    """
    tools = [item.settled_at for item in running_tools(index, cut)]
    pieces = [at for at, _ in cut.last.sent] if cut.last is not None else []
    return any(at is not None and cut.cancel.sent_at < at < end for at in [*tools, *pieces])


@rule(
    "cancellation.fresh-signal",
    "A cancellation MUST NOT leak into a later run: each run starts with a fresh signal.",
    source="B",
)
def fresh_signal(index: TraceIndex) -> Iterator[Finding]:
    """Each prompt has a controller of its own.

    A signal that stays set kills every later prompt; a flag that is reset too late kills only the
    next one, which is harder to find.
    """
    for run in index.runs:
        earlier = [item for item in index.cancels if item.sent_at < run.at]
        open_runs = [r for r in index.runs if r.at < run.at and (r.end is None or r.end > run.at)]
        if not earlier or run.cancels or run.prompted.running or open_runs or run.refused:
            continue
        tools = [item.signalled_at for item in starts_of(index, run)]
        replies = [item.signalled_at for item in run.exchanges]
        seen = sorted(at for at in [*tools, *replies] if at is not None)
        told = run.settled is not None and run.settled.reason == FailureReason.CANCELLED
        cancel = earlier[-1]
        if racing(index):
            yield RACES
        elif seen or told:
            yield Broke(
                f"run {run.number} was never cancelled, but it"
                f" {'saw a signal' if seen else 'was told as cancelled'}; the last cancellation"
                f" ({cancel.at!r}) came before its prompt",
                cancel.sent_at,
                seen[0] if seen else run.settled_at or run.at,
            )
        elif run.exchanges and run.settled_at is not None:
            yield Held(cancel.sent_at, run.exchanges[0].at, run.settled_at)


@rule(
    "cancellation.busy-until-settled",
    "A prompt that is given between a cancellation and the settlement of its run MUST be treated"
    " as any prompt while running: refused, queued or run apart, as claimed.",
    source="B, STA03",
    claim="concurrent_prompt",
)
def busy_until_settled(index: TraceIndex) -> Iterator[Finding]:
    """The running state is cleared when the run has settled, not when it was asked to stop.

    A loop that is idle too early lets a new run meet what the old one still has to write.
    """
    for cut in cuts(index):
        returned, run = cut.cancel.returned_at, cut.run
        for first, second in overlapping(index):
            if first is not run or returned is None or second.at < returned:
                continue
            if racing(index):
                yield RACES
                continue
            wrong = treated_otherwise(index, run, second) if run.settled_at is not None else None
            if wrong:
                yield Broke(
                    f"prompt {second.number} came after run {run.number} was cancelled and before"
                    f" it settled; {wrong[0]}",
                    returned,
                    second.at,
                    wrong[1],
                )
            elif run.settled_at is not None:
                yield Held(returned, second.at, run.settled_at)


# --------------------------------------------------------------------------------------------
# Relations: what a cancellation must not change


@rule(
    "cancellation.idle",
    "A cancellation while no run is under way MUST change nothing, now or in the next run.",
    source="B",
    relation=True,
)
def idle(family: Sequence[TraceIndex]) -> Iterator[Finding]:
    """A user who presses the key a moment too late must not kill the next prompt.

    The same scenario with and without the idle cancellation has to come to the same.
    """
    plain = next((index for index in family if not index.cancels), None)
    for index in family:
        ran = any(run.cancels for run in index.runs)
        if plain is not None and index.cancels and not ran:
            yield from _unchanged(plain, index, "a cancellation while idle")


@rule(
    "cancellation.twice",
    "A second cancellation of a run MUST change nothing: outcome, history and tools are those of"
    " one cancellation.",
    source="B",
    relation=True,
)
def twice(family: Sequence[TraceIndex]) -> Iterator[Finding]:
    """Cancel buttons are pressed more than once.

    The second press meets a run that is winding down, which is where results are replaced twice
    and errors are thrown into cleanup code.
    """
    cancelled = [index for index in family if index.cancels]
    once = min(cancelled, key=lambda index: len(index.cancels), default=None)
    for index in cancelled:
        if once is not None and len(index.cancels) > len(once.cancels):
            yield from _unchanged(once, index, "a second cancellation")


def _unchanged(plain: TraceIndex, other: TraceIndex, what: str) -> Iterator[Finding]:
    cancel = other.cancels[-1]
    found = difference(plain, other)
    if racing(other):
        yield RACES
    elif found is None:
        yield Held(cancel.sent_at)
    else:
        words, run = found
        shown = (run.end or run.at,) if run is not None else ()
        yield Broke(
            f"{what} was to change nothing, but {words}",
            cancel.sent_at,
            *shown,
            member=other.header.member,
        )
