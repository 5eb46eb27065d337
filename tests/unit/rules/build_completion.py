"""Small traces written by hand, for the chapters completion, stream and limits.

A :class:`Story` is a trace being told: each method adds what happened next and returns the story.
It keeps the history that the target would send, so that a test says only what matters to it.
"""

from __future__ import annotations

from typing import Any, Self

from loopspec.rules import RULES, Broke, Held, Hidden
from loopspec.trace import (
    CancelReturned,
    CancelSent,
    Closed,
    Entry,
    Faulted,
    Finding,
    Header,
    HistoryRead,
    Hung,
    ListenerRaised,
    Opened,
    Prompted,
    Requested,
    Sent,
    Settled,
    TargetLost,
    Told,
    ToolSettled,
    ToolStarted,
    Trace,
    dumps,
    loads,
)
from loopspec.trace_index import TraceIndex
from loopspec.vocabulary import (
    ArgumentsDelta,
    AssistantMessage,
    Block,
    Call,
    CallEnd,
    CallStart,
    Event,
    Message,
    Piece,
    Reason,
    Terminator,
    Text,
    TextDelta,
    ToolResult,
    UserMessage,
)

EVERYTHING = ("events", "history", "error_marks", "limit")
PROBES = ("probe", "probe_number", "probe_optional")


def call(
    index: int, id: str, arguments: str | None = None, name: str = "probe", ended: bool = True
) -> list[Piece]:
    """The pieces of one call; its arguments fit the tool ``probe`` unless given."""
    text = f'{{"value": "{id}"}}' if arguments is None else arguments
    pieces: list[Piece] = [CallStart(index, id, name), ArgumentsDelta(index, text)]
    return [*pieces, CallEnd(index)] if ended else pieces


class Story:
    """A trace being told.

    Parameters
    ----------
    claims: the target's claims.
    header: other fields of the header.
    """

    def __init__(self, claims: dict[str, str] | None = None, **header: Any) -> None:
        fields = {
            "scenario": "story", "target": "a loop", "variant": "default", "wire": "native",
            "grade": "exact", "observes": EVERYTHING, "can_express": ("call_end",),
        }  # fmt: skip
        self.entries: list[Entry] = [Header(claims=claims or {}, **{**fields, **header})]
        self.messages: list[Message] = []
        self.prompts = self.requests = self.starts = self.cancels = 0

    def add(self, entry: Entry) -> Self:
        """Anything else."""
        self.entries.append(entry)
        return self

    def prompt(self, **fields: Any) -> Self:
        """The next prompt is given."""
        self.prompts += 1
        text = f"[prompt {self.prompts}]"
        self.messages.append(UserMessage(text))
        return self.add(Prompted(self.prompts, text, **fields))

    def request(
        self, *, serves: str = "script", streaming: bool = True, prompt: int | None = None,
        findings: tuple[Finding, ...] = (),
    ) -> Self:  # fmt: skip
        """The target asks with the history so far, and the reply opens."""
        self.requests += 1
        owner = prompt or self.prompts
        self.add(Requested(self.requests, owner, tuple(self.messages), serves, streaming, PROBES, findings))
        return self.add(Opened(self.requests))

    def sent(self, *pieces: Piece | list[Piece] | str) -> Self:
        """Pieces of the reply; a plain text is a text delta, a list the pieces of a call."""
        for item in pieces:
            for piece in item if isinstance(item, list) else [item]:
                said = TextDelta(piece) if isinstance(piece, str) else piece
                self.add(Sent(self.requests, said))
        return self

    def reply(
        self, *pieces: Piece | list[Piece] | str, reason: str = "stop", error: str | None = None
    ) -> Self:
        """A whole reply with its reason and terminator; the target closes its stream and keeps it."""
        self.sent(*pieces, Reason(reason, error), Terminator())
        self.add(Closed(self.requests, "target"))
        return self.keep(*pieces)

    def keep(self, *pieces: Piece | list[Piece] | str) -> Self:
        """The target keeps a message of these pieces."""
        flat = [p for item in pieces for p in (item if isinstance(item, list) else [item])]
        texts = {p.index: p.text for p in flat if isinstance(p, ArgumentsDelta)}
        blocks: list[Block] = []
        for piece in flat:
            if isinstance(piece, str):
                blocks.append(Text(piece))
            elif isinstance(piece, CallStart):
                blocks.append(Call(piece.id, piece.name, texts.get(piece.index, "")))
        self.messages.append(AssistantMessage(tuple(blocks)))
        return self

    def fault(self, fault: str, detail: str | None = None) -> Self:
        """The bench breaks the reply."""
        return self.add(Faulted(self.requests, fault, detail))

    def closed(self, by: str = "target", request: int | None = None) -> Self:
        """The stream is closed."""
        return self.add(Closed(request or self.requests, by))

    def start(
        self, id: str | None, arguments: str | None = None, tool: str = "probe",
        request: int | None = None,
    ) -> Self:  # fmt: skip
        """A tool is entered, for a call or (``None``) with arguments that no call has."""
        self.starts += 1
        text = f'{{"value": "{id}"}}' if arguments is None else arguments
        return self.add(ToolStarted(self.starts, tool, text, id, request or self.requests))

    def tool(self, id: str, how: str = "returned", *, keep: bool = True) -> Self:
        """A tool runs from start to end, and its result is kept."""
        self.start(id)
        self.add(ToolSettled(self.starts, how, f"result of {id}" if how == "returned" else "", id))
        return self.result(id, how != "returned") if keep else self

    def result(self, id: str, is_error: bool | None = False, name: str = "probe") -> Self:
        """The target keeps a result for a call."""
        self.messages.append(ToolResult(id, name, f"result of {id}", is_error))
        return self

    def cancel(self) -> Self:
        """The bench cancels, and the cancel returns."""
        self.cancels += 1
        self.add(CancelSent(self.cancels, "here"))
        return self.add(CancelReturned(self.cancels))

    def listener_raises(self) -> Self:
        """The bench's listener raises."""
        return self.add(ListenerRaised())

    def told(self, type: str, **fields: Any) -> Self:
        """The target tells an event."""
        return self.add(Told(Event(type, **fields)))

    def completes(self, answer: str | None = None, form: str = "returned", prompt: int | None = None) -> Self:
        """The run is reported as completed."""
        return self.add(Settled(prompt or self.prompts, "completed", form, answer=answer))

    def fails(
        self, reason: str | None = "provider", form: str = "raised", message: str | None = None,
        outcome: str = "failed", prompt: int | None = None, **raw: Any,
    ) -> Self:  # fmt: skip
        """The run is reported as failed."""
        return self.add(Settled(prompt or self.prompts, outcome, form, reason, message=message, raw=raw))

    def hangs(self) -> Self:
        """The run can no longer move."""
        return self.add(Hung(self.prompts, "still"))

    def lost(self) -> Self:
        """The target dies."""
        return self.add(TargetLost("its process died"))

    def history(self, *without: str) -> Self:
        """The target's history is read; it lacks the results of the calls named."""
        messages = [m for m in self.messages if not (isinstance(m, ToolResult) and m.call_id in without)]
        return self.add(HistoryRead(self.prompts, tuple(messages)))

    def index(self) -> TraceIndex:
        """The story as an indexed trace, read back from its text as a report would."""
        return TraceIndex(loads(dumps(Trace(tuple(self.entries)))))


def _findings(rule: str, stories: tuple[Story, ...]) -> list[Any]:
    indices = [story.index() for story in stories]
    known = RULES[rule]
    if not all(known.applies(index.header.claims) for index in indices):
        raise AssertionError(f"{rule} does not apply to a target with these claims")
    found = list(known.check(indices if known.relation else indices[0]))
    for item in found:
        for at in getattr(item, "at", ()):
            assert 0 <= at < max(map(len, (index.trace for index in indices)))
    return found


def breaks(rule: str, *stories: Story) -> str:
    """The rule is broken and nowhere held; returns its words."""
    found = _findings(rule, stories)
    assert found, f"{rule} is silent"
    assert all(isinstance(item, Broke) for item in found), found
    if not RULES[rule].relation:
        assert all(item.at for item in found), "a break has evidence"
    return "; ".join(item.words for item in found)


def holds(rule: str, *stories: Story) -> None:
    """The rule was exercised and held."""
    found = _findings(rule, stories)
    assert found, f"{rule} is silent"
    assert all(isinstance(item, Held) for item in found), found


def silent(rule: str, *stories: Story) -> None:
    """The rule has nothing to say."""
    assert _findings(rule, stories) == []


def hidden(rule: str, *stories: Story) -> str:
    """The rule's outcome cannot be seen; returns why."""
    found = _findings(rule, stories)
    assert found, f"{rule} is silent"
    assert all(isinstance(item, Hidden) for item in found), found
    return "; ".join(item.why for item in found)
