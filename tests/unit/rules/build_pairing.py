"""Small traces of batches, for the chapters tools, pairing and history.

A :class:`Tale` is a story whose tools may overlap, and whose target may keep what it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from build_completion import Story, breaks, call, hidden, holds, silent

from loopspec.trace import CancelReturned, CancelSent, ToolSettled
from loopspec.vocabulary import AssistantMessage, Call, Message, Piece, Text, ToolResult

__all__ = ["Tale", "assistant", "batch", "breaks", "call", "hidden", "holds", "result", "silent"]


class Tale(Story):
    """A story with tools side by side, cancellations in parts, and a history to spoil."""

    def __init__(self, claims: dict[str, str] | None = None, **header: Any) -> None:
        super().__init__(claims, **header)
        self.running: dict[str, int] = {}

    def starts_tool(self, id: str, arguments: str | None = None, tool: str = "probe", **more: Any) -> Self:
        """The tool of a call is entered."""
        self.start(id, arguments, tool, **more)
        self.running[id] = self.starts
        return self

    def strays(self, arguments: str, tool: str = "probe") -> Self:
        """A tool is entered with arguments that no call has, and returns."""
        self.start(None, arguments, tool)
        return self.add(ToolSettled(self.starts, "returned", "stray"))

    def settles_tool(self, id: str, how: str = "returned", text: str | None = None) -> Self:
        """The tool of a call leaves."""
        said = (f"result of {id}" if text is None else text) if how == "returned" else ""
        return self.add(ToolSettled(self.running[id], how, said, id))

    def runs(self, id: str, how: str = "returned", text: str | None = None, **start: Any) -> Self:
        """The tool of a call runs from start to end; the target keeps nothing yet."""
        return self.starts_tool(id, **start).settles_tool(id, how, text)

    def answers(self, *ids: str, text: str | None = None, is_error: bool | None = False) -> Self:
        """The target keeps results for these calls."""
        for call_id in ids:
            said = text if text is not None else f"result of {call_id}"
            self.messages.append(ToolResult(call_id, "probe", said, is_error))
        return self

    def aborts(self, *ids: str) -> Self:
        """The target keeps error results for these calls."""
        return self.answers(*ids, text="aborted", is_error=True)

    def cancel_sent(self, at: str = "here") -> Self:
        """The bench calls the target's cancel."""
        self.cancels += 1
        return self.add(CancelSent(self.cancels, at))

    def cancel_returned(self) -> Self:
        """The target's cancel comes back."""
        return self.add(CancelReturned(self.cancels))

    def spoils(self, change: Callable[[list[Message]], list[Message]]) -> Self:
        """The target changes what it keeps."""
        self.messages = change(list(self.messages))
        return self

    def drops(self, unwanted: Callable[[Message], bool]) -> Self:
        """The target loses messages."""
        return self.spoils(lambda kept: [message for message in kept if not unwanted(message)])

    def done(self) -> Self:
        """A last request, its answer, and the end of the run."""
        return self.request().reply("Done.").completes("Done.")

    def again(self) -> Self:
        """The recovery prompt, answered."""
        return self.prompt(recovery=True).done()


def batch(*ids: str, claims: dict[str, str] | None = None, **header: Any) -> Tale:
    """A prompt whose reply has these calls, for the tool ``probe``."""
    return turn(Tale(claims, **header).prompt(), *ids)


def turn(tale: Tale, *ids: str) -> Tale:
    """A request whose reply has these calls."""
    pieces: list[list[Piece]] = [call(at, name) for at, name in enumerate(ids)]
    return tale.request().reply(*pieces, reason="toolUse")


def assistant(*blocks: str | tuple[str, str], **fields: Any) -> AssistantMessage:
    """An assistant message of texts and, as pairs of id and arguments, of calls of ``probe``."""
    made = [Text(item) if isinstance(item, str) else Call(item[0], "probe", item[1]) for item in blocks]
    return AssistantMessage(tuple(made), **fields)


def result(message: Message, *ids: str) -> bool:
    """Whether a message is a result, of one of these calls where some are given."""
    return isinstance(message, ToolResult) and (not ids or message.call_id in ids)
