"""The reference in lockstep with the machine, and under scenarios that nobody wrote.

Two ways past the bound of the enumeration. In lockstep each step is drawn when the one before it
was compared; whole scenarios are drawn at once and judged by the rules alone.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test

from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.explore.stateful import Difference, lockstep
from loopspec.explore.strategies import scenarios
from loopspec.judge import Judge
from loopspec.machine import Kind, Row, State
from loopspec.rules import RULES, Broke
from loopspec.scenario import Scenario
from loopspec.vocabulary import PROFILES, Level
from meta.faulty import claims, machine_with, reference
from meta.faulty.limits import reached

SAME_EACH_TIME = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate], print_blob=False,
)  # fmt: skip
"""No example depends on the machine, the day or the run before."""


@pytest.mark.parametrize("profile", PROFILES)
def test_the_reference_keeps_step_with_the_machine(profile: str) -> None:
    """Whatever the next step is, the loop does what the machine may do, and keeps every rule."""
    steps = settings(SAME_EACH_TIME, max_examples=40, stateful_step_count=20)
    run_state_machine_as_test(lockstep(lambda: ReferenceAdapter(PROFILES[profile])), settings=steps)


@pytest.mark.parametrize("changes", [
    {"tools": "parallel-completion-order"}, {"tools": "parallel-source-order", "cancelled_tool": "races"},
    {"concurrent_prompt": "apart"}, {"listener_failure": "ignored", "empty_stop": "asks-again"},
    {"length": "answers", "tool_exception": "raises", "unknown_tool": "raises"},
], ids=lambda changes: " ".join(changes.values()))  # fmt: skip
def test_so_it_does_with_other_claims(changes: dict[str, str]) -> None:
    """A claim is a setting of the loop and of the machine alike."""
    steps = settings(SAME_EACH_TIME, max_examples=20, stateful_step_count=15)
    machine = lockstep(lambda: ReferenceAdapter(claims(**changes)))
    run_state_machine_as_test(machine, settings=steps)


STAYS = machine_with(rows={(State.STREAMING, Kind.CANCEL): (Row("always", State.STREAMING, "do nothing"),)})
RUNS_CUT_CALLS = machine_with(guards={"with calls": lambda m, _: bool(m.calls)})


@pytest.mark.parametrize(
    "machine", [STAYS, RUNS_CUT_CALLS, reached(1)], ids=["deaf to cancel", "runs cut calls", "limit too high"]
)
def test_a_loop_that_goes_wrong_is_found_at_the_step_that_shows_it(machine: type) -> None:
    """The difference names the entry, where the machine was, and what would have been legal."""
    target = lockstep(reference("wrong", machine=machine))
    with pytest.raises(Difference, match=r"legal: |the target does nothing, but"):
        run_state_machine_as_test(
            target, settings=settings(SAME_EACH_TIME, max_examples=200, stateful_step_count=20)
        )


def test_what_is_found_is_made_small() -> None:
    """Hypothesis leaves out the steps that the difference does not need."""
    small = settings(SAME_EACH_TIME, max_examples=200, phases=[Phase.generate, Phase.shrink])
    with pytest.raises(Difference) as found:
        run_state_machine_as_test(lockstep(reference("wrong", machine=STAYS)), settings=small)
    trace = str(found.value)
    assert trace.count('"prompted"') == 1
    assert trace.count('"sent"') <= 1, "a reply that is open is enough"


def test_a_target_of_another_grade_is_told_so() -> None:
    """Where nobody knows when a step is over there is no lockstep."""
    adapter = ReferenceAdapter(claims())
    variant = adapter.manifest.variants["default"].model_copy(update={"grade": "event"})
    adapter.manifest = adapter.manifest.model_copy(update={"variants": {"default": variant}})
    with pytest.raises(ValueError, match="needs a target in this process at grade exact"):
        run_state_machine_as_test(lockstep(lambda: adapter), settings=SAME_EACH_TIME)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_reference_keeps_every_rule_in_scenarios_that_nobody_wrote(profile: str) -> None:
    """Whole scenarios, drawn: odd texts and arguments, actions anywhere, two at once."""
    own = PROFILES[profile]
    with Executor(ReferenceAdapter(own)) as executor:

        @settings(SAME_EACH_TIME, max_examples=200)
        @given(scenarios(claims=own, observes=("events", "limit")))
        def keeps_every_rule(scenario: Scenario) -> None:
            found = Judge(own).add(executor.run(scenario))
            broken = {
                name: [item.words for item in items if isinstance(item, Broke)]
                for name, items in found.items()
                if RULES[name].level is not Level.OBSERVED and any(isinstance(item, Broke) for item in items)
            }
            assert not broken, scenario.model_dump_json(exclude_defaults=True)

        keeps_every_rule()
