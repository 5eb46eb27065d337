"""The trace: everything that happened, as one ordered list.

A trace is what the bench recorded of one scenario run against one target. Its first entry is the
:class:`Header`; every other entry is something the bench did, saw or was told, in the order in
which the bench came to know of it. What the bench did and saw (requests, pieces sent, tools
started, cancellations) is evidence of the first kind. What was told (events, history, the
settlement) is evidence too, but of what the target says.

On disk a trace is NDJSON: one entry a line, ``{"kind": ..., ...}``, requests as deltas to the
request before (``kept`` messages are the same as there, ``messages`` are what follows). In memory
each request holds its whole list.

``call`` numbers, ``request`` numbers and ``prompt`` numbers start at 1 and count within the trace.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from loopspec.vocabulary import (
    Event,
    Message,
    Piece,
    event_from_json,
    event_to_json,
    message_from_json,
    message_to_json,
    piece_from_json,
    piece_to_json,
)

FORMAT = 1
"""The version of the trace format. It changes when an old reader would misread a new trace."""


class TraceError(ValueError):
    """A trace on disk is not a trace; the message names the line and what was expected."""


@dataclass(frozen=True, slots=True)
class Header:
    """What was run, and what can be seen of it.

    ``observes`` is what the target's variant lets the bench see: ``events``, ``listeners`` (it
    calls our listener inside its own run, so that one that raises is inside it), ``history``,
    ``call_ids`` (tools know which call they serve), ``tool_signal`` (tools see a cancellation),
    ``provider_signal``, ``error_marks`` (results in requests or history carry one),
    ``cancel_told`` (its documentation names a way to tell a cancellation), ``limit`` (it has a
    turn limit). ``can_express`` is the set of stop reasons and fault kinds that its wire can say.
    """

    scenario: str
    target: str
    variant: str
    wire: str
    grade: str
    streaming: bool = True
    claims: dict[str, str] = field(default_factory=dict)
    observes: tuple[str, ...] = ()
    can_express: tuple[str, ...] = ()
    max_turns: int | float | None = None
    family: str | None = None
    member: str | None = None
    format: int = FORMAT
    kind: ClassVar[str] = "header"


@dataclass(frozen=True, slots=True)
class Prompted:
    """The bench gave the target a prompt. ``running``: another run had not settled yet."""

    prompt: int
    text: str
    running: bool = False
    fork: bool = False
    recovery: bool = False
    kind: ClassVar[str] = "prompted"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the real API would refuse in a request; ``code`` is the history rule's."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Requested:
    """The target asked the model. ``prompt`` is whose run it belongs to (by its last token).

    ``serves`` is ``script`` (a reply was scripted for it), ``default`` (the script foresaw none:
    the marked default answer was sent) or ``auxiliary`` (not ours: titles, suggestions).
    """

    request: int
    prompt: int | None
    messages: tuple[Message, ...]
    serves: str = "script"
    streaming: bool = True
    tools: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    kind: ClassVar[str] = "requested"


@dataclass(frozen=True, slots=True)
class Opened:
    """The reply to ``request`` was opened: its status and headers went out."""

    request: int
    kind: ClassVar[str] = "opened"


@dataclass(frozen=True, slots=True)
class Sent:
    """The bench released one piece of a reply."""

    request: int
    piece: Piece
    kind: ClassVar[str] = "sent"


@dataclass(frozen=True, slots=True)
class Faulted:
    """The bench broke the reply: ``fault`` is a FaultKind value, ``detail`` says how."""

    request: int
    fault: str
    detail: str | None = None
    kind: ClassVar[str] = "faulted"


@dataclass(frozen=True, slots=True)
class Closed:
    """The stream of ``request`` was closed, by the ``target`` or by the ``bench`` at the end.

    On a non-streaming wire a reply is one write, and its closing is the end of the exchange.
    """

    request: int
    by: str
    kind: ClassVar[str] = "closed"


@dataclass(frozen=True, slots=True)
class Signalled:
    """The cancellation signal was seen: by the ``provider`` of a request, or by a ``tool``."""

    where: str
    number: int
    kind: ClassVar[str] = "signalled"


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A probe tool was entered.

    ``call_id`` is the scripted call it serves, ``None`` if no scripted call has this tool and these
    arguments; ``arguments`` is JSON text as received.
    """

    start: int
    tool: str
    arguments: str
    call_id: str | None = None
    request: int | None = None
    kind: ClassVar[str] = "tool_started"


@dataclass(frozen=True, slots=True)
class ToolSettled:
    """A probe tool left: ``how`` is ``returned``, ``raised`` or ``cancelled``."""

    start: int
    how: str
    text: str = ""
    call_id: str | None = None
    kind: ClassVar[str] = "tool_settled"


@dataclass(frozen=True, slots=True)
class CancelSent:
    """The bench is about to call the target's cancel. ``at`` names the place in words."""

    cancel: int
    at: str
    kind: ClassVar[str] = "cancel_sent"


@dataclass(frozen=True, slots=True)
class CancelReturned:
    """The target's cancel returned to the bench; nothing may begin after this."""

    cancel: int
    kind: ClassVar[str] = "cancel_returned"


@dataclass(frozen=True, slots=True)
class Told:
    """The target told an event."""

    event: Event
    kind: ClassVar[str] = "told"


@dataclass(frozen=True, slots=True)
class ListenerRaised:
    """The bench's listener raised, on the event just told."""

    kind: ClassVar[str] = "listener_raised"


@dataclass(frozen=True, slots=True)
class Settled:
    """A prompt settled.

    ``outcome`` and ``reason`` come from the manifest's mapping of ``raw``; ``answer`` is the text
    that reached the caller; ``message`` the failure's own text; ``raw`` what was really returned
    or raised, as the adapter passed it on.
    """

    prompt: int
    outcome: str
    form: str
    reason: str | None = None
    answer: str | None = None
    message: str | None = None
    raw: dict[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "settled"


@dataclass(frozen=True, slots=True)
class Hung:
    """The run of ``prompt`` can no longer move, and had not settled.

    ``how`` says how it was known: ``still`` (nothing can wake it) or ``watchdog`` (confirmed with
    five times the time).
    """

    prompt: int
    how: str
    kind: ClassVar[str] = "hung"


@dataclass(frozen=True, slots=True)
class HistoryRead:
    """The target's own history, read while it was at rest after ``prompt``."""

    prompt: int
    messages: tuple[Message, ...]
    kind: ClassVar[str] = "history"


@dataclass(frozen=True, slots=True)
class TargetLost:
    """The target's process died, flooded or spoke rubbish; ``what`` says which."""

    what: str
    kind: ClassVar[str] = "target_lost"


Entry = (
    Header | Prompted | Requested | Opened | Sent | Faulted | Closed | Signalled | ToolStarted
    | ToolSettled | CancelSent | CancelReturned | Told | ListenerRaised | Settled | Hung
    | HistoryRead | TargetLost
)  # fmt: skip

ENTRIES: dict[str, type] = {
    cls.kind: cls
    for cls in (
        Header, Prompted, Requested, Opened, Sent, Faulted, Closed, Signalled, ToolStarted,
        ToolSettled, CancelSent, CancelReturned, Told, ListenerRaised, Settled, Hung, HistoryRead,
        TargetLost,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trace:
    """A header and the entries after it. Index 0 is the header, as on disk."""

    entries: tuple[Entry, ...]

    @property
    def header(self) -> Header:
        """The first entry."""
        first = self.entries[0]
        if not isinstance(first, Header):
            raise TraceError("line 1: a trace starts with its header")
        return first

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def entry_to_json(entry: Entry, before: tuple[Message, ...] = ()) -> dict[str, Any]:
    """One entry as plain data. ``before`` is the message list of the request before."""
    data: dict[str, Any] = {"kind": entry.kind}
    for item in dataclasses.fields(entry):
        value = getattr(entry, item.name)
        if item.default is not dataclasses.MISSING and value == item.default:
            continue
        if item.default_factory is not dataclasses.MISSING and not value:
            continue
        data[item.name] = value
    if isinstance(entry, Requested):
        kept = 0
        for old, new in zip(before, entry.messages, strict=False):
            if old != new:
                break
            kept += 1
        data["kept"] = kept
        data["messages"] = [message_to_json(message) for message in entry.messages[kept:]]
        data["findings"] = [_plain(finding) for finding in entry.findings]
        if not entry.findings:
            del data["findings"]
    elif isinstance(entry, HistoryRead):
        data["messages"] = [message_to_json(message) for message in entry.messages]
    elif isinstance(entry, Sent):
        data["piece"] = piece_to_json(entry.piece)
    elif isinstance(entry, Told):
        data["event"] = event_to_json(entry.event)
    return {key: _plain(value) for key, value in data.items()}


def entry_from_json(data: dict[str, Any], before: tuple[Message, ...] = ()) -> Entry:
    """The inverse of :func:`entry_to_json`; raises :class:`TraceError` naming what is wrong."""
    kind = data.get("kind")
    cls = ENTRIES.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise TraceError(f"unknown kind {kind!r}; expected one of {', '.join(ENTRIES)}")
    fields = {key: value for key, value in data.items() if key != "kind"}
    try:
        if cls is Requested:
            kept = fields.pop("kept", 0)
            if not isinstance(kept, int) or kept > len(before):
                raise TraceError(f"kept is {kept!r}, but the request before had {len(before)}")
            fields["messages"] = before[:kept] + tuple(map(message_from_json, fields["messages"]))
            fields["findings"] = tuple(Finding(**item) for item in fields.get("findings", ()))
            fields["tools"] = tuple(fields.get("tools", ()))
        elif cls is HistoryRead:
            fields["messages"] = tuple(map(message_from_json, fields["messages"]))
        elif cls is Sent:
            fields["piece"] = piece_from_json(fields["piece"])
        elif cls is Told:
            fields["event"] = event_from_json(fields["event"])
        elif cls is Header:
            fields["observes"] = tuple(fields.get("observes", ()))
            fields["can_express"] = tuple(fields.get("can_express", ()))
        entry: Entry = cls(**fields)
    except (KeyError, TypeError) as error:
        raise TraceError(f"not a {kind} entry: {error}") from error
    return entry


def dumps(trace: Trace) -> str:
    """The trace as NDJSON text, one entry a line, keys in field order."""
    lines = []
    before: tuple[Message, ...] = ()
    for entry in trace.entries:
        lines.append(json.dumps(entry_to_json(entry, before), ensure_ascii=False))
        if isinstance(entry, Requested):
            before = entry.messages
    return "\n".join(lines) + "\n"


def loads(text: str | Iterable[str]) -> Trace:
    """Read NDJSON text back; raises :class:`TraceError` with the line number."""
    lines = text.split("\n") if isinstance(text, str) else text
    entries: list[Entry] = []
    before: tuple[Message, ...] = ()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise TraceError("an entry is a JSON object")
            entry = entry_from_json(data, before)
        except ValueError as error:
            raise TraceError(f"line {number}: {error}") from error
        if isinstance(entry, Header) and entry.format != FORMAT:
            raise TraceError(f"line {number}: trace format {entry.format}, this loopspec reads {FORMAT}")
        entries.append(entry)
        if isinstance(entry, Requested):
            before = entry.messages
    if not entries or not isinstance(entries[0], Header):
        raise TraceError("line 1: a trace starts with its header")
    return Trace(tuple(entries))
