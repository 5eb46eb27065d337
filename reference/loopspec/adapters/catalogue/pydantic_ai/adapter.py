# mypy: ignore-errors
# It is checked, and runs, where its library is installed.
"""pydantic-ai: ``Agent.run``, streaming by an event handler, with the Chat Completions model.

History is the caller's, as the library documents it: the messages of one run are given to the
next. After a failure they come from the cancellation's exception, or from the captured messages.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable
from typing import Any

import loopspec_kit as kit
from openai import AsyncOpenAI
from pydantic_ai import (
    Agent,
    CancellationToken,
    RunCancelled,
    RunContext,
    Tool,
    UsageLimits,
    capture_run_messages,
)
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}
DELTAS = {"text": "text_delta", "thinking": "reasoning_delta"}


def as_tool(probe: Any) -> Tool[None]:
    """The probe as a typed function, so that the library checks its arguments itself."""

    async def call(context: RunContext[None], **arguments: Any) -> str:
        given = {name: value for name, value in arguments.items() if value is not None}
        return await probe.call(given, call_id=context.tool_call_id)

    required = probe.schema.get("required", ())
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=TYPES[schema["type"]],
            default=inspect.Parameter.empty if name in required else None,
        )
        for name, schema in probe.schema["properties"].items()
    ]
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=RunContext[None]
    )
    call.__signature__ = inspect.Signature([context, *parameters], return_annotation=str)
    call.__annotations__ = {item.name: item.annotation for item in [context, *parameters]}
    return Tool(call, takes_ctx=True, name=probe.name, description=probe.description)


class Session:
    def __init__(self, bench: Any, settings: Any) -> None:
        self.bench = bench
        self.client = AsyncOpenAI(base_url=bench.base_url("chat"), api_key="unused", max_retries=0)
        self.agent = Agent(
            OpenAIChatModel("loopspec", provider=OpenAIProvider(openai_client=self.client)),
            tools=[as_tool(tool) for tool in bench.tools],
        )
        self.tools = "sequential" if settings.tools == "sequential" else "parallel"
        self.extra: dict[str, Any] = {}
        if settings.streaming:
            self.extra["event_stream_handler"] = self.tell
        if settings.max_turns is not None:
            self.extra["usage_limits"] = UsageLimits(request_limit=settings.max_turns)
        self.messages: list[Any] = []
        self.tokens: list[CancellationToken] = []

    async def prompt(self, text: str) -> kit.Returned:
        before = self.messages
        token = CancellationToken()
        self.tokens.append(token)
        mode = self.agent.parallel_tool_call_execution_mode(self.tools)
        with mode, capture_run_messages() as captured:
            try:
                result = await self.agent.run(
                    text, message_history=before, cancellation_token=token, **self.extra
                )
            except BaseException as error:
                cancelled = RunCancelled.from_cancellation(error)
                self.keep(before, cancelled.all_messages() if cancelled else captured)
                raise
            finally:
                self.tokens.remove(token)
        self.keep(before, result.all_messages())
        return kit.Returned({"text": result.output, "finish_reason": result.response.finish_reason})

    def keep(self, before: list[Any], after: list[Any]) -> None:
        """Carry a run's messages on; what another run added meanwhile stays in front of them."""
        if not after:
            return
        new = after if self.messages is before else [*self.messages, *after[len(before) :]]
        self.messages = list(new)

    async def tell(self, context: RunContext[None], events: AsyncIterable[Any]) -> None:
        async for event in events:
            for told in canonical(event):
                self.bench.tell(told)
            await asyncio.sleep(0)

    def cancel(self) -> None:
        for token in list(self.tokens):
            token.cancel()

    def history(self) -> list[dict[str, Any]]:
        return [found for message in self.messages for found in messages(message)]

    async def close(self) -> None:
        await self.client.close()


def canonical(event: Any) -> list[dict[str, Any]]:
    kind = event.event_kind
    if kind == "part_start" and event.part.part_kind in DELTAS and event.part.content:
        return [{"type": DELTAS[event.part.part_kind], "text": event.part.content}]
    if kind == "part_delta" and event.delta.part_delta_kind in DELTAS and event.delta.content_delta:
        return [{"type": DELTAS[event.delta.part_delta_kind], "text": event.delta.content_delta}]
    if kind == "part_end" and event.part.part_kind == "tool-call":
        return [{"type": "call", "call_id": event.part.tool_call_id}]
    if kind == "function_tool_call":
        return [{"type": "tool_start", "call_id": event.part.tool_call_id}]
    if kind == "function_tool_result":
        result = tool_message(event.part)
        return [{"type": "tool_end", **{key: result[key] for key in ("call_id", "text", "is_error")}}]
    return []


def tool_message(part: Any) -> dict[str, Any]:
    return {
        "role": "tool",
        "call_id": part.tool_call_id,
        "name": part.tool_name,
        "text": part.model_response_str(),
        "is_error": part.outcome != "success",
    }


def messages(message: Any) -> list[dict[str, Any]]:
    if isinstance(message, ModelRequest):
        found = []
        for part in message.parts:
            if part.part_kind == "tool-return":
                found.append(tool_message(part))
            elif part.part_kind in ("user-prompt", "system-prompt"):
                role = part.part_kind.partition("-")[0]
                found.append({"role": role, "text": str(part.content)})
            else:
                found.append({"role": "other", "text": f"{part.part_kind}: {part.content}"})
        return found
    blocks = []
    for part in message.parts:
        if part.part_kind == "text":
            blocks.append({"type": "text", "text": part.content})
        elif part.part_kind == "thinking":
            blocks.append({"type": "reasoning", "text": part.content})
        elif part.part_kind == "tool-call":
            arguments = part.args if isinstance(part.args, str) else part.args_as_json_str()
            blocks.append(
                {"type": "call", "id": part.tool_call_id, "name": part.tool_name, "arguments": arguments}
            )
    return [{"role": "assistant", "blocks": blocks, "interrupted": message.state == "interrupted"}]


class Adapter:
    async def open(self, bench: Any, settings: Any) -> Session:
        return Session(bench, settings)


if __name__ == "__main__":
    kit.serve(Adapter())
