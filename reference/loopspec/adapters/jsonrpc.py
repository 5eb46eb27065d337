"""JSON-RPC 2.0, one message a line, with a child that may do anything.

**Order.** The order of the child's messages is the order of things in the trace. So messages are
taken one by one, and after a message that wakes somebody (an answer wakes who asked, a request
starts a task) the next one waits until the woken code has run up to its next ``await``: the event
loop runs callbacks in the order in which they were scheduled, so handing the rest of the queue to
``call_soon`` is enough; it is done twice, so that the callbacks of a task that ends in that step
have run too. Nothing is read meanwhile either: the next message may come in the very next read.
Messages that wake nobody are taken at once.

**Bounds.** Reading stops while messages are queued, a line has a largest size, and so does what
waits to be written; a hostile child costs memory of that order and no more.

**Loss.** Whatever breaks the protocol ends in :meth:`Channel.lose`, once: the child and its
process group are killed and everything that waits gets the same :class:`ChildLost`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from loopspec.adapters.child import ChildProcess
from loopspec.adapters.protocol import LostTarget
from loopspec.trace import TargetLost

TARGET_RAISED = -32000
"""The target's own code raised; ``data`` has ``raised``, the chain."""
TOOL_FAILED = -32001
"""A probe tool failed because the scenario said so."""
PROVIDER_FAILED = -32002
"""The fake provider failed; ``data`` may have ``status``."""
CANCELLED = -32003
"""What was asked for was cancelled by the child, and gave way."""
NO_SUCH_METHOD = -32601
"""JSON-RPC's own code: the other side does not have this method."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may take. Seconds are watchdogs against hangs; they never make order.

    Parameters
    ----------
    start: from the start of the process to the answer of ``initialize``.
    answer: for any request but ``open`` (as ``start``) and ``prompt``.
    prompt: for ``prompt``; ``None`` leaves hanging runs to whoever waits for them.
    grace: between SIGTERM and SIGKILL when the child is let go.
    line: bytes in one line. queue: bytes waiting for the child to read its stdin.
    stderr: bytes kept of its stderr. messages: what it may send in one conversation.
    """

    start: float = 60.0
    answer: float = 10.0
    prompt: float | None = None
    grace: float = 1.0
    line: int = 8 << 20
    queue: int = 32 << 20
    stderr: int = 8 << 10
    messages: int = 100_000


class ChildLost(LostTarget):
    """The child died, hung, flooded or spoke rubbish, and was ended with its process group.

    ``what`` says what it did, ``hint`` what to do about it, ``stderr_tail`` is the last that it
    wrote to its stderr. The next ``open`` starts a fresh child.
    """

    def __init__(self, what: str, stderr_tail: str = "", hint: str = "") -> None:
        self.what, self.stderr_tail, self.hint = what, stderr_tail, hint
        text = f"{what}; {hint}" if hint else what
        Exception.__init__(self, f"{text}\nits stderr ends with:\n{stderr_tail}" if stderr_tail else text)

    @property
    def entry(self) -> TargetLost:
        """The entry for the trace."""
        return TargetLost(self.what)


class ProtocolBroken(Exception):
    """A message breaks the protocol: what came, and what was expected."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class BenchFault(Exception):
    """The bench failed while it served the child; nothing of this is the target's doing."""


class RpcError(Exception):
    """The child answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


def quoted(line: bytes) -> str:
    """The line for an error message: at most 200 characters, nothing that moves a cursor."""
    text = line[:800].decode("utf-8", "backslashreplace")
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text[:201]
    )
    return f"'{shown[:200]}...'" if len(shown) > 200 else f"'{shown}'"


def encode(message: dict[str, Any]) -> bytes:
    """A message as its line."""
    return _encode(message).encode("ascii") + b"\n"


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).decode
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line; raises :class:`ProtocolBroken` if it is none."""
    try:
        message = _decode(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ProtocolBroken(
            f"stdout had a line that is not JSON: {quoted(line)}",
            "stdout is the protocol's alone: let the target print to stderr",
        ) from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolBroken(
            f"stdout had a line that is not a JSON-RPC 2.0 message: {quoted(line)}",
            'each line is one object with "jsonrpc": "2.0"',
        )
    return message


class LineSplitter:
    """Cuts a stream of bytes into lines, holding at most ``limit`` bytes of an unfinished one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._part: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that this completes; raises :class:`ProtocolBroken` on one that is too long."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._part, lines[0]))
            self._part, self._size = [], 0
        if rest:
            self._part.append(rest)
            self._size += len(rest)
        if self._size > self._limit or (lines and len(lines[0]) > self._limit):
            start = b"".join(self._part)[:300] if self._size > self._limit else lines[0]
            self._part, self._size = [], 0
            raise ProtocolBroken(
                f"stdout had more than {self._limit} bytes without a newline: {quoted(start)}",
                "messages are small; end each with a newline",
            )
        return lines


@dataclass(slots=True)
class _Waiting:
    method: str
    answer: asyncio.Future[Any]
    seconds: float | None
    overdue: float | None


Incoming = Callable[[str, int | str | None, dict[str, Any]], bool]
"""``incoming(method, id, params)`` takes what the child sends (``id`` is ``None`` for a
notification) and says whether it woke something."""


class Channel:
    """Both directions of the conversation with one child.

    Parameters
    ----------
    child: the started process.
    limits: what it may take.
    incoming: takes its requests and notifications.
    on_end: called once, when the channel is over, with the reason.
    """

    def __init__(
        self, child: ChildProcess, limits: Limits, incoming: Incoming, on_end: Callable[[], None]
    ) -> None:
        self.child = child
        self.over: BaseException | None = None
        self._limits, self._incoming, self._on_end = limits, incoming, on_end
        self._splitter = LineSplitter(limits.line)
        self._lines: deque[bytes] = deque()
        self._holding = False
        self._out = bytearray()
        self._ids = 0
        self._waiting: dict[int, _Waiting] = {}
        self._given_up: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: asyncio.TimerHandle | None = None

    # -- the event loop

    def attach(self) -> bool:
        """Belong to the running event loop from now on, and say whether that is another one.

        A child outlives the loops that it serves.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return False
        self._detach()
        self._given_up.update(self._waiting)
        self._waiting.clear()
        self._loop = loop
        loop.add_reader(self.child.stdout, self._readable)
        loop.add_reader(self.child.stderr, self._stderr_readable)
        if self.child.handle is not None:
            loop.add_reader(self.child.handle, self._ended)
        if self._out:
            loop.add_writer(self.child.stdin, self._writable)
        self._holding = False
        if self._lines:
            loop.call_soon(self._pump)
        return True

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.child.stdout)
            self._loop.remove_reader(self.child.stderr)
            if self.child.handle is not None:
                self._loop.remove_reader(self.child.handle)
            self._loop.remove_writer(self.child.stdin)
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._loop = self._watchdog = None

    def _stderr_readable(self) -> None:
        if not self.child.read_stderr() and self._loop is not None:
            self._loop.remove_reader(self.child.stderr)

    # -- what we send

    async def request(self, method: str, params: dict[str, Any], seconds: float | None) -> Any:
        """Ask and wait for the answer.

        Raises :class:`RpcError` if the answer is an error and :class:`ChildLost` if none comes
        within ``seconds``. If the wait is cancelled, the answer is dropped when it comes.
        """
        if self.over is not None:
            raise self.over
        loop = asyncio.get_running_loop()
        self._ids += 1
        number = self._ids
        answer: asyncio.Future[Any] = loop.create_future()
        overdue = None if seconds is None else loop.time() + seconds
        self._waiting[number] = _Waiting(method, answer, seconds, overdue)
        if overdue is not None and (self._watchdog is None or overdue < self._watchdog.when()):
            self._watch(overdue)
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            return await answer
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None:
                self._given_up.add(number)
            elif answer.done() and not answer.cancelled():
                answer.exception()  # it came too late to be heard
            raise

    def answer(self, number: int | str, result: dict[str, Any]) -> None:
        """Answer a request of the child."""
        self._send({"jsonrpc": "2.0", "id": number, "result": result})

    def tell(self, method: str, **params: Any) -> None:
        """Tell the child something that wants no answer."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def refuse(self, number: int | str, code: int, message: str, **data: Any) -> None:
        """Answer a request of the child with an error."""
        error: dict[str, Any] = {"code": code, "message": message}
        if data:
            error["data"] = data
        self._send({"jsonrpc": "2.0", "id": number, "error": error})

    def _send(self, message: dict[str, Any]) -> None:
        if self.over is not None:
            return
        line = encode(message)
        if self._out:
            self._out += line
            if len(self._out) > self._limits.queue:
                self.lose(
                    f"more than {self._limits.queue} bytes wait for the process to read its stdin",
                    "a kit reads stdin whenever its event loop is free",
                )
            return
        written = self._write(line)
        if written < len(line) and self.over is None and self._loop is not None:
            self._out += line[written:]
            self._loop.add_writer(self.child.stdin, self._writable)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self.child.write(bytes(data))
        except OSError:
            self._gone()
            return 0

    def _writable(self) -> None:
        del self._out[: self._write(self._out)]
        if not self._out and self._loop is not None:
            self._loop.remove_writer(self.child.stdin)

    # -- what the child sends

    def _readable(self) -> None:
        if self._lines or self._holding or self.over is not None:
            return  # first things first: the queue is taken, then more is read
        data = self.child.read()
        if data is None:
            return
        if not data:
            self._gone()
            return
        self._arrived(data)

    def _ended(self) -> None:
        # The process has ended, though others may still hold its stdout. What it said before is
        # taken first: this is called in each pass of the loop until nothing is left.
        if self._lines or self.over is not None:
            return
        if data := self.child.read():
            self._arrived(data)
        else:
            self._gone()

    def _arrived(self, data: bytes) -> None:
        try:
            self._lines.extend(self._splitter.feed(data))
        except ProtocolBroken as broken:
            self.lose(str(broken), broken.hint)
            return
        self._pump()

    def _pump(self) -> None:
        while self._lines and self.over is None:
            line = self._lines.popleft()
            try:
                woke = self._take(decode(line), line)
            except ProtocolBroken as broken:
                self.lose(str(broken), broken.hint)
            except Exception as error:  # noqa: BLE001 - a fault of the bench belongs to who waits
                self.fault(error)
            else:
                if woke and self._loop is not None:
                    self._holding = True
                    self._loop.call_soon(self._loop.call_soon, self._go_on)
                    return

    def _go_on(self) -> None:
        """What was woken has run: take the next message, read or not yet read."""
        self._holding = False
        self._pump()

    def _take(self, message: dict[str, Any], line: bytes) -> bool:
        method = message.get("method")
        if method is None:
            return self._answered(message, line)
        number, params = message.get("id"), message.get("params", {})
        if not isinstance(method, str) or not isinstance(params, dict):
            raise ProtocolBroken(
                f"a message has a method that is no text, or params that are no object: {quoted(line)}",
                "see the messages in spec/protocol.md",
            )
        if isinstance(number, bool) or not isinstance(number, int | str | None):
            raise ProtocolBroken(f"a request has an id that is no number or text: {quoted(line)}",
                                 "number your requests 1, 2, 3, ...")  # fmt: skip
        return self._incoming(method, number, params)

    def _answered(self, message: dict[str, Any], line: bytes) -> bool:
        number = message.get("id")
        hint = "answer each request exactly once, with its own id"
        if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= self._ids:
            raise ProtocolBroken(f"an answer has an id that was never asked: {quoted(line)}", hint)
        if number in self._given_up:
            self._given_up.discard(number)
            return False
        waiting = self._waiting.get(number)
        if waiting is None:
            raise ProtocolBroken(f"request {number} was answered twice: {quoted(line)}", hint)
        error = message.get("error")
        if ("result" in message) == (error is not None):
            raise ProtocolBroken(f"an answer has neither or both of result and error: {quoted(line)}",
                                 "give exactly one of them")  # fmt: skip
        if error is not None and not (isinstance(error, dict) and isinstance(error.get("code"), int)):
            raise ProtocolBroken(f"an error has no code: {quoted(line)}", "code is a whole number")
        del self._waiting[number]  # not before: whoever waits hears of what is wrong above
        if waiting.answer.done():
            return False
        if error is None:
            waiting.answer.set_result(message["result"])
            return True
        text = str(error.get("message", ""))
        waiting.answer.set_exception(RpcError(error["code"], text, error.get("data")))
        return True

    # -- the end

    def _watch(self, when: float) -> None:
        # One timer for all requests, which is not touched when an answer comes in time.
        if self._watchdog is not None:
            self._watchdog.cancel()
        assert self._loop is not None
        self._watchdog = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        assert self._loop is not None
        self._watchdog, now = None, self._loop.time()
        waiting = [item for item in self._waiting.values() if item.overdue is not None]
        late = [item for item in waiting if item.overdue is not None and item.overdue <= now]
        if late:
            self.lose(
                f"{late[0].method!r} was not answered within {late[0].seconds:g} s",
                "find what blocks the child's event loop, or give it a longer limit",
            )
        elif waiting:
            self._watch(min(item.overdue for item in waiting if item.overdue is not None))

    def _gone(self) -> None:
        if self.over is None:
            asked = [repr(waiting.method) for waiting in self._waiting.values()]
            during = f" while {', '.join(asked)} waited for an answer" if asked else ""
            self.lose(
                self.child.ending(self._limits.grace) + during,
                "a child ends only after 'shutdown' or when its stdin ends",
            )

    def release(self) -> None:
        """Look at the child no more: it is being ended."""
        self._detach()

    def lose(self, what: str, hint: str = "") -> None:
        """End the child because it broke the contract; whoever waits gets :class:`ChildLost`."""
        if self.over is None:
            self._detach()
            self.child.stop()
            self.end(ChildLost(what, self.child.stderr_tail, hint))

    def fault(self, error: BaseException) -> None:
        """End the channel because the bench failed; whoever waits gets :class:`BenchFault`."""
        fault = BenchFault(f"{type(error).__name__}: {error}")
        fault.__cause__ = error
        self.end(fault)

    def end(self, reason: BaseException) -> None:
        """End the channel and the child for this reason; the first one counts."""
        if self.over is not None:
            return
        self.over = reason
        self._detach()
        self.child.stop()
        self._lines.clear()
        self._out.clear()
        waiting, self._waiting = self._waiting, {}
        for item in waiting.values():
            if not item.answer.done():
                item.answer.set_exception(reason)
        self._on_end()
