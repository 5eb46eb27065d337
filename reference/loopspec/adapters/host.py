"""One living child: what the host asks of it, and what it asks of the bench.

What the target asks of the bench (its tools, the native model) is asked of the same bench objects
as in process, each request in a task of its own; a request is answered in the step in which the
bench's part of it ends, so that the order on the channel is that of the trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from pydantic import ValidationError

from loopspec.adapters.child import ChildProcess
from loopspec.adapters.jsonrpc import (
    CANCELLED,
    NO_SUCH_METHOD,
    PROVIDER_FAILED,
    TARGET_RAISED,
    TOOL_FAILED,
    Channel,
    ChildLost,
    Limits,
    ProtocolBroken,
    RpcError,
)
from loopspec.adapters.protocol import (
    Bench,
    ModelRequest,
    ProbeToolError,
    ProviderError,
    Signal,
    TargetRaised,
)
from loopspec.adapters.wire_models import (
    CHILD_NOTIFICATIONS,
    CHILD_REQUESTS,
    HOST_REQUESTS,
    PROTOCOL,
    CancelReturnedParams,
    CancelSentParams,
    EventParams,
    InitializeResult,
    ModelOpenParams,
    Nothing,
    RaisedData,
    RequestParams,
    SessionParams,
    StreamParams,
    ToolCallParams,
    Wire,
)
from loopspec.vocabulary import Event, Piece, message_from_json, piece_to_json

_SEE = "see the messages in spec/protocol.md"


class ChildBench(Bench, Protocol):
    """What a child's session needs of the bench beyond :class:`Bench`: to hear what the kit did."""

    def child_listener_raised(self) -> None:
        """The kit raised inside the target's listener."""

    def child_cancel_sent(self, at: str) -> None:
        """The kit is about to call the target's cancel."""

    def child_cancel_returned(self) -> None:
        """The target's cancel returned to the kit."""

    def child_second_prompt(self) -> None:
        """The listener's moment for a second prompt has come; the bench gives it."""


@dataclass(slots=True)
class _Stream:
    session: str
    pieces: AsyncIterator[Piece]
    next: asyncio.Task[None] | None = None


_T = TypeVar("_T", bound=Wire)


_NOTHING = Nothing()


def _checked(model: type[_T], method: str, data: Any) -> _T:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "params"
        raise ProtocolBroken(f"{method!r} is not as agreed at {place}: {first['msg']}", _SEE) from None


def _ready(pieces: Any) -> list[dict[str, Any]]:
    """The pieces that need no waiting, where a stream knows; they save a round trip each."""
    ready: Callable[[], Piece | None] = getattr(pieces, "ready", lambda: None)
    found: list[dict[str, Any]] = []
    while (piece := ready()) is not None:
        found.append(piece_to_json(piece))
    return found


def _said(pieces: list[dict[str, Any]], stream: Any) -> dict[str, Any]:
    """The answer with these pieces. ``end`` spares the child from asking; it closes all the same."""
    exhausted: Callable[[], bool] = getattr(stream, "exhausted", lambda: False)
    return {"pieces": pieces, "end": True} if exhausted() else {"pieces": pieces}


def _begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task for ``work``; where Python can, it has run up to its first wait already."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)


class HostSession:
    """What the host knows of an open session."""

    def __init__(self, name: str, bench: ChildBench) -> None:
        self.name, self.bench = name, bench
        self.tools = {tool.name: tool.call for tool in bench.tools}
        self.messages = 0


class Host:
    """One living child: its channel, its sessions, and what it has asked of the bench."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None, limits: Limits):
        self.limits = limits
        self.sessions: dict[str, HostSession] = {}
        self._tasks: dict[int | str, tuple[str, asyncio.Task[None]]] = {}
        self._streams: dict[int | str, _Stream] = {}
        self._signals: dict[int | str, Signal] = {}
        self._closing: set[asyncio.Task[None]] = set()
        try:
            child = ChildProcess(command, env, cwd, limits.stderr)
        except (OSError, ValueError) as error:
            raise ChildLost(
                f"the process cannot be started: {error}",
                hint=f"the command is {list(command)!r}; its first word must be a program",
            ) from None
        self.channel = Channel(child, limits, self._incoming, self._on_end)
        self._notified: dict[str, Callable[[Any], bool]] = {
            "event": self._event, "signal": self._signal, "cancelled": self._cancelled,
            "model_close": self._model_close, "listener_raised": self._listener_raised,
            "cancel_sent": self._cancel_sent, "cancel_returned": self._cancel_returned,
            "second_prompt": self._second_prompt,
        }  # fmt: skip

    def attach(self) -> None:
        """Belong to the running event loop; what belonged to another one is forgotten."""
        if self.channel.attach():
            self._tasks.clear()
            self._streams.clear()
            self._signals.clear()

    # -- host to child

    async def initialize(self) -> None:
        """Shake hands; a child that speaks another version is let go."""
        asked = {"protocol": PROTOCOL}
        try:
            answer = await self.channel.request("initialize", asked, self.limits.start)
        except RpcError as error:
            raise self._lost(f"'initialize' was answered with error {error.code}: {error}", _SEE) from None
        # Before anything else is looked at: another version may have other members.
        theirs = answer.get("protocol") if isinstance(answer, dict) else None
        if theirs != PROTOCOL:
            raise self._lost(
                f"the child's kit speaks protocol {theirs!r}, this loopspec speaks {PROTOCOL}",
                "use the kit that comes with this version of loopspec",
            )
        self._check(InitializeResult, "initialize", answer)

    async def ask(self, method: str, params: dict[str, Any], seconds: float | None) -> Wire:
        """One request, its result checked. Raises :class:`TargetRaised` and :class:`ChildLost`."""
        try:
            result = await self.channel.request(method, params, seconds)
        except RpcError as error:
            if error.code == TARGET_RAISED:
                chain = self._check(RaisedData, method, error.data)
                raise TargetRaised(
                    method, chain.model_dump(by_alias=True, exclude_unset=True)["raised"]
                ) from None
            if error.code == NO_SUCH_METHOD:
                raise self._lost(f"it does not know {method!r}: {error}", _SEE) from None
            raise self._lost(f"{method!r} was answered with error {error.code}: {error}", _SEE) from None
        model = HOST_REQUESTS[method][1]
        return _NOTHING if model is Nothing and result == {} else self._check(model, method, result)

    def _check(self, model: type[_T], method: str, data: Any) -> _T:
        try:
            return _checked(model, method, data)
        except ProtocolBroken as broken:
            raise self._lost(str(broken), broken.hint) from None

    def _lost(self, what: str, hint: str) -> BaseException:
        self.channel.lose(what, hint)
        assert self.channel.over is not None
        return self.channel.over

    # -- child to host

    def _incoming(self, method: str, number: int | str | None, params: dict[str, Any]) -> bool:
        if number is None:
            model = CHILD_NOTIFICATIONS.get(method)
            if model is None:
                raise ProtocolBroken(f"there is no notification {method!r}",
                                     f"there are {', '.join(CHILD_NOTIFICATIONS)}")  # fmt: skip
            return self._notified[method](_checked(model, method, params))
        if method not in CHILD_REQUESTS:
            raise ProtocolBroken(f"there is no request {method!r}",
                                 f"there are {', '.join(CHILD_REQUESTS)}")  # fmt: skip
        if number in self._tasks or number in self._streams:
            raise ProtocolBroken(f"the id {number!r} of a request is still in use", "use each id once")
        data = _checked(CHILD_REQUESTS[method][0], method, params)
        stream: _Stream | None = None
        if isinstance(data, ToolCallParams):
            session = self._session(data.session)
            work = self._tool_call(number, session, data)
        elif isinstance(data, ModelOpenParams):
            session = self._session(data.session)
            messages = tuple(message_from_json(message) for message in params["messages"])
            work = self._model_open(number, session, data, ModelRequest(messages, tuple(data.tools)))
        else:
            stream = self._streams.get(cast("StreamParams", data).stream)
            if stream is None:
                raise ProtocolBroken(f"'model_next' names no open stream: {params}", _SEE)
            if stream.next is not None and not stream.next.done():
                raise ProtocolBroken("'model_next' was asked before the last one was answered", _SEE)
            session = self._session(stream.session)
            work = self._model_next(number, cast("StreamParams", data).stream, stream)
        task = self._start(number, session.name, work)
        if stream is not None:
            stream.next = task
        return not task.done()

    def _session(self, name: str) -> HostSession:
        session = self.sessions.get(name)
        if session is None:
            raise ProtocolBroken(
                f"a message names session {name!r}, which is not open",
                "say nothing of a session before 'open' and after the answer to 'close'",
            )
        session.messages += 1
        if session.messages > self.limits.messages:
            raise ProtocolBroken(
                f"more than {self.limits.messages} messages came in one session",
                "find what makes the target repeat itself without end",
            )
        return session

    def _start(self, number: int | str, session: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = _begin(work)
        if task.done():
            self._done(number, task)
        else:
            self._tasks[number] = (session, task)
            task.add_done_callback(lambda done: self._done(number, done))
        return task

    def _done(self, number: int | str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)
        if number not in self._streams:
            self._signals.pop(number, None)
        if task.cancelled():
            self.channel.refuse(number, CANCELLED, "cancelled")
        elif (error := task.exception()) is not None:
            self.channel.fault(error)

    def _signal_for(self, number: int | str, wanted: bool) -> dict[str, Signal]:
        if not wanted:
            return {}
        self._signals[number] = Signal()
        return {"signal": self._signals[number]}

    async def _tool_call(self, number: int | str, session: HostSession, data: ToolCallParams) -> None:
        tool = session.tools.get(data.tool)
        if tool is None:
            self.channel.lose(f"a tool_call names tool {data.tool!r}; there are {', '.join(session.tools)}",
                              "call the tools that 'open' gave")  # fmt: skip
            return
        given = self._signal_for(number, data.signal)
        try:
            text = await tool(data.arguments, call_id=data.call_id, **given)
        except ProbeToolError as error:
            self.channel.refuse(number, TOOL_FAILED, str(error))
        except asyncio.CancelledError:
            # Answered here and not when the task is done, to keep the order on the channel.
            self.channel.refuse(number, CANCELLED, "cancelled")
        else:
            self.channel.answer(number, {"text": text})

    async def _model_open(
        self, number: int | str, session: HostSession, data: ModelOpenParams, request: ModelRequest
    ) -> None:
        given = self._signal_for(number, data.signal)
        try:
            opening: Any = session.bench.model(request, given.get("signal"))
            pieces = await opening if inspect.isawaitable(opening) else opening
        except ProviderError as error:
            self._provider_failed(number, error)
        except asyncio.CancelledError:
            self.channel.refuse(number, CANCELLED, "cancelled")
        else:
            self._streams[number] = _Stream(session.name, pieces)
            self.channel.answer(number, _said(_ready(pieces), pieces))

    async def _model_next(self, number: int | str, name: int | str, stream: _Stream) -> None:
        try:
            pieces = [piece_to_json(await anext(stream.pieces)), *_ready(stream.pieces)]
        except StopAsyncIteration:
            self._forget(name)
            self.channel.answer(number, {"end": True})
        except ProviderError as error:
            self._forget(name)
            self._provider_failed(number, error)
        except asyncio.CancelledError:
            self.channel.refuse(number, CANCELLED, "cancelled")
        else:
            self.channel.answer(number, _said(pieces, stream.pieces))

    def _provider_failed(self, number: int | str, error: ProviderError) -> None:
        status = {} if error.status is None else {"status": error.status}
        self.channel.refuse(number, PROVIDER_FAILED, str(error), **status)

    def _forget(self, stream: int | str) -> None:
        self._streams.pop(stream, None)
        self._signals.pop(stream, None)

    def _event(self, data: EventParams) -> bool:
        event = data.event
        self._session(data.session).bench.tell(
            Event(str(event.type), event.role, event.text, event.call_id, event.is_error,
                  event.reason, event.interrupted)
        )  # fmt: skip
        return False

    def _signal(self, data: RequestParams) -> bool:
        signal = self._signals.get(data.request)
        if signal is not None:
            signal.set()
        return True

    def _cancelled(self, data: RequestParams) -> bool:
        # A request that has just been answered cannot be cancelled any more; that is no fault, but
        # the child must know it: its own cancellation then stands, where a deaf tool swallows it.
        open_still = data.request in self._tasks
        self.channel.tell("cancel_seen", request=data.request, late=not open_still)
        if open_still:
            self._tasks[data.request][1].cancel()
        return True

    def _model_close(self, data: StreamParams) -> bool:
        stream = self._streams.get(data.stream)
        if stream is not None:
            self._forget(data.stream)
            self._let_go(stream)
        return True

    def _let_go(self, stream: _Stream) -> None:
        if (at_once := getattr(stream.pieces, "let_go", None)) is not None:
            at_once()  # in the order in which the child told it
            return
        close: Callable[[], Awaitable[None]] | None = getattr(stream.pieces, "aclose", None)
        if close is None:
            return

        async def closing() -> None:
            await close()

        task = _begin(closing())
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.channel.fault(error)

    def _listener_raised(self, data: SessionParams) -> bool:
        self._session(data.session).bench.child_listener_raised()
        return True

    def _cancel_sent(self, data: CancelSentParams) -> bool:
        self._session(data.session).bench.child_cancel_sent(data.at)
        return True

    def _cancel_returned(self, data: CancelReturnedParams) -> bool:
        bench = self._session(data.session).bench
        if data.raised is None:  # as with ``cancel`` itself: what raised did not return
            bench.child_cancel_returned()
        return True

    def _second_prompt(self, data: SessionParams) -> bool:
        self._session(data.session).bench.child_second_prompt()
        return True

    # -- the end

    def release(self, session: str) -> None:
        """The session is closed: end what it still has running on the bench."""
        self.sessions.pop(session, None)
        for owner, task in list(self._tasks.values()):
            if owner == session:
                task.cancel()
        for number, stream in list(self._streams.items()):
            if stream.session == session:
                self._forget(number)
                self._let_go(stream)

    def _on_end(self) -> None:
        for _, task in list(self._tasks.values()):
            task.cancel()
        self._streams.clear()
        self._signals.clear()

    async def shutdown(self) -> None:
        """Ask the child to end, then see to it that nothing of it is left."""
        if self.channel.over is None:
            self.attach()
            with contextlib.suppress(ChildLost, RpcError):  # it is ended all the same
                await self.channel.request("shutdown", {}, self.limits.answer)
            self.channel.release()
            self.channel.child.stop(self.limits.grace)
        self.channel.end(ChildLost("the adapter was closed", hint="open a session to start it again"))
