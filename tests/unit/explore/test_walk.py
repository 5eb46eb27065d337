"""Coverage is told from the trace alone, and tells what the machine really went through."""

from __future__ import annotations

import pytest

from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.explore.walk import walk
from loopspec.library import cover, examples
from loopspec.trace import Hung
from loopspec.vocabulary import PROFILES


@pytest.mark.parametrize("profile", PROFILES)
def test_a_trace_is_walked_as_the_machine_that_made_it_went(profile: str) -> None:
    """Row by row, for every scenario of the standard: nothing is invented, nothing is missed.

    A run that hangs is ended by the bench after its trace, so there the walk may stop before.
    """
    claims = PROFILES[profile]
    adapter = ReferenceAdapter(claims)
    with Executor(adapter) as executor:
        for scenario in (*examples(), *cover()):
            forks = any(prompt.fork for prompt in scenario.prompts)
            if forks or any(claims.get(name) != value for name, value in scenario.claims.items()):
                continue
            adapter.sessions.clear()
            trace = executor.run(scenario)
            machines = adapter.sessions[0].loop.machines if adapter.sessions else []
            own = [tuple(machine.path) for machine in machines if machine.path]
            walked = list(walk(trace).paths)
            if any(isinstance(entry, Hung) for entry in trace):
                own = [path[: len(short)] for path, short in zip(own, walked, strict=True)]
            assert walked == own, scenario.name
