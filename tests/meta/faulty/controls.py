"""Legal variants: loops that are unusual and keep every rule under their claims.

They are written from the words of the rules: what a rule does not ask for is free. A rule that
blames one of them asks for more than it says.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from loopspec.adapters.reference import ReferenceAdapter, ReferenceSession
from loopspec.loop import ReferenceLoop
from loopspec.signals import Signal
from loopspec.vocabulary import (
    FAILED_REASONS,
    AssistantMessage,
    Event,
    EventType,
    Message,
    OtherMessage,
    Reasoning,
    SystemMessage,
    ToolResult,
    UserMessage,
)
from meta.faulty import claims, control
from meta.faulty.events import DURABLE, always, holding, tells
from meta.faulty.parts import keeps, sends

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
        return super().normalise([m for m in messages if not isinstance(m, OtherMessage)])


control("keeps-notes-in-history", "A note of its own stands in history, and in no request.",
        loop=KeepsNotes)  # fmt: skip

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
