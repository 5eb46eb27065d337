"""The messages between the host and a child, as models: the source of the JSON Schemas.

Every message of ``spec/protocol.md`` has its parameters here, and its result where it has one.
What a child sends is checked against them; an error names the place, so that the author of a kit
can find it. Unknown members are errors: a kit that needs more needs another protocol version.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from loopspec.vocabulary import EventType

PROTOCOL = 1
"""The version of the protocol. It changes when an old kit would misread a new host."""


class Wire(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# --------------------------------------------------------------------------------------------
# Canonical messages, pieces and events


class TextBlock(Wire):
    """Visible text."""

    type: Literal["text"]
    text: str


class ReasoningBlock(Wire):
    """Reasoning, also called thinking."""

    type: Literal["reasoning"]
    text: str


class CallBlock(Wire):
    """A tool call; ``arguments`` is the JSON text as it came."""

    type: Literal["call"]
    id: str
    name: str
    arguments: str


class SystemMessage(Wire):
    """The system prompt."""

    role: Literal["system"]
    text: str


class UserMessage(Wire):
    """What the user said."""

    role: Literal["user"]
    text: str


class AssistantMessage(Wire):
    """One reply of the model. Leave out what the target does not store."""

    role: Literal["assistant"]
    blocks: list[Annotated[TextBlock | ReasoningBlock | CallBlock, Field(discriminator="type")]]
    stop_reason: str | None = None
    interrupted: bool = False
    error: str | None = None
    provider: str | None = None


class ToolResultMessage(Wire):
    """The answer to one call."""

    role: Literal["tool"]
    call_id: str
    name: str | None
    text: str
    is_error: bool | None = None
    code: str | None = None


class OtherMessage(Wire):
    """Anything else that stands in a history or a request."""

    role: Literal["other"]
    text: str


WireMessage = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolResultMessage | OtherMessage,
    Field(discriminator="role"),
]


class TextPiece(Wire):
    """More visible text."""

    type: Literal["text"]
    text: str


class ReasoningPiece(Wire):
    """More reasoning."""

    type: Literal["reasoning"]
    text: str


class CallStartPiece(Wire):
    """A call begins; ``index`` is its place among the calls of the reply."""

    type: Literal["call_start"]
    index: int
    id: str
    name: str


class ArgumentsPiece(Wire):
    """More of the JSON text of a call's arguments."""

    type: Literal["arguments"]
    index: int
    text: str


class CallEndPiece(Wire):
    """The call at ``index`` is whole."""

    type: Literal["call_end"]
    index: int


class UsagePiece(Wire):
    """Token counts."""

    type: Literal["usage"]
    input_tokens: int
    output_tokens: int


class ReasonPiece(Wire):
    """Why the reply ends."""

    type: Literal["reason"]
    reason: str
    error: str | None = None


class TerminatorPiece(Wire):
    """The end mark of the reply."""

    type: Literal["terminator"]


WirePiece = Annotated[
    TextPiece | ReasoningPiece | CallStartPiece | ArgumentsPiece | CallEndPiece | UsagePiece
    | ReasonPiece | TerminatorPiece,
    Field(discriminator="type"),
]  # fmt: skip


class WireEvent(Wire):
    """An event of the target in canonical words; leave out what it does not say."""

    type: EventType
    role: Literal["user", "assistant", "tool", "system"] | None = None
    text: str | None = None
    call_id: str | None = None
    is_error: bool | None = None
    reason: str | None = None
    interrupted: bool | None = None


class Raised(Wire):
    """One exception of a chain.

    ``type`` is ``module.QualifiedName``; ``mro`` names it and its bases, nearest first; ``fields``
    are its public attributes as far as they are plain JSON.
    """

    type: str
    bases: list[str] = Field(default=[], alias="mro")
    message: str = ""
    fields: dict[str, Any] = {}


class RaisedData(Wire):
    """The ``data`` of error -32000: the chain, outermost first."""

    raised: list[Raised] = Field(min_length=1)


class ProviderErrorData(Wire):
    """The ``data`` of error -32002."""

    status: int | None = None


# --------------------------------------------------------------------------------------------
# Host to child


class Nothing(Wire):
    """An empty object."""


class InitializeParams(Wire):
    """The first request: the version that the host speaks."""

    protocol: int


class InitializeResult(Wire):
    """The version that the kit speaks, the kit's name and version, the language and its version."""

    protocol: int
    kit: str
    language: str


class WireSettings(Wire):
    """What a session is opened with. Numbers that JSON lacks are texts."""

    max_turns: int | float | Literal["Infinity", "-Infinity", "NaN"] | None = None
    tools: Literal["sequential", "parallel"] | None = None
    streaming: bool = True
    wire: str = "native"
    options: dict[str, Any] = {}


class WireTool(Wire):
    """A probe tool that the target is to be given; ``schema`` is that of its arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str
    description: str
    parameters: dict[str, Any] = Field(alias="schema")


class OpenResult(Wire):
    """The optional operations that the session has."""

    operations: list[Literal["fork"]] = []


class OpenParams(Wire):
    """Open a session under a name that the host chooses."""

    session: str
    settings: WireSettings
    tools: list[WireTool]
    base_urls: dict[str, str]


class WireOn(Wire):
    """Do something inside the target's listener, on the ``nth`` event that fits."""

    event: EventType
    role: str | None = None
    call_id: str | None = None
    nth: int = Field(default=1, ge=1)
    do: Literal["cancel", "raise", "prompt"]


class PromptParams(Wire):
    """Give a prompt. ``cancel``: cancel at once, before anything of the run has happened."""

    session: str
    prompt: int
    text: str
    on: list[WireOn] = []
    cancel: Literal["with_prompt"] | None = None


class Settlement(Wire):
    """What a prompt came to, raw. ``told``: an event said it, and the call itself nothing."""

    returned: Any = None
    raised: list[Raised] | None = Field(default=None, min_length=1)
    told: bool = False

    @model_validator(mode="after")
    def _one(self) -> Settlement:
        if ("returned" in self.model_fields_set) == (self.raised is not None):
            raise ValueError("a settlement has exactly one of 'returned' and 'raised'")
        return self


class SessionParams(Wire):
    """The session that is meant."""

    session: str


class HistoryResult(Wire):
    """The target's own history."""

    messages: list[WireMessage]


class BarrierResult(Wire):
    """Nothing of the child is ready to run.

    ``timers``: a timer may wake it later; ``threads``: a thread may.
    """

    timers: bool
    threads: bool


class ForkParams(Wire):
    """Open ``as`` as a fork of ``session``."""

    session: str
    fork: str = Field(alias="as")


# --------------------------------------------------------------------------------------------
# Child to host


class ToolCallParams(Wire):
    """The target runs a probe tool. ``signal``: it gave the tool a cancellation signal."""

    session: str
    tool: str
    arguments: Any
    """As the target passed them: a JSON value, or the text that the model sent."""
    call_id: str | None = None
    signal: bool = False


class ToolCallResult(Wire):
    """What the tool returned."""

    text: str


class ModelOpenParams(Wire):
    """The target asks the model, on the native wire."""

    session: str
    messages: list[WireMessage]
    tools: list[str] = []
    signal: bool = False


class StreamParams(Wire):
    """The reply that is meant: the id of its ``model_open``."""

    stream: int | str


class ModelOpenResult(Wire):
    """The reply is open; ``pieces`` are those that are there already, to be handed on first.

    ``end``: nothing comes after them. The child need not ask, and tells ``model_close`` when its
    reader has come to the end.
    """

    pieces: list[WirePiece] = []
    end: bool = False


class ModelNextResult(Wire):
    """The next pieces, to be handed on one at a time.

    ``end``: nothing comes after them. Where it comes with pieces the child tells ``model_close``
    when its reader has come to the end; alone it is the end.
    """

    pieces: list[WirePiece] = []
    end: bool = False


class EventParams(Wire):
    """The target told an event."""

    session: str
    event: WireEvent


class RequestParams(Wire):
    """A request of the child, by its id."""

    request: int | str


class CancelSentParams(Wire):
    """The kit is about to call the target's cancel; ``at`` says where, in words."""

    session: str
    at: str


class CancelReturnedParams(Wire):
    """The target's cancel returned to the kit, or raised this."""

    session: str
    raised: list[Raised] | None = None


HOST_REQUESTS: dict[str, tuple[type[Wire], type[Wire]]] = {
    "initialize": (InitializeParams, InitializeResult),
    "open": (OpenParams, OpenResult),
    "prompt": (PromptParams, Settlement),
    "cancel": (SessionParams, Nothing),
    "history": (SessionParams, HistoryResult),
    "barrier": (Nothing, BarrierResult),
    "fork": (ForkParams, Nothing),
    "close": (SessionParams, Nothing),
    "shutdown": (Nothing, Nothing),
}
"""What the host asks: parameters and result."""

CHILD_REQUESTS: dict[str, tuple[type[Wire], type[Wire]]] = {
    "tool_call": (ToolCallParams, ToolCallResult),
    "model_open": (ModelOpenParams, ModelOpenResult),
    "model_next": (StreamParams, ModelNextResult),
}
"""What a child asks: parameters and result."""

CHILD_NOTIFICATIONS: dict[str, type[Wire]] = {
    "event": EventParams,
    "signal": RequestParams,
    "cancelled": RequestParams,
    "model_close": StreamParams,
    "listener_raised": SessionParams,
    "cancel_sent": CancelSentParams,
    "cancel_returned": CancelReturnedParams,
    "second_prompt": SessionParams,
}
"""What a child tells without an answer."""


class CancelSeenParams(Wire):
    """The bench has heard that a request was cancelled; ``late``: it had been answered by then."""

    request: int | str
    late: bool


HOST_NOTIFICATIONS: dict[str, type[Wire]] = {"cancel_seen": CancelSeenParams}
"""What the host tells without an answer."""


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema (2020-12) of every message's parameters and result.

    The keys are names to file them under: ``prompt.params``, ``prompt.result``, ``event.params``.
    """
    models: dict[str, type[Wire]] = {}
    for method, (params, result) in (HOST_REQUESTS | CHILD_REQUESTS).items():
        models[f"{method}.params"], models[f"{method}.result"] = params, result
    notifications = CHILD_NOTIFICATIONS | HOST_NOTIFICATIONS
    models |= {f"{method}.params": params for method, params in notifications.items()}
    models["target-raised.data"], models["provider-failed.data"] = RaisedData, ProviderErrorData
    return {
        name: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **TypeAdapter(model).json_schema(by_alias=True),
        }
        for name, model in models.items()
    }
