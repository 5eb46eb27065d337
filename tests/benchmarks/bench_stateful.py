"""The lockstep on the reference in process, against the same rules with nothing in them."""

from __future__ import annotations

import os
import time
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from loopspec.adapters.reference import ReferenceAdapter
from loopspec.explore import stateful
from loopspec.vocabulary import PROFILES

EXAMPLES = settings(
    max_examples=100, stateful_step_count=20, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck), phases=[Phase.generate],
)  # fmt: skip


class Counts(stateful.Lockstep):
    """The lockstep, counted: steps that Hypothesis drew, and moves that were sent and compared."""

    steps = 0
    moves = 0

    def _reach(self, *args: Any, **kwargs: Any) -> bool:
        Counts.steps += self.bench is not None
        return super()._reach(*args, **kwargs)

    def _compare(self) -> None:
        Counts.moves += 1
        super()._compare()

    def _wind_down(self) -> None:
        before = Counts.steps, Counts.moves
        super()._wind_down()
        Counts.steps, Counts.moves = before  # nobody drew these


class Empty(RuleBasedStateMachine):
    """The same rules, drawn in the same way, with empty bodies: what Hypothesis itself costs."""

    steps = 0

    def teardown(self) -> None: ...

    def _step(self) -> None:
        Empty.steps += 1

    @initialize(max_turns=st.sampled_from((None, None, 1, 2, 3)))
    def opens(self, max_turns: int | None) -> None: ...

    @rule()
    def prompts(self) -> None:
        self._step()

    @rule()
    def forks(self) -> None:
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

    @rule(deaf=st.booleans(), status=stateful.STATUS)
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

    @rule(reason=stateful.REASONS)
    def ends_for(self, reason: str) -> None:
        self._step()

    @rule()
    def terminates(self) -> None:
        self._step()

    @rule(kind=stateful.BREAKS)
    def breaks(self, kind: object) -> None:
        self._step()

    @rule(data=st.data(), how=st.sampled_from(stateful.TOOL_ENDS))
    def ends_a_tool(self, data: st.DataObject, how: str) -> None:
        self._step()


def a_second(machine: type[Counts | Empty]) -> tuple[float, float]:
    """Steps and moves a second of CPU time; an empty step is one move."""
    steps, moves, start = machine.steps, getattr(machine, "moves", machine.steps), time.process_time()
    run_state_machine_as_test(machine, settings=EXAMPLES)
    seconds = time.process_time() - start
    after = getattr(machine, "moves", machine.steps)
    return (machine.steps - steps) / seconds, (after - moves) / seconds


def test_steps_a_second_as_a_ratio() -> None:
    """The aim is half the steps a second of the same rules with empty bodies.

    A step that cannot be made where the target is takes several moves, each sent and compared, so
    both are counted.
    """
    Counts.make_adapter = staticmethod(lambda: ReferenceAdapter(PROFILES["durable-prefix"]))
    for _ in range(2):  # the first time warms the caches of both
        steps, moves = a_second(Counts)
        floor, _same = a_second(Empty)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    print(f"lockstep {steps:.0f} steps drawn and {moves:.0f} moves compared a second, ", end="")
    print(f"empty bodies {floor:.0f} steps")
    print(f"moves compared / empty steps: {moves / floor:.2f}")
    print(f"steps drawn / empty steps: {steps / floor:.2f} (aim: at least 0.5)")
