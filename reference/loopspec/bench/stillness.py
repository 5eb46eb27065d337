"""Knowing when nothing can move: an event loop that tells when it is still.

Waiting "long enough" is a guess. In one process, with everything in one event loop and no threads,
it need not be made: when the loop has nothing ready and asks its selector to wait, nothing will
happen any more unless the bench does something. :class:`StillLoop` turns that moment into an
awaitable, :meth:`StillLoop.still`.

Time is virtual: timers that are due within :data:`HORIZON` seconds are run before the loop counts
as still, by moving the clock, not by waiting. Longer ones (a target's request time-out, say) stay
where they are while the bench holds something back on purpose.

With sockets, threads or child processes all this is false, because an awaited peer looks like
silence. :class:`SocketLoop` is for a loop in this process that speaks to the loopback server: there
still means that no file is ready either, time is real, and a watchdog decides about a hang. A child
process has a kit that answers a barrier instead.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

HORIZON = 1.0
"""Seconds of virtual time within which a timer still counts as something that moves."""

MAX_ADVANCES = 1000
"""How many timers in a row may be run before the loop counts as still all the same."""

T = TypeVar("T")


class StuckError(RuntimeError):
    """Nothing can wake the loop, and nobody asked to be told: a fault of the bench itself."""


class _StillSelector(selectors.SelectSelector):
    """A selector that never waits: it tells the loop that it would have to."""

    loop: StillLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        self.loop.on_still(timeout)
        return []


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time that knows when it is still."""

    def __init__(self) -> None:
        selector = _StillSelector()
        self._now = 0.0
        self._still_waiters: list[asyncio.Future[None]] = []
        self._advances = 0
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def when_still(self, waiter: asyncio.Future[None]) -> None:
        """Settle ``waiter`` when nothing can move any more, unless it is done by then."""
        self._still_waiters.append(waiter)

    async def still(self) -> None:
        """Return when nothing can move any more, unless something is done by the caller."""
        waiter: asyncio.Future[None] = self.create_future()
        self.when_still(waiter)
        await waiter

    def on_still(self, timeout: float | None) -> None:
        """The loop has nothing ready; ``timeout`` is how far the next timer is away."""
        near = timeout is not None and timeout <= HORIZON and self._advances < MAX_ADVANCES
        if timeout is not None and (near or not self._still_waiters):
            self._advances += 1
            self._now += timeout + 1e-9
            return
        self._advances = 0
        waiters, self._still_waiters = self._still_waiters, []
        if not waiters:
            raise StuckError("nothing can wake the event loop; the bench lost track of a waiter")
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _SocketSelector(selectors.DefaultSelector):
    """A selector that tells the loop when no file is ready, before it really waits."""

    loop: SocketLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0) or self.loop.on_still():
            return ready
        return super().select(timeout)


class SocketLoop(asyncio.SelectorEventLoop):
    """An event loop with sockets and real time that knows when nothing is ready."""

    def __init__(self) -> None:
        selector = _SocketSelector()
        self._still_waiters: list[asyncio.Future[None]] = []
        selector.loop = self
        super().__init__(selector)

    def when_still(self, waiter: asyncio.Future[None]) -> None:
        """Settle ``waiter`` when no callback and no file is ready, unless it is done by then."""
        self._still_waiters.append(waiter)

    async def still(self) -> None:
        """Return when no callback and no file is ready."""
        waiter: asyncio.Future[None] = self.create_future()
        self.when_still(waiter)
        await waiter

    def on_still(self) -> bool:
        """Nothing is ready: tell those who asked; whether anybody had."""
        waiters, self._still_waiters = self._still_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return bool(waiters)


def run_still(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on a :class:`StillLoop` of its own; what it leaves behind is cancelled."""
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        return runner.run(main)
