"""Loops that part calls from their results: lost, doubled, misplaced, renamed or made up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from loopspec import machine as fsm
from loopspec.assembler import Assembler
from loopspec.loop import ReferenceLoop
from loopspec.machine import ABORTED_TEXT, Kind, Row, State
from loopspec.vocabulary import AssistantMessage, Block, Call, Message, ToolResult, UserMessage
from meta.faulty import claims, fault, machine_with
from meta.faulty.parts import assembles, in_groups, keeps_results, sends, without


def _is_error(message: Message) -> bool:
    return isinstance(message, ToolResult) and bool(message.is_error)


def _is_skipped(message: Message) -> bool:
    return _is_error(message) and message.text.startswith("This call was not run")


def _is_aborted(message: Message) -> bool:
    return _is_error(message) and message.text == ABORTED_TEXT


# --------------------------------------------------------------------------------------------
# Requests

fault("pairing.every-call-answered-once", "does-not-send-error-results",
      "Error results stay at home, and their calls go out.", loop=sends(without(_is_error)))  # fmt: skip
fault("pairing.every-call-answered-once", "does-not-send-aborted-results",
      "The results of calls that a cancellation aborted stay at home.",
      loop=sends(without(_is_aborted)))  # fmt: skip
fault("pairing.every-call-answered-once", "sends-each-result-twice", "Each result is sent twice.",
      loop=sends(in_groups(lambda group: [*group, *group])))  # fmt: skip


def _without_aborted_replies(messages: list[Message]) -> list[Message]:
    """Replies one of whose calls has an error result are left out, their results are not."""
    spoiled = {m.call_id for m in messages if isinstance(m, ToolResult) and m.is_error}
    return [
        message
        for message in messages
        if not (isinstance(message, AssistantMessage) and any(call.id in spoiled for call in message.calls))
    ]


def _without_first(messages: list[Message]) -> list[Message]:
    """Of a long history the first messages are left out, wherever that cuts."""
    return messages if len(messages) < 5 else messages[-3:]


fault("pairing.no-orphan-result", "leaves-out-the-replies-of-failed-calls",
      "A reply with a failed call is left out, and its results are sent.",
      loop=sends(_without_aborted_replies))  # fmt: skip
fault("pairing.no-orphan-result", "cuts-a-long-history-anywhere",
      "Of a long history the last three messages are sent, be they results.",
      loop=sends(_without_first))  # fmt: skip


def _results_last(messages: list[Message]) -> list[Message]:
    results = [m for m in messages if isinstance(m, ToolResult)]
    return [*(m for m in messages if not isinstance(m, ToolResult)), *results]


def _note_between(group: list[Message]) -> list[Message]:
    return [group[0], UserMessage("Go on."), *group[1:]]


def _note_before(group: list[Message]) -> list[Message]:
    return [UserMessage("Here are the results."), *group]


fault("pairing.adjacent", "sends-all-results-last", "All results stand at the end of the request.",
      loop=sends(_results_last))  # fmt: skip
fault("pairing.adjacent", "puts-a-note-between-results", "A user's note stands after the first result.",
      loop=sends(in_groups(_note_between)))  # fmt: skip
fault("pairing.adjacent", "puts-a-note-before-results", "A user's note stands between calls and results.",
      loop=sends(in_groups(_note_before)))  # fmt: skip


# --------------------------------------------------------------------------------------------
# Names and ids

fault("pairing.names-kept", "names-every-result-probe", "Every result bears the name of one tool.",
      loop=keeps_results(lambda result: [dataclasses.replace(result, name="probe")]))  # fmt: skip
fault("pairing.names-kept", "names-error-results-error", "An error result bears no tool's name.",
      loop=keeps_results(
          lambda result: [dataclasses.replace(result, name="error") if result.is_error else result]
      ))  # fmt: skip


class IdsAsTheyCame(Assembler):
    """Leaves empty and repeated ids as they are."""

    def blocks(self) -> tuple[Block, ...]:
        made = iter([block.id for block in self._blocks if block.kind is Call])
        return tuple(
            Call(next(made), block.name, block.arguments) if isinstance(block, Call) else block
            for block in super().blocks()
        )


fault("pairing.repeated-ids", "leaves-repeated-ids-as-they-came",
      "Ids that are empty or repeated go back as they came.",
      machine=machine_with(assembles=IdsAsTheyCame))  # fmt: skip


def _renamed(change: Callable[[int, Call], str]) -> type[Assembler]:
    def blocks(made: tuple[Block, ...]) -> Sequence[Block]:
        return [
            Call(change(place, block), block.name, block.arguments) if isinstance(block, Call) else block
            for place, block in enumerate(made)
        ]

    return assembles(blocks)


fault("pairing.ids-kept", "makes-ids-of-its-own", "Calls get new ids.",
      machine=machine_with(assembles=_renamed(lambda place, _: f"own-{place}")))  # fmt: skip
fault("pairing.ids-kept", "adds-the-tool-to-each-id", "The name of the tool is put before each id.",
      machine=machine_with(assembles=_renamed(lambda _, call: f"{call.name}-{call.id}")))  # fmt: skip


# --------------------------------------------------------------------------------------------
# A batch and what history shows of it


def _reversed(group: list[Message]) -> list[Message]:
    return group[::-1]


def _tell_at_once(m: fsm.Machine, i: fsm.ToolSettled, out: list[fsm.Output]) -> None:
    fsm.ACTIONS["answer the call"](m, i, out)
    result = m.calls[i.place].result
    if result is not None and not m.calls[i.place].appended:
        fsm._tell_message(out, result)


def _finish_told(m: fsm.Machine, i: fsm.ToolSettled, out: list[fsm.Output]) -> None:
    """The results are appended in the order of the calls; they were told when they came."""
    _tell_at_once(m, i, out)
    for call in m.calls:
        if call.result is not None and not call.appended:
            call.appended = True
            out.append(fsm.Append(call.result))


fault("pairing.same-order-everywhere", "sends-results-in-reverse",
      "Results are sent in another order than history has.", loop=sends(in_groups(_reversed)))  # fmt: skip
fault("pairing.same-order-everywhere", "tells-results-as-they-come-and-keeps-them-in-order",
      "The events have the order of completion, and history has that of the calls.",
      claims(tools="parallel-source-order"),
      machine=machine_with(
          actions={"answer the call": _tell_at_once, "finish the batch": _finish_told}
      ))  # fmt: skip


def _answer_failed(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    """The calls of a reply that failed get error results."""
    settled: list[fsm.Output] = []
    fsm.ACTIONS["fail the reply"](m, i, settled)
    end = next(at for at, output in enumerate(settled) if isinstance(output, fsm.Settle))
    results = [
        fsm.Append(ToolResult(block.id, block.name, "The reply failed.", True))
        for block in m.assembler.blocks()
        if isinstance(block, Call)
    ]
    out += [*settled[:end], *results, *settled[end:]]


fault("pairing.none-for-failed-reply", "answers-the-calls-of-a-failed-reply",
      "The calls of a reply that failed get error results.",
      machine=machine_with(actions={"fail the reply": _answer_failed}))  # fmt: skip
fault("pairing.none-for-failed-reply", "answers-the-calls-of-a-failed-reply-that-it-drops",
      "The calls of a reply that failed get error results, and the reply is not kept.",
      claims(failed_attempt="absent"),
      machine=machine_with(actions={"fail the reply": _answer_failed}))  # fmt: skip

fault("pairing.interrupted-batch-completed", "leaves-skipped-calls-open",
      "Calls that a cancellation left unrun are sent without results.",
      loop=sends(without(_is_skipped)))  # fmt: skip
fault("pairing.interrupted-batch-completed", "calls-a-skipped-call-a-success",
      "Calls that were not run have a result that is no error.",
      loop=keeps_results(
          lambda result: [dataclasses.replace(result, is_error=False) if _is_skipped(result) else result]
      ))  # fmt: skip


def _abort_under_first_id(group: list[Message]) -> list[Message]:
    first = group[0]
    assert isinstance(first, ToolResult)
    return [
        dataclasses.replace(m, call_id=first.call_id) if isinstance(m, ToolResult) and _is_skipped(m) else m
        for m in group
    ]


fault("pairing.interrupted-batch-completed", "answers-skipped-calls-under-the-first-id",
      "The error results of calls that were not run bear the id of the batch's first call.",
      loop=sends(in_groups(_abort_under_first_id)))  # fmt: skip


def _stay(state: State, kind: Kind) -> dict[tuple[State, Kind], tuple[Row, ...]]:
    return {(state, kind): (Row("always", state, "do nothing"),)}


class CancelsTheTool(ReferenceLoop):
    """A cancellation stops the tools that run, and nothing else."""

    def cancel(self) -> None:
        run = self._run
        if run is not None and run.machine.running:
            run.tool_signal.set()
        else:
            super().cancel()


fault("pairing.skipped-never-run", "does-not-hear-a-cancellation-while-a-tool-runs",
      "A cancellation in a tool changes nothing for the calls after it.",
      machine=machine_with(rows=_stay(State.EXECUTING, Kind.CANCEL)))  # fmt: skip
fault("pairing.skipped-never-run", "dispatches-the-rest-after-a-failing-listener",
      "A listener that fails while a tool is announced does not keep it, or the rest, from running.",
      machine=machine_with(rows={
          **_stay(State.DISPATCHING, Kind.LISTENER_FAILED), **_stay(State.STARTING, Kind.LISTENER_FAILED),
      }))  # fmt: skip
fault("pairing.skipped-never-run", "cancels-the-running-tool-and-goes-on",
      "A cancellation stops the tool that runs; the calls after it run, and the model is asked again.",
      loop=CancelsTheTool)  # fmt: skip


def _abort_whole_batch(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    """All that a cancelled batch holds back becomes aborted, also what had returned before."""
    for call in m.calls:
        if call.result is not None and not call.appended:
            call.result = fsm._result(m, call.call, ABORTED_TEXT, "ABORTED")
    fsm.ACTIONS["finish draining"](m, i, out)


def _abort_groups(group: list[Message]) -> list[Message]:
    if not any(map(_is_aborted, group)):
        return group
    return [
        dataclasses.replace(m, text=ABORTED_TEXT, is_error=True) if isinstance(m, ToolResult) else m
        for m in group
    ]


fault("pairing.settled-result-stays", "aborts-what-a-cancelled-batch-had-finished",
      "Results that were held back when the cancellation came are replaced by aborted ones.",
      claims(tools="parallel-source-order"),
      machine=machine_with(actions={"finish draining": _abort_whole_batch}))  # fmt: skip
fault("pairing.settled-result-stays", "sends-a-cancelled-batch-as-aborted-as-a-whole",
      "Where one call was aborted, its siblings are sent as aborted too.",
      loop=sends(in_groups(_abort_groups)))  # fmt: skip
