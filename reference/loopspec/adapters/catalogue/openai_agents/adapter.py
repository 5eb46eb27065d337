# mypy: ignore-errors
# It is checked, and runs, where its library is installed.
"""openai-agents: ``Runner.run_streamed`` and ``Runner.run`` with the Chat Completions model.

History is a session, as the library documents it; the one here keeps its items in a list, so that
no worker thread stands between two steps of the loop. What ``stream_events`` yields is told where
there is a stream; tools, and without a stream everything, are told by the hooks of the run.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any

import loopspec_kit as kit
from agents import (
    Agent,
    FunctionTool,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunHooks,
    Runner,
    ToolExecutionConfig,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import SessionABC
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}
DELTAS = {
    "response.output_text.delta": "text_delta",
    "response.reasoning_text.delta": "reasoning_delta",
    "response.reasoning_summary_text.delta": "reasoning_delta",
}
MESSAGES = {"response.created": "message_start", "response.completed": "message_end"}


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


class Hooks(RunHooks):
    """The hooks of a run, which are called and awaited inside it."""

    def __init__(self, tell: Any, streaming: bool) -> None:
        self.tell, self.streaming = tell, streaming

    async def on_llm_start(self, *_: Any) -> None:
        if not self.streaming:
            self.tell(type="message_start", role="assistant")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        if not self.streaming:
            for item in response.output:
                if item.type == "function_call":
                    self.tell(type="call", call_id=item.call_id)
            self.tell(type="message_end", role="assistant")

    async def on_tool_start(self, context: ToolContext[Any], agent: Any, tool: Any) -> None:
        self.tell(type="tool_start", call_id=context.tool_call_id)

    async def on_tool_end(self, context: ToolContext[Any], agent: Any, tool: Any, result: Any) -> None:
        self.tell(type="tool_end", call_id=context.tool_call_id, text=str(result))


def as_tool(probe: Any) -> FunctionTool:
    """The probe as a typed function, so that the library checks its arguments itself."""

    async def call(context: ToolContext[Any], **arguments: Any) -> str:
        given = {name: value for name, value in arguments.items() if value is not None}
        return await probe.call(given, call_id=context.tool_call_id)

    required = probe.schema.get("required", ())
    parameters = [Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=ToolContext[Any])]
    for name, schema in probe.schema["properties"].items():
        default = Parameter.empty if name in required else None
        kind = TYPES[schema["type"]]
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default))
    call.__signature__ = Signature(parameters, return_annotation=str)
    call.__annotations__ = {item.name: item.annotation for item in parameters}
    return function_tool(
        call, name_override=probe.name, description_override=probe.description, strict_mode=False
    )


class Session:
    def __init__(self, bench: Any, settings: Any) -> None:
        self.bench, self.streaming = bench, settings.streaming
        self.mode = settings.options.get("mode", "immediate")
        self.client = AsyncOpenAI(base_url=bench.base_url("chat"), api_key="unused", max_retries=0)
        model = OpenAIChatCompletionsModel(model="loopspec", openai_client=self.client)
        self.agent = Agent(name="probe agent", model=model, tools=[as_tool(tool) for tool in bench.tools])
        one = ToolExecutionConfig(max_function_tool_concurrency=1 if settings.tools == "sequential" else None)
        self.extra: dict[str, Any] = {
            "session": ListSession(),
            "hooks": Hooks(bench.tell, self.streaming),
            "run_config": RunConfig(tracing_disabled=True, tool_execution=one),
        }
        if settings.max_turns is not None:
            self.extra["max_turns"] = settings.max_turns
        self.running: list[Any] = []

    async def prompt(self, text: str) -> kit.Returned:
        if not self.streaming:
            return returned(await Runner.run(self.agent, text, **self.extra))
        stream = Runner.run_streamed(self.agent, text, **self.extra)
        self.running.append(stream)
        try:
            async for event in stream.stream_events():
                self.told(event)
        finally:
            self.running.remove(stream)
        return returned(stream)

    def told(self, event: Any) -> None:
        if event.type == "raw_response_event":
            kind = event.data.type
            if kind in DELTAS:
                self.bench.tell(type=DELTAS[kind], text=event.data.delta)
            elif kind in MESSAGES:
                self.bench.tell(type=MESSAGES[kind], role="assistant")
        elif event.type == "run_item_stream_event" and event.name == "tool_called":
            self.bench.tell(type="call", call_id=event.item.raw_item.call_id)
        elif event.type == "run_item_stream_event" and event.name == "tool_output":
            self.bench.tell(type="message_end", **tool_message(event.item.raw_item))

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
        return [{"type": "call", "id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}]
    if item.get("type") == "reasoning":
        parts = item.get("summary") or item.get("content") or ()
        return [{"type": "reasoning", "text": part["text"]} for part in parts]
    if isinstance(item["content"], str):
        return [{"type": "text", "text": item["content"]}]
    return [
        {"type": "text", "text": part.get("text") or part.get("refusal") or ""} for part in item["content"]
    ]


def messages(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items as messages. A reply of the chat wire is reasoning, then a text, then calls."""
    found: list[dict[str, Any]] = []
    for item in items:
        if item.get("type") == "function_call_output":
            found.append({**tool_message(item), "name": None})
        elif item.get("role") in ("user", "system", "developer"):
            role = "user" if item["role"] == "user" else "system"
            found.append({"role": role, "text": "".join(block["text"] for block in blocks(item))})
        else:
            last = found[-1] if found and found[-1]["role"] == "assistant" else {"blocks": ()}
            kinds = {block["type"] for block in last["blocks"]}
            if not kinds or (item.get("type") != "function_call" and kinds - {"reasoning"}):
                found.append({"role": "assistant", "blocks": []})
            found[-1]["blocks"].extend(blocks(item))
    return found


class Adapter:
    async def open(self, bench: Any, settings: Any) -> Session:
        set_tracing_disabled(True)
        return Session(bench, settings)


if __name__ == "__main__":
    kit.serve(Adapter())
