"""Chat Completions: histories that the API accepts, and those that it refuses."""

from __future__ import annotations

import chat_cases as cases
import pytest

from loopspec.bench.wires import CHAT
from loopspec.bench.wires import chat_history as history

CODES = {"C-body", "C-role", "C1", "C2", "C-ids", "C-args", "C-empty"}


@pytest.mark.parametrize("name", cases.VALID)
def test_valid(name: str) -> None:
    """A history that the API accepts has no finding."""
    assert CHAT.check({"model": "m", "messages": cases.VALID[name]}) == ()


@pytest.mark.parametrize("name", cases.INVALID)
def test_invalid(name: str) -> None:
    """A history that the API refuses has exactly these findings, at these parameters."""
    messages, expected = cases.INVALID[name]
    found = CHAT.check({"model": "m", "messages": messages})
    assert [(objection.code, objection.param) for objection in found] == expected
    assert all(objection.text for objection in found)


def test_the_tables_are_large_enough_and_meet_every_rule() -> None:
    """At least fifteen of each, and every code of the page in them."""
    assert min(len(cases.VALID), len(cases.INVALID)) >= 15
    met = {code for _, expected in cases.INVALID.values() for code, _ in expected}
    assert met == CODES
    assert all(f"``{code}``" in (history.__doc__ or "") for code in CODES)


def test_a_body_without_messages_or_model() -> None:
    """What every request must have."""
    found = CHAT.check({"messages": None})
    assert [objection.code for objection in found] == ["C-body", "C-body"]
    assert [objection.code for objection in CHAT.check({"model": "m", "messages": {}})] == ["C-body"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "one of two not answered",
            (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: c2"
            ),
        ),
        (
            "result without call",
            (
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'."
            ),
        ),
        (
            "answered twice",
            "Invalid parameter: Duplicate value for 'tool_call_id' of 'c1', in messages[2] and messages[3].",
        ),
        (
            "arguments an object",
            (
                "Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an "
                "object instead."
            ),
        ),
        ("assistant with nothing", "Invalid value for 'content': expected a string, got null."),
        (
            "no calls in the list",
            (
                "Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1, but got "
                "an empty array instead."
            ),
        ),
    ],
)
def test_the_words_are_those_of_the_api(name: str, text: str) -> None:
    """Known texts are said letter by letter, as clients match on them."""
    assert CHAT.check({"model": "m", "messages": cases.INVALID[name][0]})[0].text == text
