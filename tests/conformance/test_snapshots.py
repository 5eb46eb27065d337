"""Golden traces: what the reference loop does in each example, under each profile, to the letter.

One file a scenario and profile under ``snapshots/``. They are regression snapshots and reading
matter at once: the specification's pages link to them.
"""

from __future__ import annotations

import pytest

from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.library import examples
from loopspec.scenario import Scenario
from loopspec.vocabulary import PROFILES


def fits(scenario: Scenario, claims: dict[str, str]) -> bool:
    """Whether a loop with these claims can be asked to play the scenario."""
    return all(claims.get(name) == value for name, value in scenario.claims.items())


@pytest.mark.parametrize("profile", PROFILES)
def test_the_reference_does_in_every_example_what_its_golden_trace_shows(profile, loopspec_snapshot):
    """Each example scenario, run on the reference under a profile, gives exactly its golden trace."""
    claims = PROFILES[profile]
    with Executor(ReferenceAdapter(claims)) as executor:
        for scenario in examples():
            if not fits(scenario, claims):
                continue
            member = f".{scenario.family.member}" if scenario.family else ""
            trace = executor.run(scenario)
            assert trace == loopspec_snapshot(f"{profile}/{scenario.name}{member}")
    unused = loopspec_snapshot.unused(profile)
    assert not unused, f"golden traces without a scenario, remove them: {unused}"
