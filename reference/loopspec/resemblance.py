"""What of an entry is compared with what the machine says, and what is the target's own affair.

A target's words for an error, its ids for its own bookkeeping and the fields that it does not tell
are its own affair. What the specification decides is not: which message, whose call, which text of
the model or of a tool, error or not, interrupted or not, and how the run ended. Each function here
answers for one kind of entry whether the two agree.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from loopspec import machine as fsm
from loopspec import trace as t
from loopspec.history import normalise
from loopspec.machine import Choices
from loopspec.vocabulary import (
    AssistantMessage,
    Call,
    Event,
    EventType,
    FailureReason,
    Form,
    Message,
    Outcome,
    SystemMessage,
    ToolResult,
    UserMessage,
)

_TELLS_NOTHING = (None, FailureReason.UNKNOWN)


def same_event(expected: Event, told: Event) -> bool:
    """Whether ``told`` is the event ``expected``; a field that was not told is not compared."""
    if bool(expected.interrupted) != bool(told.interrupted):
        return False
    own_words = expected.type == EventType.MESSAGE_END and expected.role == "tool" and expected.is_error
    for item in dataclasses.fields(Event):
        said = getattr(told, item.name)
        if said is None or item.name == "interrupted" or (item.name == "text" and own_words):
            continue
        if said != getattr(expected, item.name):
            return False
    return True


def arguments_value(arguments: str) -> Any:
    """What a call's arguments say: their JSON value; no text is ``{}``; else the text itself."""
    try:
        return json.loads(arguments.strip() or "{}")
    except ValueError:
        return arguments


def same_call(call: Call, entry: t.ToolStarted, sent_ids: Collection[str]) -> bool:
    """Whether a tool that was entered serves ``call``.

    An id that is not among ``sent_ids`` was made by the loop, because the provider's was empty or
    repeated; then the tool and its arguments decide.
    """
    same_id = entry.call_id in (None, call.id) or call.id not in sent_ids
    return (
        same_id
        and entry.tool == call.name
        and arguments_value(entry.arguments) == arguments_value(call.arguments)
    )


def _grouped(messages: Iterable[Message]) -> list[Message]:
    """Without system messages, and with adjacent user messages merged: both are a target's choice."""
    out: list[Message] = []
    for message in messages:
        if isinstance(message, SystemMessage):
            continue
        if isinstance(message, UserMessage):
            before = out.pop().text if out and isinstance(out[-1], UserMessage) else ""
            message = UserMessage(" ".join(f"{before} {message.text}".split()))
        out.append(message)
    return out


def _same_message(expected: Message, found: Message) -> bool:
    if isinstance(expected, AssistantMessage) and isinstance(found, AssistantMessage):
        ours = [(call.id, call.name, arguments_value(call.arguments)) for call in expected.calls]
        theirs = [(call.id, call.name, arguments_value(call.arguments)) for call in found.calls]
        reason = found.stop_reason in (None, expected.stop_reason)
        cut = found.stop_reason is None or found.interrupted == expected.interrupted
        return expected.text == found.text and ours == theirs and reason and cut
    if isinstance(expected, ToolResult) and isinstance(found, ToolResult):
        text = bool(expected.is_error) or expected.text == found.text
        error = found.is_error in (None, bool(expected.is_error))
        return expected.call_id == found.call_id and text and error
    return expected == found


def _same_list(expected: Iterable[Message], found: Iterable[Message]) -> bool:
    ours, theirs = _grouped(expected), _grouped(found)
    return len(ours) == len(theirs) and all(map(_same_message, ours, theirs))


def same_request(history: Sequence[Message], found: Sequence[Message]) -> bool:
    """Whether a request carries what the history at that point makes of it."""
    return _same_list(normalise(history), found)


def same_history(expected: Sequence[Message], found: Sequence[Message], *, failed: bool) -> bool:
    """Whether a history that was read agrees; ``failed``: failed replies have a claimed place."""
    if failed:
        return _same_list(expected, found)
    return _same_list(normalise(expected), normalise(found))


def same_settlement(settle: fsm.Settle, entry: t.Settled, choices: Choices) -> bool:
    """Whether the prompt settled as the machine did, in the claimed form."""
    if entry.outcome != settle.outcome:
        return False
    if settle.outcome is Outcome.COMPLETED:
        text = settle.answer.text if settle.answer else ""
        return entry.form == choices.answer and entry.answer in (None, text)
    raised = choices.failure == "raises"
    form = entry.form == Form.RAISED if raised else entry.form != Form.RAISED
    return form and (entry.reason in _TELLS_NOTHING or entry.reason == settle.reason)


# --------------------------------------------------------------------------------------------
# In words


def event_in_words(event: Event) -> str:
    """An event for a person: its type and what tells it from others of the type."""
    parts = [event.type, event.role, event.call_id and f"of {event.call_id}"]
    parts += [event.text and repr(event.text), event.reason and f"({event.reason})"]
    return " ".join(part for part in parts if part)


def output_in_words(output: fsm.Output) -> str:
    """What the machine asks for next, for a person."""
    if isinstance(output, fsm.Emit):
        return f"{event_in_words(output.event)} told"
    if isinstance(output, fsm.SendRequest):
        return "a request"
    if isinstance(output, fsm.StartTool):
        return f"the tool of {output.call.id} started"
    if isinstance(output, fsm.Settle):
        reason = f" ({output.reason})" if output.reason else ""
        return f"settled as {output.outcome}{reason}"
    return type(output).__name__


def entry_in_words(entry: t.Entry) -> str:
    """What an entry says, for a person."""
    if isinstance(entry, t.Prompted):
        return f"prompt {entry.prompt} was given"
    if isinstance(entry, t.Requested):
        return f"request {entry.request} came with {len(entry.messages)} messages"
    if isinstance(entry, t.ToolStarted):
        return f"tool {entry.call_id or entry.tool} started"
    if isinstance(entry, t.ToolSettled):
        return f"tool {entry.call_id or entry.start} settled"
    if isinstance(entry, t.Told):
        return f"{event_in_words(entry.event)} was told"
    if isinstance(entry, t.Settled):
        reason = f" ({entry.reason})" if entry.reason else ""
        return f"prompt {entry.prompt} settled as {entry.outcome}{reason}, {entry.form}"
    if isinstance(entry, t.HistoryRead):
        return f"the history after prompt {entry.prompt} had {len(entry.messages)} messages"
    if isinstance(entry, t.Hung):
        return f"prompt {entry.prompt} hung"
    if isinstance(entry, t.CancelReturned):
        return f"cancel {entry.cancel} returned"
    if isinstance(entry, t.Signalled):
        return f"the signal was seen by {entry.where} {entry.number}"
    if isinstance(entry, t.TargetLost):
        return f"the target was lost ({entry.what})"
    return entry.kind.replace("_", " ")
