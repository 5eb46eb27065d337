"""What a wire is: one provider API, as bytes and as rules.

A wire does four things, all of them pure. It *decodes* a request body into canonical messages, it
*checks* the body against the history rules of the real API, it *encodes* the pieces of a reply as
frames (or as one body), and it words errors as the API does. The server does the rest, the same for
every wire: routing, HTTP, gates, faults, and when what is recorded.

What a wire cannot say it does not fake. A piece for which :meth:`Encoder.frames` returns ``b""`` is
not sent and is not recorded as sent, and the wire does not list it in ``can_express``.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loopspec.bench.provider import Incoming
from loopspec.bench.script import Fault, compile_reply
from loopspec.scenario import Reply
from loopspec.trace import Finding
from loopspec.vocabulary import (
    KNOWN_REASONS,
    FaultKind,
    Piece,
    Reason,
    ReasoningDelta,
    Terminator,
)

Body = dict[str, Any]
"""A JSON object, as a request or a reply carries it."""

UNKNOWN = "unknown"
REASONING = "reasoning"
CALL_END = "call_end"
"""Words of ``can_express`` beside stop reasons and fault kinds: unknown stop reasons pass through,
reasoning text can be sent, the end of a call is marked."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


def compact(value: Any) -> bytes:
    """A value as JSON without blanks, in ASCII: a lone surrogate of a scenario survives it."""
    return _encode(value).encode("ascii")


def wire_reason(table: Mapping[str, str], reason: str) -> str | None:
    """The API's word for a stop reason: by the table, or the reason itself when it is unknown.

    ``None`` is a reason that we know and the wire has no word for.
    """
    if reason in table:
        return table[reason]
    return None if reason in KNOWN_REASONS else reason


@dataclass(frozen=True, slots=True)
class Objection:
    """One reason why the real API would refuse a request.

    ``code`` is the history rule's; ``text``, ``param`` and ``kind`` (the API's own error code) are
    what the API says.
    """

    code: str
    text: str
    param: str | None = None
    kind: str | None = None

    @property
    def finding(self) -> Finding:
        """The objection as a trace holds it."""
        return Finding(self.code, self.text)


UNREADABLE = Objection("body", "We could not parse the JSON body of your request.")
"""The body is not a JSON object, so that nothing else can be said of it."""


class Encoder(Protocol):
    """Says the pieces of one reply, in order. It may keep count of what it has said."""

    def frames(self, piece: Piece) -> bytes:
        """The frames of a piece in a stream; ``b""`` if the wire cannot say it."""

    def error(self, message: str) -> bytes:
        """The error frame that breaks a stream."""

    def malformed(self) -> bytes:
        """A frame, complete as a frame, whose content is not what the wire calls a frame."""

    def half(self) -> bytes:
        """The first half of a frame."""

    def says(self, piece: Piece) -> bool:
        """Whether a whole body can say this piece (a terminator is the end of the body)."""

    def whole(self, pieces: Sequence[Piece]) -> Body:
        """The reply as one body, for a request that did not ask for a stream."""


@dataclass(frozen=True, slots=True)
class Wire:
    """One provider API.

    Parameters
    ----------
    name: as scenarios, variants and reports write it.
    base_path: what the API's client wants at the end of its base URL.
    paths: what the path of a request, without base URL prefix and query, must match in full.
    reasons: the API's word for each stop reason that it has.
    faults: the kinds of fault that can be played on it.
    extras: ``unknown``, ``reasoning``, ``call_end``, as far as it can say them.
    decode: the messages, tools and mode of a request, from its body and path; never raises.
    check: what the API would refuse in a request, in the order in which it would say so.
    encoder: an encoder for the reply to the request of this number, body and path.
    error_body: the body of an HTTP error with this status and message.
    refusal: the body of the 400 that an objection is answered with.
    """

    name: str
    base_path: str
    paths: tuple[re.Pattern[str], ...]
    reasons: Mapping[str, str]
    faults: frozenset[str]
    extras: frozenset[str]
    decode: Callable[[Body, str], Incoming]
    check: Callable[[Body], tuple[Objection, ...]]
    encoder: Callable[[int, Body, str], Encoder]
    error_body: Callable[[int, str], Body]
    refusal: Callable[[Objection], Body]

    @property
    def can_express(self) -> frozenset[str]:
        """Stop reasons, fault kinds and extras in one set.

        ``error`` is both a stop reason and a fault kind; where that matters, ask :meth:`lacks`.
        """
        return frozenset(self.reasons) | self.faults | self.extras

    def lacks(self, reply: Reply) -> frozenset[str]:
        """What this reply needs and the wire cannot say, such as ``reason deferred``."""
        missing: set[str] = set()
        for element in compile_reply(reply):
            if isinstance(element, Reason) and wire_reason(self.reasons, element.reason) is None:
                missing.add(f"reason {element.reason}")
            elif isinstance(element, Reason) and element.reason not in KNOWN_REASONS:
                missing |= {"reason unknown"} - {f"reason {extra}" for extra in self.extras}
            elif isinstance(element, Fault) and element.kind not in self.faults:
                missing.add(f"fault {element.kind}")
            elif isinstance(element, ReasoningDelta) and REASONING not in self.extras:
                missing.add(REASONING)
        return frozenset(missing)

    def serves(self, path: str) -> bool:
        """Whether a request to this path (query included) speaks this wire."""
        bare = path.partition("?")[0]
        return any(pattern.fullmatch(bare) for pattern in self.paths)

    def read(self, body: Body, path: str) -> tuple[Incoming, tuple[Objection, ...]]:
        """Decode and check a request; the incoming request carries the findings."""
        objections = self.check(body)
        incoming = self.decode(body, path)
        if objections:
            findings = tuple(objection.finding for objection in objections)
            incoming = dataclasses.replace(incoming, findings=findings)
        return incoming, objections


def sayable(encoder: Encoder, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces that a whole body says: those the wire has words for, up to the terminator.

    What a script sends after the terminator has no place in a body, whose end is the terminator.
    """
    for piece in pieces:
        if encoder.says(piece):
            yield piece
        if isinstance(piece, Terminator):
            return


ALL_FAULTS = frozenset(kind.value for kind in FaultKind)
"""Every fault can be played on a streaming HTTP wire that has an error frame."""
