"""One HTTP connection of the fake provider: it reads requests and plays the replies to them.

Answers are written here byte by byte, because a library that writes correct HTTP cannot break a reply
on purpose.

**One write a segment.** Everything up to the next gate, the head too, leaves in one write. Just
before it each piece that the wire can say is recorded as sent, in order: the trace is never behind
the target. What the wire cannot say is neither sent nor recorded.

**Who closed.** A reply counts as closed by the target when the bench sees the connection go, and
also when the bench itself ended the reply, because then nothing was left open. A body that is kept
open is closed by the target if it goes away, and by the bench if the scenario ends first.

**A reply that is sent whole.** Where no stream was asked for, the gates are passed first, in order,
and then one body is written. A break in such a reply is what is left of it: a reset or a stall sends
nothing, an error is an HTTP 500, a malformed or half frame is half a body, and of a broken body
nothing counts as sent. ``end`` breaks nothing: the body has what came before it. What a script
sends after the terminator, and a body that stays open after it, exist only in a stream.

Nothing waits on time. The task that plays a reply ends with the reply or with the connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

from loopspec.bench.http_request import BadRequestError, Request, RequestReader
from loopspec.bench.provider import Incoming, Player, Provider
from loopspec.bench.script import Fault
from loopspec.bench.wires.base import (
    UNREADABLE,
    Body,
    Encoder,
    Objection,
    Wire,
    compact,
    sayable,
)
from loopspec.vocabulary import FaultKind, Piece

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-should-retry: false\r\n"
    b"transfer-encoding: chunked\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LINGER_NOT = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""``SO_LINGER`` with no time: closing the socket resets the connection."""

_PHRASES = {status.value: status.phrase for status in HTTPStatus}

_BREAKS: dict[FaultKind, Callable[[Encoder, Fault], bytes]] = {
    FaultKind.ERROR: lambda encoder, fault: encoder.error(fault.message),
    FaultKind.MALFORMED: lambda encoder, _: encoder.malformed(),
    FaultKind.HALF_FRAME: lambda encoder, _: encoder.half(),
}
"""What a fault puts into a stream; the others put nothing there."""


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _plain(message: str) -> Body:
    """The body of an error that belongs to no wire."""
    return {"error": {"message": message, "type": "bench"}}


def _json_object(text: bytes) -> Body | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@dataclass(eq=False, slots=True)
class Mount:
    """A provider on the server, and the connections that play a reply of it just now."""

    wire: Wire
    provider: Provider
    playing: set[Connection] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Registry:
    """What the connections of one server share.

    ``strays`` are the latest requests that no wire could place, as ``METHOD path``: they show an
    adapter that asks for something else than it was thought to.
    """

    mounts: dict[str, Mount] = field(default_factory=dict)
    connections: set[Connection] = field(default_factory=set)
    strays: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    closed: bool = False


class Connection(asyncio.Protocol):
    """One connection of a client: it reads requests one by one and plays the reply to each."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader()
        self._last = False
        self._player: Player | None = None
        self._task: asyncio.Task[None] | None = None
        self._flushed: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()

    # ---- the connection itself

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._registry.connections.add(self)
        if self._registry.closed:
            transport.abort()  # it was accepted while the server was closing

    def eof_received(self) -> bool:
        """The client closed. This is seen at once, also while a reply is held or stalled."""
        self._over("target")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, whoever ended it."""
        self._over("target")
        self._lost.set_result(None)
        self._let_go()

    def drop(self) -> None:
        """End the connection from this side, and whatever is played on it."""
        self._over("bench")
        self._transport.abort()

    async def done(self) -> None:
        """Return when the connection is gone and no task of it is left."""
        await asyncio.wait({self._lost, self._task} if self._task is not None else {self._lost})

    def _let_go(self) -> None:
        """The server may forget the connection once it is gone and its task has ended."""
        if self._lost.done() and self._task is None:
            self._registry.connections.discard(self)

    def _over(self, by: str) -> None:
        player, self._player = self._player, None
        if player is not None:
            player.closed(by, seen="late")
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The system does not take all that was written: the client is slow to read."""
        self._flushed = self._loop.create_future()

    def resume_writing(self) -> None:
        """The system has taken everything."""
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)
        self._flushed = None

    # ---- requests

    def data_received(self, data: bytes) -> None:
        """Bytes came. Those of a next request wait until the reply to this one is over."""
        self._reader.feed(data)
        if self._task is None:
            self._read()

    def _read(self) -> None:
        """Take requests until one is being played, or until more bytes are needed."""
        while self._task is None and not self._transport.is_closing():
            try:
                request = self._reader.next()
            except BadRequestError as error:
                self._last = True
                self._answer(error.status, _plain(str(error)))
                self._transport.close()
                return
            if request is None:
                if self._reader.expects_continue:
                    self._reader.expects_continue = False
                    self._transport.write(_CONTINUE)
                return
            self._last = request.last
            self._arrived(request)
            if self._task is None and self._last:
                self._transport.close()

    def _arrived(self, request: Request) -> None:
        """A request is whole: find whose it is, then answer it or begin to play."""
        key, slash, path = request.target.removeprefix("/").partition("/")
        path = slash + path
        mount = self._registry.mounts.get(key)
        if mount is None:
            self._answer(410, _plain("the run that this URL belonged to is over"))
        elif request.method != "POST" or not mount.wire.serves(path):
            self._registry.strays.append(f"{request.method} {path}")
            self._answer(404, mount.wire.error_body(404, f"there is nothing at {path}"))
        else:
            self._take(mount, path, request.body)

    def _take(self, mount: Mount, path: str, content: bytes) -> None:
        wire, provider = mount.wire, mount.provider
        body = _json_object(content)
        if body is None:
            self._refuse(wire, provider, Incoming((), findings=(UNREADABLE.finding,)), UNREADABLE)
            return
        incoming, objections = wire.read(body, path)
        if objections and provider.strict:
            self._refuse(wire, provider, incoming, objections[0])
            return
        player = self._player = provider.begin(incoming)
        encoder = wire.encoder(player.number, body, path)
        play = self._stream if incoming.streaming else self._whole
        self._task = self._loop.create_task(play(wire, encoder, player))
        mount.playing.add(self)
        self._task.add_done_callback(lambda task: self._played(mount, task))

    def _refuse(self, wire: Wire, provider: Provider, incoming: Incoming, objection: Objection) -> None:
        player = self._player = provider.refuse(incoming)
        player.faulted(Fault(FaultKind.STATUS, objection.text, 400))
        self._answer(400, wire.refusal(objection))
        self._complete()

    def _played(self, mount: Mount, task: asyncio.Task[None]) -> None:
        """The task of a reply is over: go on to the next request, or let the connection go."""
        self._task = None
        mount.playing.discard(self)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            words = "a reply of the fake provider could not be played"
            self._loop.call_exception_handler({"message": words, "exception": failure, "task": task})
        if task.cancelled() or failure is not None:
            self.drop()
        elif self._last:
            self._transport.close()
        else:
            self._read()
        self._let_go()

    # ---- replies

    async def _stream(self, wire: Wire, encoder: Encoder, player: Player) -> None:
        instead = await player.opening()
        if instead is not None:
            await self._instead(wire, player, instead)
            return
        player.opened()
        head = self._head(_STREAM_HEAD)
        if player.at_gate():
            self._transport.write(head)
            head = b""
        while (segment := await player.segment()) is not None:
            fault = segment[-1] if isinstance(segment[-1], Fault) else None
            pieces = cast("list[Piece]", segment if fault is None else segment[:-1])
            frames = [*self._said(encoder, player, pieces), self._broken(encoder, player, fault)]
            stays = fault is not None and fault.kind in (FaultKind.STALL, FaultKind.DISCONNECT)
            ends = not stays and player.at_end() and (fault is not None or not player.open_body)
            self._write(head + _chunk(b"".join(frames)) + (_LAST_CHUNK if ends else b""))
            head = b""
            if ends:
                self._complete()
                return
            if fault is not None:
                await self._hold_or_reset(fault)
                return
        if player.open_body:
            await self._hold()
        self._write(head + _LAST_CHUNK)
        self._complete()

    def _said(self, encoder: Encoder, player: Player, pieces: list[Piece]) -> list[bytes]:
        """The frames of a segment's pieces; what has frames is recorded as sent."""
        said = []
        for piece in pieces:
            frames = encoder.frames(piece)
            if frames:
                player.sent(piece)
                said.append(frames)
        return said

    def _broken(self, encoder: Encoder, player: Player, fault: Fault | None) -> bytes:
        """What a fault puts into the stream; the fault is recorded.

        A status cannot follow a head. An API that fails so late sends an error frame.
        """
        if fault is None:
            return b""
        if fault.kind is FaultKind.STATUS:
            fault = Fault(FaultKind.ERROR, fault.message)
        player.faulted(fault)
        frame = _BREAKS.get(fault.kind)
        return frame(encoder, fault) if frame is not None else b""

    async def _whole(self, wire: Wire, encoder: Encoder, player: Player) -> None:
        player.open_body = False
        fault = await player.opening()
        pieces: list[Piece] = []
        while (segment := await player.segment()) is not None:
            for element in segment:
                if isinstance(element, Fault):
                    fault = element
                else:
                    pieces.append(element)
        said = list(sayable(encoder, pieces))
        if fault is None or fault.kind is FaultKind.END:
            player.opened()
            for piece in said:
                player.sent(piece)
            if fault is not None:
                player.faulted(fault)
            self._answer(200, encoder.whole(said))
        elif fault.kind in (FaultKind.MALFORMED, FaultKind.HALF_FRAME):
            player.opened()
            player.faulted(fault)
            body = compact(encoder.whole(said))
            self._answer(200, body[: len(body) // 2])
        else:
            await self._instead(wire, player, fault)
            return
        self._complete()

    async def _instead(self, wire: Wire, player: Player, fault: Fault) -> None:
        """A fault comes instead of a reply: an HTTP error, a reset, or nothing at all."""
        player.faulted(fault)
        if fault.kind in (FaultKind.STALL, FaultKind.DISCONNECT):
            await self._hold_or_reset(fault)
            return
        status = fault.status or 500
        self._answer(status, wire.error_body(status, fault.message), fault.retry_after)
        self._complete()

    async def _hold_or_reset(self, fault: Fault) -> None:
        if fault.kind is FaultKind.STALL:
            await self._hold()
        if self._flushed is not None:
            await self._flushed  # a reset throws away what is not with the client's system yet
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._transport.abort()
        self._complete()

    async def _hold(self) -> None:
        """Keep the reply as it is until the connection is over, which cancels this task."""
        await self._loop.create_future()

    # ---- bytes

    def _head(self, lines: bytes) -> bytes:
        return lines + (b"connection: close\r\n\r\n" if self._last else b"\r\n")

    def _write(self, data: bytes) -> None:
        if data:
            self._transport.write(data)

    def _answer(self, status: int, body: Body | bytes, retry_after: int | None = None) -> None:
        """Write an answer that is sent whole."""
        content = body if isinstance(body, bytes) else compact(body)
        lines = (
            f"HTTP/1.1 {status} {_PHRASES.get(status, 'Error')}\r\n"
            f"content-type: application/json\r\n"
            f"x-should-retry: false\r\n"
            f"content-length: {len(content)}\r\n"
        )
        if retry_after is not None:
            lines += f"retry-after: {retry_after}\r\n"
        self._transport.write(self._head(lines.encode("ascii")) + content)

    def _complete(self) -> None:
        """The reply has ended and left nothing open."""
        player, self._player = self._player, None
        if player is not None:
            player.closed("target")
