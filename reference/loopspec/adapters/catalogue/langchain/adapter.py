# mypy: ignore-errors
# It is checked, and runs, where its library is installed.
"""langchain: ``create_agent`` on LangGraph, with ``ChatOpenAI`` on the Chat Completions API.

History is a checkpointer's thread, as the library documents it. Events come from ``astream`` with
the modes ``messages`` (tokens), ``updates`` (steps) and ``values`` (the state, for the answer).
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import loopspec_kit as kit
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import create_model

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


def as_tool(probe: Any) -> StructuredTool:
    """The probe with a typed argument schema, so that the library checks its arguments itself."""

    async def call(tool_call_id: str, **arguments: Any) -> str:
        given = {name: value for name, value in arguments.items() if value is not None}
        return await probe.call(given, call_id=tool_call_id)

    required = probe.schema.get("required", ())
    fields: dict[str, Any] = {
        name: (TYPES[schema["type"]], ... if name in required else None)
        for name, schema in probe.schema["properties"].items()
    }
    fields["tool_call_id"] = (Annotated[str, InjectedToolCallId], ...)
    return StructuredTool.from_function(
        coroutine=call,
        name=probe.name,
        description=probe.description,
        args_schema=create_model(probe.name, **fields),
    )


class Session:
    def __init__(self, bench: Any, settings: Any) -> None:
        self.bench = bench
        self.streaming = settings.streaming
        model = ChatOpenAI(
            model="loopspec",
            base_url=bench.base_url("chat"),
            api_key="unused",
            max_retries=0,
            disable_streaming=not settings.streaming,
        )
        middleware = []
        self.config: dict[str, Any] = {"configurable": {"thread_id": "loopspec"}}
        if settings.max_turns is not None and settings.options.get("limit") == "model-calls":
            middleware.append(ModelCallLimitMiddleware(run_limit=settings.max_turns))
        elif settings.max_turns is not None:
            # A turn is two steps of the graph: the model, then its tools.
            self.config["recursion_limit"] = 2 * settings.max_turns
        if settings.tools == "sequential":
            self.config["max_concurrency"] = 1
        self.agent = create_agent(
            model,
            tools=[as_tool(tool) for tool in bench.tools],
            middleware=middleware,
            checkpointer=InMemorySaver(),
        )

    async def prompt(self, text: str) -> kit.Returned:
        given = {"messages": [{"role": "user", "content": text}]}
        if not self.streaming:
            state = await self.agent.ainvoke(given, self.config)
            return returned(state)
        state = {}
        modes = ["messages", "updates", "values"]
        async for mode, part in self.agent.astream(given, self.config, stream_mode=modes):
            if mode == "values":
                state = part
            else:
                for told in tokens(part) if mode == "messages" else steps(part):
                    self.bench.tell(told)
        return returned(state)

    async def history(self) -> list[dict[str, Any]]:
        state = await self.agent.aget_state(self.config)
        return [canonical(message) for message in state.values.get("messages", ())]


def returned(state: dict[str, Any]) -> kit.Returned:
    last = state["messages"][-1]
    return kit.Returned(
        {
            "text": last.text,
            "blocks": [block["type"] for block in last.content_blocks],
            "finish_reason": last.response_metadata.get("finish_reason"),
        }
    )


def tokens(part: tuple[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    chunk = part[0]
    if not isinstance(chunk, AIMessageChunk):
        return []
    kinds = {"text": "text_delta", "reasoning": "reasoning_delta"}
    return [
        {"type": kinds[block["type"]], "text": block[block["type"]]}
        for block in chunk.content_blocks
        if block["type"] in kinds and block.get(block["type"])
    ]


def steps(part: dict[str, Any]) -> list[dict[str, Any]]:
    told = []
    for update in part.values():
        for message in (update or {}).get("messages", ()):
            if isinstance(message, AIMessage):
                told += [{"type": "call", "call_id": call["id"]} for call in calls(message)]
            elif isinstance(message, ToolMessage):
                result = canonical(message)
                told.append({key: result[key] for key in ("role", "call_id", "text", "is_error")})
                told[-1]["type"] = "message_end"
    return told


def calls(message: AIMessage) -> list[Any]:
    return [*message.tool_calls, *message.invalid_tool_calls]


def canonical(message: Any) -> dict[str, Any]:
    if isinstance(message, HumanMessage):
        return {"role": "user", "text": message.text}
    if isinstance(message, ToolMessage):
        return {
            "role": "tool",
            "call_id": message.tool_call_id,
            "name": message.name,
            "text": message.text,
            "is_error": message.status == "error",
        }
    if not isinstance(message, AIMessage):
        return {"role": "system", "text": message.text}
    blocks = [
        {"type": block["type"], "text": block[block["type"]]}
        for block in message.content_blocks
        if block["type"] in ("text", "reasoning") and block.get(block["type"])
    ]
    for call in calls(message):
        arguments = call["args"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        blocks.append({"type": "call", "id": call["id"], "name": call["name"], "arguments": text})
    return {"role": "assistant", "blocks": blocks}


class Adapter:
    async def open(self, bench: Any, settings: Any) -> Session:
        return Session(bench, settings)


if __name__ == "__main__":
    kit.serve(Adapter())
