"""A reply as the bench plays it: pieces, gates and faults, compiled from its steps.

``compile_reply`` is pure. A **gate** is a named point at which the provider holds until an action
of the environment is done; pieces between two gates may leave in one write. A **fault** breaks the
reply. What a step list leaves unsaid is said here, once: the terminator follows the reason, and a
reply without a reason ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loopspec.scenario import (
    ArgumentsStep,
    CallEndStep,
    CallSpec,
    CallStartStep,
    CallStep,
    ErrorStep,
    ReasoningStep,
    ReasonStep,
    Reply,
    StatusStep,
    TextStep,
    UsageStep,
)
from loopspec.vocabulary import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    FaultKind,
    Piece,
    Reason,
    ReasoningDelta,
    Terminator,
    TextDelta,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Gate:
    """Hold here until ``action`` (``cancel`` or ``prompt``) is done."""

    action: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Break the reply here. ``status`` and ``retry_after`` belong to an HTTP error."""

    kind: FaultKind
    message: str = "the provider failed"
    status: int | None = None
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """The reply is opened here: its status and headers go out, or its stream is handed over."""


Element = Piece | Gate | Fault | Open

_INSTEAD_OF_OPENING = (FaultKind.STATUS, FaultKind.STALL, FaultKind.DISCONNECT)

_ENDING_WORDS = frozenset({"terminator", "end", "disconnect", "stall", "malformed", "half_frame"})


def _cut(text: str, size: int | None) -> Iterator[str]:
    if size is None or not text:
        yield text
        return
    for start in range(0, len(text), size):
        yield text[start : start + size]


class _Calls:
    """The indices of the calls of one reply, by label."""

    def __init__(self) -> None:
        self._by_label: dict[str, int] = {}

    def begin(self, spec: CallSpec) -> CallStart:
        self._by_label[spec.label] = len(self._by_label)
        return CallStart(self._by_label[spec.label], spec.wire_id, spec.tool)

    def index(self, label: str) -> int:
        if label not in self._by_label:
            raise ValueError(f"call {label!r} has not been started in this reply; add call_start")
        return self._by_label[label]


def _elements(reply: Reply) -> Iterator[Element]:
    calls = _Calls()
    for step in reply.steps:
        if step in ("cancel", "prompt"):
            yield Gate(str(step))
        elif step == "open":
            yield Open()
        elif step == "terminator":
            yield Terminator()
        elif isinstance(step, str):
            yield Fault(FaultKind(step))
        elif isinstance(step, TextStep):
            yield from (TextDelta(part) for part in _cut(step.text, reply.chunk))
        elif isinstance(step, ReasoningStep):
            yield from (ReasoningDelta(part) for part in _cut(step.reasoning, reply.chunk))
        elif isinstance(step, CallStep):
            start = calls.begin(step.call)
            yield start
            for part in _cut(step.call.arguments_text, reply.chunk):
                yield ArgumentsDelta(start.index, part)
            yield CallEnd(start.index)
        elif isinstance(step, CallStartStep):
            yield calls.begin(step.call_start)
        elif isinstance(step, ArgumentsStep):
            index = calls.index(step.arguments.label)
            yield from (ArgumentsDelta(index, part) for part in _cut(step.arguments.text, reply.chunk))
        elif isinstance(step, CallEndStep):
            yield CallEnd(calls.index(step.call_end))
        elif isinstance(step, UsageStep):
            yield Usage(step.usage.input_tokens, step.usage.output_tokens)
        elif isinstance(step, ReasonStep):
            yield Reason(step.reason, step.error)
        elif isinstance(step, StatusStep):
            spec = step.status
            yield Fault(FaultKind.STATUS, spec.message, spec.status, spec.retry_after)
        elif isinstance(step, ErrorStep):
            yield Fault(FaultKind.ERROR, step.error)


_COMPILED: dict[int, tuple[Reply, tuple[Element, ...]]] = {}
"""Replies compiled before, by identity: scenarios are played many times. Bounded, see below."""


def compile_reply(reply: Reply) -> tuple[Element, ...]:
    """The elements of a reply, in order, with what was implied made explicit.

    Raises ``ValueError`` when a step names a call that was not started.
    """
    known = _COMPILED.get(id(reply))
    if known is not None and known[0] is reply:
        return known[1]
    compiled = _compile(reply)
    if len(_COMPILED) >= 4096:
        _COMPILED.clear()
    _COMPILED[id(reply)] = (reply, compiled)
    return compiled


def _compile(reply: Reply) -> tuple[Element, ...]:
    elements = list(_elements(reply))
    reasons = [at for at, element in enumerate(elements) if isinstance(element, Reason)]
    after = elements[reasons[-1] + 1 :] if reasons else elements
    said = any(isinstance(element, Fault | Terminator) for element in after)
    if not said:
        elements.append(Terminator() if reasons else Fault(FaultKind.END))
    if Open() not in elements:
        first = next(at for at, element in enumerate(elements) if not isinstance(element, Gate))
        element = elements[first]
        if not (isinstance(element, Fault) and element.kind in _INSTEAD_OF_OPENING):
            elements.insert(first, Open())
    return tuple(elements)
