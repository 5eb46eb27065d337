"""The lockstep on the reference in process, against the same rules with nothing in them."""

from __future__ import annotations

import os
import time

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from loopspec.adapters.reference import ReferenceAdapter
from loopspec.explore import stateful
from loopspec.vocabulary import PROFILES

EXAMPLES = settings(
    max_examples=100, stateful_step_count=40, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck), phases=[Phase.generate],
)  # fmt: skip


class Counts(stateful.Lockstep):
    """The lockstep, with its steps counted where they are compared."""

    steps = 0

    def _compare(self) -> None:
        Counts.steps += 1
        super()._compare()


class Empty(RuleBasedStateMachine):
    """The same rules, drawn in the same way, with empty bodies: what Hypothesis itself costs."""

    steps = 0

    def teardown(self) -> None: ...

    def _step(self) -> None:
        Empty.steps += 1

    @rule()
    def prompts(self) -> None:
        self._step()

    @rule()
    def prompts_again(self) -> None:
        self._step()

    @rule()
    def cancels(self) -> None:
        self._step()

    @rule()
    def will_raise_in_the_listener(self) -> None:
        self._step()

    @rule(deaf=st.booleans(), status=stateful._STATUS)
    def answers_the_request(self, deaf: bool, status: int | None) -> None:
        self._step()

    @rule(text=st.sampled_from(stateful.TEXTS), thought=st.booleans())
    def says(self, text: str, thought: bool) -> None:
        self._step()

    @rule(call=st.sampled_from(stateful.CALLS), ended=st.sampled_from((True, True, True, False)))
    def calls(self, call: tuple[str, str], ended: bool) -> None:
        self._step()

    @rule()
    def counts(self) -> None:
        self._step()

    @rule(reason=stateful._REASONS)
    def ends_for(self, reason: str) -> None:
        self._step()

    @rule()
    def terminates(self) -> None:
        self._step()

    @rule(kind=stateful._BREAKS)
    def breaks(self, kind: object) -> None:
        self._step()

    @rule(data=st.data(), how=st.sampled_from(("ok", "ok", "raises", "heeds")))
    def ends_a_tool(self, data: st.DataObject, how: str) -> None:
        self._step()


def steps_per_second(machine: type[Counts | Empty]) -> float:
    """Steps a second of CPU time."""
    before, start = machine.steps, time.process_time()
    run_state_machine_as_test(machine, settings=EXAMPLES)
    return (machine.steps - before) / (time.process_time() - start)


def test_steps_a_second_as_a_ratio() -> None:
    """At least half the steps a second of the same rules with empty bodies."""
    Counts.make_adapter = staticmethod(lambda: ReferenceAdapter(PROFILES["rejecting"]))
    for _ in range(2):  # the first time warms the caches of both
        real = steps_per_second(Counts)
        floor = steps_per_second(Empty)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    print(f"lockstep {real:.0f}, empty bodies {floor:.0f} steps a second")
    print(f"lockstep / empty bodies: {real / floor:.2f} (aim: at least 0.5)")
