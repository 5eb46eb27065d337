"""The Python kit of loopspec's adapter protocol: one file, the standard library, Python 3.10+.

Copy it or put its folder on ``PYTHONPATH``. An adapter is a class with ``open``::

    import loopspec_kit as kit

    class MyAdapter:
        async def open(self, bench, settings):
            return MySession(bench, settings)       # prompt, cancel, history; fork and close if any

    kit.serve(MyAdapter)

The real stdout is the protocol's, and whatever prints goes to stderr: import the kit before
libraries that print. Two ideas carry the rest.

**The order of messages is the order of things.** Every message is written to the pipe at the
moment when the thing happens, from whatever thread it happens in, and messages of the host are
taken one a pass of the event loop, so that what one of them starts has begun before the next.

**Quiet is known, not guessed.** The event loop asks its selector to wait only when no callback is
ready and no timer is due. The kit's selector answers a waiting ``barrier`` there, after it has
seen that no file is ready either; no time passes in it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import enum
import importlib.util
import inspect
import itertools
import json
import math
import os
import select
import selectors
import signal as _signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

PROTOCOL = 1
KIT = "loopspec_kit 1.0"

_TARGET_RAISED, _TOOL_FAILED, _PROVIDER_FAILED, _CANCELLED = -32000, -32001, -32002, -32003
_NO_SUCH_METHOD = -32601
_THREADS = "loopspec-kit"
_T = TypeVar("_T")
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class ToolError(Exception):
    """A probe tool failed because the scenario said so; let the target see it."""


class ListenerError(Exception):
    """The bench's listener failed because the scenario said so; let the target see it."""


class ProviderError(Exception):
    """The provider failed. ``status`` is the HTTP status where there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Signal:
    """A cancellation signal for a probe tool or the provider.

    A loop that has its own kind of signal wires it to :meth:`set`.
    """

    __slots__ = ("_callbacks", "aborted")

    def __init__(self) -> None:
        self.aborted = False
        self._callbacks: list[Callable[[], None]] = []

    def set(self) -> None:
        """Signal; a second time changes nothing."""
        if not self.aborted:
            self.aborted = True
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the signal is set (at once if it is)."""
        if self.aborted:
            callback()
        else:
            self._callbacks.append(callback)


@dataclasses.dataclass(frozen=True)
class Returned:
    """What a prompt came to: plain data as the target returned it; ``told`` if only an event said it."""

    value: Any
    told: bool = False


# --------------------------------------------------------------------------------------------
# Exceptions and values as plain data


def _plain(value: Any, depth: int = 6) -> Any:
    """``value`` as JSON has it; what JSON lacks becomes its ``repr``, cut."""
    if value is None or isinstance(value, (bool, int)):
        return bool(value) if isinstance(value, bool) else value if value is None else int(value)
    if isinstance(value, str):
        return str(value.value) if isinstance(value, enum.Enum) else str(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth)
    if depth > 0:
        if isinstance(value, dict):
            return {str(key): _plain(item, depth - 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [_plain(item, depth - 1) for item in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {field.name: _plain(getattr(value, field.name), depth - 1) for field in fields}
        if hasattr(value, "model_dump"):
            return _plain(value.model_dump(), depth - 1)
    return repr(value)[:2000]


def _is_simple(value: Any, depth: int = 3) -> bool:
    if value is None or isinstance(value, (bool, int, str, enum.Enum)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if depth > 0 and isinstance(value, dict):
        return all(isinstance(k, str) and _is_simple(v, depth - 1) for k, v in value.items())
    return depth > 0 and isinstance(value, (list, tuple)) and all(_is_simple(v, depth - 1) for v in value)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _one(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)
    except Exception as failed:  # noqa: BLE001 - a target's __str__ may do anything
        message = f"<str() raised {_name(type(failed))}>"
    attributes = getattr(error, "__dict__", {})
    return {
        "type": _name(type(error)),
        "mro": [_name(cls) for cls in type(error).__mro__ if cls is not object],
        "message": message[:20000],
        "fields": {
            key: _plain(value)
            for key, value in attributes.items()
            if not key.startswith("_") and _is_simple(value)
        },
    }


def exception_chain(error: BaseException) -> list[dict[str, Any]]:
    """The exception and what led to it, outermost first.

    That is its cause, or else its context unless that was suppressed. The members of an exception
    group stand after the group.
    """
    chain: list[dict[str, Any]] = []
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting and len(chain) < 32:
        item = waiting.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        chain.append(_one(item))
        members = getattr(item, "exceptions", ())
        if isinstance(members, (list, tuple)):
            waiting += [member for member in members if isinstance(member, BaseException)]
        cause = item.__cause__ or (None if item.__suppress_context__ else item.__context__)
        if cause is not None:
            waiting.append(cause)
    return chain


# --------------------------------------------------------------------------------------------
# The event loop that knows when nothing is ready


class _Selector(selectors.DefaultSelector):
    barriers: list[Callable[[bool], None]]

    def select(self, timeout: float | None = None) -> Any:
        if self.barriers and (timeout is None or timeout > 0):
            # asyncio waits only if no callback is ready, and `timeout` is None if no timer is set.
            ready = super().select(0)
            if ready:
                return ready
            barriers, self.barriers = self.barriers, []
            for answer in barriers:
                answer(timeout is not None)
        return super().select(timeout)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that knows its threads: the work it gave away and has not got back."""

    def __init__(self) -> None:
        self.quiet = _Selector()
        self.quiet.barriers = []
        super().__init__(self.quiet)
        self._runs: list[tuple[concurrent.futures.Future[Any], asyncio.Future[Any]]] = []
        self._pool: Any = None

    def set_default_executor(self, executor: Any) -> None:
        self._pool = executor

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        if executor is None:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix=_THREADS)
            executor = self._pool
        run = executor.submit(func, *args)
        future = asyncio.wrap_future(run, loop=self)
        self._runs = [pair for pair in self._runs if not (pair[0].done() and pair[1].done())]
        self._runs.append((run, future))
        return future

    def moving_threads(self, blocked: int) -> bool:
        """Whether a thread may still do something; ``blocked`` wait for the host and cannot."""
        runs = sum(1 for run, future in self._runs if not (run.done() and future.done()))
        others = sum(
            1
            for thread in threading.enumerate()
            if thread is not threading.main_thread() and not thread.name.startswith(_THREADS)
        )
        return runs + others - blocked > 0


# --------------------------------------------------------------------------------------------
# What an adapter sees


class Tool:
    """A probe tool to be given to the target: ``name``, ``description``, ``schema``, ``call``."""

    def __init__(self, bench: Bench, data: dict[str, Any]) -> None:
        self._bench = bench
        self.name: str = data["name"]
        self.description: str = data["description"]
        self.schema: dict[str, Any] = data["schema"]

    async def call(
        self, arguments: dict[str, Any] | str, call_id: str | None = None, signal: Signal | None = None
    ) -> str:
        """Run the tool with these arguments (an object, or the JSON text as it came).

        Give ``call_id`` and ``signal`` where the loop has them. Raises :class:`ToolError`. A tool
        that is deaf to the cancellation of this coroutine goes on, and so does the coroutine.
        """
        params: dict[str, Any] = {"tool": self.name, "arguments": _plain(arguments, 64)}
        if call_id is not None:
            params["call_id"] = call_id
        return str((await self._bench._ask("tool_call", params, signal))[1]["text"])

    def call_sync(
        self, arguments: dict[str, Any] | str, call_id: str | None = None, signal: Signal | None = None
    ) -> str:
        """The same for a loop that runs in a thread; never call it in the event loop's own."""
        return self._bench._kit.from_thread(lambda: self.call(arguments, call_id, signal))


class Bench:
    """What an adapter sees of the bench, for one session."""

    def __init__(self, kit: _Kit, session: str, tools: Sequence[dict[str, Any]], urls: dict[str, str]):
        self._kit, self._session, self._urls = kit, session, urls
        self._armed: list[dict[str, Any]] = []
        self._open = True
        self.tools = [Tool(self, data) for data in tools]

    def base_url(self, wire: str) -> str:
        """Where the fake provider listens for this wire."""
        if wire not in self._urls:
            raise ValueError(f"no base url for wire {wire!r}; this session has {sorted(self._urls)}")
        return self._urls[wire]

    def tell(self, event: dict[str, Any] | None = None, **fields: Any) -> None:
        """Pass on an event that the target told: ``tell(type="text_delta", text=...)``.

        Call it from inside the target's own listener, in whatever thread that is: it raises
        :class:`ListenerError` there when the scenario has the listener fail.
        """
        if not self._open:
            return
        told = {key: _plain(value) for key, value in {**(event or {}), **fields}.items() if value is not None}
        self._kit.tell("event", session=self._session, event=told)
        for armed in [armed for armed in self._armed if _fits(armed, told)]:
            armed["nth"] -= 1
            if armed["nth"] == 0:
                self._armed.remove(armed)
                self._kit.listener(self._session, armed)

    def model(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[str] = (), signal: Signal | None = None
    ) -> Stream:
        """Ask the model on the native wire, and iterate over the pieces of its reply.

        The messages are canonical, the tools are names. Raises :class:`ProviderError`. Close it
        with ``aclose`` when you leave it early.
        """
        params = {"messages": [_plain(m, 64) for m in messages], "tools": list(tools)}
        return Stream(self, params, signal)

    async def _ask(self, method: str, params: dict[str, Any], signal: Signal | None) -> tuple[int, Any]:
        if not self._open:
            raise ToolError("the session is closed")
        if method != "model_next":
            params = {"session": self._session, **params}
        return await self._kit.ask(method, params, signal)


class Stream:
    """The pieces of one reply, for ``async for``. The request is made with the first piece.

    No generator, because one that waits for its bench could not be closed meanwhile, and a deaf
    bench may keep it waiting for ever.
    """

    def __init__(self, bench: Bench, params: dict[str, Any], signal: Signal | None) -> None:
        self._bench, self._params, self._signal = bench, params, signal
        self._number: int | None = None
        self._pieces: list[dict[str, Any]] = []
        self._over = False  # closed, or at its end, and the bench knows
        self._last = False  # nothing comes after the pieces that are here

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self._number is None and not self._over:
            self._number, answer = await self._bench._ask("model_open", self._params, self._signal)
            self._take({} if self._over else answer)
            if self._over and self._bench._open:  # it was closed before it opened
                self._bench._kit.tell("model_close", stream=self._number)
        while not self._pieces:
            if self._last:
                await self.aclose()
            if self._over:
                self._leave()
                raise StopAsyncIteration
            try:
                _, answer = await self._bench._ask("model_next", {"stream": self._number}, None)
            except ProviderError:
                self._over = True
                self._leave()
                raise
            except asyncio.CancelledError:
                await self.aclose()
                raise
            self._over = self._over or answer == {"end": True}
            self._take(answer)
        return self._pieces.pop(0)

    def _take(self, answer: dict[str, Any]) -> None:
        self._pieces = list(answer.get("pieces", ()))
        self._last = answer.get("end", False)

    async def aclose(self) -> None:
        """Close the reply: nothing more of it is wanted. A second time changes nothing."""
        if not self._over and self._number is not None and self._bench._open:
            self._bench._kit.tell("model_close", stream=self._number)
        self._over = True
        self._pieces = []
        self._leave()

    def _leave(self) -> None:
        if self._number is not None:
            self._bench._kit.live.discard(self._number)


def _fits(armed: dict[str, Any], told: dict[str, Any]) -> bool:
    return armed["event"] == told.get("type") and all(
        armed.get(key) in (None, told.get(key)) for key in ("role", "call_id")
    )


class _Session:
    def __init__(self, target: Any, bench: Bench, by_task: bool, urls: dict[str, str], tools: Any) -> None:
        self.target, self.bench, self.by_task, self.urls, self.tools = target, bench, by_task, urls, tools
        self.tasks: list[asyncio.Task[None]] = []

    def cancel(self) -> Any:
        """Cancel as the target has it, or, if it is cancelled by its task, that."""
        if not self.by_task:
            return self.target.cancel()
        for task in self.tasks:
            task.cancel()
        return None


# --------------------------------------------------------------------------------------------
# The conversation


class _Kit:
    def __init__(self, adapter: Any, incoming: int, outgoing: int) -> None:
        self.adapter = adapter
        self.loop = _Loop()
        self.live: set[int] = set()
        self._in, self._out = incoming, outgoing
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._sessions: dict[str, _Session] = {}
        self._blocked = 0
        self._background: set[asyncio.Task[Any]] = set()
        self._seen: dict[int, asyncio.Future[bool]] = {}
        self._methods: dict[str, Callable[[Any, dict[str, Any]], None]] = {
            "initialize": self._initialize, "open": self._open, "prompt": self._prompt,
            "cancel": self._cancel, "history": self._history, "barrier": self._barrier,
            "fork": self._fork, "close": self._close, "shutdown": self._shutdown,
            "cancel_seen": self._cancel_seen,
        }  # fmt: skip

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        os.set_blocking(self._in, False)
        self.loop.add_reader(self._in, self._readable)
        threading.Thread(target=self._watch, name=f"{_THREADS}-watch", daemon=True).start()
        self.loop.run_forever()

    def _watch(self) -> None:
        # The host is gone when it no longer holds the other end of stdin. This is seen in a thread
        # because the event loop may be blocked by the target.
        poll = select.poll()
        poll.register(self._in, 0)
        poll.poll()
        _end_at_once()

    # -- writing

    def send(self, message: dict[str, Any]) -> None:
        message["jsonrpc"] = "2.0"
        line = _encode(message).encode() + b"\n"
        with self._lock:
            written = os.write(self._out, line)
            while written < len(line):
                written += os.write(self._out, line[written:])

    def tell(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    def answer(self, number: Any, result: dict[str, Any]) -> None:
        self.send({"id": number, "result": result})

    def refuse(self, number: Any, code: int, message: str, data: Any = None) -> None:
        error = {"code": code, "message": message}
        self.send({"id": number, "error": error if data is None else {**error, "data": data}})

    def raised(self, number: Any, error: BaseException) -> None:
        chain = exception_chain(error)
        self.refuse(number, _TARGET_RAISED, chain[0]["type"], {"raised": chain})

    # -- asking the bench

    async def ask(self, method: str, params: dict[str, Any], signal: Signal | None) -> tuple[int, Any]:
        """Ask and wait; also after a cancellation, because it is for the bench to give way."""
        if asyncio.get_running_loop() is not self.loop:
            other = asyncio.run_coroutine_threadsafe(self.ask(method, params, signal), self.loop)
            return await asyncio.wrap_future(other)
        number = next(self._ids)
        future: asyncio.Future[Any] = self.loop.create_future()
        self._waiting[number] = future
        self.live.add(number)
        if signal is not None:
            params["signal"] = True
        self.send({"id": number, "method": method, "params": params})
        if signal is not None:
            signal.on_abort(lambda: self.tell("signal", request=number) if number in self.live else None)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError as error:
                if not future.done() and cancelled is None:
                    cancelled = error
                    self._seen[number] = self.loop.create_future()
                    self.tell("cancelled", request=number)
            except Exception:  # noqa: BLE001 - the future's own, raised below
                break
        if method != "model_open" or future.exception() is not None:
            self.live.discard(number)
        if isinstance(future.exception(), _GaveWay):
            raise cancelled or asyncio.CancelledError
        if cancelled is not None and await self._crossed(number):
            raise cancelled
        return number, future.result()

    async def _crossed(self, number: int) -> bool:
        """Whether the answer was on its way before the bench heard of the cancellation."""
        seen = self._seen[number]
        while not seen.done():
            try:
                await asyncio.shield(seen)
            except asyncio.CancelledError:
                continue  # it is cancelled already; what matters is how the bench took it
        return self._seen.pop(number).result()

    def _cancel_seen(self, number: Any, params: dict[str, Any]) -> None:
        seen = self._seen.get(params["request"])
        if seen is not None and not seen.done():
            seen.set_result(bool(params["late"]))

    def from_thread(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a coroutine of the event loop from another thread and wait for it."""
        if threading.get_ident() == self._thread:
            raise RuntimeError(
                "call_sync would block the event loop that has to answer it; "
                "run the target's loop in a thread: await asyncio.to_thread(...)"
            )

        async def counted() -> _T:
            self._blocked += 1
            try:
                return await make()
            finally:
                self._blocked -= 1

        return asyncio.run_coroutine_threadsafe(counted(), self.loop).result()

    # -- reading

    def _readable(self) -> None:
        try:
            data = os.read(self._in, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            _end_at_once()
        idle = not self._lines
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(lines)
        if idle:
            self._step()

    def _step(self) -> None:
        if self._lines:
            self._take(json.loads(self._lines[0]))
            self._lines.popleft()
            if self._lines:
                self.loop.call_soon(self._step)

    def _take(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        if "method" in message:
            method = self._methods.get(message["method"])
            if method is None and number is None:
                return  # a later version may tell more
            if method is None:
                known = ", ".join(self._methods)
                self.refuse(number, _NO_SUCH_METHOD, f"no method {message['method']!r}; there are {known}")
                return
            try:
                method(number, message.get("params") or {})
            except Exception as error:  # noqa: BLE001 - the target's, passed on as it is
                self.raised(number, error)
            return
        future = self._waiting.pop(number, None) if isinstance(number, int) else None
        if future is None or future.done():
            return
        if message.get("error") is None:
            future.set_result(message.get("result"))
        else:
            future.set_exception(_bench_error(message["error"]))

    # -- the host's requests

    def _initialize(self, number: Any, params: dict[str, Any]) -> None:
        language = f"python {sys.version.split()[0]}"
        self.answer(number, {"protocol": PROTOCOL, "kit": KIT, "language": language})

    def _background_call(self, number: Any, call: Callable[[], Any], done: Callable[[Any], Any]) -> None:
        """Call now; answer now if the value is there, and later if it has to be awaited."""
        value = call()
        if not inspect.isawaitable(value):
            self.answer(number, done(value) or {})
            return

        async def later() -> None:
            try:
                result = done(await value) or {}
            except BaseException as error:  # noqa: BLE001 - the target's, passed on as it is
                self.raised(number, error)
            else:
                self.answer(number, result)

        self._in_background(later())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _open(self, number: Any, params: dict[str, Any]) -> None:
        settings = SimpleNamespace(**params["settings"])
        if isinstance(settings.max_turns, str):
            settings.max_turns = float(settings.max_turns)
        bench = Bench(self, params["session"], params["tools"], params["base_urls"])
        by_task = settings.options.get("cancel") == "task"

        def opened(target: Any) -> dict[str, Any]:
            session = _Session(target, bench, by_task, params["base_urls"], params["tools"])
            self._sessions[params["session"]] = session
            return {"operations": ["fork"]} if hasattr(target, "fork") else {}

        self._background_call(number, lambda: self.adapter.open(bench, settings), opened)

    def _prompt(self, number: Any, params: dict[str, Any]) -> None:
        session = self._sessions[params["session"]]
        armed = [{**item, "nth": item.get("nth", 1)} for item in params.get("on") or ()]
        session.bench._armed += armed
        settled = False

        def settle(result: dict[str, Any]) -> None:
            nonlocal settled
            if not settled:
                settled = True
                session.bench._armed = [a for a in session.bench._armed if not any(a is b for b in armed)]
                self.answer(number, result)

        async def run() -> None:
            try:
                value = await session.target.prompt(params["text"])
            except BaseException as error:  # noqa: BLE001 - the settlement, whatever it is
                settle({"raised": exception_chain(error)})
            else:
                returned = value if isinstance(value, Returned) else Returned(value)
                result: dict[str, Any] = {"returned": _plain(returned.value)}
                settle({**result, "told": True} if returned.told else result)

        def done(task: asyncio.Task[None]) -> None:
            session.tasks.remove(task)
            if task.cancelled():  # before it ran at all
                settle({"raised": exception_chain(asyncio.CancelledError())})

        task = self.loop.create_task(run())
        session.tasks.append(task)
        task.add_done_callback(done)
        if params.get("cancel") == "with_prompt":
            # Behind the task's first step: the target has been given the prompt, and no more.
            self.loop.call_soon(self._cancel_here, params["session"], "with the prompt")

    def _cancel(self, number: Any, params: dict[str, Any]) -> None:
        self._background_call(number, self._sessions[params["session"]].cancel, lambda _: None)

    def _history(self, number: Any, params: dict[str, Any]) -> None:
        target = self._sessions[params["session"]].target
        self._background_call(
            number, target.history, lambda messages: {"messages": [_plain(m, 64) for m in messages]}
        )

    def _barrier(self, number: Any, params: dict[str, Any]) -> None:
        def quiet(timers: bool) -> None:
            threads = self.loop.moving_threads(self._blocked)
            self.answer(number, {"timers": timers, "threads": threads})

        self.loop.quiet.barriers.append(quiet)

    def _fork(self, number: Any, params: dict[str, Any]) -> None:
        parent = self._sessions[params["session"]]
        if not hasattr(parent.target, "fork"):
            self.refuse(number, _NO_SUCH_METHOD, "the adapter's session has no fork()")
            return
        # The fork speaks through a bench of its own where it takes one.
        bench = Bench(self, params["as"], parent.tools, parent.urls)
        wants = len(inspect.signature(parent.target.fork).parameters) > 0

        def forked(target: Any) -> None:
            session = _Session(target, bench, parent.by_task, parent.urls, parent.tools)
            self._sessions[params["as"]] = session

        call = (lambda: parent.target.fork(bench)) if wants else parent.target.fork
        self._background_call(number, call, forked)

    def _close(self, number: Any, params: dict[str, Any]) -> None:
        session = self._sessions[params["session"]]

        def closed(_: Any = None) -> None:
            del self._sessions[params["session"]]
            session.bench._open = False
            for task in session.tasks:
                task.cancel()

        if hasattr(session.target, "close"):
            self._background_call(number, session.target.close, closed)
        else:
            closed()
            self.answer(number, {})

    def _shutdown(self, number: Any, params: dict[str, Any]) -> None:
        self.answer(number, {})
        sys.stderr.flush()
        os._exit(0)

    # -- in the listener

    def listener(self, name: str, armed: dict[str, Any]) -> None:
        """Do what the scenario has a listener do at this event."""
        if armed["do"] == "raise":
            self.tell("listener_raised", session=name)
            raise ListenerError("the listener failed because the scenario said so")
        if armed["do"] == "prompt":
            self.tell("second_prompt", session=name)
        else:
            self._cancel_here(name, f"in the listener, on {armed['event']}")

    def _cancel_here(self, name: str, at: str) -> None:
        session = self._sessions[name]
        own_thread = threading.get_ident() == self._thread
        self.tell("cancel_sent", session=name, at=at)
        try:
            if session.by_task and not own_thread:
                self.loop.call_soon_threadsafe(session.cancel)
                value = None
            else:
                value = session.cancel()
        except Exception as error:  # noqa: BLE001 - the target's, told to the host
            self.tell("cancel_returned", session=name, raised=exception_chain(error))
            return
        if not inspect.isawaitable(value):
            self.tell("cancel_returned", session=name)
            return

        async def later() -> None:
            try:
                await value
            except Exception as error:  # noqa: BLE001 - the target's, told to the host
                self.tell("cancel_returned", session=name, raised=exception_chain(error))
            else:
                self.tell("cancel_returned", session=name)

        if own_thread:
            self._in_background(later())
        else:
            asyncio.run_coroutine_threadsafe(later(), self.loop)


class _GaveWay(Exception):
    """The bench gave way to a cancellation."""


def _bench_error(error: dict[str, Any]) -> Exception:
    code, message = error.get("code"), str(error.get("message", ""))
    if code == _TOOL_FAILED:
        return ToolError(message)
    if code == _PROVIDER_FAILED:
        return ProviderError(message, (error.get("data") or {}).get("status"))
    return _GaveWay(message) if code == _CANCELLED else RuntimeError(f"the bench refused: {message}")


def _end_at_once() -> None:
    """The host is gone: end, with everything that this process has started."""
    if hasattr(os, "getsid") and os.getsid(0) == os.getpid():
        os.killpg(os.getpid(), _signal.SIGKILL)
    os._exit(1)


_pipes: tuple[int, int] | None = None


def take_pipes() -> tuple[int, int]:
    """Keep stdin and stdout for the protocol: others read the end of file and print to stderr.

    ``serve`` does it; under a host it is done when the kit is imported, before other imports print.
    """
    global _pipes
    if _pipes is None:
        _pipes = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout.flush()
        sys.stdout = sys.stderr
    return _pipes


if os.environ.pop("LOOPSPEC_CHILD", None):
    take_pipes()


def serve(adapter: Any) -> None:
    """Serve the host until it is gone. ``adapter`` is the adapter, or what makes it when called."""
    pipes = take_pipes()
    if inspect.isclass(adapter) or not hasattr(adapter, "open"):
        adapter = adapter()
    try:
        _Kit(adapter, *pipes).run()
    except BaseException:  # noqa: BLE001 - the process ends here; threads of the target must not keep it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(70)


def main(arguments: Sequence[str]) -> None:
    """``python loopspec_kit.py adapter.py:MyAdapter`` serves an adapter from its file."""
    if len(arguments) != 1 or ":" not in arguments[0]:
        sys.exit("usage: python loopspec_kit.py adapter.py:MyAdapter")
    take_pipes()
    path, _, name = arguments[0].rpartition(":")
    spec = importlib.util.spec_from_file_location("adapter", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is not a Python file")
    sys.modules["loopspec_kit"] = sys.modules[__name__]
    module = importlib.util.module_from_spec(spec)
    sys.modules["adapter"] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120
    spec.loader.exec_module(module)
    serve(getattr(module, name))


if __name__ == "__main__":
    main(sys.argv[1:])
