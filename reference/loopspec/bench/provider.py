"""The fake provider: which reply a request gets, and how far it has been played.

The provider is above every wire. A transport (the native stream, the HTTP server) decodes a
request, calls :meth:`Provider.begin`, and plays the elements that the returned :class:`Player`
hands out, telling it what it really did. The player holds at gates until the director has done the
gate's action.

Replies belong to prompts: each prompt carries a unique token, and a request belongs to the prompt
whose token stands in its last user message. A request without any of our tokens there is
*auxiliary* (a title, a suggestion): it is answered plainly and not counted. A request that the
script does not foresee is answered by a marked default, never silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from loopspec.bench.recorder import Recorder
from loopspec.bench.script import Element, Fault, Gate, Open, compile_reply
from loopspec.scenario import Reply
from loopspec.trace import Closed, Faulted, Finding, Opened, Requested, Sent, Signalled
from loopspec.vocabulary import (
    FaultKind,
    Message,
    Piece,
    Reason,
    StopReason,
    Terminator,
    TextDelta,
    UserMessage,
)

DEFAULT_TEXT = "[unscripted]"
"""The text of the answer to a request that the script did not foresee."""

DEFAULT_REPLY = Reply.model_validate([{"text": DEFAULT_TEXT}, {"reason": "stop"}])

Act = Callable[[str, str], Awaitable[None]]
"""``act(action, where)``: do an action of the environment and wait until its effects are seen."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as a transport decoded it. ``findings`` is what the real API would refuse."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()
    streaming: bool = True
    findings: tuple[Finding, ...] = ()


class Player:
    """One reply being played to one request.

    Parameters
    ----------
    number: the request's number.
    deaf: the provider ignores a cancellation and plays on.
    open_body: the body is to stay open after the last element.
    """

    def __init__(
        self, number: int, elements: Sequence[Element], reply: Reply, recorder: Recorder, act: Act
    ) -> None:
        self.number = number
        self.deaf = reply.deaf
        self.open_body = reply.open_body
        self._elements = elements
        self._recorder = recorder
        self._act = act
        self._at = 0
        self._opened = False
        self._closed = False
        self._gate: asyncio.Task[None] | None = None

    async def opening(self) -> Fault | None:
        """Play up to where the reply opens. Returns the fault that comes instead of opening.

        Waits at gates until their actions are done. A transport calls this before it sends the
        head of the reply (or, natively, hands the stream over), and then :meth:`opened`.
        """
        await self._pass_gates()
        element = self._elements[self._at] if self._at < len(self._elements) else None
        if isinstance(element, Open):
            self._at += 1
            return None
        if isinstance(element, Fault):
            self._at = len(self._elements)
            return element
        return None

    async def segment(self) -> list[Piece | Fault] | None:
        """The elements up to the next gate; a fault is always the last one. ``None``: no more.

        Waits at a gate until its action is done. Being cancelled here does not cancel the action.
        """
        await self._pass_gates()
        out: list[Piece | Fault] = []
        while self._at < len(self._elements):
            element = self._elements[self._at]
            if isinstance(element, Gate):
                break
            self._at += 1
            if isinstance(element, Open):
                continue
            out.append(element)
            if isinstance(element, Fault):
                self._at = len(self._elements)
        return out or None

    def at_gate(self) -> bool:
        """Whether the next thing is an action: :meth:`opening` and :meth:`segment` would wait."""
        return self._at < len(self._elements) and isinstance(self._elements[self._at], Gate)

    def at_end(self) -> bool:
        """Whether nothing is left to play: :meth:`segment` would return ``None`` at once."""
        return self._at >= len(self._elements)

    async def _pass_gates(self) -> None:
        while self._at < len(self._elements):
            gate = self._elements[self._at]
            if not isinstance(gate, Gate):
                return
            if self._gate is None:
                where = f"request {self.number}, before element {self._at + 1}"
                self._gate = asyncio.ensure_future(self._act(gate.action, where))
            await asyncio.shield(self._gate)
            self._gate = None
            self._at += 1

    def rest(self) -> list[Piece | Fault]:
        """Every element, gates left out: for a reply that is sent whole."""
        return [item for item in self._elements if not isinstance(item, Gate | Open)]

    @property
    def gates(self) -> list[Gate]:
        """The gates of the reply."""
        return [element for element in self._elements if isinstance(element, Gate)]

    def opened(self) -> None:
        """The transport opened the reply."""
        if not self._opened:
            self._opened = True
            self._recorder.add(Opened(self.number))

    def sent(self, piece: Piece) -> None:
        """The transport is about to release this piece."""
        self._recorder.add(Sent(self.number, piece))
        if self.open_body and isinstance(piece, Terminator):
            self._recorder.add(Faulted(self.number, str(FaultKind.STALL)))

    def faulted(self, fault: Fault) -> None:
        """The transport is about to break the reply like this."""
        detail = fault.message if fault.kind in (FaultKind.ERROR, FaultKind.STATUS) else None
        if fault.status is not None:
            detail = f"{fault.status}: {fault.message}"
        self._recorder.add(Faulted(self.number, str(fault.kind), detail))

    def signalled(self) -> None:
        """The provider saw the cancellation signal."""
        self._recorder.add(Signalled("provider", self.number))

    def closed(self, by: str = "target", seen: str = "now") -> None:
        """The stream is over: closed by the ``target``, or by the ``bench`` at the very end.

        ``seen="late"``: it was seen on another channel than the one on which the target speaks, so
        its place among what the target said is not known; it is recorded when all is quiet.
        """
        if self._closed:
            return
        self._closed = True
        if seen == "late":
            self._recorder.later(Closed(self.number, by))
        else:
            self._recorder.add(Closed(self.number, by))


@dataclass(slots=True)
class _Scripted:
    prompt: int
    token: str
    replies: list[Reply]
    used: int = field(default=0)


class Provider:
    """Hands out replies to requests, by token and in order."""

    def __init__(self, recorder: Recorder, act: Act) -> None:
        self._recorder = recorder
        self._act = act
        self._scripts: list[_Scripted] = []
        self._requests = 0
        self.players: list[Player] = []
        self.strict = True
        """Whether a transport answers what the real API would refuse with the API's own error."""

    def script(self, prompt: int, token: str, replies: Sequence[Reply]) -> None:
        """From now on requests for ``token`` get these replies, in order."""
        self._scripts.append(_Scripted(prompt, token, list(replies)))

    def begin(self, incoming: Incoming) -> Player:
        """Record a request and choose its reply."""
        owner = self._owner(incoming.messages)
        serves = "auxiliary"
        reply = DEFAULT_REPLY
        if owner is not None:
            serves = "default"
            if owner.used < len(owner.replies):
                serves, reply = "script", owner.replies[owner.used]
            owner.used += 1
        return self._play(incoming, owner, serves, reply, compile_reply(reply))

    def refuse(self, incoming: Incoming) -> Player:
        """Record a request that the real API would refuse; it uses up no scripted reply.

        The reply is a 400 with the first finding, for the transport to word as the API does.
        """
        text = incoming.findings[0].text if incoming.findings else "the request is invalid"
        fault = Fault(FaultKind.STATUS, text, 400)
        return self._play(incoming, self._owner(incoming.messages), "refused", DEFAULT_REPLY, (fault,))

    def _play(
        self,
        incoming: Incoming,
        owner: _Scripted | None,
        serves: str,
        reply: Reply,
        elements: Sequence[Element],
    ) -> Player:
        self._requests += 1
        self._recorder.add(
            Requested(
                self._requests, owner.prompt if owner else None, incoming.messages, serves,
                incoming.streaming, incoming.tools, incoming.findings,
            )
        )  # fmt: skip
        player = Player(self._requests, elements, reply, self._recorder, self._act)
        self.players.append(player)
        return player

    def _owner(self, messages: Sequence[Message]) -> _Scripted | None:
        for message in reversed(messages):
            if isinstance(message, UserMessage):
                inside = [script for script in self._scripts if script.token in message.text]
                return max(inside, key=lambda s: message.text.rfind(s.token), default=None)
        return None

    def close(self) -> None:
        """The scenario is over: whatever is still open is closed by the bench."""
        for player in self.players:
            player.closed("bench")


__all__ = [
    "DEFAULT_TEXT", "Act", "Incoming", "Player", "Provider", "Reason", "StopReason", "Terminator",
    "TextDelta",
]  # fmt: skip
