"""The trace: what is written is read back, and what is no trace is refused by line."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopspec import trace as t
from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.vocabulary import (
    ArgumentsDelta,
    AssistantMessage,
    Call,
    CallEnd,
    CallStart,
    Event,
    EventType,
    Message,
    OtherMessage,
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
from meta.rows import WALKS

HEADER = t.Header("a", "reference", "default", "native", "exact")
USER, ANSWER = UserMessage("Go on."), AssistantMessage((Text("Done."),), "stop")

TEXT = st.text(max_size=5)
MAYBE = st.none() | TEXT
CALL = st.builds(Call, TEXT, TEXT, TEXT)
MESSAGE: st.SearchStrategy[Message] = st.one_of(
    st.builds(SystemMessage, TEXT),
    st.builds(UserMessage, TEXT),
    st.builds(OtherMessage, TEXT),
    st.builds(ToolResult, TEXT, MAYBE, TEXT, st.none() | st.booleans(), MAYBE),
    st.builds(
        AssistantMessage,
        st.lists(st.one_of(st.builds(Text, TEXT), st.builds(Reasoning, TEXT), CALL), max_size=3).map(tuple),
        MAYBE, st.booleans(), MAYBE, MAYBE,
    ),
)  # fmt: skip
MESSAGES = st.lists(MESSAGE, max_size=4).map(tuple)
NUMBER = st.integers(1, 9)
PIECE = st.one_of(
    st.builds(TextDelta, TEXT),
    st.builds(ReasoningDelta, TEXT),
    st.builds(CallStart, NUMBER, TEXT, TEXT),
    st.builds(ArgumentsDelta, NUMBER, TEXT),
    st.builds(CallEnd, NUMBER),
    st.builds(Usage, NUMBER, NUMBER),
    st.builds(Reason, TEXT, MAYBE),
    st.just(Terminator()),
)
EVENT = st.builds(
    Event, st.sampled_from([str(kind) for kind in EventType]), MAYBE, MAYBE, MAYBE,
    st.none() | st.booleans(), MAYBE, st.none() | st.booleans(),
)  # fmt: skip
RAW = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-9, 9) | TEXT, max_size=2)
FINDINGS = st.lists(st.builds(t.Finding, TEXT, TEXT), max_size=2).map(tuple)
ENTRY = st.one_of(
    st.builds(t.Prompted, NUMBER, TEXT, st.booleans(), st.booleans(), st.booleans()),
    st.builds(
        t.Requested, NUMBER, st.none() | NUMBER, MESSAGES, st.sampled_from(["script", "default"]),
        st.booleans(), st.lists(TEXT, max_size=2).map(tuple), FINDINGS,
    ),
    st.builds(t.Opened, NUMBER),
    st.builds(t.Sent, NUMBER, PIECE),
    st.builds(t.Faulted, NUMBER, TEXT, MAYBE),
    st.builds(t.Closed, NUMBER, TEXT),
    st.builds(t.Signalled, TEXT, NUMBER),
    st.builds(t.ToolStarted, NUMBER, TEXT, TEXT, MAYBE, st.none() | NUMBER),
    st.builds(t.ToolSettled, NUMBER, TEXT, TEXT, MAYBE),
    st.builds(t.CancelSent, NUMBER, TEXT),
    st.builds(t.CancelReturned, NUMBER),
    st.builds(t.Told, EVENT),
    st.just(t.ListenerRaised()),
    st.builds(t.Settled, NUMBER, TEXT, TEXT, MAYBE, MAYBE, MAYBE, RAW),
    st.builds(t.Hung, NUMBER, TEXT),
    st.builds(t.HistoryRead, NUMBER, MESSAGES),
    st.builds(t.TargetLost, TEXT),
)  # fmt: skip


@given(st.lists(ENTRY, max_size=6))
def test_any_trace_is_read_back_as_it_was_written(entries):
    """Every kind of entry, every field, whatever the text."""
    trace = t.Trace((HEADER, *entries))
    assert t.loads(t.dumps(trace)) == trace


@pytest.mark.parametrize("text", ["a\u2028b", "a\u0085b", "a\x1cb", "a\rb", "a\nb"], ids=ascii)
def test_a_line_ends_only_at_a_newline(text):
    """Characters that Unicode counts as line ends stand in texts unescaped, and end no line."""
    trace = t.Trace((HEADER, t.Prompted(1, text)))
    assert t.loads(t.dumps(trace)) == trace


@pytest.mark.parametrize("walk", WALKS[::9], ids=str)
def test_recorded_traces_are_read_back_as_they_were_written(walk):
    """So are those that the bench records."""
    with Executor(ReferenceAdapter(walk.claims)) as executor:
        trace = executor.run(walk.scenario)
    assert t.loads(t.dumps(trace)) == trace


def test_every_kind_of_entry_is_known_by_its_kind():
    """The table of entries is the union's."""
    kinds = {cls.kind for cls in t.Entry.__args__}  # type: ignore[attr-defined]
    assert set(t.ENTRIES) == kinds


def test_a_trace_is_one_entry_a_line():
    """So that it can be cut, searched and compared with the tools that everybody has."""
    lines = t.dumps(t.Trace((HEADER, t.Prompted(1, "two\nlines")))).splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["header", "prompted"]


def test_a_request_is_written_as_what_it_adds():
    """What is the same as in the request before is counted, not repeated."""
    first = t.Requested(1, 1, (USER,))
    second = t.Requested(2, 1, (USER, ANSWER, USER))
    lines = t.dumps(t.Trace((HEADER, first, second))).splitlines()
    assert json.loads(lines[2])["kept"] == 1
    assert len(json.loads(lines[2])["messages"]) == 2


def test_a_request_that_lost_messages_is_read_back_too():
    """A target may rewrite its history; that is what rules want to see."""
    trace = t.Trace((HEADER, t.Requested(1, 1, (USER, ANSWER)), t.Requested(2, 1, (ANSWER,))))
    assert t.loads(t.dumps(trace)) == trace


def test_fields_at_their_defaults_are_left_out():
    """A line says what is particular."""
    assert t.entry_to_json(t.Settled(1, "completed", "returned")) == {
        "kind": "settled", "prompt": 1, "outcome": "completed", "form": "returned",
    }  # fmt: skip


def test_empty_lines_are_no_entries():
    """A trailing line does no harm."""
    text = t.dumps(t.Trace((HEADER,)))
    assert t.loads("\n" + text + "\n\n") == t.Trace((HEADER,))


def test_lines_may_come_one_by_one():
    """A trace can be read from an open file."""
    trace = t.Trace((HEADER, t.ListenerRaised()))
    assert t.loads(iter(t.dumps(trace).splitlines())) == trace


OLD = json.dumps({**t.entry_to_json(HEADER), "format": 99})


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "line 1: a trace starts with its header"),
        (['{"kind": "opened", "request": 1}'], "line 1: a trace starts with its header"),
        (["not json"], "line 1: Expecting value"),
        (["[]"], "line 1: an entry is a JSON object"),
        ([None, '{"kind": "opend"}'], "line 2: unknown kind 'opend'; expected one of header, prompted"),
        ([None, "{}"], "line 2: unknown kind None"),
        ([None, '{"kind": "opened"}'], "line 2: not a opened entry"),
        ([None, '{"kind": "opened", "request": 1, "more": 2}'], "line 2: not a opened entry"),
        ([None, '{"kind": "sent", "request": 1, "piece": {"type": "??"}}'], "line 2: not a sent entry"),
        (
            [None, '{"kind": "requested", "request": 1, "prompt": 1, "messages": [], "kept": 1}'],
            "line 2: kept is 1, but the request before had 0",
        ),
        ([OLD], "line 1: trace format 99, this loopspec reads 1"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(lines, words):
    """And with what was expected there."""
    header = json.dumps(t.entry_to_json(HEADER))
    with pytest.raises(t.TraceError) as caught:
        t.loads([line or header for line in lines])
    assert words in str(caught.value)


def test_a_trace_without_its_header_is_none():
    """In memory too."""
    with pytest.raises(t.TraceError, match="starts with its header"):
        _ = t.Trace((t.ListenerRaised(),)).header


def test_entries_are_values():
    """They are equal by what they say, and cannot be changed."""
    assert t.Opened(1) == t.Opened(1) != t.Opened(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        t.Opened(1).request = 2  # type: ignore[misc]
