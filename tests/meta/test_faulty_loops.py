"""The tester tested: each faulty loop is caught by the rule that names its fault, controls by none.

Each loop runs end to end through an adapter. The rule's own example is taken away first: what finds
the fault is the rest of the standard's scenarios, so an example that merely recites its fault
proves nothing. The last test prints the matrix of rule by faulty loop.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from loopspec.bench.executor import Executor
from loopspec.judge import Judge
from loopspec.library import cover, examples
from loopspec.rules import RULES
from loopspec.scenario import Scenario
from loopspec.vocabulary import Level, Verdict
from meta.faulty import CONTROLS, FAULTS, Control, Fault
from meta.faulty import chapters as chapters

JUDGED = [name for name, rule in RULES.items() if rule.level is not Level.OBSERVED]


def without_example(rule: str) -> list[Scenario]:
    """The standard's scenarios without those that are examples of ``rule``."""
    return [scenario for scenario in (*examples(), *cover()) if rule not in scenario.rules]


def playable(scenarios: list[Scenario], claims: dict[str, str]) -> Iterator[Scenario]:
    """The scenarios that a loop with these claims can be asked to play."""
    for scenario in scenarios:
        if all(claims.get(name) == value for name, value in scenario.claims.items()):
            yield scenario


@functools.cache
def first_catch(name: str) -> tuple[Scenario | None, set[str]]:
    """The first scenario whose run breaks the fault's rule, and every rule broken until then.

    Faults are looked up by name, so that each runs once for all tests of this module.
    """
    fault = FAULTS[name]
    adapter = fault.adapter()
    claims = adapter.manifest.claims_for("default")
    judge = Judge(claims)
    relation = RULES[fault.rule].relation
    with Executor(adapter) as executor:
        for scenario in playable(without_example(fault.rule), claims):
            judge.add(executor.run(scenario))
            if relation and scenario.family is not None:
                judge.finish_families(fault.rule)
            if judge.results[fault.rule].breaks:
                return scenario, {name for name, r in judge.results.items() if r.breaks}
    return None, {name for name, r in judge.results.items() if r.breaks}


@pytest.mark.parametrize("rule", JUDGED)
def test_every_rule_has_a_loop_that_breaks_it(rule: str) -> None:
    """A check that cannot fail is a defect: for each rule there is at least one faulty loop."""
    assert any(fault.rule == rule for fault in FAULTS.values()), f"no faulty loop breaks {rule}"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=str)
def test_a_faulty_loop_is_caught_by_the_rule_that_names_its_fault(fault: Fault) -> None:
    """A loop with one fault breaks that fault's rule in some scenario that is not its example."""
    scenario, broken = first_catch(fault.name)
    assert scenario is not None, (
        f"{fault.name} ({fault.words}) is not caught by {fault.rule} without its own example; "
        f"broken: {', '.join(sorted(broken)) or 'nothing'}"
    )


@pytest.mark.parametrize("control", CONTROLS.values(), ids=str)
def test_a_legal_variant_breaks_no_rule(control: Control) -> None:
    """A loop that is unusual in a legal way stays clean under its claims."""
    adapter = control.adapter()
    claims = adapter.manifest.claims_for("default")
    judge = Judge(claims)
    with Executor(adapter) as executor:
        for scenario in playable([*examples(), *cover()], claims):
            judge.add(executor.run(scenario))
    results = judge.finish()
    broken = {
        name: result.breaks[0]
        for name, result in results.items()
        if result.verdict in (Verdict.FAIL, Verdict.VARIES)
    }
    assert not broken, f"{control.name} ({control.words}) is legal, but: {broken}"


def test_there_are_at_least_ten_legal_variants() -> None:
    """A suite that cries wolf is worth nothing: ten loops and more are left alone."""
    assert len(CONTROLS) >= 10


def test_the_matrix_of_rules_by_faulty_loops(capsys: pytest.CaptureFixture[str]) -> None:
    """Print, a line a faulty loop, the rule that names it, what found it, and what else it broke."""
    lines = []
    for fault in FAULTS.values():
        scenario, broken = first_catch(fault.name)
        others = " ".join(sorted(broken - {fault.rule}))
        found = scenario.name if scenario else "NOT FOUND"
        lines.append(f"{fault.rule:<40} {fault.name:<48} {found:<48} {others}".rstrip())
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert not any("NOT FOUND" in line for line in lines), "a fault is not found"
