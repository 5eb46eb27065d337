"""A trace as a sequence diagram in text: who said what to whom, one line an entry.

Four lifelines: the client (who prompts, cancels and listens), the loop under test, the model and
the tools. The number at the left is the entry's position in the trace, the same that a verdict's
evidence names; evidence lines are marked.

The picture is also the form of the golden traces in ``snapshots/``: it has no times, no addresses
and no ids but the scenario's own, so that two runs that did the same read the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from loopspec import trace as t
from loopspec.vocabulary import (
    ArgumentsDelta,
    AssistantMessage,
    Call,
    CallEnd,
    CallStart,
    Event,
    Message,
    Piece,
    Reason,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolResult,
    Usage,
    UserMessage,
)

COLUMNS = ("client", "loop", "model", "tools")
WIDTH = 15
"""Characters between two lifelines."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: an arrow between two lifelines (or a note where both are the same) and words."""

    at: int
    source: int
    target: int
    words: str


_VARYING = re.compile(
    r"0x[0-9a-fA-F]{6,}|[0-9a-f]{32}|Task-\d+|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?|127\.0\.0\.1:\d+"
)


def steady(text: str) -> str:
    """A message without what differs from run to run: addresses, task numbers, times, ports."""
    return _VARYING.sub("…", text)


def quote(text: str, limit: int = 60) -> str:
    """Text in quotes on one line, cut when long, control characters escaped."""
    shown = json.dumps(text, ensure_ascii=False)
    return shown if len(shown) <= limit else shown[: limit - 2] + '…"'


def cut(text: str, limit: int) -> str:
    """Text on one line as it is, cut when long."""
    flat = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def message_words(message: Message) -> str:
    """A message in a few words."""
    if isinstance(message, AssistantMessage):
        parts = []
        for block in message.blocks:
            if isinstance(block, Text):
                parts.append(quote(block.text, 40))
            elif isinstance(block, Reasoning):
                parts.append(f"reasoning {quote(block.text, 40)}")
            elif isinstance(block, Call):
                parts.append(f"call {block.id} {block.name}({cut(block.arguments, 40)})")
        marks = [f"[{message.stop_reason}]"] if message.stop_reason else []
        marks += ["[interrupted]"] if message.interrupted else []
        return " ".join(["assistant:", " + ".join(parts) or "(empty)", *marks])
    if isinstance(message, ToolResult):
        mark = {True: " [error]", False: "", None: ""}[message.is_error]
        code = f" [{message.code}]" if message.code else ""
        return f"result {message.call_id}: {quote(message.text, 48)}{mark}{code}"
    role = "user" if isinstance(message, UserMessage) else message.role
    return f"{role}: {quote(message.text, 48)}"


def piece_words(piece: Piece) -> str:
    """A piece of a reply in a few words."""
    if isinstance(piece, TextDelta):
        return f"text {quote(piece.text)}"
    if isinstance(piece, ReasoningDelta):
        return f"reasoning {quote(piece.text)}"
    if isinstance(piece, CallStart):
        return f"call {piece.id or '(no id)'} {piece.name}"
    if isinstance(piece, ArgumentsDelta):
        return f"arguments {cut(piece.text, 60)}"
    if isinstance(piece, CallEnd):
        return f"call {piece.index} ends"
    if isinstance(piece, Usage):
        return f"usage {piece.input_tokens} + {piece.output_tokens}"
    if isinstance(piece, Reason):
        return f"reason {piece.reason}" + (f": {piece.error}" if piece.error else "")
    return "terminator"


def event_words(event: Event) -> str:
    """An event in a few words."""
    parts = [event.type]
    parts += [part for part in (event.role, event.call_id) if part]
    if event.text is not None and event.type in ("text_delta", "reasoning_delta"):
        parts.append(quote(event.text))
    marks = [event.reason] if event.reason else []
    marks += ["interrupted"] if event.interrupted else []
    marks += ["error"] if event.is_error else []
    return " ".join(parts) + (f" [{', '.join(marks)}]" if marks else "")


def _settled_words(entry: t.Settled) -> str:
    words = f"prompt {entry.prompt} {entry.outcome}"
    if entry.reason:
        words += f": {entry.reason}"
    if entry.answer is not None:
        words += f", answer {quote(entry.answer)}"
    elif entry.message:
        words += f", {quote(steady(entry.message))}"
    return f"{words} ({entry.form})"


CLIENT, LOOP, MODEL, TOOLS = range(4)


def _line(at: int, entry: t.Entry) -> Line:
    match entry:
        case t.Prompted():
            extra = [
                name
                for name, on in (
                    ("while running", entry.running), ("to a fork", entry.fork),
                    ("recovery", entry.recovery),
                )
                if on
            ]  # fmt: skip
            suffix = f" ({', '.join(extra)})" if extra else ""
            return Line(at, CLIENT, LOOP, f"prompt {entry.prompt}: {quote(entry.text)}{suffix}")
        case t.Requested():
            kind = "" if entry.serves == "script" else f" ({entry.serves})"
            return Line(at, LOOP, MODEL, f"request {entry.request}{kind}")
        case t.Opened():
            return Line(at, MODEL, LOOP, f"reply {entry.request} opens")
        case t.Sent():
            return Line(at, MODEL, LOOP, piece_words(entry.piece))
        case t.Faulted():
            detail = f": {entry.detail}" if entry.detail else ""
            return Line(at, MODEL, LOOP, f"FAULT {entry.fault}{detail}")
        case t.Closed():
            by = "" if entry.by == "target" else " (only by the bench, at the end)"
            return Line(at, LOOP, MODEL, f"stream {entry.request} closed{by}")
        case t.Signalled():
            if entry.where == "provider":
                return Line(at, LOOP, MODEL, f"signal, request {entry.number}")
            return Line(at, LOOP, TOOLS, f"signal, tool start {entry.number}")
        case t.ToolStarted():
            call = entry.call_id if entry.call_id is not None else "no call that was sent"
            return Line(at, LOOP, TOOLS, f"{entry.tool}({cut(entry.arguments, 40)}) for {call}")
        case t.ToolSettled():
            text = f" {quote(entry.text)}" if entry.how == "returned" else ""
            return Line(at, TOOLS, LOOP, f"{entry.call_id or 'start ' + str(entry.start)} {entry.how}{text}")
        case t.CancelSent():
            return Line(at, CLIENT, LOOP, f"CANCEL {entry.cancel} ({entry.at})")
        case t.CancelReturned():
            return Line(at, LOOP, CLIENT, f"cancel {entry.cancel} returned")
        case t.Told():
            return Line(at, LOOP, CLIENT, event_words(entry.event))
        case t.ListenerRaised():
            return Line(at, CLIENT, LOOP, "the listener RAISES")
        case t.Settled():
            return Line(at, LOOP, CLIENT, _settled_words(entry))
        case t.Hung():
            return Line(at, LOOP, LOOP, f"prompt {entry.prompt} HANGS ({entry.how})")
        case t.HistoryRead():
            return Line(at, LOOP, LOOP, f"history after prompt {entry.prompt}")
        case t.TargetLost():
            return Line(at, LOOP, LOOP, f"TARGET LOST: {steady(entry.what)}")
        case t.Header():
            return Line(at, LOOP, LOOP, "")


def _draw(line: Line) -> str:
    cells = [" "] * (WIDTH * (len(COLUMNS) - 1) + 1)
    for column in range(len(COLUMNS)):
        cells[column * WIDTH] = "│"
    left, right = sorted((line.source * WIDTH, line.target * WIDTH))
    if left == right:
        cells[left] = "●"
    else:
        for place in range(left + 1, right):
            cells[place] = "─"
        cells[right - 1 if line.target > line.source else left + 1] = (
            "▶" if line.target > line.source else "◀"
        )
    return "".join(cells)


def _detail(entry: t.Entry, before: tuple[Message, ...]) -> Iterator[str]:
    """What a request or a history carries, a line a message."""
    if isinstance(entry, t.Requested):
        kept = 0
        for old, new in zip(before, entry.messages, strict=False):
            if old != new:
                break
            kept += 1
        if kept:
            yield f"(the first {kept} as in the request before)"
        yield from (message_words(message) for message in entry.messages[kept:])
        yield from (f"the API would refuse this: {f.code}: {f.text}" for f in entry.findings)
    elif isinstance(entry, t.HistoryRead):
        yield from (message_words(message) for message in entry.messages)


def render(trace: t.Trace, marked: Collection[int] = ()) -> str:
    """The whole trace as text; positions in ``marked`` (a verdict's evidence) are pointed at."""
    head = "".join(name.ljust(WIDTH) for name in COLUMNS).rstrip()
    lines = [f"       {head}"]
    before: tuple[Message, ...] = ()
    for at, entry in enumerate(trace.entries):
        if isinstance(entry, t.Header):
            continue
        line = _line(at, entry)
        pointer = ">>" if at in marked else "  "
        lines.append(f"{pointer}{at:>4} {_draw(line)}  {line.words}".rstrip())
        rails = _draw(Line(at, 0, 0, "")).replace("●", "│")
        lines += [f"       {rails}    {words}".rstrip() for words in _detail(entry, before)]
        if isinstance(entry, t.Requested):
            before = entry.messages
    return "\n".join(lines) + "\n"


def describe(trace: t.Trace, at: int) -> str:
    """One entry in words: its position, who said it to whom, and what."""
    line = _line(at, trace.entries[at])
    source, target = COLUMNS[line.source], COLUMNS[line.target]
    way = source if source == target else f"{source} to {target}"
    return f"{at}: {way}: {line.words}"
