"""Run and record against a bare loop, and judging against running; on the same scenarios.

The bare loop is the least that plays the same scenarios on the same bench: a while loop with no
machine in it, and nothing recorded. Printed as ratios measured in one run, with the load at that moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable

from loopspec.adapters.protocol import ModelRequest, Returned
from loopspec.adapters.reference import ReferenceAdapter, reference_manifest
from loopspec.bench.executor import Executor
from loopspec.bench.recorder import Recorder
from loopspec.bench.script import compile_reply
from loopspec.judge import Judge
from loopspec.scenario import Scenario, parse
from loopspec.trace_index import TraceIndex
from loopspec.vocabulary import (
    PROFILES,
    ArgumentsDelta,
    AssistantMessage,
    Call,
    CallStart,
    Event,
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


async def naked_loop(scenario: Scenario) -> list[object]:
    """A scenario's content with nothing round it: no provider, no tools of a bench, no listener."""
    history: list[object] = []

    async def stream(elements: tuple[object, ...]):
        for element in elements:
            yield element

    async def tool(arguments: dict[str, str]) -> str:
        return f"result of {arguments['value']}"

    for prompt in scenario.prompts:
        history.append(UserMessage("go on"))
        for reply in prompt.replies:
            made, text = await assemble(stream(compile_reply(reply)))
            history.append(AssistantMessage((Text(text), *made)))
            tasks = [asyncio.ensure_future(tool(json.loads(call.arguments))) for call in made]
            for call, result in zip(made, await asyncio.gather(*tasks), strict=True):
                history.append(ToolResult(call.id, call.name, result))
    return history


async def assemble(stream, tell=lambda event: None) -> tuple[list[Call], str]:
    """The calls and the text of a reply."""
    text, calls = "", {}
    async for piece in stream:
        if isinstance(piece, TextDelta):
            text += piece.text
            tell(Event("text_delta", text=piece.text))
        elif isinstance(piece, CallStart):
            calls[piece.index] = [piece.id, piece.name, ""]
        elif isinstance(piece, ArgumentsDelta):
            calls[piece.index][2] += piece.text
    return [Call(*call) for call in calls.values()], text


class BareSession:
    """The least loop that plays the same scenarios on the same bench: no machine in it."""

    def __init__(self, bench) -> None:
        self.bench, self.messages = bench, []
        self.tools = {tool.name: tool for tool in bench.tools}

    async def prompt(self, text: str):
        self.messages.append(UserMessage(text))
        while True:
            request = ModelRequest(tuple(self.messages), tuple(self.tools))
            calls, said = await assemble(await self.bench.model(request), self.bench.tell)
            self.messages.append(AssistantMessage((Text(said), *calls)))
            if not calls:
                return Returned({"text": said})
            for call in calls:
                self.bench.tell(Event("tool_start", call_id=call.id))
                result = await self.tools[call.name].call(json.loads(call.arguments), call.id)
                self.bench.tell(Event("tool_end", call_id=call.id))
                self.messages.append(ToolResult(call.id, call.name, result))

    def cancel(self) -> None: ...

    def history(self):
        return list(self.messages)

    async def close(self) -> None: ...


class BareAdapter:
    """Opens bare sessions."""

    manifest = reference_manifest({}, "bare")

    async def open(self, bench, settings):
        return BareSession(bench)


def per_second(work: Callable[[], None], seconds: float = 1.0) -> float:
    """How often ``work`` can be done a second of CPU time."""
    work()
    count, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        work()
        count += 1
    return count / (time.process_time() - start)


def scenarios_per_second(adapter) -> float:
    """How many of the scenarios an adapter plays a second of CPU time."""
    with Executor(adapter) as executor:
        return len(SCENARIOS) * per_second(lambda: [executor.run(s) for s in SCENARIOS] and None)


def test_run_and_record_and_judging_as_ratios(monkeypatch) -> None:
    """Run and record: at most 3 times the bare loop. Judging: at most as long again as the run."""
    with asyncio.Runner() as runner:

        async def all_naked() -> None:
            for scenario in SCENARIOS:
                await naked_loop(scenario)

        naked = len(SCENARIOS) * per_second(lambda: runner.run(all_naked()))
    reference = ReferenceAdapter(PROFILES["rejecting"])
    recorded = scenarios_per_second(reference)
    with Executor(reference) as executor:
        traces = [executor.run(s) for s in SCENARIOS]
    judge = Judge(PROFILES["rejecting"])
    judged = len(traces) * per_second(lambda: [judge.add(trace) for trace in traces] and None)
    indexed = len(traces) * per_second(lambda: [TraceIndex(trace) for trace in traces] and None)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "add", lambda self, entry: None)
        bare = scenarios_per_second(BareAdapter())
    print(f"\nload {os.getloadavg()[0]:.1f}")
    print(f"run and record / bare loop on the bench: {bare / recorded:.2f} (aim: at most 3)")
    print(f"run and record / a loop with nothing round it: {naked / recorded:.2f} (for the record)")
    print(f"judging by all rules / run and record: {recorded / judged:.2f} (aim: at most 1)")
    print(f"the index alone / run and record: {recorded / indexed:.2f}")
