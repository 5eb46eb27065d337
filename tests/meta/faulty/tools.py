"""Loops that do wrong with tools: they run, check, mark, order or pass on what they should not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from loopspec import machine as fsm
from loopspec.loop import LoopTool, ReferenceLoop
from loopspec.machine import ABORTED_TEXT
from loopspec.vocabulary import Call, Message, Outcome, ToolResult, is_complete_json
from meta.faulty import claims, fault, machine_with
from meta.faulty.parts import in_groups, keeps_results, sends, set_to

# --------------------------------------------------------------------------------------------
# Tools that are not what the model asked for


class _Tool:
    """A tool round a tool; what it does to it is its subclasses' matter."""

    def __init__(self, inner: LoopTool) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def schema(self) -> Any:
        return self.inner.schema

    async def call(self, arguments: Any, call_id: str, signal: Any) -> str:
        return await self.inner.call(arguments, call_id, signal)


def wraps_tools(wrapper: type[_Tool]) -> type[ReferenceLoop]:
    """A loop that puts something round each of its tools."""

    class Wraps(ReferenceLoop):
        def __init__(self, model: Any, tools: Sequence[LoopTool] = (), *args: Any, **kwargs: Any) -> None:
            super().__init__(model, [wrapper(tool) for tool in tools], *args, **kwargs)

    return Wraps


class Twice(_Tool):
    """Runs the tool a second time, for its result."""

    async def call(self, arguments: Any, call_id: str, signal: Any) -> str:
        await self.inner.call(arguments, call_id, signal)
        return await self.inner.call(arguments, call_id, signal)


class Again(_Tool):
    """Runs a tool that raised again."""

    async def call(self, arguments: Any, call_id: str, signal: Any) -> str:
        try:
            return await self.inner.call(arguments, call_id, signal)
        except Exception:
            if signal is not None and signal.aborted:
                raise
            return await self.inner.call(arguments, call_id, signal)


class FirstArguments(ReferenceLoop):
    """Runs every call of a batch with the arguments of the first."""

    async def _run_tool(self, run: Any, place: int, call: Call) -> None:
        first = run.machine.calls[0].call
        same = first.name == call.name
        await super()._run_tool(run, place, dataclasses.replace(first, id=call.id) if same else call)


class LeavesOutTheLast(ReferenceLoop):
    """Answers the last of several calls without running it."""

    def _start_tool(self, run: Any, output: fsm.StartTool) -> None:
        if output.place and output.place == len(run.machine.calls) - 1:
            run.feed(fsm.ToolSettled(output.place, "ok"))
        else:
            super()._start_tool(run, output)


fault("tools.executed-once", "runs-every-tool-twice", "Each call enters its tool twice.",
      loop=wraps_tools(Twice))  # fmt: skip
fault("tools.executed-once", "runs-a-tool-that-raised-again", "A tool that raised is tried once more.",
      loop=wraps_tools(Again))  # fmt: skip
fault("tools.executed-once", "runs-every-call-with-the-first-one-s-arguments",
      "The calls of a batch share the arguments of its first call.", loop=FirstArguments)  # fmt: skip
fault("tools.executed-once", "never-runs-the-last-call",
      "The last of several calls is answered without having been run.", loop=LeavesOutTheLast)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Calls that fail


class OneSpoilsAll(ReferenceLoop):
    """Once a call of a batch has failed, those after it are not run, and the model goes on."""

    def _start_tool(self, run: Any, output: fsm.StartTool) -> None:
        failed = [c for c in run.machine.calls if c.result is not None and c.result.is_error]
        if failed:
            run.feed(fsm.ToolSettled(output.place, "An earlier call failed.", "invalid_arguments"))
        else:
            super()._start_tool(run, output)


for _claim, _rule in (
    ("unknown_tool", "tools.unknown-tool"),
    ("invalid_arguments", "tools.invalid-arguments"),
    ("tool_exception", "tools.exception"),
):
    _what = {"unknown_tool": "an-unknown-tool", "invalid_arguments": "invalid-arguments",
             "tool_exception": "an-exception"}[_claim]  # fmt: skip
    _words = _what.replace("-", " ")
    fault(_rule, f"fails-on-{_what}-that-it-claims-to-answer",
          f"The run fails on {_words}, where an error result is claimed.",
          loop=set_to(**{_claim: "raises"}))  # fmt: skip
    fault(_rule, f"goes-on-after-{_what}-that-it-claims-to-fail-on",
          f"The model goes on after {_words}, where it is claimed that the run fails.",
          claims(**{_claim: "raises"}), loop=set_to(**{_claim: "answers"}))  # fmt: skip
    fault(_rule, f"leaves-the-siblings-of-{_what}-unrun",
          f"After {_words} the calls that follow in the batch are not run.", loop=OneSpoilsAll)  # fmt: skip


def _stop_there(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    fsm.ACTIONS["finish the batch"](m, i, out)
    if i.failure == "unknown_tool":
        out.append(fsm.Settle(Outcome.COMPLETED, answer=m.reply))


fault("tools.unknown-tool", "ends-in-silence-after-an-unknown-tool",
      "A batch whose last call names no tool completes the run.",
      machine=machine_with(actions={"finish the batch": _stop_there}))  # fmt: skip


def _one_error_for_all(group: list[Message]) -> list[Message]:
    error = next((r for r in group if isinstance(r, ToolResult) and r.is_error), None)
    if error is None:
        return group
    return [
        dataclasses.replace(r, text=error.text, is_error=True) for r in group if isinstance(r, ToolResult)
    ]


def _no_results_beside_errors(group: list[Message]) -> list[Message]:
    failed: list[Message] = [r for r in group if isinstance(r, ToolResult) and r.is_error]
    return failed or group


def _abort_finished(then: str) -> Any:
    """Everything that a parallel batch holds back becomes an error when one of its tools raises."""

    def action(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
        for call in m.calls:
            if call.result is not None and not call.appended:
                call.result = fsm._result(m, call.call, ABORTED_TEXT, "ABORTED")
        fsm.ACTIONS[then](m, i, out)

    return action


fault("tools.failure-leaves-history-paired", "gives-a-whole-batch-the-error-of-one-call",
      "One failed call replaces the results of its siblings by its error.",
      loop=sends(in_groups(_one_error_for_all)))  # fmt: skip
fault("tools.failure-leaves-history-paired", "keeps-only-the-error-of-a-batch",
      "Where a call failed, only error results are sent.",
      loop=sends(in_groups(_no_results_beside_errors)))  # fmt: skip
fault("tools.failure-leaves-history-paired", "throws-finished-results-away-when-a-tool-raises",
      "A tool that raises makes aborted calls of those that had returned.",
      claims(tool_exception="raises", tools="parallel-source-order"),
      machine=machine_with(
          actions={name: _abort_finished(name) for name in ("fail by the tool", "drain, tool raised")}
      ))  # fmt: skip


class Unchecked(ReferenceLoop):
    """Looks whether arguments are JSON, and at nothing else."""

    def _start_tool(self, run: Any, output: fsm.StartTool) -> None:
        known = output.call.name in self._tools
        if known and output.whole and is_complete_json(output.call.arguments):
            run.feed(fsm.ToolStarted(output.place))
        else:
            super()._start_tool(run, output)


class Emptied(ReferenceLoop):
    """Runs a call whose arguments cannot be used without any."""

    def _start_tool(self, run: Any, output: fsm.StartTool) -> None:
        if output.call.name in self._tools and output.whole:
            run.feed(fsm.ToolStarted(output.place))
        else:
            super()._start_tool(run, output)

    async def _run_tool(self, run: Any, place: int, call: Call) -> None:
        usable = is_complete_json(call.arguments) and isinstance(json.loads(call.arguments), dict)
        await super()._run_tool(run, place, call if usable else dataclasses.replace(call, arguments="{}"))


fault("tools.arguments-validated", "passes-arguments-on-unchecked",
      "A tool gets arguments that its schema does not allow.", loop=Unchecked)  # fmt: skip
fault("tools.arguments-validated", "calls-with-nothing-where-arguments-are-broken",
      "Arguments that are no object reach the tool as an empty one.", loop=Emptied)  # fmt: skip


def _unmarked(result: ToolResult) -> list[Message]:
    return [dataclasses.replace(result, is_error=False)]


def _unmarked_if_skipped(result: ToolResult) -> list[Message]:
    skipped = result.text.startswith("This call was not run") or result.text == ABORTED_TEXT
    return [dataclasses.replace(result, is_error=False)] if skipped else [result]


fault("tools.error-marked", "marks-no-errors", "No result is marked as an error.",
      loop=keeps_results(_unmarked))  # fmt: skip
fault("tools.error-marked", "marks-only-what-a-tool-raised",
      "The results of calls that were not run are not marked as errors.",
      loop=keeps_results(_unmarked_if_skipped))  # fmt: skip


# --------------------------------------------------------------------------------------------
# Results


class Wrapped(_Tool):
    """Wraps what a tool returned."""

    async def call(self, arguments: Any, call_id: str, signal: Any) -> str:
        return json.dumps({"result": await self.inner.call(arguments, call_id, signal)})


class Trimmed(_Tool):
    """Takes the blanks round a result away."""

    async def call(self, arguments: Any, call_id: str, signal: Any) -> str:
        return (await self.inner.call(arguments, call_id, signal)).strip()


def _swapped(group: list[Message]) -> list[Message]:
    results = [r for r in group if isinstance(r, ToolResult)]
    return [
        dataclasses.replace(one, text=other.text, is_error=other.is_error)
        for one, other in zip(results, reversed(results), strict=True)
    ]


fault("tools.result-unaltered", "wraps-results-in-json", "What a tool returned is wrapped in an object.",
      loop=wraps_tools(Wrapped))  # fmt: skip
fault("tools.result-unaltered", "trims-results", "The blanks round a result are taken away.",
      loop=wraps_tools(Trimmed))  # fmt: skip
fault("tools.result-unaltered", "gives-the-results-to-the-wrong-calls",
      "The results of a batch stand in the reverse order of its calls, under their ids.",
      loop=sends(in_groups(_swapped)))  # fmt: skip


def _without_blank_results(messages: list[Message]) -> list[Message]:
    blank = [m for m in messages if isinstance(m, ToolResult) and not m.text]
    return [m for m in messages if m not in blank]


fault("tools.empty-result-answers", "drops-empty-results", "A result without text is not sent.",
      loop=sends(_without_blank_results))  # fmt: skip


# --------------------------------------------------------------------------------------------
# Order, and what comes late

fault("tools.order", "runs-side-by-side-what-it-claims-to-run-in-turn",
      "The tools of a batch overlap, where one after the other is claimed.",
      loop=set_to(tools="parallel-source-order"))  # fmt: skip
fault("tools.order", "runs-in-turn-what-it-claims-to-run-side-by-side",
      "A tool waits for the one before it, where side by side is claimed.",
      claims(tools="parallel-source-order"), loop=set_to(tools="sequential"))  # fmt: skip
fault("tools.order", "stands-results-in-the-order-of-completion",
      "Results stand as they came, where the order of the calls is claimed.",
      claims(tools="parallel-source-order"), loop=set_to(tools="parallel-completion-order"))  # fmt: skip
fault("tools.order", "stands-results-in-the-order-of-the-calls",
      "Results stand in the order of the calls, where that of completion is claimed.",
      claims(tools="parallel-completion-order"), loop=set_to(tools="parallel-source-order"))  # fmt: skip


class LastFirst(fsm.Machine):
    """Starts the calls of a batch from its end."""

    def next_call(self) -> int | None:
        waiting = [place for place, call in enumerate(self.calls) if call.state is fsm.CallState.ANNOUNCED]
        return waiting[-1] if waiting else None


fault("tools.order", "runs-the-last-call-first", "The calls of a batch run from its end.",
      machine=LastFirst)  # fmt: skip

fault("tools.late-result", "keeps-late-results-that-it-claims-to-replace",
      "A result that came after the cancellation is kept, where an aborted one is claimed.",
      loop=set_to(late_result="kept"))  # fmt: skip
fault("tools.late-result", "replaces-late-results-that-it-claims-to-keep",
      "A result that came after the cancellation is replaced, where keeping it is claimed.",
      claims(late_result="kept"), loop=set_to(late_result="replaced"))  # fmt: skip
