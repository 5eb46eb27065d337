"""The loopback server: the fake provider over HTTP.

A provider is *mounted* for one run and one wire, under a key of its own that stands in its base
URL. A request that comes after its run is over finds the key gone, gets a 410 and is not recorded:
nothing of an old run is ever seen by a new one.

How requests are read and replies are played is told in :mod:`loopspec.bench.connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from loopspec.bench.connection import Connection, Mount, Registry
from loopspec.bench.provider import Provider
from loopspec.bench.wires import WIRES
from loopspec.bench.wires.base import Wire

HOST = "127.0.0.1"


class Server:
    """A server on a free port of the loopback interface.

    Use it as an asynchronous context manager, or call :meth:`start` and :meth:`aclose`.

    Parameters
    ----------
    wires: the wires that can be mounted; all by default.
    """

    def __init__(self, wires: Iterable[Wire] = tuple(WIRES.values())) -> None:
        self._wires = {wire.name: wire for wire in wires}
        self._registry = Registry()
        self._server: asyncio.Server | None = None
        self._keys = 0
        self.port = 0
        """The port, once started."""

    async def start(self) -> Self:
        """Listen. Raises ``OSError`` if the system gives no port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self._registry), HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def mount(self, wire: str, provider: Provider) -> str:
        """Serve ``provider`` on a wire from now on; returns the base URL for the wire's client.

        ``provider.strict`` decides whether what the real API would refuse is refused.
        Raises ``ValueError`` for a wire that this server does not have, and ``RuntimeError``
        before :meth:`start`.
        """
        if wire not in self._wires:
            raise ValueError(f"there is no wire {wire!r} here; one of {', '.join(self._wires)}")
        if self._server is None:
            raise RuntimeError("the server is not started; await start() before mounting")
        self._keys += 1
        mount = Mount(self._wires[wire], provider)
        self._registry.mounts[str(self._keys)] = mount
        return f"http://{HOST}:{self.port}/{self._keys}{mount.wire.base_path}"

    def unmount(self, provider: Provider) -> None:
        """End the run of ``provider``: its replies break off, and later requests get a 410."""
        mounts = self._registry.mounts
        for key in [key for key, mount in mounts.items() if mount.provider is provider]:
            for connection in list(mounts.pop(key).playing):
                connection.drop()

    @property
    def strays(self) -> tuple[str, ...]:
        """The latest requests that were no request of the mounted wire, as ``METHOD path``."""
        return tuple(self._registry.strays)

    async def aclose(self) -> None:
        """End every connection, and return when nothing of the server is left. May be repeated."""
        server, self._server = self._server, None
        self._registry.mounts.clear()
        self._registry.closed = True
        if server is not None:
            server.close()
        connections = list(self._registry.connections)
        for connection in connections:
            connection.drop()
        for connection in connections:
            await connection.done()
        if server is not None:
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
