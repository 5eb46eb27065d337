"""Probe tools: stubs that call back into the bench, and behave as the scenario says.

A target calls a probe tool with arguments and, if it has one, the call's id. Which scripted call
that is, the bench finds by what it sent: the same tool with the same arguments, the id deciding
between twins. Arguments that no scripted call has serve no call; that is how a repaired or altered
argument shows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from loopspec.adapters.protocol import ProbeToolError, Signal
from loopspec.bench.recorder import Recorder
from loopspec.scenario import AfterStep, CallSpec, ResultStep, Tool
from loopspec.trace import Signalled, ToolSettled, ToolStarted

Act = Callable[[str, str], Awaitable[None]]


@dataclass(slots=True)
class _Scripted:
    spec: CallSpec
    tool: Tool
    started: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)


def _parsed(arguments: Any) -> Any:
    """The arguments as a value. No text at all is an empty object: so loops read it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments.strip() or "{}")
    except ValueError:
        return arguments


class Tools:
    """The scripted behaviour of all calls of a scenario.

    Parameters
    ----------
    act: does an action of the environment.
    quiet: waits until nothing else moves: when a slow (``deaf``) tool at last returns.
    latest_request: the number of the latest request, for the record.
    over: done when the scenario is over; frees what never ends.
    """

    def __init__(
        self,
        recorder: Recorder,
        act: Act,
        quiet: Callable[[], Awaitable[None]],
        latest_request: Callable[[], int | None],
        over: asyncio.Future[None],
    ) -> None:
        self._recorder = recorder
        self._act = act
        self._quiet = quiet
        self._latest_request = latest_request
        self._over = over
        self._calls: list[_Scripted] = []
        self._starts = 0
        self._stops: dict[int, asyncio.Future[None]] = {}

    def script(self, calls: list[CallSpec], tools: dict[str, Tool]) -> None:
        """Add the calls of a prompt and what their tools do (``ok`` where nothing is said)."""
        plain = Tool(steps=("ok",))
        for spec in calls:
            self._calls.append(_Scripted(spec, tools.get(spec.label, plain)))

    def _find(self, tool: str, arguments: Any, call_id: str | None) -> _Scripted | None:
        value = _parsed(arguments)
        same = [
            call
            for call in self._calls
            if call.spec.tool == tool and _parsed(call.spec.arguments_text) == value
        ]
        named = [call for call in same if call.spec.wire_id == call_id]
        for call in [*named, *same]:
            if not call.started:
                return call
        found = named or same
        return found[0] if found else None

    async def call(
        self, tool: str, arguments: Any, call_id: str | None = None, signal: Signal | None = None
    ) -> str:
        """Enter a probe tool; returns its result's text or raises :class:`ProbeToolError`."""
        self._starts += 1
        start = self._starts
        scripted = self._find(tool, arguments, call_id)
        known = scripted.spec.wire_id if scripted else None
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        self._recorder.add(ToolStarted(start, tool, text, known, self._latest_request()))
        if scripted is not None:
            scripted.started = True
        stop: asyncio.Future[None] = self._over.get_loop().create_future()
        self._stops[start] = stop
        if signal is not None:
            signal.on_abort(lambda: self._signalled(start, stop))
        behaviour = scripted.tool if scripted else Tool(steps=("ok",))
        try:
            result = await self._behave(scripted, behaviour, start, stop)
        except (ProbeToolCancelled, asyncio.CancelledError):
            self._settle(start, "cancelled", "", scripted)
            raise
        except ProbeToolError:
            self._settle(start, "raised", "", scripted)
            raise
        self._settle(start, "returned", result, scripted)
        return result

    def _signalled(self, start: int, stop: asyncio.Future[None]) -> None:
        if not stop.done():
            self._recorder.add(Signalled("tool", start))
            stop.set_result(None)

    def _settle(self, start: int, how: str, text: str, scripted: _Scripted | None) -> None:
        self._stops.pop(start).cancel()
        call_id = scripted.spec.wire_id if scripted else None
        self._recorder.add(ToolSettled(start, how, text, call_id))
        if scripted is not None:
            scripted.settled.set()

    async def _behave(
        self, scripted: _Scripted | None, tool: Tool, start: int, stop: asyncio.Future[None]
    ) -> str:
        label = scripted.spec.label if scripted else "?"
        deaf = str(tool.steps[-1]).startswith("deaf")
        for step in tool.steps[:-1]:
            if isinstance(step, AfterStep):
                await self._hold(asyncio.ensure_future(self._after(step.after)), stop, deaf)
            else:
                # An action goes on to its end, whatever becomes of the tool that it stands in.
                acting = asyncio.ensure_future(self._act(str(step), f"tool {label}, start {start}"))
                await self._hold(acting, None, deaf, leave=True)
        end = tool.steps[-1]
        if isinstance(end, ResultStep):
            return end.result
        if end in ("never", "deaf_never"):
            await self._hold(self._over, stop, deaf, leave=True)
        if end in ("deaf", "deaf_raises"):
            await self._hold(asyncio.ensure_future(self._quiet()), stop, deaf)
        if end in ("raises", "deaf_raises"):
            raise ProbeToolError(f"tool {label} failed")
        return f"result of {label}"

    async def _after(self, label: str) -> None:
        for call in self._calls:
            if call.spec.label == label:
                await call.settled.wait()
        await self._act("still", label)

    async def _hold(
        self,
        task: asyncio.Future[None],
        stop: asyncio.Future[None] | None,
        deaf: bool,
        leave: bool = False,
    ) -> None:
        """Wait for ``task``; heeding, end when the signal comes or the target cancels the call."""
        try:
            await self._until(task, stop, deaf)
        finally:
            if not leave:
                task.cancel()

    async def _until(self, task: asyncio.Future[None], stop: asyncio.Future[None] | None, deaf: bool) -> None:
        waits: set[asyncio.Future[None]] = {task, self._over}
        if stop is not None and not deaf:
            waits.add(stop)
        while True:
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if deaf and not self._over.done():
                    continue
                raise
            if self._over.done():
                raise asyncio.CancelledError
            if task.done():
                task.result()
                return
            raise ProbeToolCancelled("the tool was cancelled")


class ProbeToolCancelled(ProbeToolError):
    """A probe tool ended because it saw the signal."""
