"""The words of the specification, once.

Everything that a trace, a scenario, a rule, the machine or an adapter says is said in the words of
this module: stop reasons, blocks, messages, pieces of a reply, events, outcomes, claims, levels
and verdicts. The module imports nothing of the project, so that the two oracles (the rules, and
the machine with its reference loop) share their words and nothing else.

Names follow the field: *stop reason*, *tool call*, *tool result* and *content block* as the
provider APIs use them. Two words are ours. A **piece** is the smallest part of a reply that the
bench can send or withhold. An **outcome** is what a run came to, read from what the target did
through its manifest, never from what an adapter thinks of it.

Values are frozen and slotted; tuples stand where JSON has arrays. ``to_json`` and the
``*_from_json`` functions are the only translation between these values and plain data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

# --------------------------------------------------------------------------------------------
# Stop reasons


class StopReason(StrEnum):
    """Why a reply ended. Any other string is an *unknown* reason, which is a failure."""

    STOP = "stop"
    TOOL_USE = "toolUse"
    LENGTH = "length"
    ERROR = "error"
    ABORTED = "aborted"
    DEFERRED = "deferred"
    PENDING = "pending"
    REFUSAL = "refusal"


KNOWN_REASONS = frozenset(reason.value for reason in StopReason)
ACCEPTING_REASONS = frozenset({StopReason.STOP.value, StopReason.TOOL_USE.value})
UNFINISHED_REASONS = frozenset({StopReason.DEFERRED.value, StopReason.PENDING.value})
FAILED_REASONS = frozenset({StopReason.ERROR.value, StopReason.ABORTED.value})


# --------------------------------------------------------------------------------------------
# Content blocks and messages


@dataclass(frozen=True, slots=True)
class Text:
    """A block of visible text."""

    text: str
    type: ClassVar[str] = "text"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A block of reasoning, also called thinking."""

    text: str
    type: ClassVar[str] = "reasoning"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call.

    ``arguments`` is the JSON text as it came, byte for byte where the wire keeps text; what it
    parses to is a question for the reader.
    """

    id: str
    name: str
    arguments: str
    type: ClassVar[str] = "call"


Block = Text | Reasoning | Call


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """The system prompt, or what stands in its place."""

    text: str
    role: ClassVar[str] = "system"


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said."""

    text: str
    role: ClassVar[str] = "user"


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One reply of the model, as history or a request holds it.

    ``stop_reason`` and ``error`` are ``None`` where the place they were read from has no room for
    them (no request of a provider API has). ``interrupted`` marks a prefix that a cancellation
    finalized. ``provider`` names who sent it, where messages do.
    """

    blocks: tuple[Block, ...]
    stop_reason: str | None = None
    interrupted: bool = False
    error: str | None = None
    provider: str | None = None
    role: ClassVar[str] = "assistant"

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls, in stream order."""
        return tuple(block for block in self.blocks if isinstance(block, Call))

    @property
    def text(self) -> str:
        """The visible text, joined."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def reasoning(self) -> str:
        """The reasoning text, joined."""
        return "".join(block.text for block in self.blocks if isinstance(block, Reasoning))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call. ``is_error`` is ``None`` where the place has no error mark."""

    call_id: str
    name: str | None
    text: str
    is_error: bool | None = None
    code: str | None = None
    role: ClassVar[str] = "tool"


@dataclass(frozen=True, slots=True)
class OtherMessage:
    """Anything else found in a request or a history: kept, so that rules can object to it."""

    text: str
    role: ClassVar[str] = "other"


Message = SystemMessage | UserMessage | AssistantMessage | ToolResult | OtherMessage


# --------------------------------------------------------------------------------------------
# Pieces: what the bench sends of a reply


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More visible text."""

    text: str
    type: ClassVar[str] = "text"


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning."""

    text: str
    type: ClassVar[str] = "reasoning"


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins at ``index``, its place among the calls of the reply."""

    index: int
    id: str
    name: str
    type: ClassVar[str] = "call_start"


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the arguments' JSON text of the call at ``index``."""

    index: int
    text: str
    type: ClassVar[str] = "arguments"


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call at ``index`` is whole. Wires without such a mark say nothing here."""

    index: int
    type: ClassVar[str] = "call_end"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of the request."""

    input_tokens: int
    output_tokens: int
    type: ClassVar[str] = "usage"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the reply ends; ``error`` is the provider's own message, if it gave one."""

    reason: str
    error: str | None = None
    type: ClassVar[str] = "reason"


@dataclass(frozen=True, slots=True)
class Terminator:
    """The wire's own end mark: ``[DONE]``, ``message_stop``, the final event."""

    type: ClassVar[str] = "terminator"


Piece = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd | Usage | Reason | Terminator


class FaultKind(StrEnum):
    """How the bench breaks a reply."""

    STATUS = "status"  # an HTTP error status instead of a reply
    ERROR = "error"  # an error frame in the stream (native: the stream raises)
    DISCONNECT = "disconnect"  # the connection is reset
    END = "end"  # the body ends cleanly, whatever is still missing
    STALL = "stall"  # nothing more is ever sent; the body stays open
    MALFORMED = "malformed"  # a frame that is not what the wire calls a frame
    HALF_FRAME = "half_frame"  # half of a frame, then the clean end of the body


# --------------------------------------------------------------------------------------------
# Events: what a target tells


class EventType(StrEnum):
    """The kinds of event that rules know. Targets tell those that they have."""

    RUN_START = "run_start"
    RUN_END = "run_end"
    TURN_START = "turn_start"
    TURN_END = "turn_end"
    MESSAGE_START = "message_start"
    MESSAGE_END = "message_end"
    TEXT_DELTA = "text_delta"
    REASONING_DELTA = "reasoning_delta"
    STREAM_END = "stream_end"
    CALL = "call"  # a whole call of a reply is told, before its tool starts
    TOOL_START = "tool_start"
    TOOL_END = "tool_end"
    ATTEMPT = "attempt"  # a reply that did not become a message was recorded


@dataclass(frozen=True, slots=True)
class Event:
    """One event as the target told it, in canonical words.

    Parameters
    ----------
    type: an :class:`EventType` value.
    role: whose message (``user``, ``assistant``, ``tool``), for message events.
    text: the delta, or the text of the message.
    call_id: for tool events, calls and messages that are results.
    is_error: for ``tool_end`` and results, where the target marks errors.
    reason: for ``run_end``, ``turn_end`` and ``message_end``: the target's reason, in canonical
        words (``completed``, ``cancelled``, a failure reason, or a stop reason).
    interrupted: for ``message_end``: the message is a finalized prefix.
    """

    type: str
    role: str | None = None
    text: str | None = None
    call_id: str | None = None
    is_error: bool | None = None
    reason: str | None = None
    interrupted: bool | None = None


# --------------------------------------------------------------------------------------------
# Outcomes


class Outcome(StrEnum):
    """What a run came to."""

    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"  # the prompt was not accepted: busy, or invalid


class FailureReason(StrEnum):
    """Why a run failed, as far as the target lets its caller tell."""

    CANCELLED = "cancelled"
    LIMIT = "limit"
    LENGTH = "length"
    REFUSAL = "refusal"
    UNFINISHED = "unfinished"  # deferred or pending
    PROVIDER = "provider"  # the provider or its stream failed
    TOOL = "tool"
    LISTENER = "listener"
    BUSY = "busy"
    INVALID = "invalid"  # a setting or prompt that is refused
    UNKNOWN = "unknown"


class Form(StrEnum):
    """How a settlement reached the caller."""

    RETURNED = "returned"
    RAISED = "raised"
    TOLD = "told"


# --------------------------------------------------------------------------------------------
# Levels, verdicts, grades


class Level(StrEnum):
    """How much a rule binds: MUST, MUST once claimed, SHOULD, and recorded only."""

    CORE = "core"
    CLAIM = "claim"
    ADVISORY = "advisory"
    OBSERVED = "observed"


class Verdict(StrEnum):
    """What a rule says of a target. Only ``pass`` is a pass."""

    PASS = "pass"
    FAIL = "fail"
    NOT_EXERCISED = "not exercised"
    NOT_OBSERVABLE = "not observable"
    NOT_CLAIMED = "not claimed"
    VARIES = "varies"
    OBSERVED = "observed"


class Grade(StrEnum):
    """How exactly an action of the bench can be placed in the target's run."""

    EXACT = "exact"  # in process, native wire: nothing moves unless the bench lets it
    EVENT = "event"  # the action follows something that the target was seen to do
    RACING = "racing"  # neither: only shown <= kept <= sent can be judged


# --------------------------------------------------------------------------------------------
# Claims and profiles


CLAIMS: dict[str, tuple[str, ...]] = {
    "failure": ("raises", "marked"),
    "answer": ("returned", "told"),
    "length": ("fails", "answers", "marked"),
    "deferred": ("fails", "resumes"),
    "max_turns": ("fails", "marked"),
    "cancelled_prefix": ("discard", "finalize"),
    "failed_attempt": ("absent", "display", "attempt"),
    "tools": ("sequential", "parallel-source-order", "parallel-completion-order"),
    "cancelled_tool": ("waits", "races"),
    "late_result": ("kept", "replaced"),
    "tool_signal": ("yes",),
    "unknown_tool": ("answers", "raises"),
    "invalid_arguments": ("answers", "raises"),
    "tool_exception": ("answers", "raises"),
    "empty_stop": ("completes", "fails", "asks-again"),
    "concurrent_prompt": ("refused", "queued", "apart"),
    "listener_failure": ("fails", "ignored"),
    "brackets": ("none", "turn", "run", "both"),
    "result_codes": ("yes",),
    "refused_prompt": ("dropped",),
    "fork": ("yes",),
}
"""The choices that the specification leaves to implementations, with their values."""

PROFILES: dict[str, dict[str, str]] = {
    "rejecting": {
        "failure": "raises",
        "answer": "returned",
        "length": "fails",
        "deferred": "fails",
        "max_turns": "fails",
        "cancelled_prefix": "discard",
        "failed_attempt": "display",
        "tools": "sequential",
        "cancelled_tool": "waits",
        "late_result": "replaced",
        "tool_signal": "yes",
        "unknown_tool": "answers",
        "invalid_arguments": "answers",
        "tool_exception": "answers",
        "empty_stop": "completes",
        "concurrent_prompt": "refused",
        "listener_failure": "fails",
        "brackets": "none",
    },
    "durable-prefix": {
        "failure": "marked",
        "answer": "told",
        "length": "marked",
        "cancelled_prefix": "finalize",
        "failed_attempt": "attempt",
        "tools": "sequential",
        "cancelled_tool": "waits",
        "late_result": "kept",
        "tool_signal": "yes",
        "unknown_tool": "answers",
        "invalid_arguments": "answers",
        "tool_exception": "answers",
        "empty_stop": "completes",
        "concurrent_prompt": "queued",
        "brackets": "both",
        "result_codes": "yes",
        "fork": "yes",
    },
}
"""A profile is its claims, and nothing in the code asks for its name.

``rejecting`` is the loop of *Cancellation and Errors*, ``durable-prefix`` that of *Cancelled
streams finalize their delivered prefix*.
"""


# --------------------------------------------------------------------------------------------
# Plain data


_BLOCKS: dict[str, type] = {cls.type: cls for cls in (Text, Reasoning, Call)}
_MESSAGES: dict[str, type] = {cls.role: cls for cls in (SystemMessage, UserMessage, ToolResult, OtherMessage)}
_PIECES: dict[str, type] = {
    cls.type: cls
    for cls in (
        TextDelta, ReasoningDelta, CallStart, ArgumentsDelta, CallEnd, Usage, Reason, Terminator,
    )
}  # fmt: skip


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass value that differ from their defaults, in order."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.default is dataclasses.MISSING or item != field.default:
            out[field.name] = item
    return out


def block_to_json(block: Block) -> dict[str, Any]:
    """A block as plain data: ``{"type": ..., ...}``."""
    return {"type": block.type, **_fields(block)}


def block_from_json(data: dict[str, Any]) -> Block:
    """The inverse of :func:`block_to_json`; an unknown type raises ``KeyError``."""
    fields = {key: value for key, value in data.items() if key != "type"}
    block: Block = _BLOCKS[data["type"]](**fields)
    return block


def message_to_json(message: Message) -> dict[str, Any]:
    """A message as plain data: ``{"role": ..., ...}``; fields at their default are left out."""
    data = {"role": message.role, **_fields(message)}
    if isinstance(message, AssistantMessage):
        data["blocks"] = [block_to_json(block) for block in message.blocks]
    return data


def message_from_json(data: dict[str, Any]) -> Message:
    """The inverse of :func:`message_to_json`.

    Raises ``KeyError`` for an unknown role and ``TypeError`` for a field that the role lacks.
    """
    fields = {key: value for key, value in data.items() if key != "role"}
    if data["role"] == AssistantMessage.role:
        fields["blocks"] = tuple(block_from_json(block) for block in fields["blocks"])
        return AssistantMessage(**fields)
    message: Message = _MESSAGES[data["role"]](**fields)
    return message


def piece_to_json(piece: Piece) -> dict[str, Any]:
    """A piece as plain data: ``{"type": ..., ...}``."""
    return {"type": piece.type, **_fields(piece)}


def piece_from_json(data: dict[str, Any]) -> Piece:
    """The inverse of :func:`piece_to_json`."""
    fields = {key: value for key, value in data.items() if key != "type"}
    piece: Piece = _PIECES[data["type"]](**fields)
    return piece


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as plain data, without the fields that are ``None``."""
    return _fields(event)


def event_from_json(data: dict[str, Any]) -> Event:
    """The inverse of :func:`event_to_json`; an unknown field raises ``TypeError``."""
    return Event(**data)


def is_complete_json(text: str) -> bool:
    """Whether ``text`` is one whole JSON value (an empty text is not)."""
    import json

    try:
        json.loads(text)
    except ValueError:
        return False
    return True
