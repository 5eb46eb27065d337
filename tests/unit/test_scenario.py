"""The scenario language: what can be written, and what a person is told who writes it wrongly."""

from __future__ import annotations

import json

import pytest
import yaml

from loopspec import scenario as s
from loopspec.bench.script import Fault, Gate, Open, compile_reply
from loopspec.library import examples
from loopspec.scenario import Reply, Scenario, ScenarioError, Tool, parse
from loopspec.vocabulary import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    FaultKind,
    Reason,
    ReasoningDelta,
    Terminator,
    TextDelta,
    Usage,
)


def one(text: str) -> Scenario:
    (scenario,) = parse(text)
    return scenario


def wrong(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "my.yaml")
    return str(caught.value)


def reply(steps: str) -> Reply:
    return one(f"{{name: a, prompts: [{{replies: [{steps}]}}]}}").prompts[0].replies[0]


# --------------------------------------------------------------------------------------------
# What can be written


def test_the_smallest_scenario_is_a_name_and_a_prompt():
    """Everything else has a default; a recovery prompt follows by itself."""
    scenario = one("{name: a, prompts: [{}]}")
    assert scenario.recovery
    assert scenario.prompts[0].replies == ()


def test_a_file_may_have_several_scenarios_one_a_document():
    """They are divided by three dashes."""
    assert [x.name for x in parse("{name: a, prompts: [{}]}\n---\n{name: b, prompts: [{}]}")] == ["a", "b"]


def test_json_is_yaml():
    """A scenario may be written by a program."""
    assert one(json.dumps({"name": "a", "prompts": [{}]})).name == "a"


def test_every_step_of_a_reply_becomes_what_it_says():
    """Pieces, in order; what was left unsaid is said."""
    steps = "[reasoning: r, text: t, call: c1, usage: {}, reason: toolUse]"
    assert compile_reply(reply(steps)) == (
        Open(), ReasoningDelta("r"), TextDelta("t"), CallStart(0, "c1", "probe"),
        ArgumentsDelta(0, '{"value": "c1"}'), CallEnd(0), Usage(10, 5), Reason("toolUse"), Terminator(),
    )  # fmt: skip


def test_a_call_can_be_sent_in_parts_that_interleave():
    """Its parts are told by its label."""
    steps = """
      - call_start: c1
      - call_start: {label: c2, id: x, tool: probe_number}
      - arguments: {label: c2, text: "{"}
      - arguments: {label: c1, text: "{}"}
      - call_end: c1
      - reason: stop
    """
    document = yaml.safe_load(steps)
    scenario = Scenario.model_validate({"name": "a", "prompts": [{"replies": [document]}]})
    assert compile_reply(scenario.prompts[0].replies[0])[1:6] == (
        CallStart(0, "c1", "probe"), CallStart(1, "x", "probe_number"), ArgumentsDelta(1, "{"),
        ArgumentsDelta(0, "{}"), CallEnd(0),
    )  # fmt: skip


def test_a_part_of_a_call_that_was_not_started_is_an_error_with_a_remedy():
    """It is found when the reply is compiled."""
    with pytest.raises(ValueError, match="'c1' has not been started in this reply; add call_start"):
        compile_reply(reply("[call_end: c1]"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", '{"value": "c1"}'),
        (", arguments: {value: x}", '{"value": "x"}'),
        (', arguments: \'{"value": "x\'', '{"value": "x'),
        (", tool: probe_optional", "{}"),
        (", arguments: ''", ""),
    ],
)
def test_arguments_are_an_object_or_exactly_these_characters(arguments, text):
    """Left out, they are what the tool needs, and name the call."""
    (spec,) = s.calls_of(
        one(f"{{name: a, prompts: [{{replies: [[call: {{label: c1{arguments}}}]]}}]}}").prompts[0]
    )
    assert spec.arguments_text == text


def test_texts_and_arguments_can_be_cut_into_pieces():
    """The pieces add up to the same."""
    pieces = compile_reply(reply("{steps: [text: abcde, reason: stop], chunk: 2}"))
    assert [p.text for p in pieces if isinstance(p, TextDelta)] == ["ab", "cd", "e"]


@pytest.mark.parametrize("word", ["disconnect", "end", "stall", "malformed", "half_frame"])
def test_a_fault_ends_the_reply(word):
    """No terminator follows it."""
    elements = compile_reply(reply(f"[text: a, {word}]"))
    assert elements[-1] == Fault(FaultKind(word))


def test_a_reply_without_a_reason_ends():
    """Its body ends cleanly, and that is all."""
    assert compile_reply(reply("[text: a]"))[-1] == Fault(FaultKind.END)


def test_a_status_comes_instead_of_opening():
    """A number is enough; a message and a retry time may be given."""
    assert compile_reply(reply("[status: 503]")) == (Fault(FaultKind.STATUS, "the provider failed", 503),)
    long = compile_reply(reply("[status: {status: 429, message: slow down, retry_after: 3}]"))
    assert long == (Fault(FaultKind.STATUS, "slow down", 429, 3),)


def test_an_action_holds_the_reply_where_it_stands():
    """Before the first piece the reply is not open yet, unless `open` says so."""
    assert compile_reply(reply("[cancel, text: a, reason: stop]"))[:2] == (Gate("cancel"), Open())
    assert compile_reply(reply("[open, cancel, text: a, reason: stop]"))[:2] == (Open(), Gate("cancel"))


@pytest.mark.parametrize(
    ("short", "steps"),
    [
        ("ok", ("ok",)),
        ("[cancel, deaf]", ("cancel", "deaf")),
        ("{result: x}", (s.ResultStep(result="x"),)),
        ("[{after: c2}, raises]", (s.AfterStep(after="c2"), "raises")),
    ],
)
def test_a_tool_is_a_word_a_result_or_a_list_of_steps(short, steps):
    """It ends in exactly one way."""
    assert Tool.model_validate(yaml.safe_load(short)).steps == steps


def test_a_call_in_a_scenario_is_known_by_its_label_and_on_the_wire_by_its_id():
    """The id is the label unless it is given."""
    calls = list(
        s.calls_of(one("{name: a, prompts: [{replies: [[call: c1, call: {label: c2, id: ''}]]}]}").prompts[0])
    )
    assert [(spec.label, spec.wire_id) for spec in calls] == [("c1", "c1"), ("c2", "")]


def test_on_is_a_word_and_no_truth_value():
    """It may stand without quotes, as a reader takes it."""
    prompt = one("{name: a, prompts: [{on: [{event: tool_start, do: cancel}]}]}").prompts[0]
    assert prompt.on == (s.On(event="tool_start", do="cancel"),)


# --------------------------------------------------------------------------------------------
# What is written wrongly


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\n", ["my.yaml:1: prompts", "Field required"]),
        ("name: a\nprompts: []\n", ["my.yaml:1", "give at least one prompt"]),
        ("name: A b\nprompts: [{}]\n", ["my.yaml:1: name"]),
        ("name: a\nprompt: [{}]\n", ["my.yaml:2: prompt: no such key here"]),
        (
            "name: a\nprompts:\n  - replies:\n      - [txt: hello]\n",
            ["my.yaml:4", "not a step", "'text: ...'", "cancel"],
        ),
        ("name: a\nprompts:\n  - replies:\n      - [cancle]\n", ["my.yaml:4", "not a step"]),
        (
            "name: a\nprompts:\n  - replies: [[call: c1]]\n    tools:\n      c1: okay\n",
            ["my.yaml:5", "not something a tool does", "deaf_never"],
        ),
        (
            "name: a\nprompts:\n  - replies: [[call: c1]]\n    tools: {c1: [cancel]}\n",
            ["my.yaml:4", "end with exactly one of"],
        ),
        (
            "name: a\nprompts:\n  - replies: [[call: c1]]\n    tools: {c1: [ok, cancel, ok]}\n",
            ["my.yaml:4", "end with exactly one of"],
        ),
        (
            "name: a\nprompts:\n  - replies: [[call: c1]]\n    tools: {c2: ok}\n",
            ["tools names 'c2'", "calls there: c1"],
        ),
        ("name: [a\n", ["my.yaml:", "not YAML"]),
        ("- a\n", ["my.yaml:1: a scenario is a mapping"]),
        ("", ["my.yaml:1: no scenario here"]),
        ("name: a\nprompts: [{}]\n---\nname: b\n", ["my.yaml:4: prompts"]),
        ("name: a\nprompts: [{replies: [[status: 200]]}]\n", ["my.yaml:2", "400"]),
        ("name: a\nprompts: [{replies: [{steps: [text: a], chunk: 0}]}]\n", ["my.yaml:2", "chunk"]),
    ],
)
def test_an_error_names_the_file_the_line_and_what_to_write(text, words):
    """Who reads it need not look for the place."""
    said = wrong(text)
    for word in words:
        assert word in said


def test_a_file_that_cannot_be_read_says_so(tmp_path):
    """Missing, or not text."""
    with pytest.raises(ScenarioError, match="cannot be read"):
        s.load(tmp_path / "missing.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="cannot be read"):
        s.load(tmp_path / "bytes.yaml")


# --------------------------------------------------------------------------------------------
# Writing


def test_every_example_can_be_written_and_read_back():
    """What a report prints is something to paste, and is the same scenario."""
    for scenario in examples():
        assert one(s.dumps(scenario)) == scenario


def test_the_written_form_is_short():
    """Defaults are left out and shorthands used, so that a person can read it."""
    text = "{name: a, prompts: [{replies: [[call: c1, reason: stop]], tools: {c1: [ok]}}]}"
    assert s.to_data(one(text)) == {
        "name": "a",
        "prompts": [{"replies": [[{"call": "c1"}, {"reason": "stop"}]], "tools": {"c1": "ok"}}],
    }


def test_scenarios_are_values():
    """They cannot be changed by whoever plays them."""
    scenario = one("{name: a, prompts: [{}]}")
    with pytest.raises(ValueError, match="frozen"):
        scenario.name = "b"  # type: ignore[misc]
