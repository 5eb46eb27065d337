# mypy: ignore-errors
# It is checked, and runs, where its library is installed.
"""pydantic-ai: ``Agent.run``, streaming by an event handler, with the Chat Completions model.

History is the caller's, as the library documents it: the messages of one run are given to the
next. After a failure they come from the cancellation's exception, or from the captured messages.
Events are those of the handler; the start and end of a run are those of the library's ``run`` hook.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from inspect import Parameter, Signature
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
from pydantic_ai.capabilities import Hooks
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
    parameters = [Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=RunContext[None])]
    for name, schema in probe.schema["properties"].items():
        default = Parameter.empty if name in required else None
        kind = TYPES[schema["type"]]
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default))
    call.__signature__ = Signature(parameters, return_annotation=str)
    call.__annotations__ = {item.name: item.annotation for item in parameters}
    return Tool(call, takes_ctx=True, name=probe.name, description=probe.description)


class Session:
    def __init__(self, bench: Any, settings: Any) -> None:
        self.bench = bench
        self.client = AsyncOpenAI(base_url=bench.base_url("chat"), api_key="unused", max_retries=0)
        model = OpenAIChatModel("loopspec", provider=OpenAIProvider(openai_client=self.client))
        tools = [as_tool(tool) for tool in bench.tools]
        self.agent = Agent(
            model, tools=tools, capabilities=[Hooks(run=self.around)] if settings.streaming else []
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
        if after:
            self.messages = [*after] if self.messages is before else [*self.messages, *after[len(before) :]]

    async def around(self, context: RunContext[None], *, handler: Any) -> Any:
        self.bench.tell(type="run_start")
        try:
            result = await handler()
        except BaseException as error:
            cancelled = isinstance(error, (asyncio.CancelledError, RunCancelled))
            self.bench.tell(type="run_end", reason="cancelled" if cancelled else "error")
            raise
        self.bench.tell(type="run_end", reason="completed")
        return result

    async def tell(self, context: RunContext[None], events: AsyncIterable[Any]) -> None:
        async for event in events:
            told = canonical(event)
            if told is not None:
                self.bench.tell(told)
            await asyncio.sleep(0)

    def cancel(self) -> None:
        for token in list(self.tokens):
            token.cancel()

    def history(self) -> list[dict[str, Any]]:
        return [found for message in self.messages for found in messages(message)]

    async def close(self) -> None:
        await self.client.close()


def canonical(event: Any) -> dict[str, Any] | None:
    kind = event.event_kind
    if kind == "part_start" and event.part.part_kind in DELTAS and event.part.content:
        return {"type": DELTAS[event.part.part_kind], "text": event.part.content}
    if kind == "part_delta" and event.delta.part_delta_kind in DELTAS and event.delta.content_delta:
        return {"type": DELTAS[event.delta.part_delta_kind], "text": event.delta.content_delta}
    if kind == "part_end" and event.part.part_kind == "tool-call":
        return {"type": "call", "call_id": event.part.tool_call_id}
    if kind == "function_tool_call":
        return {"type": "tool_start", "call_id": event.part.tool_call_id}
    if kind == "function_tool_result":
        result = tool_message(event.part)
        return {"type": "tool_end", **{key: result[key] for key in ("call_id", "text", "is_error")}}
    return None


def tool_message(part: Any) -> dict[str, Any]:
    return {
        "role": "tool",
        "call_id": part.tool_call_id,
        "name": part.tool_name,
        "text": part.model_response_str(),
        "is_error": part.outcome != "success",
    }


def messages(message: Any) -> list[dict[str, Any]]:
    """One message of the library; a request holds prompts and results as parts."""
    found: list[dict[str, Any]] = []
    if isinstance(message, ModelRequest):
        for part in message.parts:
            if part.part_kind == "tool-return":
                found.append(tool_message(part))
            elif part.part_kind in ("user-prompt", "system-prompt"):
                found.append({"role": part.part_kind.partition("-")[0], "text": str(part.content)})
            else:
                found.append({"role": "other", "text": f"{part.part_kind}: {part.content}"})
        return found
    for part in message.parts:
        if part.part_kind == "text":
            found.append({"type": "text", "text": part.content})
        elif part.part_kind == "thinking":
            found.append({"type": "reasoning", "text": part.content})
        elif part.part_kind == "tool-call":
            arguments = part.args if isinstance(part.args, str) else part.args_as_json_str()
            call = {"id": part.tool_call_id, "name": part.tool_name, "arguments": arguments}
            found.append({"type": "call", **call})
    return [{"role": "assistant", "blocks": found, "interrupted": message.state == "interrupted"}]


class Adapter:
    async def open(self, bench: Any, settings: Any) -> Session:
        return Session(bench, settings)


if __name__ == "__main__":
    kit.serve(Adapter())
