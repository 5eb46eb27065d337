"""Which way a trace went through the machine, told from the trace alone.

Coverage must not be counted by who drew the scenario: a scenario that means to cancel in a tool
proves nothing if the tool never started. So each run of a recorded trace is fed, entry by entry,
to a machine with the target's claims, and what that machine went through is what was exercised.

Most entries are inputs. What no entry says is filled in **as late as possible**: the machine
proceeds only when the next entry could not have come otherwise. That is what places a cancellation
from inside a listener: between the event and everything after it. A cancellation at a gate comes
when the target can do no more, so there the machine first proceeds as far as it can.

A run that the machine does not allow is walked up to the place where it went wrong. Judging it is
the rules' business, not this module's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loopspec import machine as fsm
from loopspec import trace as t
from loopspec.loop import check_arguments
from loopspec.machine import AWAIT_POINTS, CallState, Choices, Machine, RowId, State
from loopspec.scenario import PROBE_TOOLS
from loopspec.vocabulary import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    EventType,
    FaultKind,
    Outcome,
    ReasoningDelta,
    TextDelta,
    UserMessage,
)

HEEDING, DEAF = "heeding", "deaf"
LISTENER = "listener of"
"""How the place of a cancellation begins that came from inside the target's listener."""

_PROCEEDS = (State.OPENING, State.RECORDED, State.DISPATCHING, State.STARTING, State.BETWEEN)
_IN_REPLY = (State.REQUESTING, State.STREAMING, State.ENDING)
_OVER = (CallState.ANSWERED, CallState.SKIPPED)
_DELTAS = {EventType.TEXT_DELTA: TextDelta, EventType.REASONING_DELTA: ReasoningDelta}
_CONTENT = (TextDelta, ReasoningDelta, CallStart, ArgumentsDelta, CallEnd)
_FROM_LISTENERS = (t.Prompted, t.CancelSent, t.CancelReturned, t.ListenerRaised)
_AT_MOST = 1000


@dataclass(frozen=True, slots=True)
class Point:
    """A cancellation at an await point, in an environment that heeded it or was deaf."""

    state: State
    mode: str

    def __str__(self) -> str:
        return f"{self.state}, {self.mode}"


@dataclass(frozen=True, slots=True)
class Walked:
    """What one trace went through: a path of rows for each run, and where cancellations came."""

    paths: tuple[tuple[RowId, ...], ...]
    points: frozenset[Point]


@dataclass(slots=True)
class _Cancel:
    """A cancellation of a run, and what could have heeded it."""

    at: int
    state: State
    request: int | None
    starts: tuple[int, ...]


class _LostWayError(Exception):
    """The run went a way that the machine does not have."""


@dataclass(slots=True)
class _Run:
    """One run being walked. What came and was not yet seen to be taken in waits in two queues."""

    machine: Machine
    marks_call_ends: bool
    prompt: int = 0
    pieces: deque[fsm.Input] = field(default_factory=deque)
    settled: deque[tuple[int, fsm.ToolSettled]] = field(default_factory=deque)
    starts: dict[int, int] = field(default_factory=dict)
    request: int | None = None
    lost: bool = False
    apart: bool = False

    # -- feeding -----------------------------------------------------------------------------

    def feed(self, given: fsm.Input) -> None:
        try:
            outputs = self.machine.feed(given)
        except fsm.IllegalInput:
            raise _LostWayError from None
        for output in outputs:
            if isinstance(output, fsm.StartTool):
                self.feed(self._entered(output))

    def _entered(self, output: fsm.StartTool) -> fsm.Input:
        schema = PROBE_TOOLS.get(output.call.name)
        if schema is None:
            return fsm.ToolSettled(output.place, "", "unknown_tool")
        arguments, _ = check_arguments(output.call.arguments, schema)
        if arguments is None or (self.marks_call_ends and not output.whole):
            return fsm.ToolSettled(output.place, "", "invalid_arguments")
        return fsm.ToolStarted(output.place)

    def take_pieces(self, *until: type) -> None:
        """Take in the pieces that came; ``until``: up to and with the first of these kinds."""
        if until and not any(self._is(item, until) for item in self.pieces):
            return
        while self.pieces:
            item = self.pieces.popleft()
            if self.machine.state in _IN_REPLY:
                self.feed(item)
            if until and self._is(item, until):
                return

    @staticmethod
    def _is(item: fsm.Input, kinds: tuple[type, ...]) -> bool:
        return isinstance(item, fsm.Received) and isinstance(item.piece, kinds)

    def take_settled(self, place: int | None = None) -> None:
        """Take in the tools that settled; ``place``: up to and with this call's."""
        while self.settled:
            at, item = self.settled.popleft()
            if self.machine.calls[at].state is CallState.STARTED:
                self.feed(item)
            if at == place:
                return

    def proceed(self, until: Callable[[Machine], bool]) -> None:
        """Proceed as far as needed; stops where the machine waits for something from outside."""
        for _ in range(_AT_MOST):
            if until(self.machine) or self.machine.state not in _PROCEEDS:
                return
            self.feed(fsm.Proceed())

    def catch_up(self) -> None:
        """Take in everything and proceed until the machine waits, or would ask the model.

        A request is never assumed: there is an entry for each.
        """
        self.take_pieces()
        self.take_settled()
        self.proceed(lambda m: m.state is State.OPENING)

    # -- what entries say -------------------------------------------------------------------

    def requested(self, number: int) -> None:
        self.take_pieces()
        self.take_settled()
        if self.machine.state is State.ENDING:  # the wire has no terminator
            self.feed(fsm.StreamEnded())
        self.proceed(lambda m: m.state is State.REQUESTING)
        if self.machine.state is not State.REQUESTING:
            raise _LostWayError
        self.request = number
        self.starts.clear()

    def tool_started(self, entry: t.ToolStarted) -> None:
        self.take_pieces()
        if self.machine.state is State.ENDING:
            self.feed(fsm.StreamEnded())
        free = [
            place
            for place, status in enumerate(self.machine.calls)
            if place not in self.starts.values()
            and (entry.call_id in (None, status.call.id) or status.call.arguments == entry.arguments)
        ]
        if not free:
            raise _LostWayError
        place = free[0]
        self.proceed(lambda m: m.calls[place].state is not CallState.ANNOUNCED)
        if self.machine.calls[place].state is CallState.ANNOUNCED:
            self.take_settled()
            self.proceed(lambda m: m.calls[place].state is not CallState.ANNOUNCED)
        if self.machine.calls[place].state is CallState.ANNOUNCED:
            raise _LostWayError
        self.starts[entry.start] = place

    def tool_settled(self, entry: t.ToolSettled) -> None:
        place = self.starts.get(entry.start)
        if place is None or place >= len(self.machine.calls):
            return
        failure = None if entry.how == "returned" else "tool_exception"
        self.settled.append((place, fsm.ToolSettled(place, entry.text, failure)))

    def told(self, entry: t.Told) -> None:
        event = entry.event
        if event.type in _DELTAS:
            self.take_pieces(_DELTAS[EventType(event.type)])
        elif event.type == EventType.TOOL_START:
            self.take_pieces()
            self.proceed(lambda m: any(c.told and c.call.id == event.call_id for c in m.calls))
        elif event.call_id is not None and event.type != EventType.CALL:
            self._answered(event.call_id)
        elif event.type in (EventType.STREAM_END, EventType.ATTEMPT):
            self.take_pieces()
        elif event.type == EventType.MESSAGE_START and event.role == "assistant":
            self._message_begun()
        elif event.type == EventType.MESSAGE_END and event.role == "assistant":
            self.take_pieces()
        elif event.type == EventType.TURN_START and self.machine.state is State.BETWEEN:
            self.proceed(lambda m: m.state is not State.BETWEEN)
        elif event.type == EventType.TURN_END and self.machine.state is State.RECORDED:
            self.proceed(lambda m: m.state is not State.RECORDED)
        elif event.type == EventType.RUN_END:
            self.catch_up()

    def _message_begun(self) -> None:
        """A reply's start was told: with its first piece, or with its end if it has none."""
        if any(self._is(item, _CONTENT) for item in self.pieces):
            self.take_pieces(*_CONTENT)
        else:
            self.take_pieces()

    def _answered(self, call_id: str) -> None:
        """The call's end or its result was told."""
        self.take_pieces()
        places = [p for p, c in enumerate(self.machine.calls) if c.call.id == call_id]
        if not places:
            return
        place = places[0]

        def over(machine: Machine) -> bool:
            return machine.calls[place].state in _OVER

        if not over(self.machine):
            self.proceed(over)
        if not over(self.machine) and any(at == place for at, _ in self.settled):
            self.take_settled(place)

    def running(self) -> tuple[int, ...]:
        """The starts of the tools that run."""
        calls = self.machine.calls
        return tuple(
            start
            for start, place in self.starts.items()
            if place < len(calls) and calls[place].state is CallState.STARTED
        )


class _Walk:
    """Walks one trace."""

    def __init__(self, trace: t.Trace) -> None:
        header = trace.header
        self.trace = trace
        self.choices = Choices.of(header.claims)
        limit = header.max_turns
        self.max_turns = limit if isinstance(limit, int) and limit > 0 else None
        self.marks_call_ends = "call_end" in header.can_express
        self.runs: list[_Run] = []
        self.idle: _Run | None = None
        self.open: list[_Run] = []
        self.waiting: deque[t.Prompted] = deque()
        self.cancels: list[_Cancel] = []
        self.listening = False

    def walk(self) -> Walked:
        for at, entry in enumerate(self.trace.entries[1:], 1):
            handler = _HANDLERS.get(type(entry))
            if handler is not None:
                handler(self, at, entry)
            if isinstance(entry, t.Told):
                self.listening = True
            elif not isinstance(entry, _FROM_LISTENERS):
                self.listening = False
        for run in self.open:
            self._do(run, run.catch_up)
        paths = tuple(tuple(run.machine.path) for run in self.runs if run.machine.path)
        return Walked(paths, frozenset(self._points()))

    # -- runs --------------------------------------------------------------------------------

    def _new(self) -> _Run:
        run = _Run(Machine(self.choices, self.max_turns), self.marks_call_ends)
        self.runs.append(run)
        return run

    def _begin(self, entry: t.Prompted) -> None:
        run, self.idle = self.idle or self._new(), None
        run.prompt = entry.prompt
        self.open.append(run)
        self._do(run, lambda: run.feed(fsm.Prompted(entry.text)))

    def _do(self, run: _Run, what: Callable[[], None]) -> None:
        if run.lost:
            return
        try:
            what()
        except _LostWayError:
            run.lost = True

    def _run_of(self, prompt: int | None) -> _Run | None:
        """The open run of a prompt; a queued one begins when it is first heard of."""
        for run in self.open:
            if run.prompt == prompt:
                return run
        if self.waiting and self.waiting[0].prompt == prompt:
            for run in self.open:
                self._do(run, run.catch_up)
            self._begin(self.waiting.popleft())
            return self.open[-1]
        return None

    def _current(self) -> _Run | None:
        """The run that a cancellation or an event belongs to: none of those apart."""
        own = [run for run in self.open if not run.apart]
        return next((run for run in own if not run.machine.settled), own[-1] if own else None)

    # -- entries -----------------------------------------------------------------------------

    def _prompted(self, at: int, entry: t.Prompted) -> None:
        current = self._current()
        if not entry.running or current is None:
            self._begin(entry)
            return
        if not self.listening:
            self._do(current, current.catch_up)
        self._do(current, lambda: current.feed(fsm.Prompted(entry.text)))
        if self.choices.concurrent_prompt == "queued":
            self.waiting.append(entry)
        elif self.choices.concurrent_prompt == "apart":
            self._begin(entry)
            self.open[-1].apart = True

    def _requested(self, at: int, entry: t.Requested) -> None:
        if entry.serves == "auxiliary":
            return
        run = self._run_of(entry.prompt)
        if run is not None:
            self._do(run, lambda: run.requested(entry.request))

    def _serving(self, request: int | None) -> _Run | None:
        return next((run for run in self.open if run.request == request), None)

    def _opened(self, at: int, entry: t.Opened) -> None:
        run = self._serving(entry.request)
        if run is not None and run.machine.state is State.REQUESTING:
            self._do(run, lambda: run.feed(fsm.Opened()))

    def _sent(self, at: int, entry: t.Sent) -> None:
        run = self._serving(entry.request)
        if run is not None:
            run.pieces.append(fsm.Received(entry.piece))

    def _faulted(self, at: int, entry: t.Faulted) -> None:
        run = self._serving(entry.request)
        if run is None or entry.fault == FaultKind.STALL:
            return
        ended = entry.fault == FaultKind.END
        run.pieces.append(fsm.StreamEnded() if ended else fsm.StreamFailed(entry.detail or ""))

    def _tool_started(self, at: int, entry: t.ToolStarted) -> None:
        run = self._serving(entry.request) or self._current()
        if run is not None:
            self._do(run, lambda: run.tool_started(entry))

    def _tool_settled(self, at: int, entry: t.ToolSettled) -> None:
        for run in self.open:
            if entry.start in run.starts:
                self._do(run, lambda run=run: run.tool_settled(entry))  # type: ignore[misc]

    def _told(self, at: int, entry: t.Told) -> None:
        event = entry.event
        begins = event.type == EventType.RUN_START or (
            event.type == EventType.MESSAGE_START and event.role == UserMessage.role
        )
        run = self._current()
        if begins and self.waiting and (run is None or run.machine.state is not State.OPENING):
            run = self._run_of(self.waiting[0].prompt)
        if run is not None:
            self._do(run, lambda: run.told(entry))

    def _cancel_sent(self, at: int, entry: t.CancelSent) -> None:
        run = self._current()
        inside = entry.at.startswith(LISTENER)
        if run is not None and not inside:
            self._do(run, run.catch_up)
        if run is None or (run.machine.settled and not inside):
            run = self.idle = self.idle or self._new()
        if not run.lost:
            state = run.machine.state
            if state in AWAIT_POINTS:
                request = run.request if state in _IN_REPLY else None
                self.cancels.append(_Cancel(at, state, request, run.running()))
            self._do(run, lambda: run.feed(fsm.Cancelled()))

    def _listener_raised(self, at: int, entry: t.ListenerRaised) -> None:
        run = self._current()
        if run is not None:
            self._do(run, lambda: run.feed(fsm.ListenerFailed("")))

    def _over(self, at: int, entry: t.Settled | t.Hung) -> None:
        for run in [run for run in self.open if run.prompt == entry.prompt]:
            if isinstance(entry, t.Settled) and entry.outcome == Outcome.REFUSED:
                self.runs.remove(run)  # it never began
            self._do(run, run.catch_up)
            self.open.remove(run)

    # -- heeding or deaf ---------------------------------------------------------------------

    def _points(self) -> list[Point]:
        return [Point(item.state, DEAF if self._deaf(item) else HEEDING) for item in self.cancels]

    def _deaf(self, cancel: _Cancel) -> bool:
        """Something that ran at the cancellation went on: the reply, or a tool to its own end."""
        signalled: set[int] = set()
        left: set[int] = set()
        for entry in self.trace.entries[cancel.at :]:
            if isinstance(entry, t.Opened | t.Sent | t.Faulted) and entry.request == cancel.request:
                return True
            if isinstance(entry, t.Signalled) and entry.where == "tool":
                signalled.add(entry.number)
            elif isinstance(entry, t.ToolSettled) and entry.start in cancel.starts:
                if entry.how != "cancelled":
                    return True
                left.add(entry.start)
        return bool((signalled & set(cancel.starts)) - left)


_HANDLERS: dict[type, Callable[[_Walk, int, Any], None]] = {
    t.Prompted: _Walk._prompted,
    t.Requested: _Walk._requested,
    t.Opened: _Walk._opened,
    t.Sent: _Walk._sent,
    t.Faulted: _Walk._faulted,
    t.ToolStarted: _Walk._tool_started,
    t.ToolSettled: _Walk._tool_settled,
    t.Told: _Walk._told,
    t.CancelSent: _Walk._cancel_sent,
    t.ListenerRaised: _Walk._listener_raised,
    t.Settled: _Walk._over,
    t.Hung: _Walk._over,
}


def walk(trace: t.Trace) -> Walked:
    """What the runs of ``trace`` went through, by a machine with the claims in its header."""
    return _Walk(trace).walk()
