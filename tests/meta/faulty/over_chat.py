"""The reference loop on the Chat Completions wire, where a request can be one that the API refuses.

The native wire takes every message list, so a loop whose requests no API would accept has to speak
a real one. The official client does; what it is given for each message stands here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from openai import AsyncOpenAI

from loopspec.adapters.manifest import Variant
from loopspec.adapters.protocol import Bench, OpenSettings
from loopspec.adapters.reference import OBSERVES, ReferenceAdapter, ReferenceSession, _Tool
from loopspec.signals import Signal
from loopspec.vocabulary import (
    ArgumentsDelta,
    AssistantMessage,
    CallEnd,
    CallStart,
    Grade,
    Message,
    Piece,
    Reason,
    Terminator,
    TextDelta,
    ToolResult,
)

_REASONS = {"tool_calls": "toolUse", "content_filter": "refusal"}
_ROLES = {"other": "note"}


def encoded(message: Message) -> dict[str, Any]:
    """One message as the API has it."""
    if isinstance(message, ToolResult):
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if not isinstance(message, AssistantMessage):
        return {"role": _ROLES.get(message.role, message.role), "content": message.text}
    out: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    return out


async def _pieces(stream: Any) -> AsyncIterator[Piece]:
    calls: list[int] = []
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content:
                yield TextDelta(choice.delta.content)
            for call in choice.delta.tool_calls or ():
                if call.id is not None:
                    calls.append(call.index)
                    yield CallStart(call.index, call.id, call.function.name)
                if call.function.arguments:
                    yield ArgumentsDelta(call.index, call.function.arguments)
            if choice.finish_reason is not None:
                for index in calls:
                    yield CallEnd(index)
                yield Reason(_REASONS.get(choice.finish_reason, choice.finish_reason))
    yield Terminator()


class ChatModel:
    """A model behind the official client."""

    def __init__(self, url: str, tools: list[dict[str, Any]]) -> None:
        self.client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
        self.tools = tools

    async def open(
        self, messages: tuple[Message, ...], tools: tuple[str, ...], signal: Signal
    ) -> AsyncIterator[Piece]:
        """Ask for a stream."""
        body: dict[str, Any] = {"messages": [encoded(message) for message in messages], "tools": self.tools}
        stream = await self.client.chat.completions.create(model="m", stream=True, **body)
        return _pieces(stream)


class ChatSession(ReferenceSession):
    """A conversation that closes its client."""

    async def close(self) -> None:
        await super().close()
        await self.loop._model.client.close()  # type: ignore[attr-defined]


class ChatAdapter(ReferenceAdapter):
    """The reference loop with its model on the Chat Completions wire."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seen = tuple(what for what in OBSERVES if what not in ("provider_signal", "error_marks"))
        variant = Variant(wire="chat", grade=Grade.EVENT, observes=seen)
        self.manifest = self.manifest.model_copy(update={"variants": {"default": variant}})

    async def open(self, bench: Bench, settings: OpenSettings) -> ReferenceSession:
        tools = [
            {"type": "function", "function": {"name": probe.name, "parameters": json.loads(json.dumps(probe.schema))}}
            for probe in bench.tools
        ]  # fmt: skip
        loop = self.make(
            ChatModel(bench.base_url("chat"), tools), [_Tool(probe) for probe in bench.tools],
            self._choices, settings.max_turns, machine=self.machine,
        )  # fmt: skip
        loop.subscribe(bench.tell)
        return ChatSession(loop)
