"""A target in a child process: the host side of the protocol (``spec/protocol.md``).

One child serves many sessions. It is started at the first ``open`` and, after it was lost, again
at the next one. The sessions have the same operations as those in process, and what the target
asks of the bench (its tools, the native model) is asked of the same bench objects; so the runner
sees no difference but :class:`ChildLost`, and :class:`RawSettlement` in place of an exception.

The child performs what a listener has to do in the moment of an event (``on``) and the
cancellation in the tick of the prompt, because a round trip would come too late; it says so in
notifications, which reach the bench through :class:`ChildBench`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from loopspec.adapters.host import ChildBench, Host, HostSession
from loopspec.adapters.jsonrpc import ChildLost, Limits
from loopspec.adapters.manifest import Manifest
from loopspec.adapters.protocol import Bench, OpenSettings, TargetRaised
from loopspec.adapters.wire_models import BarrierResult, OpenResult, Wire
from loopspec.vocabulary import Message, message_from_json

KITS = Path(__file__).parent / "kits"
"""The folder of the kits; it stands in a child's ``PYTHONPATH``."""


@dataclass(frozen=True, slots=True)
class RawSettlement:
    """What a prompt came to, as the child passed it on.

    ``raw`` is ``{"returned": value}`` or ``{"raised": [...]}``, either with ``"told": true``.
    """

    raw: dict[str, Any]


class ProcessSession:
    """One conversation with the target in the child.

    Its operations raise :class:`ChildLost` when the child is lost, :class:`TargetRaised` when the
    target's own code raised in them, and nothing else of the target's.
    """

    def __init__(self, host: Host, name: str, bench: ChildBench, operations: Iterable[str] = ()) -> None:
        self.name, self.bench, self.operations = name, bench, tuple(operations)
        self._host = host
        self._prompts = 0
        self._forks = 0
        host.sessions[name] = HostSession(name, bench)

    async def prompt(self, text: str, *, on: Iterable[Any] = (), cancel: str | None = None) -> RawSettlement:
        """Give a prompt and wait until it settles; what the target raises is in the settlement.

        ``on`` is what to do inside the target's listener, as :class:`loopspec.scenario.On` or
        mappings. ``cancel="with_prompt"`` cancels right behind the first step of the prompt.
        """
        self._prompts += 1
        params: dict[str, Any] = {"session": self.name, "prompt": self._prompts, "text": text}
        if actions := [_plain_on(item) for item in on]:
            params["on"] = actions
        if cancel is not None:
            params["cancel"] = cancel
        settlement = await self._host.ask("prompt", params, self._host.limits.prompt)
        return RawSettlement(settlement.model_dump(by_alias=True, exclude_unset=True))

    async def cancel(self) -> None:
        """Cancel as the target has it; returns when that has returned in the child."""
        await self._ask("cancel")

    async def history(self) -> list[Message]:
        """The target's own history."""
        result = await self._ask("history")
        dumped = result.model_dump(exclude_unset=True)["messages"]
        return [message_from_json(message) for message in dumped]

    async def barrier(self) -> BarrierResult:
        """Wait until nothing in the child's event loop is ready to run."""
        result = await self._host.ask("barrier", {}, self._host.limits.answer)
        return cast("BarrierResult", result)

    @property
    def fork(self) -> Callable[[], Coroutine[Any, Any, ProcessSession]] | None:
        """Open another session that starts with this one's history; ``None``: it has no forks."""
        return self._fork if "fork" in self.operations else None

    async def _fork(self) -> ProcessSession:
        self._forks += 1
        name = f"{self.name}.{self._forks}"
        other = ProcessSession(self._host, name, self.bench, self.operations)
        try:
            params = {"session": self.name, "as": name}
            await self._host.ask("fork", params, self._host.limits.answer)
        except BaseException:
            self._host.release(name)
            raise
        return other

    async def close(self) -> None:
        """Let go of the session; a session of a lost child is gone already."""
        if self._host.channel.over is None and self.name in self._host.sessions:
            # What a target raises while it is let go says nothing of any run.
            with contextlib.suppress(TargetRaised):
                await self._ask("close")
        self._host.release(self.name)

    async def _ask(self, method: str) -> Wire:
        return await self._host.ask(method, {"session": self.name}, self._host.limits.answer)


def _plain_on(item: Any) -> dict[str, Any]:
    plain = item.model_dump() if hasattr(item, "model_dump") else dict(item)
    return {key: value for key, value in plain.items() if value is not None}


def _plain_settings(settings: OpenSettings) -> dict[str, Any]:
    turns: Any = settings.max_turns
    if isinstance(turns, float) and not math.isfinite(turns):
        turns = "NaN" if math.isnan(turns) else "Infinity" if turns > 0 else "-Infinity"
    return {
        "max_turns": turns, "tools": settings.tools, "streaming": settings.streaming,
        "wire": settings.wire, "options": dict(settings.options),
    }  # fmt: skip


class ProcessAdapter:
    """The adapter of a target that lives in a child process.

    Parameters
    ----------
    manifest: what the target says of itself.
    command: how to start the child.
    env: its whole environment; ``None`` takes over ours. The kits' folder is put into its
        ``PYTHONPATH``, and ``LOOPSPEC_CHILD=1`` says that a host is there.
    cwd: where it runs.
    limits: what it may take.

    One child serves all sessions. It starts at the first :meth:`open`, again at the next one after
    it was lost, and ends at :meth:`aclose`.
    """

    def __init__(
        self,
        manifest: Manifest,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.manifest = manifest
        self.limits = limits or Limits()
        self._command = list(command)
        self._cwd = None if cwd is None else str(cwd)
        self._env = dict(os.environ if env is None else env)
        path = [part for part in self._env.get("PYTHONPATH", "").split(os.pathsep) if part]
        if str(KITS) not in path:
            self._env["PYTHONPATH"] = os.pathsep.join([str(KITS), *path])
        self._env["LOOPSPEC_CHILD"] = "1"
        self._host: Host | None = None
        self._opened = 0
        self._starting: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @property
    def pid(self) -> int | None:
        """The number of the living child, its group and its session; ``None`` if there is none."""
        alive = self._host is not None and self._host.channel.over is None
        return self._host.channel.child.pid if alive and self._host else None

    async def open(self, bench: Bench, settings: OpenSettings) -> ProcessSession:
        """Open a session, starting the child if there is none.

        Raises :class:`ChildLost`, or :class:`TargetRaised` when the target refuses the settings.
        """
        host = await self._living()
        self._opened += 1
        session = ProcessSession(host, f"s{self._opened}", cast("ChildBench", bench))
        native = settings.wire == "native"
        params = {
            "session": session.name,
            "settings": _plain_settings(settings),
            "tools": [
                {"name": t.name, "description": t.description, "schema": dict(t.schema)} for t in bench.tools
            ],
            "base_urls": {} if native else {settings.wire: bench.base_url(settings.wire)},
        }
        try:
            result = await host.ask("open", params, self.limits.start)
        except BaseException:
            host.release(session.name)
            raise
        session.operations = tuple(cast("OpenResult", result).operations)
        return session

    async def aclose(self) -> None:
        """End the child and its process group: asked, then told, then killed."""
        host, self._host = self._host, None
        if host is not None:
            await host.shutdown()

    def kill(self, what: str = "the process was killed by its host") -> None:
        """End the child at once; whoever waits for it gets :class:`ChildLost` with ``what``."""
        if self._host is not None:
            self._host.channel.lose(what)

    async def _living(self) -> Host:
        loop = asyncio.get_running_loop()
        if self._starting is None or self._starting[0] is not loop:
            self._starting = (loop, asyncio.Lock())
        async with self._starting[1]:
            if self._host is None or self._host.channel.over is not None:
                host = Host(self._command, self._env, self._cwd, self.limits)
                weakref.finalize(host, host.channel.child.stop)  # also when this interpreter exits
                self._host = host
                host.attach()
                await host.initialize()
            self._host.attach()
            return self._host


__all__ = [
    "KITS", "ChildBench", "ChildLost", "Limits", "ProcessAdapter", "ProcessSession", "RawSettlement",
    "TargetRaised",
]  # fmt: skip
