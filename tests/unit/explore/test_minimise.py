"""From a scenario that breaks a rule to the smallest one that still does."""

from __future__ import annotations

from loopspec.explore.minimise import minimise, size, smaller
from loopspec.scenario import Scenario, calls_of, parse

BIG = parse(
    """
name: big
prompts:
  - replies:
      - {chunk: 1, steps: [text: "I will look.", call: {label: c1, tool: probe}, call: {label: c2, tool: probe}, reason: toolUse]}
      - [text: "Done.", reason: stop]
    tools: {c1: [raises], c2: [deaf]}
  - replies:
      - [text: "Again.", reason: stop]
"""
)[0]


def has_a_call_that_raises(scenario: Scenario) -> bool:
    """Stands for a rule that is broken whenever a tool raises."""
    return any(
        spec.label in prompt.tools and prompt.tools[spec.label].steps[-1] == "raises"
        for prompt in scenario.prompts
        for spec in calls_of(prompt)
    )


def test_what_the_failure_does_not_need_is_left_out() -> None:
    """One prompt, one reply, one call, and the tool that raises are left."""
    found = minimise(BIG, has_a_call_that_raises, runs_at_most=500)
    (prompt,) = found.prompts
    assert [spec.label for spec in calls_of(prompt)] == ["c1"]
    assert list(prompt.tools) == ["c1"]
    assert len(prompt.replies) == 1
    assert not found.recovery
    assert prompt.replies[0].chunk is None


def test_the_result_still_breaks_the_rule_when_the_runs_are_used_up() -> None:
    """The number of runs is bounded; whatever was found until then is a real failure."""
    for bound in range(6):
        assert has_a_call_that_raises(minimise(BIG, has_a_call_that_raises, bound))


def test_each_step_is_smaller() -> None:
    """So that it comes to an end."""
    assert all(size(candidate) < size(BIG) for candidate in smaller(BIG))


def test_the_same_failure_gives_the_same_scenario() -> None:
    """The order of the attempts is fixed."""
    first = minimise(BIG, has_a_call_that_raises)
    assert first == minimise(BIG, has_a_call_that_raises)
