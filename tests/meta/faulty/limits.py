"""Loops that miscount their turns, or do not say that they ran out of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from loopspec import machine as fsm
from loopspec.loop import ReferenceLoop
from loopspec.machine import GUARDS, Machine, Row, State
from loopspec.vocabulary import Outcome
from meta.faulty import fault, machine_with
from meta.faulty.completion import judges, settles


def reached(by: int) -> type[Machine]:
    """A machine that takes its limit for a larger or a smaller one."""

    def limit(m: Machine, _: Any) -> bool:
        return m.max_turns is not None and m.turn >= max(1, m.max_turns + by)

    return machine_with(guards={"limit reached": limit, "turns left": lambda m, i: not limit(m, i)})


fault("limits.requests-counted", "makes-one-request-more-than-its-limit",
      "Looks at the limit when it has been passed.", machine=reached(1))  # fmt: skip
fault("limits.requests-counted", "makes-one-request-less-than-its-limit",
      "Takes the limit for the number of turns after the first.", machine=reached(-1))  # fmt: skip


def _tools_run(m: Machine) -> int:
    return sum(given is fsm.CallInput.START for _, given in m.call_path)


def _tools_at_limit(m: Machine, _: Any) -> bool:
    return m.max_turns is not None and _tools_run(m) >= m.max_turns


fault("limits.checked-before-request", "counts-its-tools-instead-of-its-requests",
      "A request whose calls all fail their checks costs nothing.",
      machine=machine_with(guards={
          "limit reached": _tools_at_limit, "turns left": lambda m, i: not _tools_at_limit(m, i),
      }))  # fmt: skip
fault("limits.checked-before-request", "leaves-the-last-turn-s-calls-unrun",
      "Looks at the limit before the batch, whose calls are then without results.",
      machine=judges(
          Row("calls at the limit", State.FAILED, "fail by the limit"),
          calls_at_the_limit=lambda m, i: bool(m.calls) and GUARDS["limit reached"](m, i),
      ))  # fmt: skip
fault("limits.never-success", "completes-when-its-turns-are-over",
      "Reports the last reply, whose calls it ran, as the answer.",
      machine=settles("fail by the limit", Outcome.COMPLETED))  # fmt: skip


def _complete_with_text(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    talks = m.reply is not None and bool(m.reply.text.strip())
    fsm.ACTIONS["settle with the answer" if talks else "fail by the limit"](m, i, out)


fault("limits.never-success", "takes-the-text-beside-its-last-calls-for-the-answer",
      "Completes at its limit if the last reply had a text beside its calls.",
      machine=machine_with(actions={"fail by the limit": _complete_with_text}))  # fmt: skip
fault("limits.answer-on-last-turn", "fails-with-an-answer-on-the-last-turn",
      "Looks at the limit before it looks at the reply.",
      machine=judges(
          Row("answer at the limit", State.FAILED, "fail by the limit"),
          answer_at_the_limit=lambda m, i: GUARDS["answer"](m, i) and GUARDS["limit reached"](m, i),
      ))  # fmt: skip


class CountsOn(ReferenceLoop):
    """Counts the turns of the conversation, and not those of the run."""

    def _idle_machine(self) -> Machine:
        machine = super()._idle_machine()
        machine.turn = self.machines[-1].turn if self.machines else 0
        return machine


class CountsOnAfterFailures(ReferenceLoop):
    """Forgets its turns when a run completes, and keeps them when one fails."""

    def _idle_machine(self) -> Machine:
        machine = super()._idle_machine()
        last = self.machines[-1] if self.machines else None
        machine.turn = last.turn if last is not None and last.state is State.FAILED else 0
        return machine


def takes_limits(change: Callable[[Any], Any]) -> type[ReferenceLoop]:
    """A loop that makes something of a limit before it looks whether it is one."""

    class Takes(ReferenceLoop):
        def __init__(
            self, model: Any, tools: Any, choices: Any, max_turns: Any = None, *args: Any, **kwargs: Any
        ):
            super().__init__(model, tools, choices, change(max_turns), *args, **kwargs)

    return Takes


def _whole_or_none(limit: Any) -> Any:
    return limit if isinstance(limit, int) and limit > 0 else None


fault("limits.counter-is-per-run", "counts-the-turns-of-the-conversation",
      "A second prompt has only the turns that the first one left.", loop=CountsOn)  # fmt: skip
fault("limits.counter-is-per-run", "keeps-the-turns-of-a-run-that-failed",
      "Forgets its turns only when a run completes.", loop=CountsOnAfterFailures)  # fmt: skip
fault("limits.invalid-limit", "takes-a-limit-of-nothing-for-no-limit",
      "Runs without a limit where it was given zero, less than that or a fraction.",
      loop=takes_limits(_whole_or_none))  # fmt: skip
fault("limits.invalid-limit", "rounds-its-limit-up",
      "Takes one and a half turns for two.",
      loop=takes_limits(lambda limit: limit if limit is None else math.ceil(limit)))  # fmt: skip
