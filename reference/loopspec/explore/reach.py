"""Which rows can follow which, for a set of claims: searched on the machine, not drawn.

Coverage needs a whole to be a part of. Not every pair of rows that fits by its states can occur:
two guards may ask for different values of one claim, the counters or the reply may exclude them,
or nobody can come in between, because the loop tells nothing there and waits for nothing. This
module searches all inputs breadth first over *abstract* machines: three calls, three turns, and of a
reply only whether it has text. Larger ones go the same ways.

What the search knows of the shell round the machine is three sentences. It can be interrupted
where it waits for the stream or a tool, while it tells an event, and in the tick of the prompt. A
listener can fail only on an event. It proceeds only where it does not wait.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from loopspec import machine as fsm
from loopspec.explore.walk import DEAF, HEEDING, Point
from loopspec.machine import AWAIT_POINTS, CallState, Choices, Machine, RowId, State
from loopspec.vocabulary import (
    ArgumentsDelta,
    CallStart,
    Piece,
    Reason,
    ReasoningDelta,
    StopReason,
    Terminator,
    TextDelta,
    Usage,
)

Pair = tuple[RowId, RowId]

_WAITS = (State.REQUESTING, State.STREAMING, State.ENDING, State.EXECUTING, State.DRAINING)
_CALLS = 3
_TURNS = 3
_LIMITS = (None, 1, 2)
_REASONS = (
    StopReason.STOP, StopReason.TOOL_USE, StopReason.LENGTH, StopReason.ERROR, StopReason.DEFERRED,
    StopReason.REFUSAL, "never heard of",
)  # fmt: skip


@dataclass(slots=True)
class _Node:
    """A machine, how many events of its last steps are untold, and what the shell is about to do.

    ``entering`` is the call that is being entered; ``interruptible``: it is the tick of the prompt.
    """

    machine: Machine
    untold: int
    entering: int | None = None
    interruptible: bool = False

    def key(self) -> tuple[object, ...]:
        m = self.machine
        calls = tuple((call.state, call.told) for call in m.calls)
        in_reply = m.state in (State.STREAMING, State.ENDING)
        blocks = m.assembler.blocks() if in_reply else (m.reply.blocks if m.reply else ())
        text = any(block.type == "text" for block in blocks)
        called = sum(block.type == "call" for block in blocks)
        reason = m.reason.reason if m.reason else None
        return (
            m.state, min(m.turn, _TURNS), reason, calls, text, called, bool(m.cause),
            m.asked_again, m.draft_told, m.turn_open, min(self.untold, 2), self.entering,
            self.interruptible,
        )  # fmt: skip


def _copied(machine: Machine) -> Machine:
    other = machine.copy()
    other.path = []
    other.call_path = []
    return other


def _pieces(machine: Machine) -> Iterator[Piece]:
    calls = len(machine.assembler._calls)
    yield TextDelta("a")
    yield ReasoningDelta("a")
    if calls < _CALLS:
        yield CallStart(calls, str(calls), "probe")
    else:
        yield ArgumentsDelta(0, "")
    yield Usage(1, 1)
    for reason in _REASONS:
        yield Reason(str(reason))
    yield Terminator()


def _tool_inputs(node: _Node) -> Iterator[fsm.Input]:
    machine = node.machine
    if node.entering is not None:
        yield fsm.ToolStarted(node.entering)
        for failure in ("unknown_tool", "invalid_arguments"):
            yield fsm.ToolSettled(node.entering, "", failure)
        return
    for place, call in enumerate(machine.calls):
        if call.state is CallState.STARTED:
            yield fsm.ToolSettled(place, "")
            yield fsm.ToolSettled(place, "", "tool_exception")


def _inputs(node: _Node, shell: bool) -> Iterator[fsm.Input]:
    """The inputs that may come next. Without ``shell`` nothing is said of who can interrupt."""
    machine = node.machine
    state = machine.state
    if state is State.IDLE:
        yield fsm.Prompted("")
        yield fsm.Cancelled()
        return
    waits = state in _WAITS and node.entering is None
    if node.untold or node.interruptible or waits or not shell:
        yield fsm.Cancelled()
        yield fsm.Prompted("")
    if node.untold or not shell:
        yield fsm.ListenerFailed("")
    if machine.settled:
        return
    if state is State.REQUESTING:
        yield fsm.Opened()
        yield fsm.StreamFailed("")
    elif state in (State.STREAMING, State.ENDING):
        yield fsm.StreamFailed("")
        yield fsm.StreamEnded()
        for piece in _pieces(machine):
            yield fsm.Received(piece)
    elif state in (State.EXECUTING, State.DRAINING):
        yield from _tool_inputs(node)
    else:
        yield fsm.Proceed()


def _after(node: _Node, given: fsm.Input) -> tuple[RowId, _Node] | None:
    machine = _copied(node.machine)
    try:
        outputs = machine.feed(given)
    except fsm.IllegalInput:
        return None
    told = sum(isinstance(output, fsm.Emit) for output in outputs)
    entering = next((out.place for out in outputs if isinstance(out, fsm.StartTool)), None)
    within = isinstance(given, fsm.Cancelled | fsm.Prompted) and node.machine.state is not State.IDLE
    untold = told
    if within:
        untold += node.untold
        entering = node.entering if machine.state is State.EXECUTING else None
    elif isinstance(given, fsm.ListenerFailed):
        untold += node.untold - 1
    first = isinstance(given, fsm.Prompted) and node.machine.state is State.IDLE
    again = within and node.interruptible and machine.state is State.OPENING
    return machine.path[-1], _Node(machine, max(untold, 0), entering, first or again)


def search(choices: Choices, max_turns: int | None = None, *, shell: bool = True) -> frozenset[Pair]:
    """The pairs of consecutive rows that a run with these choices and this limit can go through.

    ``shell=False``: any input at any time, whoever could give it.
    """
    start = _Node(Machine(choices, max_turns), 0)
    seen = {start.key()}
    queue = deque([start])
    leads_to: dict[tuple[object, ...], set[RowId]] = {start.key(): set()}
    leaves: dict[tuple[object, ...], set[RowId]] = {}
    while queue:
        node = queue.popleft()
        here = node.key()
        for given in _inputs(node, shell):
            step = _after(node, given)
            if step is None:
                continue
            row, following = step
            key = following.key()
            leaves.setdefault(here, set()).add(row)
            leads_to.setdefault(key, set()).add(row)
            if key not in seen:
                seen.add(key)
                queue.append(following)
    return frozenset(
        (first, second)
        for key, firsts in leads_to.items()
        for first in firsts
        for second in leaves.get(key, ())
    )


@dataclass(frozen=True, slots=True)
class Reachable:
    """The whole that coverage is a part of, for one set of claims."""

    rows: frozenset[RowId]
    pairs: frozenset[Pair]
    points: frozenset[Point]


@functools.cache
def reachable(choices: Choices) -> Reachable:
    """What a loop with these choices can go through, with and without a turn limit."""
    pairs = frozenset().union(*(search(choices, limit) for limit in _LIMITS))
    rows = {row for pair in pairs for row in pair}
    parallel = choices.tools != "sequential"
    can_be_deaf = {State.REQUESTING, State.STREAMING, State.ENDING, State.EXECUTING}
    if choices.cancelled_tool == "waits" or choices.listener_failure == "fails":
        can_be_deaf.add(State.DRAINING)
    if parallel:
        can_be_deaf |= {State.DISPATCHING, State.STARTING}
    cancelled = {state for state, kind, _ in rows if kind is fsm.Kind.CANCEL}
    points = {
        Point(state, mode)
        for state in AWAIT_POINTS
        if state in cancelled
        for mode in (HEEDING, DEAF)
        if mode == HEEDING or state in can_be_deaf
    }
    return Reachable(frozenset(rows), pairs, frozenset(points))


# --------------------------------------------------------------------------------------------
# The rest: what fits by its states, and why it cannot occur

_CLAIM_OF_GUARD = {
    "busy refused": ("concurrent_prompt", "refused"),
    "busy queued": ("concurrent_prompt", "queued"),
    "busy apart": ("concurrent_prompt", "apart"),
    "prefix kept": ("cancelled_prefix", "finalize"),
    "prefix dropped": ("cancelled_prefix", "discard"),
    "listener fails": ("listener_failure", "fails"),
    "listener fails, tools run": ("listener_failure", "fails"),
    "listener fails, no tool runs": ("listener_failure", "fails"),
    "listener ignored": ("listener_failure", "ignored"),
    "length, answers": ("length", "answers"),
    "empty, completes": ("empty_stop", "completes"),
    "empty, asks again": ("empty_stop", "asks-again"),
    "unfinished, resumes": ("deferred", "resumes"),
    "tools run, waits": ("cancelled_tool", "waits"),
}


def fitting_pairs() -> list[Pair]:
    """Every two rows of which the second starts in the state that the first leads to."""
    next_of = {
        (state, kind, row.guard): row.next for (state, kind), rows in fsm.TABLE.items() for row in rows
    }
    return [(first, second) for first in next_of for second in next_of if next_of[first] is second[0]]


CLAIMS_EXCLUDE = "the two guards ask for different values of one claim"
RUN_EXCLUDES = "no run of the machine has these two in a row: counters, calls or the reply exclude it"
NOBODY_BETWEEN = "the loop neither waits nor tells anything between the two, so nobody can come in"


def why_unreachable(pair: Pair, by_machine: frozenset[Pair]) -> str:
    """Why a pair that fits is not reachable. ``by_machine``: those found without the shell."""
    claims = [_CLAIM_OF_GUARD.get(row[2]) for row in pair]
    first, second = claims
    if first and second and first[0] == second[0] and first[1] != second[1]:
        return CLAIMS_EXCLUDE
    return NOBODY_BETWEEN if pair in by_machine else RUN_EXCLUDES
