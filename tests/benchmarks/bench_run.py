"""Run and record against a bare loop, and judging against running; on the same scenarios.

The bare loop is the least that plays the same scenarios in process: one coroutine, no machine, no
recording, no cancellation. Printed as ratios measured in one run, with the load at that moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable

from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.bench.script import compile_reply
from loopspec.judge import Judge
from loopspec.scenario import Scenario, calls_of, parse
from loopspec.trace_index import TraceIndex
from loopspec.vocabulary import (
    PROFILES,
    ArgumentsDelta,
    AssistantMessage,
    Call,
    CallStart,
    Text,
    TextDelta,
    ToolResult,
    UserMessage,
)

SCENARIOS = parse(
    """
name: two-turns
prompts:
  - replies:
      - [text: "I will look.", call: c1, call: c2, reason: toolUse]
      - [text: "Both are there.", reason: stop]
recovery: false
---
name: answer
prompts:
  - replies:
      - [text: "A first ", text: "and a second ", text: "and a third part.", reason: stop]
recovery: false
---
name: two-prompts
prompts:
  - replies:
      - [call: c1, reason: toolUse]
      - [text: "One.", reason: stop]
  - replies:
      - [text: "Two.", reason: stop]
recovery: false
"""
)


async def bare_loop(scenario: Scenario) -> list[object]:
    """Play a scenario with nothing but a loop: stream, assemble, run tools, go on."""
    history: list[object] = []

    async def stream(elements: tuple[object, ...]):
        for element in elements:
            yield element

    async def tool(arguments: dict[str, str]) -> str:
        return f"result of {arguments['value']}"

    for prompt in scenario.prompts:
        history.append(UserMessage("go on"))
        list(calls_of(prompt))
        for reply in prompt.replies:
            text, calls = "", {}
            async for piece in stream(compile_reply(reply)):
                if isinstance(piece, TextDelta):
                    text += piece.text
                elif isinstance(piece, CallStart):
                    calls[piece.index] = [piece.id, piece.name, ""]
                elif isinstance(piece, ArgumentsDelta):
                    calls[piece.index][2] += piece.text
            made = [Call(*call) for call in calls.values()]
            history.append(AssistantMessage((Text(text), *made)))
            tasks = [asyncio.ensure_future(tool(json.loads(call.arguments))) for call in made]
            for call, result in zip(made, await asyncio.gather(*tasks), strict=True):
                history.append(ToolResult(call.id, call.name, result))
            list(history)
    return history


def per_second(work: Callable[[], None], seconds: float = 1.0) -> float:
    """How often ``work`` can be done a second of CPU time."""
    work()
    count, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        work()
        count += 1
    return count / (time.process_time() - start)


def test_run_and_record_and_judging_as_ratios() -> None:
    """Run and record: at most 3 times the bare loop. Judging: at most as long again as the run."""
    with asyncio.Runner() as runner:

        async def all_bare() -> None:
            for scenario in SCENARIOS:
                await bare_loop(scenario)

        bare = per_second(lambda: runner.run(all_bare()))
    with Executor(ReferenceAdapter(PROFILES["rejecting"])) as executor:
        recorded = per_second(lambda: [executor.run(s) for s in SCENARIOS] and None)
        traces = [executor.run(s) for s in SCENARIOS]
    judge = Judge(PROFILES["rejecting"])
    judged = per_second(lambda: [judge.add(trace) for trace in traces] and None)
    indexed = per_second(lambda: [TraceIndex(trace) for trace in traces] and None)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    print(f"run and record / bare loop: {bare / recorded:.2f} (aim: at most 3)")
    print(f"judging by all rules / run and record: {recorded / judged:.2f} (aim: at most 1)")
    print(f"of which the index: {recorded / indexed:.2f}")
