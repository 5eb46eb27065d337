"""What an adapter is, for a loop that runs in this process.

An adapter opens sessions of the target on a bench. A session gives prompts, cancels, and shows
history. Nothing here judges: an adapter passes on what the target returned, raised, told and
stored, and the manifest says what that means.

The same shape, spoken as JSON-RPC lines, is the protocol of child processes (``spec/protocol.md``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from loopspec.adapters.manifest import Manifest
from loopspec.signals import Signal
from loopspec.vocabulary import Event, Message, Piece


class ProviderError(Exception):
    """The provider failed. ``status`` is the HTTP status where there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class LostTarget(Exception):
    """The target can no longer be spoken to; ``what`` says what it did, or what was done to it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class TargetRaised(Exception):
    """The target's own code raised in ``open``, ``cancel``, ``history``, ``fork`` or ``close``.

    ``raw`` is ``{"raised": [...]}``, the chain of exceptions, outermost first. Adapters in process
    let the exception itself pass instead.
    """

    def __init__(self, operation: str, raised: list[dict[str, Any]]) -> None:
        first = raised[0]
        super().__init__(f"{operation}: {first['type']}: {first.get('message', '')}")
        self.raw: dict[str, Any] = {"raised": raised}


class ProbeToolError(Exception):
    """A probe tool failed because the scenario said so."""


class ListenerError(Exception):
    """The bench's listener failed because the scenario said so."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request on the native wire: the whole message list, the tools' names."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeTool:
    """A tool of the bench, to be given to the target.

    ``call(arguments, call_id=None, signal=None)`` takes the arguments as the target would pass
    them (a dict, or the raw JSON text) and returns the result's text, or raises
    :class:`ProbeToolError`. Give ``call_id`` and ``signal`` where the loop has them.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    call: Callable[..., Awaitable[str]]


@dataclass(frozen=True, slots=True)
class OpenSettings:
    """What a session is opened with. ``None``: as the target has it by default."""

    max_turns: int | float | None = None
    tools: str | None = None
    streaming: bool = True
    wire: str = "native"
    options: Mapping[str, Any] = field(default_factory=dict)


class Bench(Protocol):
    """What an adapter sees of the bench."""

    @property
    def tools(self) -> Sequence[ProbeTool]:
        """The probe tools that the target is to be given."""

    def base_url(self, wire: str) -> str:
        """Where the fake provider listens for this wire, as the API's client wants it."""

    async def model(self, request: ModelRequest, signal: Signal | None = None) -> AsyncIterator[Piece]:
        """The native wire: open a reply; raises :class:`ProviderError` if the provider fails."""

    def tell(self, event: Event) -> None:
        """Pass on an event that the target told.

        Call it from inside the target's own listener: it raises :class:`ListenerError` there when
        the scenario has the listener fail.
        """


@dataclass(frozen=True, slots=True)
class Returned:
    """What a prompt came to, raw. ``value`` is plain data; ``told`` if only an event said it."""

    value: Any
    told: bool = False


@runtime_checkable
class Session(Protocol):
    """One conversation with the target."""

    def prompt(self, text: str) -> Awaitable[Returned]:
        """Give a prompt and wait until it settles.

        Return what the target returned; let what it raises pass.
        """

    def cancel(self) -> Awaitable[None] | None:
        """Cancel as the target has it; return what it returns."""

    def history(self) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """The target's own history, at rest."""

    async def close(self) -> None:
        """Let go of the session."""


class Adapter(Protocol):
    """A target: its manifest, and how to open a session.

    A session may have ``fork()`` too, which returns another session that starts with this one's
    history; the manifest then claims it.
    """

    manifest: Manifest

    async def open(self, bench: Bench, settings: OpenSettings) -> Session:
        """Open a session; raise to refuse the settings."""


__all__ = [
    "Adapter", "Bench", "ListenerError", "ModelRequest", "OpenSettings", "ProbeTool",
    "ProbeToolError", "ProviderError", "Returned", "Session", "Signal",
]  # fmt: skip
