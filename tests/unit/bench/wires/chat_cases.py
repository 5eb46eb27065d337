"""The Chat Completions wire as data. Each row drives an encoder test, a decoder test, and the page.

``FRAMES``: a piece, the delta that says it, and its line in the documentation of the wire.
``MESSAGES``: a message as a client sends it, and as the trace holds it.
``VALID`` and ``INVALID``: histories that the API accepts, and that it refuses with these codes.
"""

from __future__ import annotations

from typing import Any

from loopspec.vocabulary import (
    ArgumentsDelta,
    AssistantMessage,
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
    Text,
    TextDelta,
    ToolResult,
    UserMessage,
)

FRAMES: dict[str, tuple[Piece, str]] = {
    "text": (TextDelta("Hi"), '{"content":"Hi"}'),
    "reasoning": (ReasoningDelta("Hm"), '{"reasoning_content":"Hm"}'),
    "call_start": (
        CallStart(0, "c1", "probe"),
        '{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"probe","arguments":""}}]}',
    ),
    "arguments": (
        ArgumentsDelta(0, "{}"),
        '{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}',
    ),
    "reason": (Reason("stop"), "{}"),
}

REASONS = {
    "stop": "stop",
    "toolUse": "tool_calls",
    "length": "length",
    "refusal": "content_filter",
    "tomorrow": "tomorrow",
    "error": None,
    "aborted": None,
    "deferred": None,
    "pending": None,
}

REPLIES: dict[str, tuple[tuple[Piece, ...], AssistantMessage]] = {
    "text": ((TextDelta("a"), TextDelta("b")), AssistantMessage((Text("ab"),))),
    "reasoning, text": (
        (ReasoningDelta("h"), ReasoningDelta("m"), TextDelta("a")),
        AssistantMessage((Reasoning("hm"), Text("a"))),
    ),
    "interleaved calls": (
        (
            CallStart(0, "c1", "probe"), CallStart(1, "c2", "probe_number"),
            ArgumentsDelta(1, '{"amount"'), ArgumentsDelta(0, '{"value":"x"}'),
            ArgumentsDelta(1, ":2}"), CallEnd(0), CallEnd(1),
        ),
        AssistantMessage(
            (Call("c1", "probe", '{"value":"x"}'), Call("c2", "probe_number", '{"amount":2}'))
        ),
    ),
    "text, call with cut arguments": (
        (TextDelta("I "), CallStart(0, "c1", "probe"), ArgumentsDelta(0, '{"va')),
        AssistantMessage((Text("I "), Call("c1", "probe", '{"va'))),
    ),
    "nothing": ((), AssistantMessage(())),
    "not ASCII": ((TextDelta("\u2028é\ud800"),), AssistantMessage((Text("\u2028é\ud800"),))),
}  # fmt: skip
"""Pieces of a reply, and the message that a client makes of it and sends back."""


def call(id: Any = "c1", arguments: Any = "{}", name: str = "probe") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*listed: dict[str, Any], content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(listed)}


def result(id: Any = "c1", content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def user(content: Any = "go on") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = "yes", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CUSTOM = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}

MESSAGES: dict[str, tuple[Any, Message]] = {
    "system": ({"role": "system", "content": "Be brief."}, SystemMessage("Be brief.")),
    "developer": ({"role": "developer", "content": [part("Be "), part("brief.")]}, SystemMessage("Be brief.")),
    "user, string": (user("Hi"), UserMessage("Hi")),
    "user, parts": (user([part("Hi "), part("there")]), UserMessage("Hi there")),
    "user, image": (user([part("See "), IMAGE]), UserMessage("See [image_url]")),
    "assistant, string": (assistant("Yes."), AssistantMessage((Text("Yes."),))),
    "assistant, parts": (assistant([part("A"), part("B")]), AssistantMessage((Text("A"), Text("B")))),
    "assistant, empty": (assistant(""), AssistantMessage(())),
    "assistant, refusal": (assistant(None, refusal="No."), AssistantMessage((Text("No."),))),
    "assistant, refusal part": (
        assistant([{"type": "refusal", "refusal": "No."}]), AssistantMessage((Text("No."),)),
    ),
    "assistant, reasoning_content": (
        assistant("A", reasoning_content="Hm"), AssistantMessage((Reasoning("Hm"), Text("A"))),
    ),
    "assistant, reasoning": (
        assistant("A", reasoning="Hm"), AssistantMessage((Reasoning("Hm"), Text("A"))),
    ),
    "assistant, call": (
        calls(call("c1", '{ "value":"x" }')), AssistantMessage((Call("c1", "probe", '{ "value":"x" }'),)),
    ),
    "assistant, text and calls": (
        calls(call("c1"), call("c2"), content="I look."),
        AssistantMessage((Text("I look."), Call("c1", "probe", "{}"), Call("c2", "probe", "{}"))),
    ),
    "assistant, arguments as an object": (
        calls(call("c1", {"value": 1})), AssistantMessage((Call("c1", "probe", '{"value":1}'),)),
    ),
    "assistant, custom call": (calls(CUSTOM), AssistantMessage((Call("c1", "shell", "ls -l"),))),
    "assistant, function_call": (
        assistant(None, function_call={"name": "probe", "arguments": "{}"}),
        AssistantMessage((Call("", "probe", "{}"),)),
    ),
    "tool, string": (result("c1", "42"), ToolResult("c1", None, "42")),
    "tool, parts": (result("c1", [part("4"), part("2")]), ToolResult("c1", None, "42")),
    "tool, named": ({**result("c1", "42"), "name": "probe"}, ToolResult("c1", "probe", "42")),
    "tool, null": (result("c1", None), ToolResult("c1", None, "")),
    "function": (
        {"role": "function", "name": "probe", "content": "42"}, ToolResult("", "probe", "42"),
    ),
    "unknown role": (
        {"role": "critic", "content": "Bad."}, OtherMessage('{"role":"critic","content":"Bad."}'),
    ),
    "no role": ({"content": "Bad."}, OtherMessage('{"content":"Bad."}')),
    "no object": ("Bad.", OtherMessage("Bad.")),
}  # fmt: skip

VALID: dict[str, list[Any]] = {
    "arguments a JSON list": [user(), calls(call("c1", "[1]")), result()],
    "one user message": [user()],
    "system first": [{"role": "system", "content": "Be brief."}, user()],
    "developer first": [{"role": "developer", "content": "Be brief."}, user()],
    "a conversation": [user(), assistant(), user()],
    "two user messages in a row": [user(), user()],
    "ends with the assistant": [user(), assistant()],
    "call and result": [user(), calls(call()), result()],
    "call with text": [user(), calls(call(), content="I look."), result()],
    "call with empty text": [user(), calls(call(), content=""), result()],
    "call without content key": [user(), {"role": "assistant", "tool_calls": [call()]}, result()],
    "two calls": [user(), calls(call("c1"), call("c2")), result("c1"), result("c2")],
    "results in another order": [user(), calls(call("c1"), call("c2")), result("c2"), result("c1")],
    "two rounds": [user(), calls(call("c1")), result("c1"), calls(call("c2")), result("c2")],
    "an id used again in a later round": [user(), calls(call()), result(), calls(call()), result(), user()],
    "answer after results": [user(), calls(call()), result(), assistant(), user()],
    "user after results": [user(), calls(call()), result(), user()],
    "empty result": [user(), calls(call()), result("c1", "")],
    "result in parts": [user(), calls(call()), result("c1", [part("42")])],
    "arguments with blanks": [user(), calls(call("c1", ' { "value" : "x" } ')), result()],
    "custom call": [user(), calls(CUSTOM), result()],
    "image alone": [user([IMAGE])],
    "assistant that said nothing": [user(), assistant(""), user()],
    "refusal without content": [user(), assistant(None, refusal="No."), user()],
    "function_call": [user(), assistant(None, function_call={"name": "p", "arguments": "{}"}),
                      {"role": "function", "name": "p", "content": "42"}],
    "tool_calls null": [user(), assistant("yes", tool_calls=None), user()],
}  # fmt: skip

INVALID: dict[str, tuple[list[Any], list[tuple[str, str]]]] = {
    "call not answered": ([user(), calls(call())], [("C1", "messages")]),
    "call not answered, user next": ([user(), calls(call()), user()], [("C1", "messages.[2].role")]),
    "one of two not answered": (
        [user(), calls(call("c1"), call("c2")), result("c1"), user()], [("C1", "messages.[3].role")],
    ),
    "answered twice": (
        [user(), calls(call()), result(), result()], [("C1", "messages.[3].tool_call_id")],
    ),
    "answered too late": (
        [user(), calls(call()), user(), result()],
        [("C1", "messages.[2].role"), ("C2", "messages.[3].role")],
    ),
    "user between results": (
        [user(), calls(call("c1"), call("c2")), result("c1"), user(), result("c2")],
        [("C1", "messages.[3].role"), ("C2", "messages.[4].role")],
    ),
    "assistant before the result": (
        [user(), calls(call()), assistant(), result()],
        [("C1", "messages.[2].role"), ("C2", "messages.[3].role")],
    ),
    "two rounds, first not answered": (
        [user(), calls(call("c1")), calls(call("c2")), result("c2")], [("C1", "messages.[2].role")],
    ),
    "result without call": ([user(), result()], [("C2", "messages.[1].role")]),
    "result first": ([result(), user()], [("C2", "messages.[0].role")]),
    "result of an answer": ([user(), assistant(), result()], [("C2", "messages.[2].role")]),
    "result with another id": (
        [user(), calls(call("c1")), result("c9"), result("c1")], [("C2", "messages.[2].tool_call_id")],
    ),
    "result of an earlier round": (
        [user(), calls(call("c1")), result("c1"), calls(call("c2")), result("c1"), result("c2")],
        [("C2", "messages.[4].tool_call_id")],
    ),
    "result without id": (
        [user(), calls(call()), {"role": "tool", "content": "42"}, result()],
        [("C2", "messages.[2].tool_call_id")],
    ),
    "same id twice in one message": (
        [user(), calls(call("c1"), call("c1")), result("c1"), result("c1")],
        [("C-ids", "messages[1].tool_calls[1].id")],
    ),
    "empty id": (
        [user(), calls(call("")), result("")], [("C-ids", "messages[1].tool_calls[0].id")],
    ),
    "no id": (
        [user(), calls({"type": "function", "function": {"name": "p", "arguments": "{}"}})],
        [("C-ids", "messages[1].tool_calls[0].id")],
    ),
    "id that is a number": (
        [user(), calls(call(7))], [("C-ids", "messages[1].tool_calls[0].id")],
    ),
    "arguments cut off": (
        [user(), calls(call("c1", '{"va')), result()],
        [("C-args", "messages[1].tool_calls[0].function.arguments")],
    ),
    "arguments empty": (
        [user(), calls(call("c1", "")), result()],
        [("C-args", "messages[1].tool_calls[0].function.arguments")],
    ),
    "arguments an object": (
        [user(), calls(call("c1", {"value": "x"})), result()],
        [("C-args", "messages[1].tool_calls[0].function.arguments")],
    ),
    "arguments null": (
        [user(), calls(call("c1", None)), result()],
        [("C-args", "messages[1].tool_calls[0].function.arguments")],
    ),
    "call without function": (
        [user(), calls({"id": "c1", "type": "function"}), result()],
        [("C-args", "messages[1].tool_calls[0].function")],
    ),
    "assistant with nothing": ([user(), assistant(None), user()], [("C-empty", "messages.[1].content")]),
    "assistant without content": ([user(), {"role": "assistant"}], [("C-empty", "messages.[1].content")]),
    "assistant with no parts": ([user(), assistant([])], [("C-empty", "messages[1].content")]),
    "no calls in the list": (
        [user(), assistant("yes", tool_calls=[])], [("C-empty", "messages[1].tool_calls")],
    ),
    "user said nothing": ([user("")], [("C-empty", "messages[0].content")]),
    "user said nothing, in parts": ([user([part("")])], [("C-empty", "messages[0].content")]),
    "user null": ([user(None)], [("C-empty", "messages.[0].content")]),
    "result null": ([user(), calls(call()), result("c1", None)], [("C-empty", "messages.[2].content")]),
    "content a number": ([user(7)], [("C-empty", "messages[0].content")]),
    "unknown role": ([user(), {"role": "critic", "content": "Bad."}], [("C-role", "messages[1].role")]),
    "no role": ([{"content": "Hi"}], [("C-role", "messages[0].role")]),
    "message that is a string": (["Hi"], [("C-role", "messages[0]")]),
    "no messages": ([], [("C-body", "messages")]),
}  # fmt: skip
