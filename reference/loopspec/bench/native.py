"""The native wire: replies as an asynchronous stream of pieces, in process or over a channel.

The stream takes the part of the most awkward provider that a scenario asks for. Heeding, it ends
when the signal comes or its reader goes. Deaf, it does neither: cancelling the task that reads it
changes nothing, it plays on or waits for ever. Only the end of the scenario frees it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any

from loopspec.adapters.protocol import ModelRequest, ProviderError
from loopspec.bench.provider import Incoming, Player, Provider
from loopspec.bench.script import Fault
from loopspec.signals import Signal
from loopspec.vocabulary import FaultKind, Piece, Terminator

CAN_EXPRESS = (
    "stop", "toolUse", "length", "error", "aborted", "deferred", "pending", "refusal", "unknown",
    "reasoning", "call_end", *(str(kind) for kind in FaultKind),
)  # fmt: skip
"""The native wire can say everything."""


class NativeStream:
    """One reply on the native wire."""

    def __init__(self, player: Player, signal: Signal | None, over: asyncio.Future[None]) -> None:
        self._player = player
        self._over = over
        self._queue: deque[Piece | Fault] = deque()
        self._ended = False
        self._released = False
        self._stopped = False
        self._stop: asyncio.Future[None] | None = None
        self._signal = signal
        if signal is not None:
            signal.on_abort(self._signalled)

    def _signalled(self) -> None:
        if not self._ended:
            self._player.signalled()
            self._heed()

    def _heed(self) -> None:
        if not self._player.deaf:
            self._stopped = True
            if self._stop is not None and not self._stop.done():
                self._stop.set_result(None)

    def __aiter__(self) -> NativeStream:
        return self

    async def open(self) -> None:
        """Wait until the reply opens; raises :class:`ProviderError` if a fault comes instead."""
        if self._player.at_gate():
            fault = await self._unless_stopped(self._player.opening())
        else:
            fault = await self._player.opening()
        if isinstance(fault, Fault):
            await self._break(fault)
            return
        self._player.opened()
        if not self._player.at_gate() and not self._player.at_end():
            self._queue.extend(await self._player.segment() or ())

    async def __anext__(self) -> Piece:
        """The next piece; raises :class:`ProviderError` where the scenario breaks the reply."""
        if self._ended:
            raise StopAsyncIteration
        if self._signal is not None and self._signal.aborted and not self._player.deaf:
            self._end()
            raise ProviderError("the request was aborted")
        if not self._queue:
            if self._player.at_gate():
                segment = await self._unless_stopped(self._player.segment())
            else:
                segment = await self._player.segment()
            if segment is None and self._player.open_body:
                await self._unless_stopped(self._over)
            if segment is None:
                self._end()
                raise StopAsyncIteration
            self._queue.extend(segment)
        element = self._queue.popleft()
        if isinstance(element, Fault):
            await self._break(element)
            raise StopAsyncIteration
        return self._handed_on(element)

    def _handed_on(self, piece: Piece) -> Piece:
        if not self._released:
            self._player.sent(piece)
            if isinstance(piece, Terminator):
                self._release_rest()
        return piece

    def ready(self) -> Piece | None:
        """The next piece, if it needs no waiting: no gate or fault stands before it."""
        if self._ended or self._stopped or not self._queue or isinstance(self._queue[0], Fault):
            return None
        piece = self._queue.popleft()
        assert not isinstance(piece, Fault)
        return self._handed_on(piece)

    def _release_rest(self) -> None:
        """What follows the terminator is on its way with it, whether it is read or not."""
        self._released = True
        for late in self._queue:
            if isinstance(late, Fault):
                self._player.faulted(late)
            else:
                self._player.sent(late)

    async def _break(self, fault: Fault) -> None:
        if not self._released:
            self._player.faulted(fault)
        if fault.kind is FaultKind.STALL:
            await self._unless_stopped(self._over)
        self._end()
        if fault.kind not in (FaultKind.END, FaultKind.STALL):
            raise ProviderError(fault.message, fault.status)

    async def _unless_stopped(self, work: Awaitable[Any]) -> Any:
        """Wait for ``work``; heeding, stop when the signal comes or the reader is cancelled."""
        task = asyncio.ensure_future(work)
        stop = self._stop = self._over.get_loop().create_future()
        if self._stopped:
            stop.set_result(None)
        while True:
            try:
                await asyncio.wait({task, stop, self._over}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if self._player.deaf and not self._over.done():
                    continue
                self._end()
                raise
            if self._over.done():
                raise asyncio.CancelledError
            if task.done():
                return task.result()
            self._end()
            raise ProviderError("the request was aborted")

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._player.closed()

    def exhausted(self) -> bool:
        """Whether the reader has everything that will ever come; it may not know yet."""
        return not self._queue and self._player.at_end() and not self._player.open_body

    def let_go(self) -> None:
        """The reader closes the stream; :meth:`aclose` for those who are not in an event loop."""
        self._end()
        self._heed()

    async def aclose(self) -> None:
        """The reader closes the stream."""
        self.let_go()


async def open_native(
    provider: Provider, request: ModelRequest, signal: Signal | None, over: asyncio.Future[None]
) -> NativeStream:
    """Open a reply; raises :class:`ProviderError` when the scenario answers with a status."""
    stream = NativeStream(provider.begin(Incoming(request.messages, request.tools)), signal, over)
    await stream.open()
    return stream
