"""The reference loop: the thin asynchronous shell round the machine.

The machine decides; the shell does. It carries outputs out in order, waits where the machine waits
(for the stream, for tools), feeds back what came, and feeds ``Proceed`` when there is nothing to
wait for. A cancellation is fed to the machine at the moment it is asked for, so everything that
comes after it is already ruled by the table; the shell only has to wake up and carry on.

**No wait can hold the loop.** Each wait is a race with the run's wake-up. A provider that never
yields, and ignores every request to stop, is abandoned: its task is cancelled and forgotten, its
late result or exception is swallowed. A started tool cannot be abandoned that way where the claim
``cancelled_tool`` says that the loop waits for it: then a tool that never ends hangs the run, and
that is what was claimed.

The loop is written against two small protocols, :class:`Model` and :class:`LoopTool`, and runs on
plain asyncio.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loopspec import history as histories
from loopspec import machine as fsm
from loopspec.machine import Choices, Kind, Machine, State
from loopspec.signals import Signal
from loopspec.vocabulary import (
    AssistantMessage,
    Call,
    Event,
    FailureReason,
    Message,
    Outcome,
    Piece,
    is_complete_json,
)


class Model(Protocol):
    """Where replies come from. If it has a ``name``, messages name it as their provider."""

    async def open(
        self, messages: tuple[Message, ...], tools: tuple[str, ...], signal: Signal
    ) -> AsyncIterator[Piece]:
        """Open a reply; raise if the provider fails.

        The stream may have ``aclose``, and ``ready``: the next piece if it is there, else ``None``.
        """


class LoopTool(Protocol):
    """A tool as the loop calls it. ``schema`` is the JSON Schema of its arguments."""

    @property
    def name(self) -> str: ...  # noqa: D102 - said by the class

    @property
    def schema(self) -> Mapping[str, Any]: ...  # noqa: D102 - said by the class

    async def call(self, arguments: Any, call_id: str, signal: Signal | None) -> str:
        """Run with parsed arguments; return the result's text, or raise."""


Listener = Callable[[Event], Awaitable[None] | None]


class RunFailed(Exception):
    """A run failed, where failures are raised. ``reason`` says why."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RunCancelled(RunFailed):
    """A run was cancelled."""


class BusyError(Exception):
    """A prompt was refused because another run has not settled."""


class InvalidLimit(ValueError):
    """A turn limit is not a positive whole number."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a run ended, where that is returned or told. ``reason`` is ``None`` when completed."""

    outcome: Outcome
    reason: FailureReason | None = None
    message: str | None = None
    answer: AssistantMessage | None = None


def check_arguments(text: str, schema: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The parsed arguments, or ``None`` and what is wrong with them.

    Checks what the probe tools' schemas say: an object, required members, members' types. No text
    at all is an object without members: so some providers call a tool that needs none.
    """
    text = text.strip() or "{}"
    if not is_complete_json(text):
        return None, "the arguments are not complete JSON"
    value = json.loads(text)
    if not isinstance(value, dict):
        return None, "the arguments are not a JSON object"
    for name in schema.get("required", ()):
        if name not in value:
            return None, f"the argument {name!r} is missing"
    types: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "object": dict}
    for name, part in schema.get("properties", {}).items():
        wanted = types.get(part.get("type"))
        if name in value and wanted is not None:
            wrong = not isinstance(value[name], wanted) or isinstance(value[name], bool)
            if wrong:
                return None, f"the argument {name!r} is not of type {part['type']}"
    return value, ""


def _nothing() -> None:
    return None


@dataclass(slots=True)
class _Run:
    """What the shell holds for one run."""

    machine: Machine
    messages: list[Message]
    signal: Signal = field(default_factory=Signal)
    tool_signal: Signal = field(default_factory=Signal)
    outbox: deque[fsm.Output] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    stream: AsyncIterator[Piece] | None = None
    opening: asyncio.Task[AsyncIterator[Piece]] | None = None
    pull: asyncio.Task[Piece] | None = None
    settled_tools: deque[fsm.ToolSettled] = field(default_factory=deque)
    tools: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    settle: fsm.Settle | None = None
    apart: bool = False
    first: int = 0

    def feed(self, given: fsm.Input) -> None:
        self.outbox.extend(self.machine.feed(given))
        self.wake.set()


class ReferenceLoop:
    """One conversation with the reference loop.

    Parameters
    ----------
    model: where replies come from.
    tools: the tools that the model may call.
    choices: the claims as settings.
    max_turns: requests a run may make; raises :class:`InvalidLimit` unless a positive whole
        number or ``None``.
    history: messages to start from (a fork's, say).
    machine: makes the machine of each run; faulty loops give their own.
    """

    def __init__(
        self,
        model: Model,
        tools: Sequence[LoopTool] = (),
        choices: Choices | None = None,
        max_turns: int | float | None = None,
        history: Sequence[Message] = (),
        machine: Callable[[Choices, int | None], Machine] = Machine,
    ) -> None:
        if max_turns is not None and (
            not isinstance(max_turns, int) or isinstance(max_turns, bool) or max_turns < 1
        ):
            raise InvalidLimit(f"max_turns is {max_turns!r}; give a positive whole number")
        self.choices = choices or Choices()
        self.messages: list[Message] = list(history)
        self.attempts: list[AssistantMessage] = []
        self.max_turns: int | None = max_turns
        self.machines: list[Machine] = []
        self._model = model
        self._provider: str | None = getattr(model, "name", None)
        self._tools = {tool.name: tool for tool in tools}
        self._machine = machine
        self._listeners: list[Listener] = []
        self._run: _Run | None = None
        self._next: Machine | None = None
        self._waiting: deque[tuple[str, asyncio.Future[Settlement]]] = deque()
        self._held_back: list[Message] = []
        self._background: set[asyncio.Task[Any]] = set()

    # -- the public face ---------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """A run has not settled."""
        return self._run is not None

    def subscribe(self, listener: Listener) -> None:
        """Tell ``listener`` every event, in order; a listener that waits delays the run."""
        self._listeners.append(listener)

    def cancel(self) -> None:
        """Cancel the run, if there is one; returns at once. Idle, it changes nothing."""
        run = self._run
        if run is None:
            self._idle_machine().feed(fsm.Cancelled())
            return
        run.signal.set()
        run.feed(fsm.Cancelled())

    def prompt(self, text: str) -> asyncio.Future[Settlement]:
        """Give a prompt. The loop is busy from this call on, not from the first ``await``.

        Returns a future. It raises :class:`RunFailed`, where failures are raised, or
        :class:`BusyError`. To stop waiting for it is to cancel the run.
        """
        future: asyncio.Future[Settlement] = asyncio.get_running_loop().create_future()
        if self._run is None:
            self._begin(text, future)
            return future
        try:
            outputs = self._run.machine.feed(fsm.Prompted(text))
        except fsm.IllegalInput as error:
            future.set_exception(error)
            return future
        how = next(output.how for output in outputs if isinstance(output, fsm.Busy))
        if how == "queued":
            self._waiting.append((text, future))
        elif how == "apart":
            self._begin(text, future, apart=True)
        else:
            future.set_exception(BusyError("another run has not settled; wait for it, or cancel it"))
        return future

    def fork(self, at: int | None = None) -> ReferenceLoop:
        """A conversation of its own that starts with this one's history (up to message ``at``)."""
        other = ReferenceLoop(
            self._model, list(self._tools.values()), self.choices, self.max_turns,
            histories.fork(self.messages, at), self._machine,
        )  # fmt: skip
        other._listeners = list(self._listeners)
        return other

    async def close(self) -> None:
        """Drop what was abandoned, and every prompt that waits."""
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            future.cancel()
        for task in list(self._background):
            task.cancel()

    # -- runs --------------------------------------------------------------------------------

    def _idle_machine(self) -> Machine:
        """The machine that waits for the next prompt."""
        if self._next is None:
            self._next = self._machine(self.choices, self.max_turns)
        return self._next

    def _begin(self, text: str, future: asyncio.Future[Settlement], apart: bool = False) -> None:
        machine, self._next = self._idle_machine(), None
        self.machines.append(machine)
        run = _Run(machine, list(self.messages) if apart else self.messages, apart=apart)
        run.first = len(run.messages)
        if not apart:
            self._run = run
        run.feed(fsm.Prompted(text))
        driver = asyncio.get_running_loop().create_task(self._drive(run))
        driver.add_done_callback(self._retire)
        driver.add_done_callback(lambda done: self._settled(run, done, future))
        self._background.add(driver)
        future.add_done_callback(lambda done: self._given_up(run) if done.cancelled() else None)

    @staticmethod
    def _given_up(run: _Run) -> None:
        """Nobody waits for the settlement any more."""
        if run.settle is None:
            run.signal.set()
            run.feed(fsm.Cancelled())

    def _settled(self, run: _Run, driver: asyncio.Task[None], future: asyncio.Future[Settlement]) -> None:
        settle = run.settle
        if future.done():
            return
        if driver.cancelled():
            future.cancel()
        elif settle is None:
            future.set_exception(driver.exception() or RuntimeError("the driver ended unsettled"))
        elif settle.outcome is Outcome.FAILED and self.choices.failure == "raises":
            reason = settle.reason or FailureReason.UNKNOWN
            kind = RunCancelled if reason is FailureReason.CANCELLED else RunFailed
            future.set_exception(kind(reason, settle.message or "the run failed"))
        else:
            future.set_result(Settlement(settle.outcome, settle.reason, settle.message, settle.answer))

    async def _drive(self, run: _Run) -> None:
        """Carry out, proceed, wait; until settled."""
        try:
            # Whoever gives a prompt has one turn of the event loop in which to cancel it before
            # anything is told or asked.
            await asyncio.sleep(0)
            while run.settle is None:
                if run.outbox:
                    await self._carry_out(run, run.outbox.popleft())
                elif run.machine.settled:
                    raise fsm.IllegalInput(run.machine.state, "waiting", [])
                elif run.machine.state in _WAITS:
                    await _WAITS[run.machine.state](self, run)
                else:
                    run.feed(fsm.Proceed())
        finally:
            self._release(run)

    def _release(self, run: _Run) -> None:
        if run.apart:
            self._held_back += run.messages[run.first :]
        else:
            self._run = None
        self._abandon(run)
        if self._run is None and self._held_back:
            self.messages += self._held_back
            self._held_back = []
        while self._run is None and self._waiting:
            text, future = self._waiting.popleft()
            if not future.done():
                self._begin(text, future)

    # -- outputs -----------------------------------------------------------------------------

    async def _carry_out(self, run: _Run, output: fsm.Output) -> None:
        if isinstance(output, fsm.Emit):
            await self._emit(run, output.event)
        elif isinstance(output, fsm.Append):
            self.append(run.messages, self._signed(output.message))
        elif isinstance(output, fsm.RecordAttempt):
            self.attempts.append(output.message)
        elif isinstance(output, fsm.SendRequest):
            self._request(run)
        elif isinstance(output, fsm.CloseStream):
            self._abandon(run)
        elif isinstance(output, fsm.StartTool):
            self._start_tool(run, output)
        elif isinstance(output, fsm.RunTool):
            call, place = output.call, output.place
            run.tools[place] = self._spawn(self._run_tool(run, place, call))
            await asyncio.sleep(0)  # the tool is entered before anything else is told
        elif isinstance(output, fsm.SignalTools):
            run.tool_signal.set()
        elif isinstance(output, fsm.Settle):
            run.settle = output

    def _signed(self, message: Message) -> Message:
        """An assistant message names the model that it came from, whole or cut."""
        if self._provider is None or not isinstance(message, AssistantMessage):
            return message
        return dataclasses.replace(message, provider=self._provider)

    def append(self, messages: list[Message], message: Message) -> None:
        """Append a message to history."""
        messages.append(message)

    async def _emit(self, run: _Run, event: Event) -> None:
        for listener in self._listeners:
            try:
                told = listener(event)
                if told is not None:
                    await told
            except fsm.IllegalInput:
                raise  # from a cancel or prompt in the listener: the loop's own fault, not its
            except Exception as error:  # noqa: BLE001 - a listener is somebody else's code
                run.feed(fsm.ListenerFailed(str(error) or type(error).__name__))
                return

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """What the next request carries."""
        return histories.normalise(messages)

    def _request(self, run: _Run) -> None:
        messages = self.normalise(run.messages)
        run.opening = self._spawn(self._open(run, messages))

    async def _open(self, run: _Run, messages: tuple[Message, ...]) -> AsyncIterator[Piece]:
        if run.signal.aborted:
            raise asyncio.CancelledError
        return await self._model.open(messages, tuple(self._tools), run.signal)

    # -- waits -------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task whose late failure is nobody's surprise.

        It begins in the next turn of the event loop, in every Python. What comes before that may
        be a cancellation: then what was decided is not begun.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._retire)
        return task

    def _retire(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()

    async def _race(self, run: _Run, task: asyncio.Task[Any]) -> bool:
        """Wait for ``task`` or for the run to be woken; whether the task is done."""
        if not task.done() and not run.outbox:
            run.wake.clear()
            task.add_done_callback(lambda _: run.wake.set())
            await run.wake.wait()
        return task.done() and not run.outbox

    async def _wait_opening(self, run: _Run) -> None:
        assert run.opening is not None
        if not await self._race(run, run.opening):
            return
        task, run.opening = run.opening, None
        try:
            run.stream = task.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - any failure is one
            run.feed(fsm.StreamFailed(str(error) or type(error).__name__))
        else:
            run.feed(fsm.Opened())

    async def _wait_piece(self, run: _Run) -> None:
        assert run.stream is not None
        if run.pull is None:
            ready: Callable[[], Piece | None] = getattr(run.stream, "ready", _nothing)
            if (piece := ready()) is not None:
                run.feed(fsm.Received(piece))
                return
            run.pull = self._spawn(self._pull(run.stream))
        if not await self._race(run, run.pull):
            return
        task, run.pull = run.pull, None
        try:
            piece = task.result()
        except StopAsyncIteration:
            run.feed(fsm.StreamEnded())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - any failure is one
            run.feed(fsm.StreamFailed(str(error) or type(error).__name__))
        else:
            run.feed(fsm.Received(piece))

    @staticmethod
    async def _pull(stream: AsyncIterator[Piece]) -> Piece:
        return await stream.__anext__()

    async def _wait_tool(self, run: _Run) -> None:
        if not run.settled_tools and not run.outbox:
            run.wake.clear()
            await run.wake.wait()
        if run.settled_tools and not run.outbox:
            run.feed(run.settled_tools.popleft())

    def _abandon(self, run: _Run) -> None:
        """Let go of the stream, whatever it does about it."""
        if run.opening is not None:
            opening, run.opening = run.opening, None
            opening.cancel()
            opening.add_done_callback(self._close_late)
        if run.pull is not None:
            run.pull.cancel()
            run.pull = None
        stream, run.stream = run.stream, None
        self._close_stream(stream)

    def _close_stream(self, stream: AsyncIterator[Piece] | None) -> None:
        closer = getattr(stream, "aclose", None)
        if closer is not None:
            self._spawn(closer())

    def _close_late(self, opening: asyncio.Task[AsyncIterator[Piece]]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._close_stream(opening.result())

    # -- tools -------------------------------------------------------------------------------

    def _start_tool(self, run: _Run, output: fsm.StartTool) -> None:
        """Look the tool up and check its arguments; then it may run, or its call is answered."""
        call, place = output.call, output.place
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools) or "none"
            text = f"There is no tool {call.name!r}; the tools are: {names}."
            run.feed(fsm.ToolSettled(place, text, "unknown_tool"))
            return
        arguments, wrong = check_arguments(call.arguments, tool.schema)
        if not output.whole:
            arguments, wrong = None, "the call was not finished"
        if arguments is None:
            text = f"The call was not run: {wrong}."
            run.feed(fsm.ToolSettled(place, text, "invalid_arguments"))
            return
        run.feed(fsm.ToolStarted(place))

    async def _run_tool(self, run: _Run, place: int, call: Call) -> None:
        if run.machine.cause is None:
            settled = await self._enter(run, place, call)
        else:
            settled = fsm.ToolSettled(place, "The call was cancelled.", aborted=True)
        run.settled_tools.append(settled)
        run.wake.set()

    async def _enter(self, run: _Run, place: int, call: Call) -> fsm.ToolSettled:
        tool = self._tools[call.name]
        arguments = json.loads(call.arguments.strip() or "{}")
        signal = run.tool_signal if self.choices.tool_signal == "yes" else None
        try:
            return fsm.ToolSettled(place, await tool.call(arguments, call.id, signal))
        except asyncio.CancelledError:
            return fsm.ToolSettled(place, "The call was cancelled.", aborted=True)
        except Exception as error:  # noqa: BLE001 - a tool is somebody else's code
            return fsm.ToolSettled(place, str(error) or type(error).__name__, "tool_exception")


_WAITS: dict[State, Callable[[ReferenceLoop, _Run], Awaitable[None]]] = {
    State.REQUESTING: ReferenceLoop._wait_opening,
    State.STREAMING: ReferenceLoop._wait_piece,
    State.ENDING: ReferenceLoop._wait_piece,
    State.EXECUTING: ReferenceLoop._wait_tool,
    State.DRAINING: ReferenceLoop._wait_tool,
}

__all__ = [
    "BusyError", "InvalidLimit", "Kind", "Listener", "LoopTool", "Model", "ReferenceLoop",
    "RunCancelled", "RunFailed", "Settlement", "check_arguments",
]  # fmt: skip
