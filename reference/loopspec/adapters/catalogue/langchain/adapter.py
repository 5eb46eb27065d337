# mypy: ignore-errors
# It is checked, and runs, where its library is installed.
"""langchain: ``create_agent`` on LangGraph, with ``ChatOpenAI`` on the Chat Completions API.

History is a checkpointer's thread, as the library documents it. Events are those of the library's
callbacks, which are called and awaited inside the run, streaming or not.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import loopspec_kit as kit
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import create_model

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}
DELTAS = {"text": "text_delta", "reasoning": "reasoning_delta"}


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


class Listener(AsyncCallbackHandler):
    """The callbacks of a run; the chain without a parent is the run itself."""

    def __init__(self, tell: Any) -> None:
        self.tell = tell

    async def on_chain_start(self, *_: Any, parent_run_id: Any = None, **__: Any) -> None:
        if parent_run_id is None:
            self.tell(type="run_start")

    async def on_chain_end(self, *_: Any, parent_run_id: Any = None, **__: Any) -> None:
        if parent_run_id is None:
            self.tell(type="run_end", reason="completed")

    async def on_chain_error(self, error: Any, *, parent_run_id: Any = None, **_: Any) -> None:
        if parent_run_id is None:
            self.tell(type="run_end", reason=reason(error))

    async def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.tell(type="message_start", role="assistant")

    async def on_llm_new_token(self, token: str, *, chunk: Any = None, **_: Any) -> None:
        for block in chunk.message.content_blocks if chunk else ():
            if block["type"] in DELTAS and block.get(block["type"]):
                self.tell(type=DELTAS[block["type"]], text=block[block["type"]])

    async def on_llm_end(self, response: Any, **_: Any) -> None:
        message = response.generations[0][0].message
        for call in calls(message):
            self.tell(type="call", call_id=call["id"])
        self.tell(type="message_end", role="assistant", text=message.text)

    async def on_llm_error(self, error: Any, **_: Any) -> None:
        self.tell(type="message_end", role="assistant", reason=reason(error))

    async def on_tool_start(self, *_: Any, tool_call_id: Any = None, **__: Any) -> None:
        self.tell(type="tool_start", call_id=tool_call_id)

    async def on_tool_end(self, output: Any, **_: Any) -> None:
        result = canonical(output)
        self.tell(type="tool_end", **{key: result[key] for key in ("call_id", "text", "is_error")})

    async def on_tool_error(self, error: Any, *, tool_call_id: Any = None, **_: Any) -> None:
        self.tell(type="tool_end", call_id=tool_call_id, text=str(error), is_error=True)


class Session:
    def __init__(self, bench: Any, settings: Any) -> None:
        self.streaming = settings.streaming
        url = bench.base_url("chat")
        model = ChatOpenAI(
            model="loopspec", base_url=url, api_key="unused", max_retries=0, disable_streaming=not self.streaming
        )  # fmt: skip
        middleware = []
        self.config: dict[str, Any] = {
            "configurable": {"thread_id": "loopspec"},
            "callbacks": [Listener(bench.tell)],
        }
        if settings.max_turns is not None and settings.options.get("limit") == "model-calls":
            middleware.append(ModelCallLimitMiddleware(run_limit=settings.max_turns))
        elif settings.max_turns is not None:
            # A turn is two steps of the graph: the model, then its tools.
            self.config["recursion_limit"] = 2 * settings.max_turns
        if settings.tools == "sequential":
            self.config["max_concurrency"] = 1
        tools = [as_tool(tool) for tool in bench.tools]
        self.agent = create_agent(model, tools=tools, middleware=middleware, checkpointer=InMemorySaver())

    async def prompt(self, text: str) -> kit.Returned:
        given = {"messages": [{"role": "user", "content": text}]}
        if not self.streaming:
            return returned(await self.agent.ainvoke(given, self.config))
        state = {}
        async for mode, part in self.agent.astream(given, self.config, stream_mode=["messages", "values"]):
            state = part if mode == "values" else state
        return returned(state)

    async def history(self) -> list[dict[str, Any]]:
        state = await self.agent.aget_state(self.config)
        return [canonical(message) for message in state.values.get("messages", ())]


def returned(state: dict[str, Any]) -> kit.Returned:
    last = state["messages"][-1]
    blocks = [block["type"] for block in last.content_blocks]
    told = last.response_metadata.get("finish_reason")
    return kit.Returned({"text": last.text, "blocks": blocks, "finish_reason": told})


def reason(error: BaseException) -> str:
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "error"


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
        if block["type"] in DELTAS and block.get(block["type"])
    ]
    for call in calls(message):
        arguments = call["args"] if isinstance(call["args"], str) else json.dumps(call["args"])
        blocks.append({"type": "call", "id": call["id"], "name": call["name"], "arguments": arguments})
    return {"role": "assistant", "blocks": blocks}


class Adapter:
    async def open(self, bench: Any, settings: Any) -> Session:
        return Session(bench, settings)


if __name__ == "__main__":
    kit.serve(Adapter())
