"""The runner: one scenario, one target, one trace.

The runner owns the order of things. It gives the prompts, lets the provider and the probe tools
play their parts, does the actions of the environment when a gate or a tool reaches them, and
decides when a run that has not settled never will.

**Every action follows an observation.** Before a cancellation the runner waits until the target
has taken in everything that was sent (``still``); after it, until the target has done all it does
about it. How that is known differs: in process the event loop is still; a child's kit answers a
barrier; where neither is there, the action races and the trace's grade says so.

**Slow tools are the last to move.** A ``deaf`` tool returns only when nothing else can move. When
there is none left to let go and the run has still not settled, it has hung. In process that is
certain. Elsewhere a watchdog waits first, and its verdict is confirmed with five times the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loopspec.adapters.manifest import Manifest, interpret
from loopspec.adapters.protocol import (
    Adapter,
    ListenerError,
    LostTarget,
    ModelRequest,
    OpenSettings,
    ProbeTool,
    Session,
    Signal,
    TargetRaised,
)
from loopspec.bench import native
from loopspec.bench.provider import Provider
from loopspec.bench.recorder import Recorder
from loopspec.bench.tools import Tools
from loopspec.scenario import PROBE_TOOLS, On, Prompt, Reply, Scenario, calls_of
from loopspec.trace import (
    CancelReturned,
    CancelSent,
    Header,
    HistoryRead,
    Hung,
    ListenerRaised,
    Prompted,
    Requested,
    Settled,
    TargetLost,
    Told,
    Trace,
)
from loopspec.vocabulary import Event, FailureReason, Form, Outcome

PLAIN_REPLY = Reply.model_validate([{"text": "Done."}, {"reason": "stop"}])
"""The answer to a recovery prompt and to a second prompt: one text, and stop."""


PATIENCE = 0.02
"""Seconds without a sign of a child after which it is asked whether it is still."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run needs from outside.

    Parameters
    ----------
    when_still: settles a future when the target cannot move; ``None``: ask the target's barrier,
        if it has one.
    drained: settles a future when this process has taken in everything that has reached it.
    base_url: mounts a provider on the loopback server: ``(wire, provider) -> url``.
    unmount: takes it off again.
    watchdog: seconds until a silent run counts as hung; ``None``: stillness is certain.
    """

    when_still: Callable[[asyncio.Future[None]], None] | None = None
    drained: Callable[[asyncio.Future[None]], None] | None = None
    base_url: Callable[[str, Provider], str] | None = None
    unmount: Callable[[Provider], None] | None = None
    watchdog: float | None = None


def token(number: int) -> str:
    """The text that marks a prompt as the bench's own."""
    return f"[prompt {number}]"


def raised_chain(error: BaseException) -> list[dict[str, Any]]:
    """An exception and what caused it, outermost first, as plain data."""
    chain: list[dict[str, Any]] = []
    seen: set[int] = set()
    item: BaseException | None = error
    while item is not None and id(item) not in seen:
        seen.add(id(item))
        simple = (str, int, float, bool, type(None))
        fields = {
            name: str(value) if isinstance(value, str) else value
            for name, value in vars(item).items()
            if not name.startswith("_") and isinstance(value, simple)
        }
        chain.append(
            {
                "type": _qualified(type(item)),
                "mro": [_qualified(base) for base in type(item).__mro__[1:-1]],
                "message": str(item),
                "fields": fields,
            }
        )
        item = item.__cause__ or (None if item.__suppress_context__ else item.__context__)
    return chain


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class Run:
    """One scenario being run; implements the bench that the adapter sees."""

    def __init__(self, scenario: Scenario, adapter: Adapter, variant: str, around: Surroundings) -> None:
        self.scenario = scenario
        self.manifest: Manifest = adapter.manifest
        self.adapter = adapter
        self.around = around
        self.variant = self.manifest.variants[variant]
        self.recorder = Recorder(self._header(variant))
        loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = loop.create_future()
        self.provider = Provider(self.recorder, self.act)
        self._tools = Tools(self.recorder, self.act, self._quiet, self._latest, self.over)
        self._requests = 0
        self.recorder.watch(self._count)
        self._watching = False
        self._slow: deque[asyncio.Future[None]] = deque()
        self._acting = 0
        self._acted = 0
        self._woken: asyncio.Future[None] | None = None
        self._prompts = 0
        self._cancels = 0
        self._open: dict[asyncio.Task[Any], int] = {}
        self._on: list[tuple[On, int]] = []
        self._session: Session | None = None
        self._url: str | None = None

    def _header(self, name: str) -> Header:
        variant, scenario = self.variant, self.scenario
        family = scenario.family
        return Header(
            scenario=scenario.name,
            target=self.manifest.name,
            variant=name,
            wire=variant.wire,
            grade=variant.grade,
            streaming=variant.streaming,
            claims=self.manifest.claims_for(name),
            observes=variant.observes,
            can_express=can_express(variant.wire),
            max_turns=scenario.settings.max_turns,
            family=family.name if family else None,
            member=family.member if family else None,
        )

    # -- the bench, as the adapter sees it -----------------------------------------------------

    @property
    def tools(self) -> Sequence[ProbeTool]:
        """The probe tools."""
        return [self._probe(name, dict(schema)) for name, schema in PROBE_TOOLS.items()]

    def _probe(self, name: str, schema: dict[str, Any]) -> ProbeTool:
        async def call(arguments: Any, call_id: str | None = None, signal: Signal | None = None) -> str:
            return await self._tools.call(name, arguments, call_id, signal)

        return ProbeTool(name, f"The {name} tool of the bench.", schema, call)

    def base_url(self, wire: str) -> str:
        """Where the fake provider listens."""
        if self._url is None:
            if self.around.base_url is None:
                raise RuntimeError(f"this run has no server for the wire {wire!r}")
            self._url = self.around.base_url(wire, self.provider)
        return self._url

    async def model(self, request: ModelRequest, signal: Signal | None = None) -> native.NativeStream:
        """The native wire."""
        return await native.open_native(self.provider, request, signal, self.over)

    def tell(self, event: Event) -> None:
        """Record an event; do what the scenario does from inside the listener."""
        if self.recorder.sealed:
            return
        self.recorder.add(Told(event))
        if not self._on:
            return
        for index, (on, seen) in enumerate(self._on):
            if not _matches(on, event):
                continue
            self._on[index] = (on, seen + 1)
            if seen + 1 == on.nth:
                self._react(on)

    def _react(self, on: On) -> None:
        if on.do == "raise":
            self.recorder.add(ListenerRaised())
            raise ListenerError("the listener failed")
        if on.do == "cancel":
            at = f"listener of {on.event}"
            self._cancels += 1
            number = self._cancels
            self.recorder.add(CancelSent(number, at))
            assert self._session is not None
            returned = self._session.cancel()
            if inspect.isawaitable(returned):
                task = asyncio.ensure_future(returned)
                task.add_done_callback(lambda _: self.recorder.add(CancelReturned(number)))
            else:
                self.recorder.add(CancelReturned(number))
        else:
            self._second_prompt()

    # What a child's kit did in its own process, as it tells it.

    def child_listener_raised(self) -> None:
        """The kit's listener raised."""
        self.recorder.add(ListenerRaised())

    def child_cancel_sent(self, at: str) -> None:
        """The kit is about to call the target's cancel."""
        self._cancels += 1
        self.recorder.add(CancelSent(self._cancels, at))

    def child_cancel_returned(self) -> None:
        """The target's cancel returned to the kit."""
        self.recorder.add(CancelReturned(self._cancels))

    def child_second_prompt(self) -> None:
        """The kit asks for a second prompt from inside a listener."""
        self._second_prompt()

    # -- actions -------------------------------------------------------------------------------

    async def still(self) -> None:
        """Wait until the target has taken in everything and cannot move."""
        if self.around.when_still is not None:
            waiter: asyncio.Future[None] = self.over.get_loop().create_future()
            self.around.when_still(waiter)
            await waiter
            return
        barrier = getattr(self._session, "barrier", None)
        if barrier is None:
            return
        # What the child did before it answered may still be on its way to us, and our answer to
        # that on its way back: only a round in which nothing at all was seen is stillness.
        before = -1
        while before != len(self.recorder):
            before = len(self.recorder)
            await barrier()
            await self._drained()
            self.recorder.flush()

    async def _drained(self) -> None:
        """Wait until this process has taken in what has reached it."""
        if self.around.drained is not None:
            waiter: asyncio.Future[None] = self.over.get_loop().create_future()
            self.around.drained(waiter)
            await waiter

    async def act(self, action: str, where: str) -> None:
        """Do an action of the environment, and wait until its effects are seen."""
        self._acting += 1
        try:
            with self._until_lost():
                await self.still()
                if action == "cancel":
                    await self._cancel(where)
                    await self.still()
                elif action == "prompt":
                    self._second_prompt()
                    await asyncio.sleep(0)  # the prompt is on its way before anybody asks for stillness
                    await self.still()
        finally:
            self._acting -= 1
            self._acted += 1

    async def _cancel(self, where: str) -> None:
        assert self._session is not None
        self._cancels += 1
        number = self._cancels
        self.recorder.add(CancelSent(number, where))
        try:
            returned = self._session.cancel()
        except Exception:  # noqa: BLE001 - the target's; a cancel that raises has not returned
            return
        if inspect.isawaitable(returned):
            task = asyncio.ensure_future(returned)
            task.add_done_callback(lambda t: self._cancel_returned(number, t))
            await self.still()
            await asyncio.sleep(0)
        else:
            self.recorder.add(CancelReturned(number))

    def _cancel_returned(self, number: int, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.recorder.add(CancelReturned(number))

    def _second_prompt(self) -> None:
        self._give(Prompt(replies=(PLAIN_REPLY,)), running=True)

    async def _quiet(self) -> None:
        waiter: asyncio.Future[None] = self.over.get_loop().create_future()
        self._slow.append(waiter)
        await waiter

    def _latest(self) -> int | None:
        return self._requests or None

    def _count(self, entry: Any) -> None:
        if self._watching and self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
        if isinstance(entry, Requested) and entry.serves != "auxiliary":
            self._requests = entry.request

    # -- prompts -------------------------------------------------------------------------------

    def _give(self, prompt: Prompt, *, running: bool = False, recovery: bool = False) -> asyncio.Task[Any]:
        self._prompts += 1
        number = self._prompts
        text = f"{token(number)} Go on."
        self.recorder.flush()
        self.provider.script(number, token(number), prompt.replies)
        self._tools.script(list(calls_of(prompt)), prompt.tools)
        self.recorder.add(Prompted(number, text, running, prompt.fork, recovery))
        assert self._session is not None
        extra: dict[str, Any] = {}
        if hasattr(self._session, "barrier") and not running:
            extra["on"] = prompt.on
            extra["cancel"] = "with_prompt" if prompt.cancel == "before_request" else None
        else:
            self._on = [(on, 0) for on in prompt.on] if not running else self._on
        task: asyncio.Task[Any] = asyncio.ensure_future(_wait_for(self._session.prompt(text, **extra)))
        self._open[task] = number
        task.add_done_callback(self._prompt_done)
        return task

    def _prompt_done(self, task: asyncio.Task[Any]) -> None:
        number = self._open.pop(task)
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
        if task.cancelled():
            raw: dict[str, Any] = {"raised": raised_chain(asyncio.CancelledError())}
        elif (error := task.exception()) is not None:
            if isinstance(error, LostTarget):
                self._lose(error)
                return
            raw = {"raised": raised_chain(error)}
        else:
            raw = raw_of(task.result())
        meaning = interpret(raw, self.manifest)
        self.recorder.add(
            Settled(
                number, meaning.outcome, meaning.form, meaning.reason, meaning.answer,
                meaning.message, raw,
            )
        )  # fmt: skip

    @contextlib.contextmanager
    def _until_lost(self) -> Iterator[None]:
        """What is done with the target ends where the target is lost."""
        try:
            yield
        except LostTarget as lost:
            self._lose(lost)

    async def _asked(self, what: str, ask: Callable[[], Any]) -> Any:
        """What the session answers. One that raises cannot be watched any further."""
        try:
            answer = ask()
            return await answer if inspect.isawaitable(answer) else answer
        except LostTarget:
            raise
        except Exception as error:
            raise LostTarget(f"{what} raised {type(error).__name__}: {error}") from error

    def _lose(self, lost: LostTarget) -> None:
        """The target is gone; several waits may tell it."""
        if not any(isinstance(entry, TargetLost) for entry in self.recorder.entries()):
            self.recorder.add(TargetLost(lost.what))

    async def _settle_all(self) -> bool:
        """Wait until all prompts and the actions that were begun meanwhile are over; as below.

        A run may settle while an action still waits for its effects. What comes after the action,
        such as a deaf provider's reply, belongs before the next prompt: all is over when nothing
        acted in one whole stillness.
        """
        while await self._settle():
            acted = self._acted
            await self.still()
            if not self._open and not self._acting and self._acted == acted:
                return True
        return False

    async def _settle(self) -> bool:
        """Wait until every open prompt has settled; ``False``: one never will."""
        while self._open:
            before = self._epoch()
            await self._until_quiet()
            if not self._open:
                break
            if self._acting or self._epoch() != before:
                await asyncio.sleep(0)
                continue
            waiting = [waiter for waiter in self._slow if not waiter.done()]
            if waiting:
                waiting[0].set_result(None)
                continue
            if await self._wakes():
                continue
            how = "still" if self.around.watchdog is None else "watchdog"
            for number in sorted(self._open.values()):
                self.recorder.add(Hung(number, how))
            return False
        return True

    def _epoch(self) -> tuple[int, int]:
        """Changes whenever something that the runner can see has moved."""
        return len(self.recorder), self._acted

    async def _until_quiet(self) -> None:
        """Stillness, or the settlement of a prompt, whichever comes first."""
        waiter: asyncio.Future[None] = self.over.get_loop().create_future()
        self._woken = waiter
        if self.around.when_still is not None:
            self.around.when_still(waiter)
            await waiter
            return
        # A barrier costs round trips: as long as the target is seen to move, none is needed. Whether
        # it is still is decided by the barrier alone, never by the time that was waited.
        before = -1
        while before != len(self.recorder):
            before = len(self.recorder)
            await asyncio.wait({waiter}, timeout=PATIENCE)
            if waiter.done():
                return
        quiet = asyncio.ensure_future(self.still())
        await asyncio.wait({quiet, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if not quiet.done():
            quiet.cancel()
        elif not quiet.cancelled() and isinstance(quiet.exception(), LostTarget):
            await asyncio.sleep(0)  # what waits for the settlement is told of the loss as well

    async def _wakes(self) -> bool:
        """Whether a silent target moves within the watchdog's time (never, where that is certain)."""
        if self.around.watchdog is None:
            return False
        for seconds in (self.around.watchdog, 5 * self.around.watchdog):
            before = len(self.recorder)
            self._woken = self.over.get_loop().create_future()
            self._watching = True
            await asyncio.wait({self._woken}, timeout=seconds)
            self._watching = False
            if self._woken.done() or len(self.recorder) != before:
                return True
        return False

    # -- the scenario --------------------------------------------------------------------------

    async def play(self) -> Trace:
        """Run the scenario to its end and return the trace."""
        settings = OpenSettings(
            max_turns=self.scenario.settings.max_turns,
            tools=self.scenario.settings.tools or self.variant.tools,
            streaming=self.variant.streaming,
            wire=self.variant.wire,
            options={**self.variant.options, "cancel": self.variant.cancel},
        )
        try:
            try:
                self._session = await self.adapter.open(self, settings)
            except LostTarget as lost:
                self._lose(lost)
            except Exception as error:  # noqa: BLE001 - whatever refuses the settings is the evidence
                self._refused(error)
            else:
                with self._until_lost():
                    await self._prompts_in_order()
        finally:
            await self._finish()
        return self.recorder.trace()

    def _refused(self, error: Exception) -> None:
        """The target refused to be opened with these settings: the prompt never got in."""
        self.recorder.add(Prompted(1, token(1)))
        raw = error.raw if isinstance(error, TargetRaised) else {"raised": raised_chain(error)}
        invalid = FailureReason.INVALID
        self.recorder.add(Settled(1, Outcome.REFUSED, Form.RAISED, invalid, None, str(error), raw))

    async def _prompts_in_order(self) -> None:
        prompts = [(prompt, False) for prompt in self.scenario.prompts]
        if self.scenario.recovery:
            prompts.append((Prompt(replies=(PLAIN_REPLY,)), True))
        for prompt, recovery in prompts:
            if prompt.fork:
                fork = getattr(self._session, "fork", None)
                if fork is None:
                    return
                self._session = await self._asked("forking it", fork)
            if prompt.cancel == "idle":
                await self._cancel("idle")
                await self.still()
            self._give(prompt, recovery=recovery)
            if prompt.cancel == "before_request" and not hasattr(self._session, "barrier"):
                await asyncio.sleep(0)
                await self._cancel("before the first request")
            if not await self._settle_all():
                return
            await self._read_history()
            if any(isinstance(entry, TargetLost) for entry in self.recorder.entries()):
                return

    async def _read_history(self) -> None:
        if "history" not in self.variant.observes or self._session is None:
            return
        messages = await self._asked("reading its history", self._session.history)
        self.recorder.add(HistoryRead(self._prompts, tuple(messages)))

    async def _finish(self) -> None:
        """Free everything that still waits, and let go of the target."""
        self.provider.close()
        self.recorder.seal()
        if self._open:
            await asyncio.sleep(0)  # a prompt given at the very end has begun before it is dropped
        for task in list(self._open):
            task.remove_done_callback(self._prompt_done)
            task.cancel()
        if not self.over.done():
            self.over.set_result(None)
        if self._url is not None and self.around.unmount is not None:
            self.around.unmount(self.provider)
        if self._session is not None:
            with contextlib.suppress(LostTarget):
                await self._session.close()


def raw_of(result: Any) -> dict[str, Any]:
    """The raw settlement of what an adapter's prompt returned."""
    raw = getattr(result, "raw", None)
    if isinstance(raw, dict):
        return raw
    out: dict[str, Any] = {"returned": getattr(result, "value", result)}
    if getattr(result, "told", False):
        out["told"] = True
    return out


async def _wait_for(prompt: Awaitable[Any]) -> Any:
    return await prompt


def _matches(on: On, event: Event) -> bool:
    return (
        on.event == event.type
        and (on.role is None or on.role == event.role)
        and (on.call_id is None or on.call_id == event.call_id)
    )


def can_express(wire: str) -> tuple[str, ...]:
    """What the wire can say, by name; see :mod:`loopspec.bench.wires`."""
    if wire == "native":
        return native.CAN_EXPRESS
    from loopspec.bench.wires import WIRES

    return tuple(sorted(WIRES[wire].can_express))


async def run_scenario(scenario: Scenario, adapter: Adapter, variant: str, around: Surroundings) -> Trace:
    """Run one scenario against one variant of a target; returns the trace."""
    return await Run(scenario, adapter, variant, around).play()
