"""The reference loop as a child process: the adapter that any loop in Python would write.

It speaks to the kit only, as a stranger's adapter does, and gets its claims as an option. It exists
so that the suite can be held against itself on both sides of the process boundary.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

import loopspec_kit as kit  # type: ignore[import-not-found]

from loopspec import history as histories
from loopspec import loop as loops
from loopspec import vocabulary as v
from loopspec.machine import Choices


class Model:
    """Replies from the bench, over the channel."""

    name = "loopspec"

    def __init__(self, bench: Any) -> None:
        self.bench = bench

    async def open(
        self, messages: tuple[v.Message, ...], tools: tuple[str, ...], signal: Any
    ) -> AsyncIterator[v.Piece]:
        """Open a reply; it is open once its first piece, or its end, is there."""
        plain = [v.message_to_json(message) for message in messages]
        return Stream(self.bench.model(plain, tools, signal))


class Stream:
    """The bench's pieces as values."""

    def __init__(self, pieces: Any) -> None:
        self.pieces = pieces

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> v.Piece:
        return v.piece_from_json(await self.pieces.__anext__())

    async def aclose(self) -> None:
        """Close it."""
        await self.pieces.aclose()


class Tool:
    """A probe tool."""

    def __init__(self, probe: Any) -> None:
        self.name: str = probe.name
        self.schema: Mapping[str, Any] = probe.schema
        self.probe = probe

    async def call(self, arguments: Any, call_id: str, signal: Any) -> str:
        """Run it in the bench."""
        text: str = await self.probe.call(arguments, call_id, signal)
        return text


class Session:
    """One conversation."""

    def __init__(self, loop: loops.ReferenceLoop, bench: Any) -> None:
        self.loop = loop
        loop.subscribe(lambda event: bench.tell(v.event_to_json(event)))

    def prompt(self, text: str) -> Awaitable[Any]:
        """Give a prompt; the loop is busy from here on."""
        return self._settle(self.loop.prompt(text))

    async def _settle(self, settlement: Awaitable[loops.Settlement]) -> Any:
        settled = await settlement
        value = {
            "outcome": settled.outcome.value,
            "reason": settled.reason.value if settled.reason else None,
            "error": settled.message,
            "text": settled.answer.text if settled.answer else None,
        }
        return kit.Returned(value, told=self.loop.choices.answer == "told")

    def cancel(self) -> None:
        """Cancel; returns at once."""
        self.loop.cancel()

    def history(self) -> list[dict[str, Any]]:
        """The history at rest."""
        return [v.message_to_json(message) for message in self.loop.messages]

    def fork(self, bench: Any) -> Session:
        """Another conversation that starts with this one's history."""
        return make(bench, self.loop.choices, self.loop.max_turns, histories.fork(self.loop.messages))

    async def close(self) -> None:
        """Let go."""
        await self.loop.close()


def make(
    bench: Any, choices: Choices, max_turns: int | float | None, history: Sequence[v.Message] = ()
) -> Session:
    """A conversation on a bench."""
    tools = [Tool(probe) for probe in bench.tools]
    return Session(loops.ReferenceLoop(Model(bench), tools, choices, max_turns, history), bench)


class Adapter:
    """Opens conversations with the claims that the options name."""

    async def open(self, bench: Any, settings: Any) -> Session:
        """Open one; raises ``InvalidLimit`` for a limit that is none."""
        return make(bench, Choices.of(settings.options.get("claims", {})), settings.max_turns)


if __name__ == "__main__":
    kit.serve(Adapter())
