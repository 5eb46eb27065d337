"""What Chat Completions refuses in a request, in its own words.

===========  =====================================================================================
code         rule
===========  =====================================================================================
``C-body``   there are messages and a model
``C-role``   a role that the API knows
``C1``       the calls of an assistant message are answered by the very next messages, one each
``C2``       a tool message answers a call of the assistant message that it follows
``C-ids``    a call has an id, and no other call of the message has the same
``C-args``   arguments are a string, and the string is JSON
``C-empty``  a message has content; an assistant message has content or calls
===========  =====================================================================================

Texts are those of the API where they are known from the field. Two rules are wider than what
OpenAI's own servers enforce: they let arguments pass that are not JSON, and a user message that is
the empty string, where compatible servers refuse both, so that a history with them cannot be
relied upon. An assistant message that is the empty string is let pass by OpenAI, and here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from loopspec.bench.wires.base import Body, Objection

ROLES = ("system", "assistant", "user", "function", "tool", "developer")

_UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: {}"
)
_STRAY = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
    "'tool_calls'."
)
_ELSEWHERE = "Invalid parameter: 'tool_call_id' of '{}' not found in 'tool_calls' of previous message."
_NO_CALL_ID = "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."
_TWICE = "Invalid parameter: Duplicate value for '{}' of '{}', in {} and {}."
_JSON_TYPES = {dict: "an object", list: "an array", bool: "a boolean", type(None): "null"}


def _type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "a string" if isinstance(value, str) else "a number")


def _wrong_type(code: str, param: str, expected: str, value: Any) -> Objection:
    text = f"Invalid type for '{param}': expected {expected}, but got {_type(value)} instead."
    return Objection(code, text, param, "invalid_type")


def _missing(code: str, param: str) -> Objection:
    return Objection(code, f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _empty(code: str, param: str, what: str) -> Objection:
    text = (
        f"Invalid '{param}': empty {what}. Expected a{'n' * (what == 'array')} {what} with minimum "
        f"length 1, but got an empty {what} instead."
    )
    return Objection(code, text, param, f"empty_{what}")


# --------------------------------------------------------------------------------------------
# One message


def _arguments(where: str, call: Body) -> Iterator[Objection]:
    function = call.get("function")
    if not isinstance(function, dict):
        yield _missing("C-args", f"{where}.function")
        return
    param, text = f"{where}.function.arguments", function.get("arguments")
    if "arguments" not in function:
        yield _missing("C-args", param)
    elif not isinstance(text, str):
        yield _wrong_type("C-args", param, "a string", text)
    else:
        try:
            json.loads(text)
        except ValueError:
            yield Objection("C-args", f"Invalid '{param}': arguments must be a valid JSON string.", param)


def _calls(where: str, calls: Any) -> Iterator[Objection]:
    if not isinstance(calls, list):
        yield _wrong_type("C-ids", where, "an array of objects", calls)
        return
    if not calls:
        yield _empty("C-empty", where, "array")
    seen: dict[str, str] = {}
    for index, call in enumerate(calls):
        at = f"{where}[{index}]"
        if not isinstance(call, dict):
            yield _wrong_type("C-ids", at, "an object", call)
            continue
        call_id = call.get("id")
        if call_id is None:
            yield _missing("C-ids", f"{at}.id")
        elif not isinstance(call_id, str):
            yield _wrong_type("C-ids", f"{at}.id", "a string", call_id)
        elif not call_id:
            yield _empty("C-ids", f"{at}.id", "string")
        elif call_id in seen:
            yield Objection("C-ids", _TWICE.format("id", call_id, seen[call_id], at), f"{at}.id")
        else:
            seen[call_id] = at
        if call.get("type") != "custom":
            yield from _arguments(at, call)


def _blank(content: Any) -> bool:
    """Whether a content is the empty string, whole or as its only text parts."""
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("text") == "" for part in content)
    return bool(content == "")


def _content(index: int, message: Body) -> Iterator[Objection]:
    role, content = message.get("role"), message.get("content")
    param = f"messages[{index}].content"
    if content is None:
        others = ("tool_calls", "function_call", "refusal", "audio")
        if not (role == "assistant" and any(message.get(key) for key in others)):
            text = "Invalid value for 'content': expected a string, got null."
            yield Objection("C-empty", text, f"messages.[{index}].content")
    elif not isinstance(content, (str, list)):
        yield _wrong_type("C-empty", param, "one of a string or array of objects", content)
    elif content == []:
        yield _empty("C-empty", param, "array")
    elif role == "user" and _blank(content):
        yield _empty("C-empty", param, "string")


def _message(index: int, message: Any) -> Iterator[Objection]:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        yield _wrong_type("C-role", where, "an object", message)
        return
    role = message.get("role")
    if role not in ROLES:
        supported = ", ".join(f"'{known}'" for known in ROLES[:-1]) + f", and '{ROLES[-1]}'"
        text = f"Invalid value: '{role}'. Supported values are: {supported}."
        yield Objection("C-role", text, f"{where}.role", "invalid_value")
        return
    yield from _content(index, message)
    if role == "assistant" and message.get("tool_calls") is not None:
        yield from _calls(f"{where}.tool_calls", message["tool_calls"])


# --------------------------------------------------------------------------------------------
# The order of messages


class _Batch:
    """The calls of the last assistant message, and which of them have been answered."""

    def __init__(self, message: Body) -> None:
        calls = message.get("tool_calls")
        listed = calls if isinstance(calls, list) else []
        ids = [call.get("id") for call in listed if isinstance(call, dict)]
        self._calls = Counter(item for item in ids if isinstance(item, str))
        self._answers: dict[str, list[int]] = {call_id: [] for call_id in self._calls}

    def take(self, index: int, call_id: str) -> Objection | None:
        """Count a tool message; an objection if it answers none of the calls, or one again."""
        if call_id not in self._answers:
            return Objection("C2", _ELSEWHERE.format(call_id), f"messages.[{index}].tool_call_id")
        answers = self._answers[call_id]
        answers.append(index)
        if len(answers) > self._calls[call_id]:
            places = f"messages[{answers[-2]}]", f"messages[{index}]"
            text = _TWICE.format("tool_call_id", call_id, *places)
            return Objection("C1", text, f"messages.[{index}].tool_call_id")
        return None

    def end(self, index: int | None) -> Objection | None:
        """The batch is over, at the message that stands here (``None``: at the end)."""
        missing = [
            call_id for call_id, answers in self._answers.items() if len(answers) < self._calls[call_id]
        ]
        if not missing:
            return None
        param = "messages" if index is None else f"messages.[{index}].role"
        return Objection("C1", _UNANSWERED.format(", ".join(missing)), param)


def _order(messages: list[Any]) -> Iterator[Objection]:
    batch: _Batch | None = None
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        objection = None
        if role == "tool":
            call_id = message.get("tool_call_id")
            if batch is None:
                objection = Objection("C2", _STRAY, f"messages.[{index}].role")
            elif not isinstance(call_id, str):
                objection = Objection("C2", _NO_CALL_ID, f"messages.[{index}].tool_call_id")
            else:
                objection = batch.take(index, call_id)
        else:
            objection = batch.end(index) if batch is not None else None
            calls = role == "assistant" and message.get("tool_calls")
            batch = _Batch(message) if calls else None
        if objection is not None:
            yield objection
    last = batch.end(None) if batch is not None else None
    if last is not None:
        yield last


def check(body: Body) -> tuple[Objection, ...]:
    """Everything that the API would refuse in a request; it says the first and stops."""
    messages = body.get("messages")
    found: list[Objection] = []
    if not isinstance(body.get("model"), str):
        found.append(Objection("C-body", "you must provide a model parameter"))
    if messages is None:
        found.append(_missing("C-body", "messages"))
    elif not isinstance(messages, list):
        found.append(_wrong_type("C-body", "messages", "an array of objects", messages))
    elif not messages:
        found.append(_empty("C-body", "messages", "array"))
    else:
        for index, message in enumerate(messages):
            found += _message(index, message)
        found += _order(messages)
    return tuple(found)
