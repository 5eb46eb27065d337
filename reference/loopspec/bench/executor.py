"""The executor: runs scenarios one after another against one variant of a target.

It owns what a run needs from outside and outlives a scenario: the event loop, the loopback server,
the target's child process. Which of these there are follows from the adapter and its variant:

* in process on the native wire: a :class:`~loopspec.bench.stillness.StillLoop`, nothing else;
* in process on a provider's wire: an ordinary loop that tells stillness, and the server;
* a child process: an ordinary loop, the server, and the child's barrier.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from loopspec.adapters.protocol import Adapter
from loopspec.bench.runner import Surroundings, run_scenario
from loopspec.bench.stillness import SocketLoop, StillLoop
from loopspec.scenario import Scenario
from loopspec.trace import Trace

WATCHDOG = 1.0
"""Seconds until a silent run counts as hung, where that cannot be known for certain."""


class Executor:
    """Runs scenarios; use it as a context manager.

    Parameters
    ----------
    adapter: the target.
    variant: the name of the variant; the adapter's first one if ``None``.
    watchdog: seconds until a silent run counts as hung (not used in process on the native wire).
    strict: whether the server answers what the real API would refuse with the API's own error.
    """

    def __init__(
        self,
        adapter: Adapter,
        variant: str | None = None,
        *,
        watchdog: float = WATCHDOG,
        strict: bool = False,
    ) -> None:
        self.adapter = adapter
        self.manifest = adapter.manifest
        self.variant = variant or self.manifest.first_variant
        if self.variant not in self.manifest.variants:
            known = ", ".join(self.manifest.variants)
            raise ValueError(f"{self.manifest.name} has no variant {self.variant!r}; it has: {known}")
        self.settings = self.manifest.variants[self.variant]
        self.watchdog = watchdog
        self.strict = strict
        self._child = hasattr(adapter, "aclose")
        self._exact = self.settings.wire == "native" and not self._child
        self._loop: StillLoop | SocketLoop | None = None
        self._server: Any = None

    @property
    def in_child(self) -> bool:
        """The target lives in a child process."""
        return self._child

    def __enter__(self) -> Self:
        self._loop = StillLoop() if self._exact else SocketLoop()
        if self.settings.wire != "native":
            self._loop.run_until_complete(self._serve())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        loop, self._loop = self._loop, None
        try:
            loop.run_until_complete(self._stop())
        finally:
            loop.run_until_complete(_cancel_all())
            loop.close()

    async def _serve(self) -> None:
        from loopspec.bench.server import Server

        self._server = Server()
        await self._server.start()

    async def _stop(self) -> None:
        if self._child:
            await self.adapter.aclose()  # type: ignore[attr-defined]
        if self._server is not None:
            await self._server.aclose()

    def run(self, scenario: Scenario) -> Trace:
        """Run one scenario and return its trace."""
        assert self._loop is not None, "use the executor as a context manager"
        return self._loop.run_until_complete(self._one(scenario))

    async def _one(self, scenario: Scenario) -> Trace:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop | SocketLoop)
        around = Surroundings(
            when_still=None if self._child else loop.when_still,
            drained=loop.when_still if self._child else None,
            base_url=self._mount if self._server is not None else None,
            unmount=self._unmount if self._server is not None else None,
            watchdog=None if self._exact else self.watchdog,
        )
        return await run_scenario(scenario, self.adapter, self.variant, around)

    def _mount(self, wire: str, provider: Any) -> str:
        provider.strict = self.strict
        url: str = self._server.mount(wire, provider)
        return url

    def _unmount(self, provider: Any) -> None:
        self._server.unmount(provider)


async def _cancel_all() -> None:
    """Cancel whatever a target left behind, and let it end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
