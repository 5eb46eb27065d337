# mypy: ignore-errors
# It is checked, and runs, where its library is installed.
"""openai-agents: ``Runner.run_streamed`` and ``Runner.run`` with the Chat Completions model.

History is a session, as the library documents it; the one here keeps its items in a list, so that
no worker thread stands between two steps of the loop.
"""

from __future__ import annotations

import inspect
from typing import Any

import loopspec_kit as kit
from agents import (
    Agent,
    FunctionTool,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    ToolExecutionConfig,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import SessionABC
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


class ListSession(SessionABC):
    """The library's session protocol over a plain list."""

    session_id = "loopspec"
    session_settings = None

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return list(self.items if limit is None else self.items[-limit:] if limit else [])

    async def add_items(self, items: list[Any]) -> None:
        self.items.extend(items)

    async def pop_item(self) -> Any:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


def as_tool(probe: Any) -> FunctionTool:
    """The probe as a typed function, so that the library checks its arguments itself."""

    async def call(context: ToolContext[Any], **arguments: Any) -> str:
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
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=ToolContext[Any]
    )
    call.__signature__ = inspect.Signature([context, *parameters], return_annotation=str)
    call.__annotations__ = {item.name: item.annotation for item in [context, *parameters]}
    return function_tool(
        call, name_override=probe.name, description_override=probe.description, strict_mode=False
    )


class Session:
    def __init__(self, bench: Any, settings: Any) -> None:
        self.bench = bench
        self.streaming = settings.streaming
        self.mode = settings.options.get("mode", "immediate")
        self.client = AsyncOpenAI(base_url=bench.base_url("chat"), api_key="unused", max_retries=0)
        self.agent = Agent(
            name="probe agent",
            model=OpenAIChatCompletionsModel(model="loopspec", openai_client=self.client),
            tools=[as_tool(tool) for tool in bench.tools],
        )
        one = settings.tools == "sequential"
        self.extra: dict[str, Any] = {
            "session": ListSession(),
            "run_config": RunConfig(
                tracing_disabled=True,
                tool_execution=ToolExecutionConfig(max_function_tool_concurrency=1 if one else None),
            ),
        }
        if settings.max_turns is not None:
            self.extra["max_turns"] = settings.max_turns
        self.running: list[Any] = []

    async def prompt(self, text: str) -> kit.Returned:
        if not self.streaming:
            result = await Runner.run(self.agent, text, **self.extra)
            return returned(result)
        stream = Runner.run_streamed(self.agent, text, **self.extra)
        self.running.append(stream)
        try:
            async for event in stream.stream_events():
                self.tell(event)
        finally:
            self.running.remove(stream)
        return returned(stream)

    def tell(self, event: Any) -> None:
        if event.type == "raw_response_event":
            if event.data.type == "response.output_text.delta":
                self.bench.tell({"type": "text_delta", "text": event.data.delta})
            elif event.data.type in (
                "response.reasoning_text.delta",
                "response.reasoning_summary_text.delta",
            ):
                self.bench.tell({"type": "reasoning_delta", "text": event.data.delta})
        elif event.type == "run_item_stream_event":
            if event.name == "tool_called":
                self.bench.tell({"type": "call", "call_id": event.item.raw_item.call_id})
            elif event.name == "tool_output":
                message = tool_message(event.item.raw_item)
                self.bench.tell({"type": "message_end", **message})

    def cancel(self) -> None:
        for stream in self.running:
            stream.cancel(mode=self.mode)

    async def history(self) -> list[dict[str, Any]]:
        return messages(await self.extra["session"].get_items())

    async def close(self) -> None:
        await self.client.close()


def returned(result: Any) -> kit.Returned:
    output = result.final_output
    return kit.Returned({"text": output, "final_output_type": type(output).__name__})


def tool_message(item: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "call_id": item["call_id"], "text": str(item["output"])}


def blocks(item: dict[str, Any]) -> list[dict[str, Any]]:
    if item.get("type") == "function_call":
        call = {key: item[key] for key in ("name", "arguments")}
        return [{"type": "call", "id": item["call_id"], **call}]
    if item.get("type") == "reasoning":
        parts = item.get("summary") or item.get("content") or ()
        return [{"type": "reasoning", "text": part["text"]} for part in parts]
    content = item["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{"type": "text", "text": part.get("text") or part.get("refusal") or ""} for part in content]


def messages(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items as messages. A reply of the chat wire is reasoning, then a text, then calls."""
    found: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type")
        if kind == "function_call_output":
            found.append({**tool_message(item), "name": None})
        elif item.get("role") in ("user", "system", "developer"):
            role = "user" if item["role"] == "user" else "system"
            found.append({"role": role, "text": "".join(block["text"] for block in blocks(item))})
        else:
            last = found[-1] if found and found[-1]["role"] == "assistant" else None
            kinds = {block["type"] for block in last["blocks"]} if last else set()
            if last is None or (kind != "function_call" and kinds - {"reasoning"}):
                found.append({"role": "assistant", "blocks": []})
            found[-1]["blocks"].extend(blocks(item))
    return found


class Adapter:
    async def open(self, bench: Any, settings: Any) -> Session:
        set_tracing_disabled(True)
        return Session(bench, settings)


if __name__ == "__main__":
    kit.serve(Adapter())
