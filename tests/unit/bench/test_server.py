"""The loopback server, met by the official client and by bare sockets.

No test waits on time: whatever must have happened is awaited as an entry of the trace, as a chunk of
the client, or as the end of a connection. A watchdog bounds a hang.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from loopspec.bench.provider import Provider
from loopspec.bench.recorder import Recorder
from loopspec.bench.server import Server
from loopspec.scenario import Reply
from loopspec.trace import Closed, Entry, Faulted, Header, Opened, Requested, Sent
from loopspec.vocabulary import (
    AssistantMessage,
    Call,
    Reason,
    SystemMessage,
    Text,
    TextDelta,
    ToolResult,
    Usage,
    UserMessage,
)

ASK = [{"role": "user", "content": "[prompt 1] go"}]
WATCHDOG = 30.0


class PromptRecorder(Recorder):
    """Records at once also what is normally kept until all is quiet, so that tests can await it."""

    def later(self, entry: Entry) -> None:
        self.add(entry)


class Bed:
    """A server with one mounted provider, an official client on it, and the trace so far."""

    def __init__(self, server: Server, act: Callable[[str], Awaitable[None]] | None) -> None:
        self.server = server
        self.recorder = PromptRecorder(Header("s", "t", "v", "chat", "event"))
        self._act = act
        self.acting: set[asyncio.Task[Any]] = set()
        self.provider = Provider(self.recorder, self.act)
        self.url = server.mount("chat", self.provider)
        self.client = AsyncOpenAI(base_url=self.url, api_key="unused", max_retries=0)
        self._news = asyncio.Event()
        self.recorder.watch(lambda entry: self._news.set())

    async def act(self, action: str, where: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.acting.add(task)
        if self._act is not None:
            await self._act(action)

    def replies(self, *replies: Any) -> None:
        """What the model answers, in order; a reply is its list of steps, or a mapping."""
        self.provider.script(1, "[prompt 1]", [Reply.model_validate(reply) for reply in replies])

    async def stream(self, **more: Any) -> openai.AsyncStream[Any]:
        """Ask for a stream."""
        return await self.client.chat.completions.create(
            **{"model": "m", "messages": ASK, "stream": True, **more}
        )

    async def texts(self, into: list[str] | None = None, **more: Any) -> list[str]:
        """Ask for a stream and read it to its end."""
        found = into if into is not None else []
        async for chunk in await self.stream(**more):
            found.append(word_of(chunk))
        return found

    async def parse(self, **more: Any) -> None:
        """Read a stream with the client's helper for parsed output."""
        async with self.client.chat.completions.stream(model="m", messages=ASK, **more) as stream:
            await stream.get_final_completion()

    async def whole(self, **more: Any) -> Any:
        """Ask for a reply that is sent whole."""
        return await self.client.chat.completions.create(**{"model": "m", "messages": ASK, **more})

    def entries(self, kind: type) -> list[Any]:
        """The entries of a kind so far."""
        return [entry for entry in self.recorder.entries() if isinstance(entry, kind)]

    async def until(self, *kinds: type) -> Entry:
        """Wait until the last entry is of one of these kinds."""
        while not isinstance(self.recorder.entries()[-1], kinds):
            self._news.clear()
            await self._news.wait()
        return self.recorder.entries()[-1]

    def story(self) -> list[str]:
        """The entries after the header in short words."""
        words = []
        for entry in self.recorder.entries()[1:]:
            match entry:
                case Sent(_, TextDelta(text)):
                    words.append(f"sent {text}")
                case Sent(_, piece):
                    words.append(f"sent {piece.type}")
                case Faulted(_, fault):
                    words.append(fault)
                case Closed(_, by):
                    words.append(f"closed by {by}")
                case _:
                    words.append(entry.kind)
        return words


def word_of(chunk: Any) -> str:
    """A chunk in one word: its text, its finish reason, or what else it is."""
    if not chunk.choices:
        return "usage"
    choice = chunk.choices[0]
    if choice.finish_reason:
        return str(choice.finish_reason)
    if choice.delta.tool_calls:
        return "call"
    return choice.delta.content or choice.delta.role or "?"


@asynccontextmanager
async def bed(act: Callable[[str], Awaitable[None]] | None = None) -> AsyncIterator[Bed]:
    """A bed; when it is left, nothing of the server runs any more."""
    others = asyncio.all_tasks()
    async with Server() as server:
        made = Bed(server, act)
        try:
            yield made
        finally:
            await made.client.close()
    await asyncio.gather(*made.acting, return_exceptions=True)
    assert not {task for task in asyncio.all_tasks() - others if "_connection" in repr(task).lower()}
    assert not server._registry.connections


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test to its end on a loop of its own, which must be left without a task."""

    async def guarded() -> None:
        await asyncio.wait_for(main(), WATCHDOG)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(guarded())


async def raw(url: str, body: Any = None, *, head: str = "", method: str = "POST") -> tuple[Any, Any]:
    """A bare connection on which a request has been written."""
    _, _, rest = url.partition("//")
    address, _, path = rest.partition("/")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = f"{method} /{path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {len(data)}\r\n{head}\r\n"
    writer.write(lines.encode() + data)
    return reader, writer


async def end(writer: asyncio.StreamWriter) -> None:
    """Close a bare connection and wait until it is; it may have been reset before."""
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


# --------------------------------------------------------------------------------------------
# Gates


def test_a_gate_holds_exactly_what_is_scripted_before_it() -> None:
    """While gated the client has the chunks before the gate; after the release it has all."""

    async def main() -> None:
        held: list[list[str]] = []
        got: list[str] = []

        async def act(action: str) -> None:
            # Another whole exchange passes meanwhile, so whatever was written has arrived.
            await other.texts()
            held.append(list(got))

        async with bed(act) as here, bed() as other:
            words = ["one ", "two ", "three "]
            steps = [{"text": words[0]}, {"text": words[1]}, "cancel", {"text": words[2]}, {"reason": "stop"}]
            here.replies(steps)
            await here.texts(got)
            assert held == [["assistant", "one ", "two "]]
            assert got == ["assistant", "one ", "two ", "three ", "stop"]
            assert here.story() == [
                "requested", "opened", "sent one ", "sent two ", "sent three ", "sent reason",
                "sent terminator", "closed by target",
            ]  # fmt: skip

    run(main)


@pytest.mark.parametrize("before", range(1, 6))
def test_a_cancel_while_held_leaves_exactly_the_prefix(before: int) -> None:
    """The client goes away at a gate: seen at once, and nothing more is sent or recorded."""

    async def main() -> None:
        words = [f"w{n} " for n in range(6)]
        got: list[str] = []
        reader: asyncio.Task[Any] | None = None

        async def act(action: str) -> None:
            assert reader is not None
            while len(got) < before + 1:
                seen.clear()
                await seen.wait()
            reader.cancel()
            await here.until(Closed)

        async with bed(act) as here:
            seen = asyncio.Event()
            steps: list[Any] = [{"text": word} for word in words]
            here.replies([*steps[:before], "cancel", *steps[before:], {"reason": "stop"}])

            async def read() -> None:
                async for chunk in await here.stream():
                    got.append(word_of(chunk))
                    seen.set()

            reader = asyncio.ensure_future(read())
            await asyncio.gather(reader, return_exceptions=True)
            await here.until(Closed)
            assert got == ["assistant", *words[:before]]
            sent = [f"sent {word}" for word in words[:before]]
            assert here.story() == ["requested", "opened", *sent, "closed by target"]

    run(main)


def test_a_gate_before_the_reply_opens_and_one_after() -> None:
    """At the first gate not even the head is out; at the second it is, and nothing else."""

    async def main() -> None:
        seen: list[list[str]] = []

        async def act(action: str) -> None:
            seen.append(here.story())

        async with bed(act) as here:
            here.replies(["cancel", "open", "cancel", {"text": "a"}, {"reason": "stop"}])
            reader, writer = await raw(
                f"{here.url}/chat/completions", {"model": "m", "messages": ASK, "stream": True}
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head
            assert b"text/event-stream" in head
            await reader.readuntil(b"0\r\n\r\n")
            assert seen == [["requested"], ["requested", "opened"]]
            await end(writer)

    run(main)


def test_a_gate_after_everything_holds_the_end_of_the_body() -> None:
    """The body ends after the last gate, not before it."""

    async def main() -> None:
        seen: list[list[str]] = []

        async def act(action: str) -> None:
            seen.append(here.story())

        async with bed(act) as here:
            here.replies([{"text": "a"}, {"reason": "stop"}, "terminator", "cancel"])
            assert await here.texts() == ["assistant", "a", "stop"]
            await here.until(Closed)
            assert seen[0][-1] == "sent terminator"

    run(main)


def test_a_reply_sent_whole_passes_its_gates_first() -> None:
    """Without a stream every gate comes before the one write."""

    async def main() -> None:
        seen: list[list[str]] = []

        async def act(action: str) -> None:
            seen.append(here.story())

        async with bed(act) as here:
            here.replies([{"text": "a"}, "cancel", {"text": "b"}, "prompt", {"reason": "stop"}])
            assert (await here.whole()).choices[0].message.content == "ab"
            assert seen == [["requested"], ["requested"]]
            assert here.story() == [
                "requested", "opened", "sent a", "sent b", "sent reason", "sent terminator",
                "closed by target",
            ]  # fmt: skip

    run(main)


def test_one_write_a_segment() -> None:
    """Head, frames and end of an ungated reply are one piece of bytes."""

    async def main() -> None:
        async with bed() as here:
            here.replies([{"text": "a"}, {"text": "b"}, {"reason": "stop"}])
            reader, writer = await raw(
                f"{here.url}/chat/completions", {"model": "m", "messages": ASK, "stream": True}
            )
            data = await reader.read(1 << 20)
            assert data.startswith(b"HTTP/1.1 200 OK\r\n")
            assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert data.count(b"data: ") == 5
            await end(writer)

    run(main)


# --------------------------------------------------------------------------------------------
# What official clients do with broken replies (each row: steps, error, chunks, entries after opened)

A: dict[str, Any] = {"text": "a"}
STOP: dict[str, Any] = {"reason": "stop"}

STREAM_FAULTS: dict[str, tuple[Any, type[Exception] | None, list[str], list[str]]] = {
    "no reason": ([A], None, ["assistant", "a"], ["sent a", "end", "closed by target"]),
    "nothing at all": (["end"], None, [], ["end", "closed by target"]),
    "no terminator": (
        [A, STOP, "end"], None, ["assistant", "a", "stop"],
        ["sent a", "sent reason", "end", "closed by target"],
    ),
    "malformed frame": (
        [A, "malformed"], json.JSONDecodeError, ["assistant", "a"],
        ["sent a", "malformed", "closed by target"],
    ),
    "half a frame": (
        [A, "half_frame"], None, ["assistant", "a"], ["sent a", "half_frame", "closed by target"],
    ),
    "reset": (
        [A, "disconnect"], openai.APIConnectionError, ["assistant", "a"],
        ["sent a", "disconnect", "closed by target"],
    ),
    "reset after the head": (
        ["open", "disconnect"], openai.APIConnectionError, [], ["disconnect", "closed by target"],
    ),
    "error frame": (
        [A, {"error": "no power"}], openai.APIError, ["assistant", "a"],
        ["sent a", "error", "closed by target"],
    ),
    "error frame first": (
        [{"error": "no power"}], openai.APIError, [], ["error", "closed by target"],
    ),
    "a status too late": (
        [A, {"status": 503}], openai.APIError, ["assistant", "a"], ["sent a", "error", "closed by target"],
    ),
    "length": (
        [A, {"reason": "length"}], None, ["assistant", "a", "length"],
        ["sent a", "sent reason", "sent terminator", "closed by target"],
    ),
    "refusal": (
        [A, {"reason": "refusal"}], None, ["assistant", "a", "content_filter"],
        ["sent a", "sent reason", "sent terminator", "closed by target"],
    ),
    "unknown reason": (
        [A, {"reason": "tomorrow"}], None, ["assistant", "a", "tomorrow"],
        ["sent a", "sent reason", "sent terminator", "closed by target"],
    ),
    "a reason without a word": (
        [A, {"reason": "deferred"}], None, ["assistant", "a"],
        ["sent a", "sent terminator", "closed by target"],
    ),
    "frames after the terminator": (
        [A, STOP, "terminator", {"text": "late"}], None, ["assistant", "a", "stop"],
        ["sent a", "sent reason", "sent terminator", "sent late", "closed by target"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_what_the_client_makes_of_a_stream(name: str) -> None:
    """Each fault has the effect on the official client that it has with the real API."""
    steps, error, chunks, entries = STREAM_FAULTS[name]

    async def main() -> None:
        async with bed() as here:
            here.replies(steps, [{"text": "next"}, STOP])
            got: list[str] = []
            if error is None:
                await here.texts(got)
            else:
                with pytest.raises(error):
                    await here.texts(got)
            assert got == chunks
            assert here.story() == ["requested", "opened", *entries]
            assert await here.texts() == ["assistant", "next", "stop"]

    run(main)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("steps", "error", "entries"),
    [
        (
            [{"status": {"status": 429, "message": "slow down", "retry_after": 3}}],
            openai.RateLimitError,
            "status",
        ),
        ([{"status": 500}], openai.InternalServerError, "status"),
        ([{"status": 529}], openai.InternalServerError, "status"),
        ([{"status": 401}], openai.AuthenticationError, "status"),
        (["disconnect"], openai.APIConnectionError, "disconnect"),
    ],
)
def test_a_fault_instead_of_a_reply(streaming: bool, steps: Any, error: Any, entries: str) -> None:
    """An HTTP error or a reset: the reply is never opened."""

    async def main() -> None:
        async with bed() as here:
            here.replies(steps)
            with pytest.raises(error) as caught:
                await here.whole(stream=streaming)
            assert here.story() == ["requested", entries, "closed by target"]
            if entries == "status":
                headers = caught.value.response.headers
                assert headers["x-should-retry"] == "false"
                assert headers.get("retry-after") == ("3" if error is openai.RateLimitError else None)

    run(main)


def test_a_client_that_retries_by_itself_is_told_not_to() -> None:
    """The header keeps a client's retries out of the trace."""

    async def main() -> None:
        async with bed() as here:
            here.replies([{"status": 429}], [A, STOP])
            with pytest.raises(openai.RateLimitError):
                await here.client.with_options(max_retries=2).chat.completions.create(model="m", messages=ASK)
            assert len(here.entries(Requested)) == 1

    run(main)


WHOLE: dict[str, tuple[Any, Any, list[str]]] = {
    "stop": ([A, STOP], "stop", ["opened", "sent a", "sent reason", "sent terminator"]),
    "no reason": ([A], None, ["opened", "sent a", "end"]),
    "no terminator": ([A, STOP, "end"], "stop", ["opened", "sent a", "sent reason", "end"]),
    "frames after the terminator": (
        [A, STOP, "terminator", {"text": "late"}], "stop",
        ["opened", "sent a", "sent reason", "sent terminator"],
    ),
    "calls": (
        [{"call": "c1"}, {"reason": "toolUse"}], "tool_calls",
        ["opened", "sent call_start", "sent arguments", "sent reason", "sent terminator"],
    ),
    "malformed": ([A, "malformed"], json.JSONDecodeError, ["opened", "malformed"]),
    "half frame": ([A, STOP, "half_frame"], json.JSONDecodeError, ["opened", "half_frame"]),
    "error": ([A, {"error": "no power"}], openai.InternalServerError, ["error"]),
    "late status": ([A, {"status": 503}], openai.InternalServerError, ["status"]),
    "reset": ([A, "disconnect"], openai.APIConnectionError, ["disconnect"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_the_client_makes_of_a_whole_reply(name: str) -> None:
    """Without a stream a break is what is left of it; nothing of a broken body counts as sent."""
    steps, outcome, entries = WHOLE[name]

    async def main() -> None:
        async with bed() as here:
            here.replies(steps)
            if isinstance(outcome, type):
                with pytest.raises(outcome):
                    await here.whole()
            else:
                assert (await here.whole()).choices[0].finish_reason == outcome
            assert here.story() == ["requested", *entries, "closed by target"]

    run(main)


@pytest.mark.parametrize(
    ("reason", "error"),
    [("length", openai.LengthFinishReasonError), ("refusal", openai.ContentFilterFinishReasonError)],
)
def test_the_client_s_helper_knows_an_incomplete_reply(reason: str, error: type[Exception]) -> None:
    """The helper for parsed output refuses a cut-off reply, as it does with the real API."""

    async def main() -> None:
        async with bed() as here:
            here.replies([A, {"reason": reason}])
            tool = {"name": "probe", "strict": True, "parameters": {"type": "object"}}
            with pytest.raises(error):
                await here.parse(tools=[{"type": "function", "function": tool}])

    run(main)


# --------------------------------------------------------------------------------------------
# Bodies that stay open


@pytest.mark.parametrize(
    ("steps", "entries"),
    [
        (["stall"], ["requested", "stall"]),
        (["open", "stall"], ["requested", "opened", "stall"]),
        ([A, "stall"], ["requested", "opened", "sent a", "stall"]),
        (
            {"steps": [A, STOP], "open_body": True},
            ["requested", "opened", "sent a", "sent reason", "sent terminator", "stall"],
        ),
    ],
)
@pytest.mark.parametrize("by", ["target", "bench"])
def test_a_body_is_held_open_until_somebody_closes_it(steps: Any, entries: list[str], by: str) -> None:
    """The client that goes away is seen at once; the end of the run ends what is left."""

    async def main() -> None:
        async with bed() as here:
            here.replies(steps)
            url = f"{here.url}/chat/completions"
            reader, writer = await raw(url, {"model": "m", "messages": ASK, "stream": True})
            await here.until(Faulted)
            assert here.story() == entries
            if by == "target":
                await end(writer)
            else:
                here.server.unmount(here.provider)
                await asyncio.gather(reader.read(), return_exceptions=True)
                assert reader.at_eof() or reader.exception() is not None
                await end(writer)
            await here.until(Closed)
            assert here.story() == [*entries, f"closed by {by}"]

    run(main)


def test_a_whole_reply_that_stalls_sends_nothing() -> None:
    """Nothing was said, so nothing counts as sent; the client's closing is seen."""

    async def main() -> None:
        async with bed() as here:
            here.replies([A, "stall"])
            task = asyncio.ensure_future(here.whole())
            await here.until(Faulted)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await here.until(Closed)
            assert here.story() == ["requested", "stall", "closed by target"]

    run(main)


def test_a_client_with_a_time_limit_leaves_a_stalled_body() -> None:
    """The limit is the client's own; the server sees it go."""

    async def main() -> None:
        async with bed() as here:
            here.replies([A, "stall"])
            got: list[str] = []
            with pytest.raises(openai.APITimeoutError):
                await here.texts(got, timeout=0.05)
            await here.until(Closed)
            assert got == ["assistant", "a"]
            assert here.story()[-2:] == ["stall", "closed by target"]

    run(main)


def test_a_client_goes_on_at_the_terminator_of_a_body_that_stays_open() -> None:
    """The official client gives its caller all chunks, then closes."""

    async def main() -> None:
        async with bed() as here:
            here.replies({"steps": [A, STOP], "open_body": True})
            assert await here.texts() == ["assistant", "a", "stop"]
            await here.until(Closed)
            assert here.story()[-2:] == ["stall", "closed by target"]

    run(main)


@pytest.mark.parametrize(("size", "exact"), [(1 << 15, True), (1 << 23, False)])
def test_a_reset_comes_after_what_was_sent(size: int, exact: bool) -> None:
    """A client that has read nothing yet still finds what was sent before the reset.

    That holds for what its system takes at once. Of more than that, a reset comes when it can.
    """

    async def main() -> None:
        async with bed() as here:
            here.replies([{"text": "x" * size}, "disconnect"])
            loop = asyncio.get_running_loop()
            with socket.create_connection(("127.0.0.1", here.server.port)) as client:
                client.setblocking(False)
                data = json.dumps({"model": "m", "messages": ASK, "stream": True}).encode()
                head = f"POST /1/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}"
                await loop.sock_sendall(client, head.encode() + b"\r\n\r\n" + data)
                await here.until(Closed if exact else Faulted)
                got = bytearray()
                with pytest.raises(ConnectionResetError):
                    await read_all(client, got)
                assert got.count(b"x") >= (size if exact else 1)
            await here.until(Closed)

    run(main)


async def read_all(client: socket.socket, into: bytearray) -> None:
    """Read a bare socket to its end."""
    while data := await asyncio.get_running_loop().sock_recv(client, 1 << 16):
        into += data


# --------------------------------------------------------------------------------------------
# Requests


def test_what_the_client_sends_is_what_the_trace_holds() -> None:
    """Messages, calls with their exact arguments, results and tools."""

    async def main() -> None:
        async with bed() as here:
            arguments = '{ "value":  "x" }'
            messages = [
                {"role": "system", "content": "Be brief."},
                *ASK,
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "probe", "arguments": arguments},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "42"},
            ]
            tools = [{"type": "function", "function": {"name": "probe", "parameters": {"type": "object"}}}]
            here.replies([A, STOP])
            await here.texts(messages=messages, tools=tools)
            (request,) = here.entries(Requested)
            assert request == Requested(
                1,
                1,
                (
                    SystemMessage("Be brief."),
                    UserMessage("[prompt 1] go"),
                    AssistantMessage((Text("I look."), Call("c1", "probe", arguments))),
                    ToolResult("c1", None, "42"),
                ),
                "script",
                True,
                ("probe",),
            )

    run(main)


def test_usage_is_sent_and_recorded_only_where_the_request_asks() -> None:
    """A piece that is not said is not sent."""

    async def main() -> None:
        async with bed() as here:
            here.replies([A, STOP, {"usage": {}}, "terminator"], [A, STOP, {"usage": {}}, "terminator"])
            assert await here.texts() == ["assistant", "a", "stop"]
            assert Usage(10, 5) not in [entry.piece for entry in here.entries(Sent)]
            more = {"stream_options": {"include_usage": True}}
            assert await here.texts(**more) == ["assistant", "a", "stop", "usage"]
            assert [entry.piece for entry in here.entries(Sent)][-3:-1] == [Reason("stop"), Usage(10, 5)]

    run(main)


BAD = [*ASK, {"role": "tool", "tool_call_id": "c1", "content": "42"}]


@pytest.mark.parametrize("streaming", [True, False])
def test_strict_mode_refuses_what_the_api_refuses(streaming: bool) -> None:
    """A 400 in the API's words; it is recorded, and no scripted reply is used up."""

    async def main() -> None:
        async with bed() as here:
            here.replies([A, STOP])
            with pytest.raises(openai.BadRequestError) as caught:
                await here.whole(messages=BAD, stream=streaming)
            assert caught.value.param == "messages.[1].role"
            assert "must be a response to a preceeding message" in str(caught.value)
            (request,) = here.entries(Requested)
            assert (request.serves, request.prompt) == ("refused", 1)
            assert [finding.code for finding in request.findings] == ["C2"]
            assert here.story() == ["requested", "status", "closed by target"]
            assert (await here.whole()).choices[0].message.content == "a"
            assert here.entries(Requested)[1].serves == "script"

    run(main)


def test_observe_mode_records_and_plays_on() -> None:
    """The findings are in the trace, and the reply is the scripted one."""

    async def main() -> None:
        async with bed() as here:
            here.provider.strict = False
            here.replies([A, STOP])
            assert await here.texts(messages=BAD) == ["assistant", "a", "stop"]
            (request,) = here.entries(Requested)
            assert (request.serves, [finding.code for finding in request.findings]) == ("script", ["C2"])

    run(main)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("body", [b"{", b"[1]", b"", b"\xff"])
def test_a_body_that_is_no_json_object_is_refused_in_either_mode(strict: bool, body: bytes) -> None:
    """There is nothing that could be played to it."""

    async def main() -> None:
        async with bed() as here:
            here.provider.strict = strict
            reader, writer = await raw(f"{here.url}/chat/completions", body)
            assert (await reader.readline()).split()[1] == b"400"
            (request,) = here.entries(Requested)
            assert (request.serves, request.findings[0].code) == ("refused", "body")
            await end(writer)

    run(main)


def test_another_path_is_a_stray() -> None:
    """It is answered with the API's 404, and named, but is no request to the model."""

    async def main() -> None:
        async with bed() as here:
            with pytest.raises(openai.NotFoundError):
                await here.client.models.list()
            with pytest.raises(openai.NotFoundError):
                await here.client.responses.create(model="m", input="go")
            assert here.server.strays == ("GET /v1/models", "POST /v1/responses")
            assert not here.entries(Requested)

    run(main)


def test_a_late_request_of_an_old_run_is_not_seen_by_the_next() -> None:
    """It gets a 410, even on a connection that is still open."""

    async def main() -> None:
        async with bed() as here:
            here.replies([A, STOP])
            await here.texts()
            here.server.unmount(here.provider)
            after = Bed(here.server, None)
            with pytest.raises(openai.APIStatusError) as caught:
                await here.whole()
            assert caught.value.status_code == 410
            assert len(here.entries(Requested)) == 1
            assert not after.entries(Requested)
            assert after.url != here.url
            await after.client.close()

    run(main)


def test_a_closing_that_is_seen_keeps_its_place_until_all_is_quiet() -> None:
    """The client's connection and what it tells are two channels, so their order is not known."""

    async def main() -> None:
        async with bed() as here:
            here.recorder.later = kept.append  # type: ignore[method-assign]
            here.replies([A, "stall"], [A, STOP])
            _, writer = await raw(
                f"{here.url}/chat/completions", {"model": "m", "messages": ASK, "stream": True}
            )
            await here.until(Faulted)
            await end(writer)
            await here.texts()
            assert kept == [Closed(1, "target")]
            assert here.entries(Closed) == [Closed(2, "target")]

    kept: list[Entry] = []
    run(main)


def test_unmounting_breaks_off_what_is_still_held() -> None:
    """A reply at a gate ends with its run, and other runs are left alone."""

    async def main() -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def act(action: str) -> None:
            await gate

        async with bed(act) as here:
            other = Bed(here.server, None)
            other.replies([A, STOP])
            here.replies([A, "cancel", STOP])
            task = asyncio.ensure_future(here.texts())
            await here.until(Sent)
            here.server.unmount(here.provider)
            with pytest.raises(openai.APIConnectionError):
                await task
            assert here.story()[-1] == "closed by bench"
            assert await other.texts() == ["assistant", "a", "stop"]
            gate.set_result(None)
            await other.client.close()

    run(main)


# --------------------------------------------------------------------------------------------
# HTTP


def test_connections_are_used_again() -> None:
    """Ten replies of every kind, streamed and whole, on one connection."""

    async def main() -> None:
        async with bed() as here:
            here.replies(*[[A, STOP]] * 10)
            made = set()
            for turn in range(10):
                await (here.texts() if turn % 2 else here.whole())
                made |= here.server._registry.connections
            assert len(made) == 1
            assert len(here.entries(Closed)) == 10

    run(main)


def test_requests_in_one_piece_are_answered_one_after_the_other() -> None:
    """A request that comes while another is answered waits for its turn."""

    async def main() -> None:
        async with bed() as here:
            here.replies([{"text": "first"}, STOP], [{"text": "second"}, STOP])
            data = json.dumps({"model": "m", "messages": ASK}).encode()
            path = here.url.partition("//")[2].partition("/")[2]
            one = f"POST /{path}/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", here.server.port)
            writer.write((one.encode() + data) * 2)
            for word in (b"first", b"second"):
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.partition(b"content-length: ")[2].split()[0])
                assert word in await reader.readexactly(size)
            assert [type(entry) for entry in here.recorder.entries()].count(Opened) == 2
            await end(writer)

    run(main)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_asks_for_it_gets_its_connection_closed(streaming: bool) -> None:
    """``connection: close`` is answered and kept."""

    async def main() -> None:
        async with bed() as here:
            here.replies([A, STOP])
            body = {"model": "m", "messages": ASK, "stream": streaming}
            reader, writer = await raw(f"{here.url}/chat/completions", body, head="Connection: close\r\n")
            assert b"connection: close" in await reader.read()
            await end(writer)

    run(main)


def test_a_client_that_waits_before_its_body_is_told_to_go_on() -> None:
    """``expect: 100-continue`` is answered at once."""

    async def main() -> None:
        async with bed() as here:
            data = json.dumps({"model": "m", "messages": ASK}).encode()
            path = here.url.partition("//")[2].partition("/")[2]
            reader, writer = await asyncio.open_connection("127.0.0.1", here.server.port)
            writer.write(
                f"POST /{path}/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
                f"content-length: {len(data)}\r\n\r\n".encode()
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(data)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            await end(writer)

    run(main)


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"what is this\r\n\r\n", b"400"), (b"GET /1/v1/models HTTP/1.0\r\n\r\n", b"505"),
     (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"410")],
)  # fmt: skip
def test_what_is_no_request_to_the_model_is_answered_and_closed(data: bytes, status: bytes) -> None:
    """Whatever is written to the port, the server stays up and records nothing."""

    async def main() -> None:
        async with bed() as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.server.port)
            writer.write(data)
            assert (await reader.read()).split()[1] == status
            await end(writer)
            assert not here.entries(Requested)
            assert await here.texts() == ["assistant", "[unscripted]", "stop"]

    run(main)


def test_a_client_that_goes_away_within_its_request_leaves_nothing() -> None:
    """Half a request is no request."""

    async def main() -> None:
        async with bed() as here:
            _, writer = await asyncio.open_connection("127.0.0.1", here.server.port)
            writer.write(b"POST /1/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
            await end(writer)
            assert await here.texts() == ["assistant", "[unscripted]", "stop"]
            assert len(here.entries(Requested)) == 1

    run(main)


# --------------------------------------------------------------------------------------------
# The server itself


@pytest.mark.parametrize("steps", [[A, "stall"], [A, "cancel", STOP], ["stall"], ["cancel", A, STOP]])
def test_closing_the_server_leaves_nothing(steps: Any) -> None:
    """Held, stalled and idle connections end, and their tasks with them."""

    async def main() -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def act(action: str) -> None:
            await gate

        async with bed(act) as here:
            here.replies(steps)
            task = asyncio.ensure_future(here.texts())
            await here.until(Requested if steps[0] == "cancel" else Faulted if "stall" in steps else Sent)
            await here.server.aclose()
            with pytest.raises(openai.APIConnectionError):
                await task
            assert here.story()[-1] == "closed by bench"
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", here.server.port)
            await here.server.aclose()
            gate.set_result(None)

    run(main)


def test_a_failing_action_is_told_and_ends_the_reply() -> None:
    """An action of the environment that raises is a fault of the bench, never swallowed."""

    async def main() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

        async def act(action: str) -> None:
            raise LookupError("no such action")

        async with bed(act) as here:
            here.replies([A, "cancel", STOP])
            with pytest.raises(openai.APIConnectionError):
                await here.texts()
            assert [type(context["exception"]) for context in told] == [LookupError]
            assert here.story()[-1] == "closed by bench"

    run(main)


def test_mounting_needs_a_started_server_and_a_known_wire() -> None:
    """The errors name what would be right."""

    async def main() -> None:
        provider = Provider(Recorder(Header("s", "t", "v", "chat", "event")), lambda action, where: main())
        server = Server()
        with pytest.raises(RuntimeError, match="await start"):
            server.mount("chat", provider)
        async with server:
            with pytest.raises(ValueError, match="no wire 'telex' here; one of chat"):
                server.mount("telex", provider)
        await server.aclose()

    run(main)
