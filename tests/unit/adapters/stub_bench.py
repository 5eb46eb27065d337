"""A bench that is a test double: scripted pieces, scripted tools, and a log of all it sees."""

import asyncio
import sys
from pathlib import Path

from loopspec.adapters.manifest import Manifest
from loopspec.adapters.process import ProcessAdapter
from loopspec.adapters.protocol import OpenSettings, ProbeTool, ProbeToolError
from loopspec.vocabulary import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Reason,
    Terminator,
    TextDelta,
)

CHILDREN = Path(__file__).parent / "children"
MANIFEST = Manifest(name="child", version="1")
NATIVE = OpenSettings()

CALL = [CallStart(0, "c1", "probe"), ArgumentsDelta(0, '{"value": "1"}'), CallEnd(0), Reason("toolUse"),
        Terminator()]  # fmt: skip
ANSWER = [TextDelta("Done."), Reason("stop"), Terminator()]


def loops(**more):
    """The well-behaved children."""
    return ProcessAdapter(MANIFEST, [sys.executable, str(CHILDREN / "loops.py")], **more)


class Stream:
    """One reply; an exception among the pieces is raised, an event is waited for."""

    def __init__(self, bench, pieces):
        self.bench, self.pieces = bench, list(pieces)

    def __aiter__(self):
        return self

    async def __anext__(self):
        while self.pieces:
            piece = self.pieces.pop(0)
            if isinstance(piece, asyncio.Event):
                self.bench.reached.set()
                try:
                    await piece.wait()
                except asyncio.CancelledError:
                    self.bench.log.append("stream cancelled")
                    raise
                continue
            if isinstance(piece, Exception):
                raise piece
            self.bench.log.append(f"sent {piece.type}")
            return piece
        raise StopAsyncIteration

    async def aclose(self):
        self.bench.log.append("stream closed")


class Bench:
    """``replies``: one list of pieces a request. ``tool``: what ``probe`` does, as a coroutine
    function of this bench and the signal."""

    def __init__(self, *replies, tool=None):
        self.replies = list(replies)
        self.log = []
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self.requests = []
        self._tool = tool
        self.tools = [ProbeTool("probe", "A probe.", {"type": "object"}, self._call)]

    def base_url(self, wire):
        return f"http://127.0.0.1:1/{wire}"

    async def _call(self, arguments, call_id=None, signal=None):
        self.log.append(f"tool {arguments} for {call_id}")
        if self._tool is None:
            return "result"
        if signal is not None:
            signal.on_abort(lambda: self.log.append("tool signalled"))
        try:
            return await self._tool(self, signal)
        except asyncio.CancelledError:
            self.log.append("tool cancelled")
            raise

    async def model(self, request, signal=None):
        self.requests.append(request)
        self.log.append(f"request of {len(request.messages)}")
        if signal is not None:
            signal.on_abort(lambda: self.log.append("provider signalled"))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return Stream(self, reply)

    def tell(self, event):
        self.log.append(f"told {event.type}")

    def child_listener_raised(self):
        self.log.append("listener raised")

    def child_cancel_sent(self, at):
        self.log.append(f"cancel sent {at}")

    def child_cancel_returned(self):
        self.log.append("cancel returned")

    def child_second_prompt(self):
        self.log.append("second prompt")


async def fail(bench, signal):
    """A tool that fails."""
    raise ProbeToolError("no luck")


async def wait(bench, signal):
    """A tool that waits until it is released."""
    bench.reached.set()
    await bench.release.wait()
    return "at last"


async def deaf(bench, signal):
    """A tool that goes on although it is cancelled."""
    bench.reached.set()
    while not bench.release.is_set():
        try:
            await bench.release.wait()
        except asyncio.CancelledError:
            bench.log.append("tool ignored a cancellation")
            bench.release.set()
    return "at last"


def run(scenario, *args, adapter=None, settings=NATIVE):
    """Run ``scenario(session, bench)`` on a fresh child and return what it returns."""

    async def main():
        target = adapter or loops()
        bench = args[0] if args else Bench()
        try:
            return await scenario(await target.open(bench, settings), bench)
        finally:
            await target.aclose()

    return asyncio.run(asyncio.wait_for(main(), 60))
