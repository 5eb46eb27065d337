"""Small traces with cancellations, for the chapters cancellation, prefix, events and run.

A :class:`Cut` is a tale that knows how to be cancelled, and how a target keeps what was cut.
"""

from __future__ import annotations

from typing import Any, Self

from build_pairing import Tale, breaks, call, hidden, holds, silent

from loopspec.trace import Hung, Signalled
from loopspec.vocabulary import (
    AssistantMessage,
    Block,
    Message,
    Piece,
    Reasoning,
    Text,
    ToolResult,
    UserMessage,
)

__all__ = ["Cut", "alone", "batch", "breaks", "call", "cut", "family", "hidden", "holds", "silent", "thought"]

SEES = (
    "events", "history", "error_marks", "limit", "call_ids", "tool_signal", "provider_signal",
    "cancel_told",
)  # fmt: skip


class Cut(Tale):
    """A story in which things are cut short."""

    def __init__(self, claims: dict[str, str] | None = None, **header: Any) -> None:
        super().__init__(claims, **{"observes": SEES, **header})

    def cancels_run(self, at: str = "request 1, before element 2") -> Self:
        """The bench cancels, and the cancel call comes back."""
        return self.cancel_sent(at).cancel_returned()

    def provider_sees(self) -> Self:
        """The provider of the latest request sees the signal."""
        return self.add(Signalled("provider", self.requests))

    def tool_sees(self, id: str) -> Self:
        """The tool of a call sees the signal."""
        return self.add(Signalled("tool", self.running[id]))

    def cancelled(self, prompt: int | None = None) -> Self:
        """The run is reported as cancelled."""
        return self.fails("cancelled", prompt=prompt)

    def refused(self, prompt: int | None = None, message: str = "busy") -> Self:
        """The prompt is refused."""
        return self.fails("busy", outcome="refused", prompt=prompt, message=message)

    def hung(self, prompt: int) -> Self:
        """One of several runs can no longer move."""
        return self.add(Hung(prompt, "still"))

    def second(self) -> Self:
        """A second prompt is given while the first one runs; the target does not keep it yet."""
        self.prompt(running=True)
        self.messages.pop()
        return self

    def hears(self, text: str) -> Self:
        """A user message that is no prompt of ours, or that comes late, is kept."""
        self.messages.append(UserMessage(text))
        return self

    def keeps(self, *blocks: str | Block, interrupted: bool = True, **fields: Any) -> Self:
        """The target keeps a message of texts and blocks, marked as interrupted."""
        made = tuple(Text(item) if isinstance(item, str) else item for item in blocks)
        self.messages.append(AssistantMessage(made, interrupted=interrupted, **fields))
        return self

    def coded(self, id: str, code: str | None, is_error: bool = True) -> Self:
        """The target keeps an aborted result with a code."""
        self.messages.append(ToolResult(id, "probe", "aborted", is_error, code))
        return self

    def delta(self, text: str) -> Self:
        """The target shows a piece of text."""
        return self.told("text_delta", role="assistant", text=text)

    def without(self, message: Message) -> Self:
        """The target loses a message."""
        return self.drops(lambda kept: kept == message)


def alone(claims: dict[str, str] | None = None, **header: Any) -> Cut:
    """One prompt and its first request."""
    return Cut(claims, **header).prompt().request()


def batch(*ids: str, claims: dict[str, str] | None = None, **header: Any) -> Cut:
    """A prompt whose reply has these calls."""
    pieces: list[list[Piece]] = [call(at, name) for at, name in enumerate(ids)]
    return alone(claims, **header).reply(*pieces, reason="toolUse")


def cut(*pieces: Any, claims: dict[str, str] | None = None, **header: Any) -> Cut:
    """A prompt whose reply is cancelled after these pieces."""
    return alone(claims, **header).sent(*pieces).cancels_run()


def family(member: str, rule: str, claims: dict[str, str] | None = None, **header: Any) -> Cut:
    """A story that belongs to a relation."""
    return Cut(claims, family=rule, member=member, **header)


def thought(text: str) -> Reasoning:
    """A block of reasoning."""
    return Reasoning(text)
