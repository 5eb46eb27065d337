"""History: what is sent of it, and how calls stay with their results.

History at rest may hold more than the model may see: replies that failed and are kept for display,
a reply with no content, a call whose arguments no API would parse. :func:`normalise` makes of it
what the next request carries, and changes nothing in place:

* a failed reply (``error``, ``aborted``) is left out, and so are results that belong to no call;
* an assistant message without content is left out, because no API accepts it;
* each call has exactly one result, adjacent and in the order of history, and after these an error
  result for each call that has none;
* arguments that are not complete JSON are sent as ``{}``, which every API accepts and which no
  tool will run: the call already has its result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from loopspec.vocabulary import (
    FAILED_REASONS,
    AssistantMessage,
    Block,
    Call,
    Message,
    Reasoning,
    Text,
    ToolResult,
    is_complete_json,
)

NO_RESULT = "No result was recorded for this call."
"""The text of a result that :func:`normalise` had to add."""


def _sendable(message: AssistantMessage) -> AssistantMessage | None:
    if message.stop_reason in FAILED_REASONS and not message.interrupted:
        return None
    blocks: list[Block] = []
    for block in message.blocks:
        if isinstance(block, Call) and not is_complete_json(block.arguments):
            blocks.append(Call(block.id, block.name, "{}"))
        elif isinstance(block, Text | Reasoning) and not block.text.strip():
            continue
        else:
            blocks.append(block)
    if not blocks:
        return None
    return dataclasses.replace(message, blocks=tuple(blocks))


def normalise(history: Sequence[Message]) -> tuple[Message, ...]:
    """The messages of the next request, from the history at rest."""
    out: list[Message] = []
    position = 0
    while position < len(history):
        message = history[position]
        position += 1
        if isinstance(message, ToolResult):
            continue  # those that belong to a call were taken with it
        if not isinstance(message, AssistantMessage):
            out.append(message)
            continue
        results: dict[str, ToolResult] = {}
        while position < len(history):
            following = history[position]
            if not isinstance(following, ToolResult):
                break
            results.setdefault(following.call_id, following)
            position += 1
        kept = _sendable(message)
        if kept is not None:
            out.append(kept)
            called = {call.id for call in kept.calls}
            out.extend(result for result in results.values() if result.call_id in called)
            out.extend(
                ToolResult(call.id, call.name, NO_RESULT, is_error=True)
                for call in kept.calls
                if call.id not in results
            )
    return tuple(out)


def unanswered(history: Sequence[Message]) -> list[Call]:
    """The calls of sendable replies that have no result directly after their reply."""
    open_calls: list[Call] = []
    for position, message in enumerate(history):
        if not isinstance(message, AssistantMessage) or _sendable(message) is None:
            continue
        answered = set()
        for following in history[position + 1 :]:
            if not isinstance(following, ToolResult):
                break
            answered.add(following.call_id)
        open_calls += [call for call in message.calls if call.id not in answered]
    return open_calls


def fork(history: Sequence[Message], at: int | None = None) -> list[Message]:
    """A history of its own that ends after message ``at`` (``None``: all of it).

    A fork never separates a call from its result: one that would is moved back to before the
    reply. Raises ``IndexError`` for a position outside the history.
    """
    end = len(history) if at is None else at
    if not 0 <= end <= len(history):
        raise IndexError(f"a fork at {end}, but the history has {len(history)} messages")
    while 0 < end < len(history) and isinstance(history[end], ToolResult):
        end -= 1
    return list(history[:end])
