"""Parts from which several faulty loops are made: other settings than those claimed, and histories."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from loopspec import history as histories
from loopspec.assembler import Assembler
from loopspec.loop import ReferenceLoop
from loopspec.machine import Choices
from loopspec.vocabulary import AssistantMessage, Block, Call, Message, ToolResult

Sent = Sequence[Message]


def set_to(**settings: str) -> type[ReferenceLoop]:
    """A loop that is set to something else than what it claims."""

    class Set(ReferenceLoop):
        def __init__(self, model: Any, tools: Any, choices: Choices, *args: Any, **kwargs: Any) -> None:
            super().__init__(model, tools, dataclasses.replace(choices, **settings), *args, **kwargs)

    return Set


def sends(change: Callable[[list[Message]], Sent]) -> type[ReferenceLoop]:
    """A loop that changes the messages of each request on their way out."""

    class Sends(ReferenceLoop):
        def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
            return tuple(change(list(super().normalise(messages))))

    return Sends


def sends_as_it_is(change: Callable[[list[Message]], Sent]) -> type[ReferenceLoop]:
    """A loop with a change in place of the whole normalisation of its history."""

    class SendsAsItIs(ReferenceLoop):
        def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
            return tuple(change(list(messages)))

    return SendsAsItIs


def keeps(change: Callable[[Message], Sequence[Message]]) -> type[ReferenceLoop]:
    """A loop that puts other messages into its history than the machine says."""

    class Keeps(ReferenceLoop):
        def append(self, messages: list[Message], message: Message) -> None:
            messages.extend(change(message))

    return Keeps


def keeps_results(change: Callable[[ToolResult], Sequence[Message]]) -> type[ReferenceLoop]:
    """As :func:`keeps`, for results alone."""
    return keeps(lambda message: change(message) if isinstance(message, ToolResult) else [message])


def assembles(change: Callable[[tuple[Block, ...]], Sequence[Block]]) -> type[Assembler]:
    """An assembler that makes other blocks of a reply."""

    class Assembles(Assembler):
        def blocks(self) -> tuple[Block, ...]:
            return tuple(change(super().blocks()))

    return Assembles


def with_arguments(change: Callable[[str], str]) -> Callable[[list[Message]], Sent]:
    """A change of all calls' arguments in a request."""

    def changed(block: Block) -> Block:
        return Call(block.id, block.name, change(block.arguments)) if isinstance(block, Call) else block

    def change_all(messages: list[Message]) -> Sent:
        return [
            dataclasses.replace(message, blocks=tuple(map(changed, message.blocks)))
            if isinstance(message, AssistantMessage) else message
            for message in messages
        ]  # fmt: skip

    return change_all


def without(unwanted: Callable[[Message], bool]) -> Callable[[list[Message]], Sent]:
    """A request without some of its messages."""
    return lambda messages: [message for message in messages if not unwanted(message)]


def groups(messages: Sent) -> Iterator[list[Message]]:
    """The messages in groups: each message that is no result, or all results that stand together."""
    for is_result, group in itertools.groupby(messages, lambda item: isinstance(item, ToolResult)):
        if is_result:
            yield list(group)
        else:
            yield from ([message] for message in group)


def in_groups(change: Callable[[list[Message]], Sent]) -> Callable[[list[Message]], Sent]:
    """A change of each group of results in a request; nothing else is changed."""

    def change_all(messages: list[Message]) -> Sent:
        out: list[Message] = []
        for group in groups(messages):
            out += change(group) if isinstance(group[0], ToolResult) else group
        return out

    return change_all


def all_sendable(messages: Sequence[Message]) -> list[Message]:
    """A history in which every reply counts as whole, so that normalising leaves none out."""
    return [
        dataclasses.replace(message, stop_reason=None) if isinstance(message, AssistantMessage) else message
        for message in messages
    ]


__all__ = [
    "all_sendable", "assembles", "groups", "histories", "in_groups", "keeps", "keeps_results", "sends",
    "sends_as_it_is", "set_to", "with_arguments", "without",
]  # fmt: skip
