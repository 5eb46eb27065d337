"""From pieces to blocks: what a reply says, whole or cut short by a cancellation.

Pieces come in stream order. Text and reasoning go on in the block that is open; a piece of another
kind closes it. Calls are put together by their index, so that pieces of several calls may
interleave; a call stands where it began.

Two readings are asked of the same pieces. :meth:`Assembler.blocks` is the reply. When a
cancellation cuts the reply short, :meth:`Assembler.interrupted_blocks` is what the user has read:
text and reasoning that are not blank, closed or open, untrimmed, in stream order, and nothing else.
A call in a cut reply was never dispatched; its prefix must not look as if it had been.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from loopspec.vocabulary import (
    ArgumentsDelta,
    Block,
    Call,
    CallEnd,
    CallStart,
    Piece,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
)


@dataclass(slots=True)
class _Open:
    kind: type[Text] | type[Reasoning] | type[Call]
    text: str = ""
    id: str = ""
    name: str = ""
    ended: bool = False


class Assembler:
    """Puts one reply together. Feed it with :meth:`push`; ask it at any time."""

    def __init__(self) -> None:
        self._blocks: list[_Open] = []
        self._calls: dict[int, _Open] = {}
        self._open: _Open | None = None

    def push(self, piece: Piece) -> None:
        """Take one piece. Pieces that carry no content (usage, reason, end) change nothing.

        Nor do empty deltas, which some providers send with every frame. Arguments for a call that
        never began, and for one that has ended, are ignored: no call can be made out of them. So
        is a second start at the same index.
        """
        if isinstance(piece, TextDelta):
            self._extend(Text, piece.text)
        elif isinstance(piece, ReasoningDelta):
            self._extend(Reasoning, piece.text)
        elif isinstance(piece, CallStart):
            if piece.index not in self._calls:
                self._open = None
                call = _Open(Call, id=piece.id, name=piece.name)
                self._calls[piece.index] = call
                self._blocks.append(call)
        elif isinstance(piece, ArgumentsDelta):
            open_call = self._calls.get(piece.index)
            if open_call is not None and not open_call.ended and piece.text:
                self._open = None
                open_call.text += piece.text
        elif isinstance(piece, CallEnd):
            ended = self._calls.get(piece.index)
            if ended is not None:
                ended.ended = True

    def _extend(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        if not text:
            return
        if self._open is None or self._open.kind is not kind:
            self._open = _Open(kind)
            self._blocks.append(self._open)
        self._open.text += text

    def copy(self) -> Assembler:
        """Another assembler that has taken the same pieces."""
        other = copy.copy(self)
        twins = {id(block): replace(block) for block in self._blocks}
        other._blocks = list(twins.values())
        other._calls = {index: twins[id(call)] for index, call in self._calls.items()}
        other._open = twins[id(self._open)] if self._open is not None else None
        return other

    def snapshot(self) -> tuple[Any, ...]:
        """All that decides what the assembler will answer, as a value to compare and hash."""
        blocks = tuple((b.kind, b.text, b.id, b.name, b.ended) for b in self._blocks)
        calls = tuple(self._calls)  # they stand among the blocks in this order
        return blocks, calls, self._open is not None

    def blocks(self) -> tuple[Block, ...]:
        """The reply's blocks. Empty text and reasoning are left out; ids are made distinct.

        An id that is empty or repeated in the reply becomes one that names the call's place: two
        results for one id could never be told apart, and no provider accepts them.
        """
        out: list[Block] = []
        taken = {block.id for block in self._blocks if block.kind is Call and block.id}
        seen: set[str] = set()
        for place, block in enumerate(self._blocks, 1):
            if block.kind is Call:
                name = block.id
                if not name or name in seen:
                    name = f"{block.id or 'call'}-{place}"
                    while name in taken:
                        name += "-"
                    taken.add(name)
                seen.add(name)
                out.append(Call(name, block.name, block.text))
            elif block.text:
                out.append(block.kind(block.text))  # type: ignore[call-arg]
        return tuple(out)

    def interrupted_blocks(self) -> tuple[Block, ...]:
        """What of a reply that a cancellation cut short has been delivered to a reader."""
        return tuple(
            block.kind(block.text)  # type: ignore[call-arg]
            for block in self._blocks
            if block.kind is not Call and block.text.strip()
        )

    def unfinished_calls(self) -> frozenset[int]:
        """The places (among the calls, from 0) of calls whose end never came."""
        calls = [block for block in self._blocks if block.kind is Call]
        return frozenset(place for place, call in enumerate(calls) if not call.ended)
