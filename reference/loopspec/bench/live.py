"""The bench one step at a time: nothing is scripted, each step is done when it is asked for.

A scenario fixes beforehand what the provider and the tools will do. Here whoever holds the bench
decides it as it goes: a reply goes on when :meth:`LiveRun.send` is called, a tool ends when
:meth:`LiveRun.settle` is. After each step the target runs until nothing can move any more, so what
it did about that step, and nothing else, is what the recorder has got since.

Only for targets in this process at grade ``exact``: elsewhere nobody knows when a step is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from loopspec.adapters.protocol import Adapter, ListenerError, OpenSettings, ProbeToolError
from loopspec.bench.provider import DEFAULT_REPLY, Incoming, Player, Provider
from loopspec.bench.runner import Run, Surroundings
from loopspec.bench.script import Element, Fault, Open
from loopspec.bench.stillness import StillLoop
from loopspec.bench.tools import ProbeToolCancelled, Tools
from loopspec.scenario import CallSpec, Prompt, Scenario, Settings
from loopspec.trace import Entry, Header, HistoryRead, ListenerRaised, Requested, Told, Trace
from loopspec.vocabulary import Event, Grade, Terminator

ONE_STEP_AT_A_TIME = "the lockstep needs a target in this process at grade exact"


class LivePlayer(Player):
    """A reply that has only what has been fed to it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._elements: list[Element] = []
        self._fed: asyncio.Future[None] | None = None
        self._over = False

    @property
    def open(self) -> bool:
        """The reply was opened, and neither side has ended it."""
        return self._opened and not self._over and not self._closed

    @property
    def unopened(self) -> bool:
        """The request waits for its reply."""
        return not (self._opened or self._over or self._closed)

    def feed(self, element: Element) -> None:
        """Go on by this element."""
        self._elements.append(element)
        self._over = self._over or isinstance(element, Fault | Terminator)
        if self._fed is not None and not self._fed.done():
            self._fed.set_result(None)

    def at_gate(self) -> bool:
        """Nothing has been fed that was not taken: the next thing is somebody else's step."""
        return self._at >= len(self._elements) and not self._over

    def at_end(self) -> bool:
        """All was taken, and nothing comes any more."""
        return self._at >= len(self._elements) and self._over

    async def _pass_gates(self) -> None:
        while self.at_gate():
            self._fed = asyncio.get_running_loop().create_future()
            await self._fed


class LiveProvider(Provider):
    """Hands out a reply to each request, for somebody to go on with."""

    def _play(self, incoming: Incoming, owner: Any, serves: str, reply: Any, elements: Any) -> LivePlayer:
        del reply, elements
        self._requests += 1
        prompt, serves = (owner.prompt, "script") if owner else (None, serves)
        request = Requested(
            self._requests, prompt, incoming.messages, serves, incoming.streaming, incoming.tools,
            incoming.findings,
        )  # fmt: skip
        self._recorder.add(request)
        player = LivePlayer(self._requests, [], DEFAULT_REPLY, self._recorder, self._act)
        self.players.append(player)
        return player


@dataclass(slots=True)
class RunningTool:
    """A tool that was entered and waits to be told how it ends."""

    start: int
    end: asyncio.Future[str]
    signalled: asyncio.Future[None]


class LiveTools(Tools):
    """Tools that end when they are told to, whatever signal they see."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.running: dict[int, RunningTool] = {}

    async def _behave(self, scripted: Any, tool: Any, start: int, stop: asyncio.Future[None]) -> str:
        del tool
        end: asyncio.Future[str] = self._over.get_loop().create_future()
        self.running[start] = RunningTool(start, end, stop)
        try:
            await self._until(end, None, deaf=True)  # type: ignore[arg-type]
        finally:
            del self.running[start]
        how = end.result()
        if how == "raises":
            raise ProbeToolError(f"tool {start} failed")
        if how == "heeds":
            raise ProbeToolCancelled("the tool was cancelled")
        return f"result of {scripted.spec.label if scripted else start}"


class LiveRun(Run):
    """One conversation with a target, step by step. Use as a context manager.

    Parameters
    ----------
    adapter: in this process; its variant is of grade ``exact``.
    variant: its name; ``None``: the first.
    max_turns: the limit that the target is opened with.

    Raises ``ValueError`` for a variant of another grade.
    """

    provider: LiveProvider
    _tools: LiveTools

    def __init__(self, adapter: Adapter, variant: str | None = None, max_turns: int | None = None) -> None:
        name = variant or adapter.manifest.first_variant
        settings = adapter.manifest.variants[name]
        if settings.grade != Grade.EXACT or settings.wire != "native":
            raise ValueError(f"{ONE_STEP_AT_A_TIME}; {adapter.manifest.name}'s {name} is of {settings.grade}")
        self.loop = StillLoop()
        self._steps = 0
        self._calls = 0
        self.listener_raises = False
        scenario = Scenario(
            name="lockstep", prompts=(Prompt(),), recovery=False, settings=Settings(max_turns=max_turns)
        )
        self._do(self._begin(scenario, adapter, name))

    async def _begin(self, scenario: Scenario, adapter: Adapter, variant: str) -> None:
        super().__init__(scenario, adapter, variant, Surroundings(when_still=self.loop.when_still))
        self.provider = LiveProvider(self.recorder, self.act)
        self._tools = LiveTools(self.recorder, self.act, self._quiet, self._latest, self.over)
        settings = OpenSettings(
            max_turns=scenario.settings.max_turns, tools=self.variant.tools,
            streaming=self.variant.streaming, wire=self.variant.wire, options=dict(self.variant.options),
        )  # fmt: skip
        self._session = await adapter.open(self, settings)

    def _do(self, step: Any) -> None:
        self.loop.run_until_complete(step)

    async def _still(self) -> None:
        await self.loop.still()
        self.recorder.flush()

    def _until_still(self) -> None:
        """As :meth:`_still`, from outside the loop: without a task there is less to wait for."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self.loop.when_still(waiter)
        self.loop.run_until_complete(waiter)
        self.recorder.flush()

    # -- where it is -------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A prompt has not settled."""
        return bool(self._open)

    @property
    def reply(self) -> LivePlayer | None:
        """The latest request that its target still waits for, or whose reply is open."""
        for player in reversed(self.provider.players):
            if isinstance(player, LivePlayer) and (player.unopened or player.open):
                return player
        return None

    @property
    def running(self) -> Collection[int]:
        """The numbers of the tools that run."""
        return list(self._tools.running)

    @property
    def header(self) -> Header:
        """What the trace begins with."""
        header = self.recorder.entries()[0]
        assert isinstance(header, Header)
        return header

    def entries(self) -> list[Entry]:
        """What was recorded so far."""
        return self.recorder.entries()

    # -- steps -------------------------------------------------------------------------------

    def prompt(self, *, fork: bool = False) -> None:
        """Give a prompt; while one runs it is a second one. ``fork``: give it to a fork, at rest."""
        self._do(self._prompting(fork))

    async def _prompting(self, fork: bool) -> None:
        if fork:
            self._session = await self._asked("forking it", self._session.fork)  # type: ignore[union-attr]
        self._give(Prompt(fork=fork), running=self.busy)
        await self._still()

    def open_reply(self, *, deaf: bool = False) -> None:
        """Open the reply that is waited for. ``deaf``: its provider ignores a cancellation."""
        player = self.reply
        assert player is not None
        player.deaf = deaf
        self.send(Open())

    def send(self, *elements: Element) -> None:
        """Go on with the reply."""
        player = self.reply
        assert player is not None
        for element in elements:
            player.feed(element)
        self._until_still()

    def call(self, tool: str, arguments: str) -> CallSpec:
        """Note a call that is about to be sent; its id is new."""
        self._calls += 1
        spec = CallSpec(label=f"c{self._calls}", tool=tool, arguments=arguments)
        self._tools.script([spec], {})
        return spec

    def settle(self, start: int, how: str) -> None:
        """End a tool: ``ok``, ``raises``, or ``heeds`` a signal that it saw."""
        self._tools.running[start].end.set_result(how)
        self._until_still()

    def saw_signal(self, start: int) -> bool:
        """Whether a running tool saw the cancellation signal."""
        return self._tools.running[start].signalled.done()

    def cancel(self) -> None:
        """Cancel, whether something runs or not."""
        self._steps += 1
        self._do(self._cancelling(f"step {self._steps}" if self.busy else "idle"))

    async def _cancelling(self, where: str) -> None:
        await self._cancel(where)
        await self._still()

    def read_history(self) -> None:
        """Read the target's history, at rest."""
        self._do(self._reading())

    async def _reading(self) -> None:
        if "history" in self.variant.observes and self._session is not None:
            messages = await self._asked("reading its history", self._session.history)
            self.recorder.add(HistoryRead(self._prompts, tuple(messages)))

    def tell(self, event: Event) -> None:
        """Record an event; raise once, if that was asked for."""
        if self.recorder.sealed:
            return
        self.recorder.add(Told(event))
        if self.listener_raises:
            self.listener_raises = False
            self.recorder.add(ListenerRaised())
            raise ListenerError("the listener failed")

    def close(self) -> Trace:
        """Let go of the target; returns the whole trace."""
        self._do(self._finish())
        while pending := asyncio.all_tasks(self.loop):
            for task in pending:
                task.cancel()
            self._do(asyncio.wait(pending))
        self.loop.close()
        return self.recorder.trace()
