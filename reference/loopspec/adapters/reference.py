"""The reference loop as a target, in process, with any set of claims as its settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loopspec import loop as loops
from loopspec.adapters.manifest import Claim, Manifest, Variant
from loopspec.adapters.manifest import Mapping as Outcome_
from loopspec.adapters.protocol import Bench, ModelRequest, OpenSettings, ProbeTool, Returned
from loopspec.machine import Choices, Machine
from loopspec.signals import Signal
from loopspec.vocabulary import Event, FailureReason, Grade, Message, Outcome, Piece

OBSERVES = (
    "events", "listeners", "history", "call_ids", "tool_signal", "provider_signal", "error_marks",
    "cancel_told", "limit",
)  # fmt: skip

_HERE = "loopspec.loop"


def _outcomes() -> tuple[Outcome_, ...]:
    """How the loop's settlements are told apart: its exceptions, and the marks it returns."""
    entries = [
        Outcome_(raised=f"{_HERE}.BusyError", outcome=Outcome.REFUSED, reason=FailureReason.BUSY),
        Outcome_(raised=f"{_HERE}.InvalidLimit", outcome=Outcome.REFUSED, reason=FailureReason.INVALID),
    ]
    for reason in FailureReason:
        entries.append(
            Outcome_(
                raised=f"{_HERE}.RunFailed", where={"reason": reason.value},
                outcome=Outcome.FAILED, reason=reason,
            )
        )  # fmt: skip
        entries.append(
            Outcome_(
                returned=True, where={"outcome": "failed", "reason": reason.value},
                outcome=Outcome.FAILED, reason=reason,
            )
        )  # fmt: skip
    return tuple(entries)


def reference_manifest(claims: Mapping[str, str], name: str = "reference") -> Manifest:
    """The manifest of the reference loop with these claims."""
    from loopspec import __version__

    return Manifest(
        name=name,
        version=__version__,
        language="in-process",
        claims=tuple(
            Claim(name=claim, value=value, source="spec/claims.md") for claim, value in claims.items()
        ),
        outcomes=_outcomes(),
        variants={"default": Variant(wire="native", grade=Grade.EXACT, observes=OBSERVES)},
    )


@dataclass(frozen=True, slots=True)
class _Tool:
    probe: ProbeTool

    @property
    def name(self) -> str:
        return self.probe.name

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.probe.schema

    async def call(self, arguments: Any, call_id: str, signal: Signal | None) -> str:
        return await self.probe.call(arguments, call_id, signal)


@dataclass(frozen=True, slots=True)
class _Model:
    bench: Bench
    name: str = "loopspec"

    async def open(
        self, messages: tuple[Message, ...], tools: tuple[str, ...], signal: Signal
    ) -> AsyncIterator[Piece]:
        return await self.bench.model(ModelRequest(messages, tools), signal)


@dataclass
class ReferenceSession:
    """A conversation with the reference loop, as the runner sees it."""

    loop: loops.ReferenceLoop

    def prompt(self, text: str) -> Awaitable[Returned]:
        """Give a prompt; the loop is busy from here on."""
        return self._settle(self.loop.prompt(text))

    async def _settle(self, settlement: Awaitable[loops.Settlement]) -> Returned:
        settled = await settlement
        value = {
            "outcome": settled.outcome.value,
            "reason": settled.reason.value if settled.reason else None,
            "error": settled.message,
            "text": settled.answer.text if settled.answer else None,
        }
        return Returned(value, told=self.loop.choices.answer == "told")

    def cancel(self) -> None:
        """Cancel; returns at once."""
        self.loop.cancel()

    def history(self) -> Sequence[Message]:
        """The history at rest."""
        return list(self.loop.messages)

    def fork(self) -> ReferenceSession:
        """Another conversation that starts with this one's history."""
        return ReferenceSession(self.loop.fork())

    async def close(self) -> None:
        """Let go."""
        await self.loop.close()


@dataclass
class ReferenceAdapter:
    """The reference loop with a set of claims.

    Parameters
    ----------
    claims: claim names and values.
    make: makes the loop; faulty loops and controls give their own.
    name: the target's name.
    machine: makes each run's machine.

    ``sessions`` holds the latest session, for those who look at its machines.
    """

    claims: Mapping[str, str]
    make: Callable[..., loops.ReferenceLoop] = loops.ReferenceLoop
    name: str = "reference"
    machine: Callable[[Choices, int | None], Machine] = Machine
    sessions: list[ReferenceSession] = field(default_factory=list)
    manifest: Manifest = field(init=False)

    def __post_init__(self) -> None:
        self.manifest = reference_manifest(self.claims, self.name)
        self._choices = Choices.of(self.claims)

    async def open(self, bench: Bench, settings: OpenSettings) -> ReferenceSession:
        """Open a conversation; raises ``InvalidLimit`` for a limit that is none."""
        loop = self.make(
            _Model(bench), [_Tool(probe) for probe in bench.tools], self._choices,
            settings.max_turns, machine=self.machine,
        )  # fmt: skip
        tell: Callable[[Event], None] = bench.tell
        loop.subscribe(tell)
        session = ReferenceSession(loop)
        self.sessions[:] = [session]
        return session
