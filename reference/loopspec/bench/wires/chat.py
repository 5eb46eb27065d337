"""The OpenAI Chat Completions wire.

A stream is ``data: {chunk}`` lines, each chunk with the same id, and ends with ``data: [DONE]``.
The first chunk gives the role; the others carry one delta each::

    text        {"content":"Hi"}
    reasoning   {"reasoning_content":"Hm"}
    call_start  {"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"probe","arguments":""}}]}
    arguments   {"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}
    reason      {}

``reasoning_content`` is not OpenAI's: compatible vendors send it, and the official client passes it
on. A ``usage`` chunk has no choices and is sent only when the request asked for it. The wire marks
no end of a call. It has no word for the reasons ``error``, ``aborted``, ``deferred`` and
``pending``; an error in a stream is the fault of that name.

Ids count requests and ``created`` is 0, so that the same script gives the same bytes. The history
rules are in :mod:`loopspec.bench.wires.chat_history`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from loopspec.bench.provider import Incoming
from loopspec.bench.wires.base import (
    ALL_FAULTS,
    REASONING,
    UNKNOWN,
    Body,
    Objection,
    Wire,
    compact,
    wire_reason,
)
from loopspec.bench.wires.chat_history import check
from loopspec.vocabulary import (
    ArgumentsDelta,
    AssistantMessage,
    Block,
    Call,
    CallEnd,
    CallStart,
    Message,
    OtherMessage,
    Piece,
    Reason,
    Reasoning,
    ReasoningDelta,
    SystemMessage,
    Terminator,
    Text,
    TextDelta,
    ToolResult,
    Usage,
    UserMessage,
)

REASONS: Mapping[str, str] = {
    "stop": "stop",
    "toolUse": "tool_calls",
    "length": "length",
    "refusal": "content_filter",
}
"""``finish_reason`` for each stop reason that the wire has."""

STATUS_WORDS: Mapping[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("requests", "rate_limit_exceeded"),
}
"""``type`` and ``code`` of an HTTP error; others are invalid requests below 500, else the
server's."""

DONE = b"data: [DONE]\n\n"


def _error(message: str, kind: str, param: str | None = None, code: str | None = None) -> Body:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_body(status: int, message: str) -> Body:
    """The body of an HTTP error."""
    other = "invalid_request_error" if status < 500 else "server_error"
    kind, code = STATUS_WORDS.get(status, (other, None))
    return _error(message, kind, code=code)


def refusal(objection: Objection) -> Body:
    """The body of the 400 for a request that the API refuses."""
    return _error(objection.text, "invalid_request_error", objection.param, objection.kind)


# --------------------------------------------------------------------------------------------
# Replies


@lru_cache(maxsize=4096)
def delta_of(piece: Piece) -> bytes:
    """The ``delta`` that says a piece, as JSON; ``b""`` for a piece that is not said by one.

    Remembered, because a script is played many times.
    """
    match piece:
        case TextDelta(text):
            return compact({"content": text})
        case ReasoningDelta(text):
            return compact({"reasoning_content": text})
        case CallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return compact({"tool_calls": [call]})
        case ArgumentsDelta(index, text):
            return compact({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        case Reason():
            return b"{}"
        case _:
            return b""


def _counts(usage: Usage) -> Body:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


class ChatEncoder:
    """Encodes the reply to one request.

    Parameters
    ----------
    number: the request's number, which becomes the reply's id.
    body: the request; its model is echoed, its ``stream_options`` decide on usage.
    """

    def __init__(self, number: int, body: Body, path: str = "") -> None:
        model = body.get("model")
        options = body.get("stream_options")
        self._usage = isinstance(options, dict) and options.get("include_usage") is True
        self._id = f"chatcmpl-{number:04d}"
        self._model = model if isinstance(model, str) else "unknown"
        head = compact({**self._common("chat.completion.chunk"), "choices": []})
        self._before = b"data: " + head.removesuffix(b"]}")
        self._after = b'],"usage":null}\n\n' if self._usage else b"]}\n\n"
        self._delta = self._before + b'{"index":0,"delta":'
        self._open = b',"logprobs":null,"finish_reason":null}' + self._after
        self._begun = False

    def _common(self, kind: str) -> Body:
        return {"id": self._id, "object": kind, "created": 0, "model": self._model}

    def _chunk(self, delta: bytes, finish: str | None = None) -> bytes:
        if finish is None:
            return self._delta + delta + self._open
        said = b',"logprobs":null,"finish_reason":%b}' % compact(finish)
        return self._delta + delta + said + self._after

    def frames(self, piece: Piece) -> bytes:
        """The chunks of a piece; the role's chunk stands before the first."""
        delta, finish = delta_of(piece), None
        if not delta:
            if isinstance(piece, Usage) and self._usage:
                return self._usage_chunk(piece)
            return DONE if isinstance(piece, Terminator) else b""
        if isinstance(piece, Reason):
            finish = wire_reason(REASONS, piece.reason)
            if finish is None:
                return b""
        chunk = self._chunk(delta, finish)
        if not self._begun:
            self._begun = True
            content = b"null" if isinstance(piece, CallStart) else b'""'
            chunk = self._chunk(b'{"role":"assistant","content":%b}' % content) + chunk
        return chunk

    def _usage_chunk(self, usage: Usage) -> bytes:
        return self._before + b'],"usage":' + compact(_counts(usage)) + b"}\n\n"

    def error(self, message: str) -> bytes:
        """The error frame: an object with ``error`` where a chunk was due."""
        return b"data: " + compact(_error(message, "server_error")) + b"\n\n"

    def half(self) -> bytes:
        """A text chunk that breaks off inside its text."""
        chunk = self._chunk(b'{"content":"half a frame"}')
        return chunk[: chunk.index(b" a frame")]

    def malformed(self) -> bytes:
        """The same, closed as a frame: its data is not JSON."""
        return self.half() + b"\n\n"

    def says(self, piece: Piece) -> bool:
        """All but the end of a call and the reasons that the wire has no word for."""
        if isinstance(piece, Reason):
            return wire_reason(REASONS, piece.reason) is not None
        return not isinstance(piece, CallEnd)

    def whole(self, pieces: Sequence[Piece]) -> Body:
        """The completion. Usage is always there, as in the API; unscripted, it is zero."""
        calls: dict[int, Body] = {}
        finish, usage = None, Usage(0, 0)
        for piece in pieces:
            match piece:
                case CallStart(index, call_id, name):
                    function = {"name": name, "arguments": ""}
                    calls[index] = {"id": call_id, "type": "function", "function": function}
                case ArgumentsDelta(index, text):
                    calls[index]["function"]["arguments"] += text
                case Reason(reason):
                    finish = wire_reason(REASONS, reason)
                case Usage():
                    usage = piece
                case _:
                    pass
        text = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
        message: Body = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        thoughts = [piece.text for piece in pieces if isinstance(piece, ReasoningDelta)]
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return {**self._common("chat.completion"), "choices": [choice], "usage": _counts(usage)}


# --------------------------------------------------------------------------------------------
# Requests


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else compact(value).decode("ascii")


def _parts(content: Any) -> Iterator[str]:
    """The texts of a content: the string, or each part. A part that is no text is named."""
    if not isinstance(content, list):
        yield _string(content)
        return
    for part in content:
        if not isinstance(part, dict):
            yield _string(part)
        elif part.get("type") in ("text", "refusal"):
            yield _string(part.get(part["type"]))
        else:
            yield f"[{part.get('type')}]"


def _calls(message: Body) -> Iterator[Call]:
    listed = message.get("tool_calls")
    for item in listed if isinstance(listed, list) else ():
        call = item if isinstance(item, dict) else {}
        kind = "custom" if call.get("type") == "custom" else "function"
        told = call.get(kind)
        inner = told if isinstance(told, dict) else {}
        arguments = inner.get("input" if kind == "custom" else "arguments")
        yield Call(_string(call.get("id")), _string(inner.get("name")), _string(arguments))
    deprecated = message.get("function_call")
    if isinstance(deprecated, dict):
        yield Call("", _string(deprecated.get("name")), _string(deprecated.get("arguments")))


def _assistant(message: Body) -> AssistantMessage:
    thought = message.get("reasoning_content") or message.get("reasoning")
    blocks: list[Block] = []
    if isinstance(thought, str):
        blocks.append(Reasoning(thought))
    texts = [*_parts(message.get("content")), _string(message.get("refusal"))]
    blocks += [Text(text) for text in texts if text]
    return AssistantMessage((*blocks, *_calls(message)))


def decode_message(message: Any) -> Message:
    """One message of a request; what is none of the API's is an ``OtherMessage``."""
    if not isinstance(message, dict):
        return OtherMessage(_string(message))
    text = "".join(_parts(message.get("content")))
    name = message.get("name") if isinstance(message.get("name"), str) else None
    match message.get("role"):
        case "system" | "developer":
            return SystemMessage(text)
        case "user":
            return UserMessage(text)
        case "assistant":
            return _assistant(message)
        case "tool":
            return ToolResult(_string(message.get("tool_call_id")), name, text)
        case "function":
            return ToolResult("", name, text)
        case _:
            return OtherMessage(_string(message))


def _tools(body: Body) -> Iterator[str]:
    for key in ("tools", "functions"):
        listed = body.get(key)
        for tool in listed if isinstance(listed, list) else ():
            if not isinstance(tool, dict):
                continue
            kind = tool.get("type", "function")
            inner = tool if key == "functions" else tool.get(kind)
            yield _string(inner.get("name") if isinstance(inner, dict) else kind)


def decode(body: Body, path: str = "") -> Incoming:  # noqa: ARG001 - what a Wire's decode takes
    """The request in canonical words. It never raises: what is wrong, ``check`` says."""
    listed = body.get("messages")
    messages = tuple(map(decode_message, listed)) if isinstance(listed, list) else ()
    return Incoming(messages, tuple(_tools(body)), body.get("stream") is True)


CHAT = Wire(
    name="chat",
    base_path="/v1",
    paths=(re.compile(r"(/v1)?/chat/completions"),),
    reasons=REASONS,
    faults=ALL_FAULTS,
    extras=frozenset({UNKNOWN, REASONING}),
    decode=decode,
    check=check,
    encoder=ChatEncoder,
    error_body=error_body,
    refusal=refusal,
)
"""OpenAI Chat Completions, and the servers that speak it."""
