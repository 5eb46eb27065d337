"""Legal variants: loops that are unusual and keep every rule under their claims.

They are written from the words of the rules: what a rule does not ask for is free. A rule that
blames one of them asks for more than it says.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loopspec import history as histories
from loopspec import machine as fsm
from loopspec.adapters.reference import ReferenceAdapter, ReferenceSession
from loopspec.loop import ReferenceLoop
from loopspec.machine import GUARDS, Machine
from loopspec.signals import Signal
from loopspec.vocabulary import (
    FAILED_REASONS,
    AssistantMessage,
    Block,
    Call,
    Event,
    EventType,
    FailureReason,
    Message,
    OtherMessage,
    Reasoning,
    SystemMessage,
    Text,
    ToolResult,
    UserMessage,
    is_complete_json,
)
from meta.faulty import claims, control, machine_with
from meta.faulty.events import DURABLE, Teller, always, holding, tells
from meta.faulty.parts import keeps, sends, with_arguments

# --------------------------------------------------------------------------------------------
# Other settings, claimed as they are

control("runs-tools-side-by-side", "Results stand in the order of the calls.",
        claims(tools="parallel-source-order"))  # fmt: skip
control("records-results-as-they-come", "Results stand in the order in which the tools ended.",
        claims("durable-prefix", tools="parallel-completion-order"))  # fmt: skip
control("races-its-tools", "A cancelled run leaves a tool behind that does not heed.",
        claims(cancelled_tool="races"))  # fmt: skip
control("finalizes-and-rejects", "Keeps a prefix, and raises its failures.",
        claims(cancelled_prefix="finalize"))  # fmt: skip
control("discards-and-marks", "Keeps no prefix, and returns its failures.",
        claims("durable-prefix", cancelled_prefix="discard"))  # fmt: skip
control("lets-prompts-wait", "A second prompt waits for its turn, and a listener's failure is nothing.",
        claims(concurrent_prompt="queued", listener_failure="ignored"))  # fmt: skip
control("runs-prompts-apart", "A second prompt runs beside the first one.",
        claims(concurrent_prompt="apart"))  # fmt: skip
control("goes-on-where-it-can", "Answers cut calls, resumes deferred replies, asks again for empty ones.",
        claims(length="answers", deferred="resumes", empty_stop="asks-again", max_turns=""))  # fmt: skip
control("fails-where-it-can", "Every call that cannot run, and every tool that fails, ends the run.",
        claims(unknown_tool="raises", invalid_arguments="raises", tool_exception="raises",
               empty_stop="fails", failed_attempt="absent"))  # fmt: skip
control("claims-next-to-nothing", "What is not claimed is not judged.", {"tool_signal": "yes"})  # fmt: skip
control("claims-a-little-of-both", "Choices of one profile stand beside those of the other.",
        claims(late_result="kept", max_turns="marked", length="marked", brackets="run", result_codes="yes",
               fork="yes", failed_attempt="attempt"))  # fmt: skip
control("tells-runs-and-turns", "A listener that fails on the end of the last turn is too late to matter.",
        claims(brackets="both"))  # fmt: skip


class ClaimsNothing(ReferenceAdapter):
    """The reference loop with no claim at all."""

    def __post_init__(self) -> None:
        self.claims = {}
        super().__post_init__()


control("claims-nothing", "Only what holds for every loop is judged.", adapter=ClaimsNothing)  # fmt: skip

# --------------------------------------------------------------------------------------------
# Other requests


def _merged(messages: list[Message]) -> list[Message]:
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else None
        if isinstance(message, UserMessage) and isinstance(last, UserMessage):
            out[-1] = UserMessage(f"{last.text}\n\n{message.text}")
        else:
            out.append(message)
    return out


def _without_reasoning(messages: list[Message]) -> list[Message]:
    return [
        dataclasses.replace(m, blocks=tuple(b for b in m.blocks if not isinstance(b, Reasoning)))
        if isinstance(m, AssistantMessage) else m
        for m in messages
    ]  # fmt: skip


class AsksForATitle(ReferenceLoop):
    """Asks the model for a title first, beside the conversation."""

    titled = False

    async def _drive(self, run: Any) -> None:
        if not self.titled and not run.signal.aborted:
            self.titled = True
            question = (UserMessage("Give this conversation a title."),)
            stream = await self._model.open(question, (), Signal())
            _ = [piece async for piece in stream]
        await super()._drive(run)


control("merges-user-messages", "User messages that stand together are sent as one.",
        loop=sends(_merged))  # fmt: skip
control("sends-a-system-message", "Every request begins with a message of the loop's own.",
        loop=sends(lambda messages: [SystemMessage("Be brief."), *messages]))  # fmt: skip
control("keeps-reasoning-to-itself", "Reasoning is in history, and in no request.",
        loop=sends(_without_reasoning))  # fmt: skip
control("asks-for-a-title", "A request beside the conversation comes first.", loop=AsksForATitle)  # fmt: skip


def _written_anew(text: str) -> str:
    return json.dumps(json.loads(text), indent=1, sort_keys=True) if is_complete_json(text) else text


class JoinsBlocks(ReferenceLoop):
    """Sends a message as wires have it that know one text and one list of calls; so do its forks."""

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(
            dataclasses.replace(m, blocks=_joined(m)) if isinstance(m, AssistantMessage) else m
            for m in super().normalise(messages)
        )

    def fork(self, at: int | None = None) -> JoinsBlocks:
        other = type(self)(
            self._model, list(self._tools.values()), self.choices, self.max_turns,
            histories.fork(self.messages, at), self._machine,
        )  # fmt: skip
        other._listeners = list(self._listeners)
        return other


def _joined(message: AssistantMessage) -> tuple[Block, ...]:
    out: list[Block] = []
    for kind in (Reasoning, Text):
        texts = [block.text for block in message.blocks if isinstance(block, kind)]
        out += [kind("\n".join(texts))] if texts else []
    return (*out, *message.calls)


control("joins-the-texts-of-a-message", "A message is sent as one text and its calls, with line breaks.",
        DURABLE, loop=JoinsBlocks)  # fmt: skip
control("writes-arguments-anew", "Arguments are sent back as the same values in other white space and order.",
        loop=sends(with_arguments(_written_anew)))  # fmt: skip

# --------------------------------------------------------------------------------------------
# Another history


class RepairsLate(ReferenceLoop):
    """Leaves calls open that were not run, and answers them when the next prompt is given."""

    def append(self, messages: list[Message], message: Message) -> None:
        if not (isinstance(message, ToolResult) and _unrun(message)):
            super().append(messages, message)

    def _begin(self, text: str, future: Any, apart: bool = False) -> None:
        self.messages[:] = _repaired(self.messages)
        super()._begin(text, future, apart)

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return super().normalise(_repaired(messages))


def _unrun(result: ToolResult) -> bool:
    return result.is_error is True and result.text.startswith(
        ("This call was not run:", "The run was cancelled")
    )


def _repaired(messages: Sequence[Message]) -> list[Message]:
    out: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if isinstance(message, ToolResult):
            waiting = [item for item in waiting if item.call_id != message.call_id]  # type: ignore[union-attr]
        else:
            out += waiting
            waiting = []
        out.append(message)
        if isinstance(message, AssistantMessage) and message.stop_reason not in FAILED_REASONS:
            waiting = [ToolResult(c.id, c.name, "This call never ran.", True) for c in message.calls]
    return out + waiting


control("repairs-its-history-late", "Calls that were not run get their results with the next prompt.",
        loop=RepairsLate)  # fmt: skip


class KeepsNotes(
    keeps(lambda m: [m, OtherMessage("stored")] if isinstance(m, UserMessage) else [m])  # type: ignore[misc]
):
    """A note of its own stands behind every prompt, for its own use."""

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        sent: tuple[Message, ...] = super().normalise(
            [m for m in messages if not isinstance(m, OtherMessage)]
        )
        return sent


control("keeps-notes-in-history", "A note of its own stands in history, and in no request.",
        loop=KeepsNotes)  # fmt: skip


class DropsRefused(ReferenceLoop):
    """Takes a prompt that was refused at once out of its history, with the refusal."""

    def _release(self, run: Any) -> None:
        refused = run.settle is not None and run.settle.reason is FailureReason.REFUSAL
        if refused and run.machine.turn == 1:
            del run.messages[run.first :]
        super()._release(run)


class NamesNoProvider(ReferenceAdapter):
    """The reference loop with a model that has no name."""

    async def open(self, bench: Any, settings: Any) -> ReferenceSession:
        session = await super().open(bench, settings)
        session.loop._model = dataclasses.replace(session.loop._model, name=None)  # type: ignore[type-var]
        session.loop._provider = None
        return session


control("drops-a-prompt-that-was-refused", "A refusal takes its prompt along, as claimed.",
        claims(refused_prompt="dropped"), loop=DropsRefused)  # fmt: skip
control("names-no-provider", "No message says where it is from, interrupted or whole.",
        DURABLE, adapter=NamesNoProvider)  # fmt: skip

# --------------------------------------------------------------------------------------------
# Other calls and results


class CancelsTasks(ReferenceLoop):
    """Has no signal for tools: it cancels the tasks that they run in."""

    async def _carry_out(self, run: Any, output: fsm.Output) -> None:
        await super()._carry_out(run, output)
        if isinstance(output, fsm.SignalTools):
            for task in run.tools.values():
                task.cancel()


class OwnWords(ReferenceLoop):
    """Says in its own words why a call has no result of its tool's."""

    async def _enter(self, run: Any, place: int, call: Call) -> fsm.ToolSettled:
        settled = await super()._enter(run, place, call)
        if settled.failure is None and not settled.aborted:
            return settled
        return dataclasses.replace(settled, text=f"Error: {settled.text}")

    def append(self, messages: list[Message], message: Message) -> None:
        told = isinstance(message, ToolResult) and message.text.startswith("Error: ")
        if isinstance(message, ToolResult) and message.is_error and not told:
            message = dataclasses.replace(message, text="Error: it did not run.")
        super().append(messages, message)


class Converts(ReferenceLoop):
    """Turns digits into the whole number that a tool declares, and says so in its documentation."""

    def _start_tool(self, run: Any, output: fsm.StartTool) -> None:
        super()._start_tool(run, dataclasses.replace(output, call=self._converted(output.call)))

    async def _enter(self, run: Any, place: int, call: Call) -> fsm.ToolSettled:
        return await super()._enter(run, place, self._converted(call))

    def _converted(self, call: Call) -> Call:
        tool = self._tools.get(call.name)
        value = json.loads(call.arguments) if is_complete_json(call.arguments) else None
        if tool is None or not isinstance(value, dict):
            return call
        parts: Mapping[str, Any] = tool.schema.get("properties", {})
        numbers = {
            name: int(value[name])
            for name, part in parts.items()
            if part.get("type") in ("integer", "number")
            and isinstance(value.get(name), str)
            and value[name].isdecimal()
        }
        return dataclasses.replace(call, arguments=json.dumps({**value, **numbers})) if numbers else call


def _odd_ids(m: Machine) -> bool:
    ids = [block.id for block in m.assembler._blocks if block.kind is Call]
    return "" in ids or len(set(ids)) < len(ids)


control("cancels-the-tasks-of-its-tools", "A tool sees no signal: the task that it runs in is cancelled.",
        claims(tool_signal="", tools="parallel-source-order"), loop=CancelsTasks)  # fmt: skip
control("says-errors-in-its-own-words", "No error result has the words of the exception alone.",
        loop=OwnWords)  # fmt: skip
control("converts-as-it-documents", "Digits reach a tool as the number that it declares.",
        loop=Converts)  # fmt: skip
control("refuses-a-reply-with-odd-ids", "A reply whose ids are empty or repeated counts as failed.",
        machine=machine_with(guards={
            "failed reply": lambda m, i: GUARDS["failed reply"](m, i) or _odd_ids(m),
            "whole reply": lambda m, i: GUARDS["whole reply"](m, i) and not _odd_ids(m),
        }))  # fmt: skip

# --------------------------------------------------------------------------------------------
# Other events


class Slow(ReferenceLoop):
    """Its listeners take their time, and its streams are closed a little later."""

    async def _emit(self, run: Any, event: Event) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await super()._emit(run, event)

    def _close_stream(self, stream: Any) -> None:
        self._spawn(self._close_later(stream))

    async def _close_later(self, stream: Any) -> None:
        await asyncio.sleep(0)
        await stream.aclose()


_MADE_OF = (EventType.MESSAGE_START, EventType.TEXT_DELTA, EventType.REASONING_DELTA)
control("tells-only-whole-messages", "No starts and no deltas: a message is told when it is there.",
        loop=always(lambda e: () if e.type in _MADE_OF else (e,)))  # fmt: skip
control("tells-events-that-nobody-knows", "A heartbeat stands before every event.", DURABLE,
        loop=always(lambda e: (Event("heartbeat"), e)))  # fmt: skip
control("shows-a-text-when-it-is-whole", "All deltas of a message come just before its end.",
        loop=tells(holding(EventType.TEXT_DELTA, EventType.MESSAGE_END, role="assistant", first=True)))  # fmt: skip
control("takes-its-time", "Slow listeners, and streams that are closed a little later.", loop=Slow)  # fmt: skip


class ClosesLast(ReferenceLoop):
    """Keeps the streams that it has read open until its run is about to settle."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read: list[Any] = []

    async def _carry_out(self, run: Any, output: fsm.Output) -> None:
        if isinstance(output, fsm.CloseStream) and run.stream is not None and run.pull is None:
            self._read.append(run.stream)
            run.stream = None
        elif isinstance(output, fsm.Settle):
            while self._read:
                await self._read.pop().aclose()
        await super()._carry_out(run, output)


def _tells_skipped_calls() -> Teller:
    """Tells a start and an end, with an error, of each call that never ran."""
    started: set[str | None] = set()

    def teller(event: Event) -> Iterable[Event]:
        if event.type == EventType.TOOL_START:
            started.add(event.call_id)
        if event.type == EventType.MESSAGE_START and event.role == "tool" and event.call_id not in started:
            yield Event(EventType.TOOL_START, call_id=event.call_id)
            yield Event(EventType.TOOL_END, call_id=event.call_id, is_error=True)
        yield event

    return teller


def _by_letters(event: Event) -> Iterable[Event]:
    """A delta as one without text and one for each letter."""
    if event.type not in (EventType.TEXT_DELTA, EventType.REASONING_DELTA):
        return (event,)
    return [dataclasses.replace(event, text=part) for part in ("", *(event.text or ""))]


def _no_end_if_cut(event: Event) -> Iterable[Event]:
    return () if event.type == EventType.MESSAGE_END and event.interrupted else (event,)


class TellsNothing(ReferenceAdapter):
    """The reference loop without listeners, of which no events can be seen."""

    hidden = ("events", "listeners")

    def __post_init__(self) -> None:
        super().__post_init__()
        seen = self.manifest.variants["default"]
        observes = tuple(what for what in seen.observes if what not in self.hidden)
        variants = {"default": seen.model_copy(update={"observes": observes})}
        self.manifest = self.manifest.model_copy(update={"variants": variants})

    async def open(self, bench: Any, settings: Any) -> ReferenceSession:
        session = await super().open(bench, settings)
        session.loop._listeners.clear()
        return session


class TellsEndsOfRuns(ReferenceAdapter):
    """The reference loop, of which a listener hears the ends of runs and nothing else."""

    async def open(self, bench: Any, settings: Any) -> ReferenceSession:
        session = await super().open(bench, settings)
        loop = session.loop
        loop.choices = dataclasses.replace(loop.choices, brackets="run")
        loop._listeners[:] = [lambda e: bench.tell(e) if e.type == EventType.RUN_END else None]
        return session


control("closes-its-streams-last", "Streams that were read stay open until the run is about to settle.",
        loop=ClosesLast)  # fmt: skip
control("tells-calls-that-it-skipped", "A call that never ran is told to start, and to end with an error.",
        loop=tells(_tells_skipped_calls))  # fmt: skip
control("tells-deltas-by-letters", "Each delta is told as many, the first of them empty.", DURABLE,
        loop=always(_by_letters))  # fmt: skip
control("ends-a-cut-message-with-its-run", "An interrupted message has no end but that of its run.", DURABLE,
        loop=always(_no_end_if_cut))  # fmt: skip
control("tells-nothing", "No event of it can be seen.", claims(brackets="", listener_failure=""),
        adapter=TellsNothing)  # fmt: skip
control("tells-only-the-ends-of-runs", "One event a run.",
        claims("durable-prefix", answer="returned", brackets="", failed_attempt=""),
        adapter=TellsEndsOfRuns)  # fmt: skip

# --------------------------------------------------------------------------------------------
# Another cancel


class LateCancelSession(ReferenceSession):
    """A conversation whose cancel is a coroutine."""

    def cancel(self) -> Any:
        super().cancel()
        return asyncio.sleep(0)


class LateCancelAdapter(ReferenceAdapter):
    """The reference loop with a cancel that has to be awaited."""

    async def open(self, bench: Any, settings: Any) -> ReferenceSession:
        return LateCancelSession((await super().open(bench, settings)).loop)


control("has-to-await-its-cancel", "The cancel call is a coroutine.", adapter=LateCancelAdapter)  # fmt: skip
