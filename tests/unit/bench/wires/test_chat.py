"""Chat Completions: what is sent for each piece, and what each message of a request means."""

from __future__ import annotations

import json
import re
from typing import Any

import chat_cases as cases
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from loopspec.bench.wires import CHAT, WIRES, chat
from loopspec.bench.wires.base import UNREADABLE, Objection, compact, sayable
from loopspec.scenario import Reply
from loopspec.vocabulary import (
    CallEnd,
    CallStart,
    Reason,
    Terminator,
    TextDelta,
    Usage,
)

BODY = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
WITH_USAGE = {**BODY, "stream_options": {"include_usage": True}}


def data_of(frames: bytes) -> list[Any]:
    """The JSON of each frame, checked to be a frame."""
    lines = frames.decode("ascii").split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def begun(body: dict[str, Any] = BODY) -> chat.ChatEncoder:
    """An encoder that has said its first chunk."""
    encoder = chat.ChatEncoder(7, body)
    encoder.frames(TextDelta("x"))
    return encoder


@pytest.mark.parametrize("name", cases.FRAMES)
def test_each_piece_is_one_chunk_with_its_delta(name: str) -> None:
    """A piece is one frame, whose chunk the official client's types accept."""
    piece, delta = cases.FRAMES[name]
    (chunk,) = data_of(begun().frames(piece))
    assert json.dumps(chunk["choices"][0]["delta"], separators=(",", ":")) == delta
    assert (chunk["id"], chunk["created"], chunk["model"]) == ("chatcmpl-0007", 0, "m-1")
    ChatCompletionChunk.model_validate(chunk)


@pytest.mark.parametrize("name", cases.FRAMES)
def test_the_page_shows_the_same_delta(name: str) -> None:
    """The table in the module's documentation is the table of these tests."""
    assert re.search(rf"^    {name} +{re.escape(cases.FRAMES[name][1])}$", chat.__doc__ or "", re.M)


def test_the_first_chunk_gives_the_role_once() -> None:
    """Before the first delta comes the role, with null content if the reply begins with a call."""
    encoder = chat.ChatEncoder(1, BODY)
    first = data_of(encoder.frames(TextDelta("a")))
    assert [chunk["choices"][0]["delta"] for chunk in first] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
    ]
    assert len(data_of(encoder.frames(TextDelta("b")))) == 1
    call = data_of(chat.ChatEncoder(1, BODY).frames(CallStart(0, "c1", "probe")))
    assert call[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}


@pytest.mark.parametrize(("reason", "word"), cases.REASONS.items())
def test_each_reason_has_its_word_or_none(reason: str, word: str | None) -> None:
    """A reason that the wire has no word for makes no frame, in a stream and in a body."""
    frames = begun().frames(Reason(reason))
    said = [chunk["choices"][0]["finish_reason"] for chunk in data_of(frames)]
    assert said == ([] if word is None else [word])
    pieces = list(sayable(begun(), [Reason(reason), Terminator()]))
    assert begun().whole(pieces)["choices"][0]["finish_reason"] == word
    assert (Reason(reason) in pieces) == (word is not None)


def test_usage_is_a_chunk_of_its_own_and_only_when_asked_for() -> None:
    """With ``include_usage`` every other chunk says ``null``."""
    assert begun().frames(Usage(10, 5)) == b""
    encoder = begun(WITH_USAGE)
    assert data_of(encoder.frames(TextDelta("x")))[0]["usage"] is None
    (chunk,) = data_of(encoder.frames(Usage(10, 5)))
    assert chunk["choices"] == []
    assert chunk["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    ChatCompletionChunk.model_validate(chunk)


def test_the_terminator_and_what_follows_it() -> None:
    """``[DONE]`` ends a stream by agreement only: frames after it are still frames."""
    encoder = begun()
    assert encoder.frames(Terminator()) == b"data: [DONE]\n\n"
    assert data_of(encoder.frames(TextDelta("late")))[0]["choices"][0]["delta"] == {"content": "late"}


def test_the_end_of_a_call_has_no_frame() -> None:
    """The wire marks no end of a call, in neither form."""
    assert begun().frames(CallEnd(0)) == b""
    assert not begun().says(CallEnd(0))


def test_broken_frames() -> None:
    """Half a frame has no end; a malformed one has, but is not JSON; the error frame is JSON."""
    encoder = begun()
    half, malformed = encoder.half(), encoder.malformed()
    assert half.startswith(b'data: {"id":"chatcmpl-0007"')
    assert b"\n" not in half
    assert malformed == half + b"\n\n"
    with pytest.raises(ValueError, match="Unterminated string"):
        data_of(malformed)
    assert data_of(encoder.error("no power"))[0]["error"]["message"] == "no power"


@pytest.mark.parametrize("name", cases.REPLIES)
def test_a_whole_reply_comes_back_as_the_same_message(name: str) -> None:
    """What is encoded as a body and sent back in a history is decoded to the same message."""
    pieces, message = cases.REPLIES[name]
    body = chat.ChatEncoder(3, BODY).whole(pieces)
    ChatCompletion.model_validate({**body, "choices": [{**body["choices"][0], "finish_reason": "stop"}]})
    told = json.loads(compact(body))["choices"][0]["message"]
    assert chat.decode_message(told) == message


@pytest.mark.parametrize("name", cases.REPLIES)
def test_a_streamed_reply_comes_back_as_the_same_message(name: str) -> None:
    """The deltas, put together as any client does, say what the whole body says."""
    pieces, message = cases.REPLIES[name]
    encoder = chat.ChatEncoder(3, BODY)
    built: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": ""}
    listed: list[dict[str, Any]] = []
    for chunk in data_of(b"".join(map(encoder.frames, pieces))):
        delta = chunk["choices"][0]["delta"]
        for key in ("content", "reasoning_content"):
            built[key] += delta.get(key) or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                listed.append(call)
            else:
                listed[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    built |= {"tool_calls": listed} if listed else {}
    built["reasoning_content"] = built["reasoning_content"] or None
    assert chat.decode_message(built) == message


def test_the_same_request_gives_the_same_bytes() -> None:
    """Nothing of a reply is drawn or read from a clock."""
    pieces = [TextDelta("a"), Reason("stop"), Usage(1, 2), Terminator()]
    one, two = (chat.ChatEncoder(1, WITH_USAGE) for _ in range(2))
    assert b"".join(map(one.frames, pieces)) == b"".join(map(two.frames, pieces))
    assert one.whole(pieces) == two.whole(pieces)


def test_a_body_says_nothing_after_its_terminator() -> None:
    """Usage between the reason and the terminator is part of it."""
    pieces = [TextDelta("a"), Reason("stop"), Usage(1, 2), Terminator(), TextDelta("late")]
    assert list(sayable(begun(), pieces)) == pieces[:-1]


@pytest.mark.parametrize("name", cases.MESSAGES)
def test_each_message_shape_is_decoded(name: str) -> None:
    """A message of a request in canonical words; a result has no error mark on this wire."""
    raw, message = cases.MESSAGES[name]
    assert chat.decode_message(raw) == message


def test_a_request_is_decoded() -> None:
    """Messages, the names of its tools, and whether a stream is wanted."""
    tools = [
        {"type": "function", "function": {"name": "probe"}},
        {"type": "custom", "custom": {"name": "shell"}},
        {"type": "web_search"},
    ]
    incoming = CHAT.decode({**BODY, "tools": tools, "functions": [{"name": "old"}]}, "")
    assert [message.role for message in incoming.messages] == ["user"]
    assert incoming.tools == ("probe", "shell", "web_search", "old")
    assert incoming.streaming
    assert not CHAT.decode({"messages": []}, "").streaming


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": 1, "tools": 2}, {"messages": [None, [], {"role": "assistant", "tool_calls": [1]}]},
     {"tools": ["x", {"type": "function"}], "messages": [{"role": "user", "content": {"a": [1]}}]}],
)  # fmt: skip
def test_no_request_is_too_strange_to_decode(body: dict[str, Any]) -> None:
    """What is wrong with a request the check says, never an exception."""
    assert CHAT.read(body, "/v1/chat/completions")[1]


def test_what_the_wire_can_and_cannot_express() -> None:
    """A reply that needs more than the wire has is named, reason and fault kept apart."""
    assert {"stop", "toolUse", "length", "refusal", "unknown", "reasoning"} <= CHAT.can_express
    assert CHAT.can_express.isdisjoint({"aborted", "deferred", "pending", "call_end"})
    plain = [{"reasoning": "Hm"}, {"text": "a"}, {"reason": "tomorrow"}]
    assert CHAT.lacks(Reply.model_validate(plain)) == frozenset()
    assert CHAT.lacks(Reply.model_validate([{"error": "no power"}])) == frozenset()
    assert CHAT.lacks(Reply.model_validate([{"reason": "error"}])) == {"reason error"}
    assert CHAT.lacks(Reply.model_validate([{"reason": "deferred"}])) == {"reason deferred"}


@pytest.mark.parametrize(
    ("path", "served"),
    [("/v1/chat/completions", True), ("/chat/completions", True), ("/v1/chat/completions?a=b", True),
     ("/v1/responses", False), ("/v1/chat/completions/", False), ("/v2/chat/completions", False)],
)  # fmt: skip
def test_paths(path: str, served: bool) -> None:
    """The wire serves its own paths, with or without the version, and no other."""
    assert CHAT.serves(path) is served
    assert WIRES["chat"] is CHAT


@pytest.mark.parametrize(
    ("status", "type", "code"),
    [(400, "invalid_request_error", None), (401, "invalid_request_error", "invalid_api_key"),
     (429, "requests", "rate_limit_exceeded"), (500, "server_error", None), (529, "server_error", None)],
)  # fmt: skip
def test_http_errors(status: int, type: str, code: str | None) -> None:
    """An HTTP error has the API's form."""
    body = {"error": {"message": "no", "type": type, "param": None, "code": code}}
    assert CHAT.error_body(status, "no") == body


def test_a_refusal_has_the_words_of_the_objection() -> None:
    """The 400 says what the rule says, and which parameter is wrong."""
    said = CHAT.refusal(Objection("C2", "no call", "messages.[1].role"))["error"]
    assert said == {
        "message": "no call", "type": "invalid_request_error", "param": "messages.[1].role", "code": None,
    }  # fmt: skip
    assert CHAT.refusal(UNREADABLE)["error"]["param"] is None
