"""The machine: the agent loop as two tables, and nothing else.

Theory of operation
===================

A loop that talks to a model has one hard problem: at every moment something else can happen. The
stream can fail, the caller can cancel, a listener can raise, another prompt can come. Code that
handles each of these where it happens to be written ends up with as many answers as places. Here
there is one answer, in one place: a table with a row for each thing that may happen in each state.

**Two tables.** The *run's* table says what becomes of one prompt, from its acceptance to its
settlement. The *call's* table says what becomes of one tool call. A batch is its calls, so the
model stays finite whatever their number.

**Rows.** A row is a state, an input and a named *guard*; it gives the next state and a named
*action*. Guards look at what does not belong into a state: is this the last turn, are there calls,
is a tool still running, what was claimed. Of the guards of one state and input exactly one holds,
whatever the run: so the order of rows means nothing, no row stands in for another, and the table is
total. What has no row is illegal, on purpose.

**Illegal inputs.** They raise :class:`IllegalInput` in one place, name the inputs that would have
been legal, and change nothing.

**Inputs and outputs.** Both are plain values. The machine knows no clock, no socket and no
``await``. What it wants done it says as outputs; the shell round it (``loop.py``) does them in
order and then, if it has nothing to wait for, feeds :class:`Proceed`. So every place where the
shell can be interrupted lies between two inputs, and is a state of the table: these are the
**await points**.

**Cancellation is an input like any other.** It may come in every state. What was already asked for
before it (outputs not yet carried out) is still told; what comes after it is what the table says.

**Claims are guards.** The specification leaves choices to implementations. Each is a value in
:class:`Choices`, asked by a guard. Two profiles are two sets of values, and the table knows neither
of their names.

Why not one state per combination, or a class per state? Because a reader must be able to see the
whole on two pages, and because tests delete each row and watch the loop stop there: the table is
the loop's control flow, not a log of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self

from loopspec.assembler import Assembler
from loopspec.vocabulary import (
    ACCEPTING_REASONS,
    FAILED_REASONS,
    UNFINISHED_REASONS,
    AssistantMessage,
    Call,
    Event,
    EventType,
    FailureReason,
    Message,
    Outcome,
    Piece,
    Reason,
    ReasoningDelta,
    StopReason,
    TextDelta,
    ToolResult,
    UserMessage,
)

# --------------------------------------------------------------------------------------------
# States and inputs


class State(StrEnum):
    """Where a run is. The comment says what it waits for there."""

    IDLE = "idle"  # a prompt
    OPENING = "opening"  # turn open, nothing requested: listeners of what was told
    REQUESTING = "requesting"  # asked: the reply to open
    STREAMING = "streaming"  # open: the next piece
    ENDING = "ending"  # reason known: the terminator
    RECORDED = "recorded"  # the reply is a message: listeners of its end
    DISPATCHING = "dispatching"  # a call is next: listeners of what was told
    STARTING = "starting"  # a call's start was told, its tool not entered: listeners
    EXECUTING = "executing"  # tools run: the next one to settle
    DRAINING = "draining"  # the batch was ended early: the started tools to settle
    BETWEEN = "between"  # the batch is complete: listeners of its results
    COMPLETED = "completed"  # settled with an answer
    FAILED = "failed"  # settled with a failure


class Kind(StrEnum):
    """The kinds of input to the run's table."""

    PROMPT = "prompt"
    PROCEED = "proceed"
    OPENED = "opened"
    TEXT = "text delta"
    REASONING = "reasoning delta"
    CALL = "call delta"
    USAGE = "usage"
    REASON = "reason"
    TERMINATOR = "terminator"
    STREAM_FAILED = "stream failed"
    STREAM_ENDED = "stream ended"
    TOOL_STARTED = "tool started"
    TOOL_SETTLED = "tool settled"
    CANCEL = "cancel"
    LISTENER_FAILED = "listener failed"


AWAIT_POINTS = (
    State.OPENING, State.REQUESTING, State.STREAMING, State.ENDING, State.RECORDED,
    State.DISPATCHING, State.STARTING, State.EXECUTING, State.DRAINING, State.BETWEEN,
)  # fmt: skip
"""The places where a running loop can wait, and so where a cancellation can come."""


@dataclass(frozen=True, slots=True)
class Prompted:
    """A prompt was given."""

    text: str
    kind: ClassVar[Kind] = Kind.PROMPT


@dataclass(frozen=True, slots=True)
class Proceed:
    """Everything asked for was done, and nothing came in between."""

    kind: ClassVar[Kind] = Kind.PROCEED


@dataclass(frozen=True, slots=True)
class Opened:
    """The provider opened the reply."""

    kind: ClassVar[Kind] = Kind.OPENED


_PIECE_KINDS = {
    "text": Kind.TEXT,
    "reasoning": Kind.REASONING,
    "call_start": Kind.CALL,
    "arguments": Kind.CALL,
    "call_end": Kind.CALL,
    "usage": Kind.USAGE,
    "reason": Kind.REASON,
    "terminator": Kind.TERMINATOR,
}


@dataclass(frozen=True, slots=True)
class Received:
    """One piece of the reply came; its kind is the piece's."""

    piece: Piece

    @property
    def kind(self) -> Kind:
        """The kind of input that this piece is."""
        return _PIECE_KINDS[self.piece.type]


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The request or its stream failed, with the provider's message."""

    message: str
    kind: ClassVar[Kind] = Kind.STREAM_FAILED


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The stream ended without its terminator."""

    kind: ClassVar[Kind] = Kind.STREAM_ENDED


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """The call's tool exists, its arguments are valid, and it is about to be entered."""

    place: int
    kind: ClassVar[Kind] = Kind.TOOL_STARTED


@dataclass(frozen=True, slots=True)
class ToolSettled:
    """A call has an answer.

    ``failure`` is ``unknown_tool``, ``invalid_arguments`` or ``tool_exception``, or ``None``;
    ``aborted``: the tool ended because of the signal.
    """

    place: int
    text: str
    failure: str | None = None
    aborted: bool = False
    kind: ClassVar[Kind] = Kind.TOOL_SETTLED


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller cancelled."""

    kind: ClassVar[Kind] = Kind.CANCEL


@dataclass(frozen=True, slots=True)
class ListenerFailed:
    """A listener raised on an event."""

    message: str
    kind: ClassVar[Kind] = Kind.LISTENER_FAILED


Input = (
    Prompted | Proceed | Opened | Received | StreamFailed | StreamEnded | ToolStarted | ToolSettled
    | Cancelled | ListenerFailed
)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Outputs


@dataclass(frozen=True, slots=True)
class Append:
    """Append this message to history."""

    message: Message


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """Record a reply that did not become a message."""

    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell the listeners."""

    event: Event


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Ask the model with the normalised history."""


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close the stream, however it stands."""


@dataclass(frozen=True, slots=True)
class StartTool:
    """Look the call's tool up, check the arguments, and say ToolStarted or ToolSettled."""

    place: int
    call: Call
    whole: bool


@dataclass(frozen=True, slots=True)
class RunTool:
    """Enter the tool."""

    place: int
    call: Call


@dataclass(frozen=True, slots=True)
class SignalTools:
    """Set the signal that running tools see."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The run is over."""

    outcome: Outcome
    reason: FailureReason | None = None
    message: str | None = None
    answer: AssistantMessage | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    """A second prompt came: ``refused``, ``queued`` or ``apart``, as claimed."""

    how: str
    text: str


Output = (
    Append | RecordAttempt | Emit | SendRequest | CloseStream | StartTool | RunTool | SignalTools
    | Settle | Busy
)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Choices: the claims as settings


@dataclass(frozen=True, slots=True)
class Choices:
    """A value for each claim that the loop can be set by; see ``vocabulary.CLAIMS``."""

    failure: str = "raises"
    answer: str = "returned"
    length: str = "fails"
    deferred: str = "fails"
    max_turns: str = "fails"
    cancelled_prefix: str = "discard"
    failed_attempt: str = "display"
    tools: str = "sequential"
    cancelled_tool: str = "waits"
    late_result: str = "replaced"
    tool_signal: str = "yes"
    unknown_tool: str = "answers"
    invalid_arguments: str = "answers"
    tool_exception: str = "answers"
    empty_stop: str = "completes"
    concurrent_prompt: str = "refused"
    listener_failure: str = "fails"
    brackets: str = "none"
    result_codes: str = ""
    fork: str = "yes"

    @classmethod
    def of(cls, claims: Mapping[str, str]) -> Choices:
        """The choices for a set of claims; what is not claimed stays as it is by default."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in claims.items() if name in names})


# --------------------------------------------------------------------------------------------
# The call's table


class CallState(StrEnum):
    """Where one call is."""

    ANNOUNCED = "announced"
    STARTED = "started"
    ANSWERED = "answered"
    SKIPPED = "skipped"


class CallInput(StrEnum):
    """What can happen to one call."""

    START = "start"
    SETTLE = "settle"
    SKIP = "skip"


CALL_TABLE: dict[tuple[CallState, CallInput], CallState | None] = {
    (CallState.ANNOUNCED, CallInput.START): CallState.STARTED,
    (CallState.ANNOUNCED, CallInput.SETTLE): CallState.ANSWERED,  # unknown tool, bad arguments
    (CallState.ANNOUNCED, CallInput.SKIP): CallState.SKIPPED,
    (CallState.STARTED, CallInput.START): None,
    (CallState.STARTED, CallInput.SETTLE): CallState.ANSWERED,
    (CallState.STARTED, CallInput.SKIP): CallState.ANSWERED,  # raced by a cancellation
    (CallState.ANSWERED, CallInput.START): None,
    (CallState.ANSWERED, CallInput.SETTLE): None,
    (CallState.ANSWERED, CallInput.SKIP): None,
    (CallState.SKIPPED, CallInput.START): None,
    (CallState.SKIPPED, CallInput.SETTLE): None,
    (CallState.SKIPPED, CallInput.SKIP): None,
}
"""The call's table; ``None`` is illegal."""


class IllegalInput(Exception):
    """An input has no row in the state in which it came. Nothing was changed.

    ``legal`` are the inputs that have one there.
    """

    def __init__(self, state: str, given: str, legal: Iterable[str], what: str = "run") -> None:
        self.state, self.input, self.legal = state, given, tuple(legal)
        super().__init__(
            f"the {what} is {state}: {given!r} is illegal there; "
            f"legal: {', '.join(self.legal) or 'nothing, this state is final'}"
        )


@dataclass(slots=True)
class CallStatus:
    """One call of the batch."""

    call: Call
    whole: bool
    state: CallState = CallState.ANNOUNCED
    told: bool = False
    result: ToolResult | None = None
    appended: bool = False


# --------------------------------------------------------------------------------------------
# The machine


@dataclass(frozen=True, slots=True)
class Row:
    """If ``guard`` holds: do ``action``, then be in ``next``."""

    guard: str
    next: State
    action: str

    @property
    def name(self) -> str:
        """The guard and action, for people."""
        return f"[{self.guard}] {self.action}"


RowId = tuple[State, Kind, str]
Table = Mapping[tuple[State, Kind], tuple[Row, ...]]

ASK_AGAIN_AT_MOST = 2
"""How often in a row an empty stop is asked again where that is claimed."""


@dataclass(frozen=True, slots=True)
class _Place:
    attributes: dict[str, Any]
    rows: int
    call_rows: int
    calls: list[tuple[CallStatus, CallStatus]]


class Machine:
    """One run.

    Parameters
    ----------
    choices: the claims as settings.
    max_turns: how many requests the run may make; ``None``: any number.
    table: the run's table; tests give mutilated ones.
    call_table: the call's table.

    ``guards``, ``actions`` and ``assembles`` are what the table's names stand for; they are
    attributes so that a loop that is wrong on purpose can differ in exactly one of them.
    """

    guards: ClassVar[Mapping[str, Callable[[Machine, Any], bool]]]
    actions: ClassVar[Mapping[str, Callable[[Machine, Any, list[Output]], None]]]
    assembles: ClassVar[type[Assembler]] = Assembler

    def __init__(
        self,
        choices: Choices | None = None,
        max_turns: int | None = None,
        table: Table | None = None,
        call_table: Mapping[tuple[CallState, CallInput], CallState | None] | None = None,
    ) -> None:
        self.choices = choices or Choices()
        self.max_turns = max_turns
        self.state = State.IDLE
        self.turn = 0
        self.asked_again = 0
        self.turn_open = False
        self.assembler = self.assembles()
        self.draft_told = False
        self.reason: Reason | None = None
        self.reply: AssistantMessage | None = None
        self.calls: list[CallStatus] = []
        self.cause: Settle | None = None
        self.path: list[RowId] = []
        self.call_path: list[tuple[CallState, CallInput]] = []
        self._table = TABLE if table is None else table
        self._call_table = CALL_TABLE if call_table is None else call_table

    def feed(self, given: Input) -> list[Output]:
        """Take one input; return what to do, in order. Raises :class:`IllegalInput`."""
        kind = given.kind
        for row in self._table.get((self.state, kind), ()):
            if self.guards[row.guard](self, given):
                return self._follow(row, given)
        raise IllegalInput(self.state, kind, self.legal())

    def _follow(self, row: Row, given: Input) -> list[Output]:
        before = self._place() if self.calls else None
        self.path.append((self.state, given.kind, row.guard))
        self.state = row.next
        outputs: list[Output] = []
        try:
            self.actions[row.action](self, given, outputs)
        except IllegalInput:
            # Only a call can refuse (by its own table), and a batch may have moved some calls
            # before another one refused. The run is as it was.
            assert before is not None
            self._go_back(before)
            raise
        return outputs

    def _place(self) -> _Place:
        """Where the run is, as far as an action that moves calls can change it."""
        calls = [(call, dataclasses.replace(call)) for call in self.calls]
        return _Place(dict(self.__dict__), len(self.path), len(self.call_path), calls)

    def _go_back(self, place: _Place) -> None:
        self.__dict__.update(place.attributes)
        del self.path[place.rows :], self.call_path[place.call_rows :]
        for call, was in place.calls:
            call.state, call.told, call.result, call.appended = was.state, was.told, was.result, was.appended

    def copy(self) -> Self:
        """Another machine in the same place; what is fed to one is not fed to the other."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.assembler = self.assembler.copy()
        other.calls = [dataclasses.replace(call) for call in self.calls]
        other.path = list(self.path)
        other.call_path = list(self.call_path)
        return other

    def snapshot(self) -> tuple[Any, ...]:
        """All that decides what the machine will do, as a value that can be compared and hashed.

        The paths are left out: machines that came here in different ways go on alike.
        """
        calls = tuple(
            (call.call, call.whole, call.state, call.told, call.result, call.appended) for call in self.calls
        )
        return (
            self.state, self.turn, self.asked_again, self.turn_open, self.draft_told, self.reason,
            self.reply, self.cause, calls, self.assembler.snapshot(),
        )  # fmt: skip

    def legal(self) -> list[Kind]:
        """The kinds of input that have a row in this state."""
        return [kind for kind in Kind if self._table.get((self.state, kind))]

    @property
    def settled(self) -> bool:
        """The run is over."""
        return self.state in (State.COMPLETED, State.FAILED)

    @property
    def running(self) -> list[CallStatus]:
        """The calls whose tools were entered and have not settled."""
        return [call for call in self.calls if call.state is CallState.STARTED]

    def advance_call(self, place: int, given: CallInput) -> CallStatus:
        """Move one call by the call's table."""
        if not 0 <= place < len(self.calls):
            raise IllegalInput("not in the batch", given, (), f"call at place {place}")
        call = self.calls[place]
        after = self._call_table.get((call.state, given))
        if after is None:
            legal = [i for i in CallInput if self._call_table.get((call.state, i)) is not None]
            raise IllegalInput(call.state, given, legal, f"call {call.call.id}")
        self.call_path.append((call.state, given))
        call.state = after
        return call

    def next_call(self) -> int | None:
        """The place of the first call that has neither started nor been answered."""
        for place, call in enumerate(self.calls):
            if call.state is CallState.ANNOUNCED:
                return place
        return None


# --------------------------------------------------------------------------------------------
# Guards: named questions. Each takes the machine and the input.

Guard = Callable[[Machine, Any], bool]


def _limit_reached(m: Machine, _: Any) -> bool:
    return m.max_turns is not None and m.turn >= m.max_turns


def _empty(m: Machine) -> bool:
    reply = m.reply
    return reply is None or not (reply.calls or reply.text.strip())


def _reason(m: Machine) -> str:
    return m.reason.reason if m.reason else ""


def _accepting(m: Machine) -> bool:
    return _reason(m) in ACCEPTING_REASONS


def _others_running(m: Machine, given: Any) -> bool:
    place = given.place if isinstance(given, ToolSettled) else None
    return any(c.state is CallState.STARTED for p, c in enumerate(m.calls) if p != place)


def _more_to_dispatch(m: Machine, given: Any) -> bool:
    place = getattr(given, "place", None)
    return any(c.state is CallState.ANNOUNCED for p, c in enumerate(m.calls) if p != place)


def _raises(m: Machine, given: Any) -> bool:
    return given.failure is not None and getattr(m.choices, given.failure) == "raises"


def _parallel(m: Machine) -> bool:
    return m.choices.tools != "sequential"


def _goes_on(m: Machine, given: Any) -> bool:
    return not _raises(m, given)


def _empty_completes(m: Machine) -> bool:
    return _accepting(m) and _empty(m) and m.choices.empty_stop == "completes"


def _empty_asks_again(m: Machine) -> bool:
    asks = m.choices.empty_stop == "asks-again" and m.asked_again < ASK_AGAIN_AT_MOST
    return asks and _reason(m) == StopReason.STOP and _empty(m)


def _length_answers(m: Machine) -> bool:
    return _reason(m) == StopReason.LENGTH and m.choices.length == "answers" and bool(m.calls)


def _unfinished_resumes(m: Machine) -> bool:
    return _reason(m) in UNFINISHED_REASONS and m.choices.deferred == "resumes"


_NAMED_REASONS = ACCEPTING_REASONS | UNFINISHED_REASONS | {StopReason.LENGTH, StopReason.REFUSAL}


def _listener_fails(m: Machine) -> bool:
    return m.choices.listener_failure == "fails"


def _must_wait(m: Machine, given: Any) -> bool:
    return _others_running(m, given) and m.choices.cancelled_tool == "waits"


def _next_of_parallel(m: Machine, given: Any) -> bool:
    return _parallel(m) and _more_to_dispatch(m, given)


GUARDS: dict[str, Guard] = {
    "always": lambda m, i: True,
    "limit reached": _limit_reached,
    "turns left": lambda m, i: not _limit_reached(m, i),
    "prefix kept": lambda m, i: m.choices.cancelled_prefix == "finalize",
    "prefix dropped": lambda m, i: m.choices.cancelled_prefix != "finalize",
    "failed reply": lambda m, i: _reason(m) in FAILED_REASONS,
    "whole reply": lambda m, i: _reason(m) not in FAILED_REASONS,
    "with calls": lambda m, i: _accepting(m) and bool(m.calls),
    "answer": lambda m, i: _accepting(m) and not _empty(m) and not m.calls,
    "empty, completes": lambda m, i: _empty_completes(m),
    "empty, asks again": lambda m, i: _empty_asks_again(m),
    "empty, fails": lambda m, i: (
        _accepting(m) and _empty(m) and not (_empty_completes(m) or _empty_asks_again(m))
    ),
    "length, answers": lambda m, i: _length_answers(m),
    "length": lambda m, i: _reason(m) == StopReason.LENGTH and not _length_answers(m),
    "unfinished, resumes": lambda m, i: _unfinished_resumes(m),
    "unfinished": lambda m, i: _reason(m) in UNFINISHED_REASONS and not _unfinished_resumes(m),
    "refusal": lambda m, i: _reason(m) == StopReason.REFUSAL,
    "unknown reason": lambda m, i: _reason(m) not in _NAMED_REASONS,
    "listener fails": lambda m, i: _listener_fails(m),
    "listener fails, tools run": lambda m, i: _listener_fails(m) and _others_running(m, i),
    "listener fails, no tool runs": lambda m, i: _listener_fails(m) and not _others_running(m, i),
    "listener ignored": lambda m, i: not _listener_fails(m),
    "tools run, waits": _must_wait,
    "no tool to wait for": lambda m, i: not _must_wait(m, i),
    "next of parallel": _next_of_parallel,
    "no next of parallel": lambda m, i: not _next_of_parallel(m, i),
    "raises, tools run": lambda m, i: _raises(m, i) and _others_running(m, i),
    "raises, no tool runs": lambda m, i: _raises(m, i) and not _others_running(m, i),
    "more to dispatch": lambda m, i: _goes_on(m, i) and _more_to_dispatch(m, i),
    "others run": lambda m, i: _goes_on(m, i) and not _more_to_dispatch(m, i) and _others_running(m, i),
    "batch complete": lambda m, i: (
        _goes_on(m, i) and not _more_to_dispatch(m, i) and not _others_running(m, i)
    ),
    "tools run": _others_running,
    "no tool runs": lambda m, i: not _others_running(m, i),
    "busy refused": lambda m, i: m.choices.concurrent_prompt == "refused",
    "busy queued": lambda m, i: m.choices.concurrent_prompt == "queued",
    "busy apart": lambda m, i: m.choices.concurrent_prompt == "apart",
}
"""The guards by name. Of the guards of one state and input exactly one holds, whatever the run."""


# --------------------------------------------------------------------------------------------
# Actions: named, each adds outputs. What several of them do stands first.

ABORTED_TEXT = "The run was cancelled before this call had a result."
SKIPPED_TEXT = "This call was not run: {why}."
FAILURE_CODES = {"unknown_tool": "UNKNOWN_TOOL", "invalid_arguments": "INVALID_ARGS"}


def _emit(out: list[Output], type: EventType, **fields: Any) -> None:
    out.append(Emit(Event(type=type.value, **fields)))


def _tell_message(out: list[Output], message: Message, *, started: bool = False) -> None:
    role = message.role
    call_id = message.call_id if isinstance(message, ToolResult) else None
    error = message.is_error if isinstance(message, ToolResult) else None
    reason = message.stop_reason if isinstance(message, AssistantMessage) else None
    cut = True if isinstance(message, AssistantMessage) and message.interrupted else None
    if not started:
        _emit(out, EventType.MESSAGE_START, role=role, call_id=call_id)
    _emit(
        out, EventType.MESSAGE_END, role=role, call_id=call_id, is_error=error, reason=reason,
        interrupted=cut, text=message.text,
    )  # fmt: skip


def _brackets(m: Machine, which: str) -> bool:
    return m.choices.brackets in (which, "both")


def _close_turn(m: Machine, out: list[Output], reason: str) -> None:
    if m.turn_open and _brackets(m, "turn"):
        _emit(out, EventType.TURN_END, reason=reason)
    m.turn_open = False


def _settle(m: Machine, out: list[Output], settle: Settle) -> None:
    reason = "completed" if settle.outcome is Outcome.COMPLETED else str(settle.reason or "unknown")
    _close_turn(m, out, reason)
    if _brackets(m, "run"):
        _emit(out, EventType.RUN_END, reason=reason)
    out.append(settle)


def _failure(reason: FailureReason, message: str) -> Settle:
    return Settle(Outcome.FAILED, reason, message)


CANCELLED = _failure(FailureReason.CANCELLED, "the run was cancelled")


def _append_result(m: Machine, out: list[Output], call: CallStatus) -> None:
    if call.result is not None and not call.appended:
        call.appended = True
        out.append(Append(call.result))
        _tell_message(out, call.result)


def _result(m: Machine, call: Call, text: str, code: str | None) -> ToolResult:
    return ToolResult(call.id, call.name, text, True, code if m.choices.result_codes else None)


def _skip_rest(m: Machine, out: list[Output], why: str) -> None:
    """Give every call without a result an error result, then append all, in source order."""
    for place, call in enumerate(m.calls):
        if call.state is CallState.ANNOUNCED:
            m.advance_call(place, CallInput.SKIP)
            text = SKIPPED_TEXT.format(why=why)
            call.result = _result(m, call.call, text, "ABORTED_BEFORE_DISPATCH")
        elif call.state is CallState.STARTED:
            m.advance_call(place, CallInput.SKIP)
            call.result = _result(m, call.call, ABORTED_TEXT, "ABORTED")
        if call.told and call.result is not None and not call.appended:
            _emit(out, EventType.TOOL_END, call_id=call.call.id, is_error=call.result.is_error)
            call.told = False
        _append_result(m, out, call)


def _draft(m: Machine, **fields: Any) -> AssistantMessage:
    return AssistantMessage(blocks=m.assembler.blocks(), **fields)


def _ignore(m: Machine, i: Any, out: list[Output]) -> None:
    """Nothing."""


def _accept(m: Machine, i: Prompted, out: list[Output]) -> None:
    if _brackets(m, "run"):
        _emit(out, EventType.RUN_START)
    _open_turn(m, i, out)
    message = UserMessage(i.text)
    out.append(Append(message))
    _tell_message(out, message)


def _open_turn(m: Machine, i: Any, out: list[Output]) -> None:
    m.turn_open = True
    if _brackets(m, "turn"):
        _emit(out, EventType.TURN_START)


def _send_request(m: Machine, i: Any, out: list[Output]) -> None:
    m.turn += 1
    m.assembler, m.reason, m.reply, m.calls = m.assembles(), None, None, []
    m.draft_told = False
    out.append(SendRequest())


def _take_piece(m: Machine, i: Received, out: list[Output]) -> None:
    m.assembler.push(i.piece)
    if not m.draft_told:
        m.draft_told = True
        _emit(out, EventType.MESSAGE_START, role="assistant")
    if isinstance(i.piece, TextDelta | ReasoningDelta):
        text = isinstance(i.piece, TextDelta)
        delta = EventType.TEXT_DELTA if text else EventType.REASONING_DELTA
        _emit(out, delta, role="assistant", text=i.piece.text)


def _note_reason(m: Machine, i: Received, out: list[Output]) -> None:
    assert isinstance(i.piece, Reason)
    m.reason = i.piece


def _record_reply(m: Machine, i: Any, out: list[Output]) -> None:
    """The reply becomes a message. Where a length only marks the run, its calls are dropped."""
    out.append(CloseStream())
    blocks = m.assembler.blocks()
    unfinished = m.assembler.unfinished_calls()
    calls = [block for block in blocks if isinstance(block, Call)]
    if _reason(m) == StopReason.LENGTH and m.choices.length == "marked":
        blocks = tuple(block for block in blocks if not isinstance(block, Call))
        calls = []
    error = m.reason.error if m.reason else None
    m.reply = AssistantMessage(blocks, stop_reason=_reason(m), error=error)
    m.calls = [CallStatus(call, place not in unfinished) for place, call in enumerate(calls)]
    out.append(Append(m.reply))
    _tell_message(out, m.reply, started=m.draft_told)
    _end_stream(m, out)


def _end_stream(m: Machine, out: list[Output]) -> None:
    if m.choices.cancelled_prefix == "finalize":
        _emit(out, EventType.STREAM_END)


def _fail_reply(m: Machine, i: Any, out: list[Output]) -> None:
    """A failed reply: display it, record it as an attempt, or keep nothing, as claimed."""
    out.append(CloseStream())
    reason = _reason(m) if _reason(m) in FAILED_REASONS else StopReason.ERROR.value
    said = i.message if isinstance(i, StreamFailed) else (m.reason.error if m.reason else None)
    if said is None:
        said = (
            f"the provider ended the reply with {reason}"
            if m.reason is not None
            else "the stream ended without a reason"
        )
    failed = _draft(m, stop_reason=reason, error=said)
    by_provider = m.reason is not None
    if m.choices.failed_attempt == "attempt":
        out.append(RecordAttempt(failed))
        _emit(out, EventType.ATTEMPT, text=failed.text)
    elif m.choices.failed_attempt == "display" and by_provider:
        out.append(Append(failed))
        _tell_message(out, failed, started=m.draft_told)
    _end_stream(m, out)
    _settle(m, out, _failure(FailureReason.PROVIDER, said))


def _finalize_prefix(m: Machine, i: Any, out: list[Output]) -> None:
    """What was delivered before the cancellation becomes a message, marked interrupted."""
    out.append(CloseStream())
    blocks = m.assembler.interrupted_blocks()
    if blocks:
        kept = AssistantMessage(blocks, stop_reason=StopReason.ABORTED, interrupted=True)
        out.append(Append(kept))
        _tell_message(out, kept, started=m.draft_told)
    elif m.choices.failed_attempt == "attempt":
        out.append(RecordAttempt(_draft(m, stop_reason=StopReason.ABORTED)))
        _emit(out, EventType.ATTEMPT, text="")
    _end_stream(m, out)
    _settle(m, out, CANCELLED)


def _discard_prefix(m: Machine, i: Any, out: list[Output]) -> None:
    out.append(CloseStream())
    if m.choices.failed_attempt == "attempt":
        out.append(RecordAttempt(_draft(m, stop_reason=StopReason.ABORTED)))
        _emit(out, EventType.ATTEMPT, text=_draft(m).text)
    _settle(m, out, CANCELLED)


def _complete(m: Machine, i: Any, out: list[Output]) -> None:
    _settle(m, out, Settle(Outcome.COMPLETED, answer=m.reply))


def _ask_again(m: Machine, i: Any, out: list[Output]) -> None:
    m.asked_again += 1
    _close_turn(m, out, "completed")


def _answer_unrun(m: Machine, i: Any, out: list[Output]) -> None:
    _skip_rest(m, out, "the reply was cut off")
    _close_turn(m, out, "completed")


def _fail_with(reason: FailureReason, words: str) -> Callable[[Machine, Any, list[Output]], None]:
    def action(m: Machine, i: Any, out: list[Output]) -> None:
        said = (m.reason.error if m.reason else None) or words
        _skip_rest(m, out, words)
        _settle(m, out, _failure(reason, said))

    return action


def _fail_limit(m: Machine, i: Any, out: list[Output]) -> None:
    _settle(m, out, _failure(FailureReason.LIMIT, f"the limit of {m.max_turns} turns was reached"))


def _announce_call(m: Machine, i: Any, out: list[Output]) -> None:
    place = m.next_call()
    assert place is not None
    m.calls[place].told = True
    _emit(out, EventType.TOOL_START, call_id=m.calls[place].call.id)


def _start_tool(m: Machine, i: Any, out: list[Output]) -> None:
    place = m.next_call()
    assert place is not None
    out.append(StartTool(place, m.calls[place].call, m.calls[place].whole))


def _run_tool(m: Machine, i: ToolStarted, out: list[Output]) -> None:
    call = m.advance_call(i.place, CallInput.START)
    out.append(RunTool(i.place, call.call))


def _answer_call(m: Machine, i: ToolSettled, out: list[Output]) -> None:
    """A call has its result; source order holds results back until the batch is complete."""
    call = m.advance_call(i.place, CallInput.SETTLE)
    cancelled = m.cause is CANCELLED
    if cancelled and (i.aborted or i.failure or m.choices.late_result == "replaced"):
        call.result = _result(m, call.call, ABORTED_TEXT, "ABORTED")
    else:
        code = FAILURE_CODES.get(i.failure or "")
        error = i.failure is not None or i.aborted
        code = code if m.choices.result_codes else None
        call.result = ToolResult(call.call.id, call.call.name, i.text, error, code)
    in_order = m.choices.tools == "parallel-source-order"
    if not in_order:
        call.appended = True
        out.append(Append(call.result))
    _emit(out, EventType.TOOL_END, call_id=call.call.id, is_error=call.result.is_error)
    call.told = False
    if not in_order:
        _tell_message(out, call.result)


def _finish_batch(m: Machine, i: ToolSettled, out: list[Output]) -> None:
    _answer_call(m, i, out)
    for call in m.calls:
        _append_result(m, out, call)
    _close_turn(m, out, "completed")


def _end_batch(m: Machine, i: Any, out: list[Output], cause: Settle) -> None:
    m.cause = cause
    out.append(SignalTools())


def _batch_why(m: Machine) -> str:
    return (m.cause and m.cause.message) or "the batch was ended"


def _drain_cancelled(m: Machine, i: Any, out: list[Output]) -> None:
    _end_batch(m, i, out, CANCELLED)


def _drain_listener(m: Machine, i: ListenerFailed, out: list[Output]) -> None:
    _end_batch(m, i, out, _failure(FailureReason.LISTENER, i.message))


def _drain_raised(m: Machine, i: ToolSettled, out: list[Output]) -> None:
    _answer_call(m, i, out)
    _end_batch(m, i, out, _failure(FailureReason.TOOL, i.text))


def _fail_cancelled(m: Machine, i: Any, out: list[Output]) -> None:
    _drain_cancelled(m, i, out)
    _skip_rest(m, out, _batch_why(m))
    _settle(m, out, CANCELLED)


def _fail_listener(m: Machine, i: ListenerFailed, out: list[Output]) -> None:
    _drain_listener(m, i, out)
    out.append(CloseStream())
    _skip_rest(m, out, _batch_why(m))
    assert m.cause is not None
    _settle(m, out, m.cause)


def _fail_raised(m: Machine, i: ToolSettled, out: list[Output]) -> None:
    _drain_raised(m, i, out)
    _skip_rest(m, out, _batch_why(m))
    assert m.cause is not None
    _settle(m, out, m.cause)


def _finish_draining(m: Machine, i: ToolSettled, out: list[Output]) -> None:
    _answer_call(m, i, out)
    _skip_rest(m, out, _batch_why(m))
    assert m.cause is not None
    _settle(m, out, m.cause)


def _signal_again(m: Machine, i: Any, out: list[Output]) -> None:
    out.append(SignalTools())


def _busy(how: str) -> Callable[[Machine, Any, list[Output]], None]:
    def action(m: Machine, i: Prompted, out: list[Output]) -> None:
        out.append(Busy(how, i.text))

    return action


ACTIONS: dict[str, Callable[[Machine, Any, list[Output]], None]] = {
    "do nothing": _ignore,
    "accept the prompt": _accept,
    "open a turn": _open_turn,
    "send the request": _send_request,
    "take the piece": _take_piece,
    "note the reason": _note_reason,
    "record the reply": _record_reply,
    "fail the reply": _fail_reply,
    "finalize the prefix": _finalize_prefix,
    "discard the prefix": _discard_prefix,
    "settle with the answer": _complete,
    "ask again": _ask_again,
    "answer the calls unrun": _answer_unrun,
    "fail as truncated": _fail_with(FailureReason.LENGTH, "the reply was cut off by its length"),
    "fail as unfinished": _fail_with(
        FailureReason.UNFINISHED, "the reply is unfinished, and polling is not supported"
    ),
    "fail as refused": _fail_with(FailureReason.REFUSAL, "the model refused to answer"),
    "fail as unknown": _fail_with(FailureReason.PROVIDER, "the reply ended for an unknown reason"),
    "fail as empty": _fail_with(FailureReason.PROVIDER, "the reply was empty"),
    "fail by the limit": _fail_limit,
    "fail as cancelled": _fail_cancelled,
    "fail by the listener": _fail_listener,
    "fail by the tool": _fail_raised,
    "announce the next call": _announce_call,
    "start the tool": _start_tool,
    "run the tool": _run_tool,
    "answer the call": _answer_call,
    "finish the batch": _finish_batch,
    "drain, cancelled": _drain_cancelled,
    "drain, listener failed": _drain_listener,
    "drain, tool raised": _drain_raised,
    "finish draining": _finish_draining,
    "signal again": _signal_again,
    "refuse the prompt": _busy("refused"),
    "queue the prompt": _busy("queued"),
    "run the prompt apart": _busy("apart"),
}


# --------------------------------------------------------------------------------------------
# The run's table


def _busy_rows(state: State) -> tuple[Row, ...]:
    return (
        Row("busy refused", state, "refuse the prompt"),
        Row("busy queued", state, "queue the prompt"),
        Row("busy apart", state, "run the prompt apart"),
    )


def _listener_rows(state: State) -> tuple[Row, ...]:
    return (
        Row("listener fails", State.FAILED, "fail by the listener"),
        Row("listener ignored", state, "do nothing"),
    )


def _batch_listener_rows(state: State) -> tuple[Row, ...]:
    return (
        Row("listener fails, tools run", State.DRAINING, "drain, listener failed"),
        Row("listener fails, no tool runs", State.FAILED, "fail by the listener"),
        Row("listener ignored", state, "do nothing"),
    )


_CANCEL_STREAM = (
    Row("prefix kept", State.FAILED, "finalize the prefix"),
    Row("prefix dropped", State.FAILED, "discard the prefix"),
)
_CANCEL_BATCH = (
    Row("tools run, waits", State.DRAINING, "drain, cancelled"),
    Row("no tool to wait for", State.FAILED, "fail as cancelled"),
)
_FAIL_REPLY = (Row("always", State.FAILED, "fail the reply"),)
_END_OF_REPLY = (
    Row("failed reply", State.FAILED, "fail the reply"),
    Row("whole reply", State.RECORDED, "record the reply"),
)


def _take(state: State) -> tuple[Row, ...]:
    return (Row("always", state, "take the piece"),)


def _nothing(state: State) -> tuple[Row, ...]:
    return (Row("always", state, "do nothing"),)


S, K = State, Kind

_ROWS: dict[State, dict[Kind, tuple[Row, ...]]] = {
    S.IDLE: {
        K.PROMPT: (Row("always", S.OPENING, "accept the prompt"),),
        K.CANCEL: _nothing(S.IDLE),
    },
    S.OPENING: {
        K.PROCEED: (Row("always", S.REQUESTING, "send the request"),),
        K.CANCEL: (Row("always", S.FAILED, "fail as cancelled"),),
        K.LISTENER_FAILED: _listener_rows(S.OPENING),
    },
    S.REQUESTING: {
        K.OPENED: _nothing(S.STREAMING),
        K.STREAM_FAILED: _FAIL_REPLY,
        K.CANCEL: _CANCEL_STREAM,
    },
    S.STREAMING: {
        K.TEXT: _take(S.STREAMING),
        K.REASONING: _take(S.STREAMING),
        K.CALL: _take(S.STREAMING),
        K.USAGE: _nothing(S.STREAMING),
        K.REASON: (Row("always", S.ENDING, "note the reason"),),
        K.TERMINATOR: _FAIL_REPLY,
        K.STREAM_FAILED: _FAIL_REPLY,
        K.STREAM_ENDED: _FAIL_REPLY,
        K.CANCEL: _CANCEL_STREAM,
        K.LISTENER_FAILED: _listener_rows(S.STREAMING),
    },
    S.ENDING: {
        K.TEXT: _take(S.ENDING),
        K.REASONING: _take(S.ENDING),
        K.CALL: _take(S.ENDING),
        K.USAGE: _nothing(S.ENDING),
        K.REASON: _nothing(S.ENDING),
        K.TERMINATOR: _END_OF_REPLY,
        K.STREAM_FAILED: _FAIL_REPLY,
        K.STREAM_ENDED: _END_OF_REPLY,
        K.CANCEL: _CANCEL_STREAM,
        K.LISTENER_FAILED: _listener_rows(S.ENDING),
    },
    S.RECORDED: {
        K.PROCEED: (
            Row("with calls", S.DISPATCHING, "do nothing"),
            Row("answer", S.COMPLETED, "settle with the answer"),
            Row("empty, completes", S.COMPLETED, "settle with the answer"),
            Row("empty, asks again", S.BETWEEN, "ask again"),
            Row("empty, fails", S.FAILED, "fail as empty"),
            Row("length, answers", S.BETWEEN, "answer the calls unrun"),
            Row("length", S.FAILED, "fail as truncated"),
            Row("unfinished, resumes", S.BETWEEN, "answer the calls unrun"),
            Row("unfinished", S.FAILED, "fail as unfinished"),
            Row("refusal", S.FAILED, "fail as refused"),
            Row("unknown reason", S.FAILED, "fail as unknown"),
        ),
        K.CANCEL: (Row("always", S.FAILED, "fail as cancelled"),),
        K.LISTENER_FAILED: _listener_rows(S.RECORDED),
    },
    S.DISPATCHING: {
        K.PROCEED: (Row("always", S.STARTING, "announce the next call"),),
        K.CANCEL: _CANCEL_BATCH,
        K.LISTENER_FAILED: _batch_listener_rows(S.DISPATCHING),
    },
    S.STARTING: {
        K.PROCEED: (Row("always", S.EXECUTING, "start the tool"),),
        K.CANCEL: _CANCEL_BATCH,
        K.LISTENER_FAILED: _batch_listener_rows(S.STARTING),
    },
    S.EXECUTING: {
        K.TOOL_STARTED: (
            Row("next of parallel", S.DISPATCHING, "run the tool"),
            Row("no next of parallel", S.EXECUTING, "run the tool"),
        ),
        K.TOOL_SETTLED: (
            Row("raises, tools run", S.DRAINING, "drain, tool raised"),
            Row("raises, no tool runs", S.FAILED, "fail by the tool"),
            Row("more to dispatch", S.DISPATCHING, "answer the call"),
            Row("others run", S.EXECUTING, "answer the call"),
            Row("batch complete", S.BETWEEN, "finish the batch"),
        ),
        K.CANCEL: _CANCEL_BATCH,
        K.LISTENER_FAILED: (
            Row("listener fails", S.DRAINING, "drain, listener failed"),
            Row("listener ignored", S.EXECUTING, "do nothing"),
        ),
    },
    S.DRAINING: {
        K.TOOL_SETTLED: (
            Row("tools run", S.DRAINING, "answer the call"),
            Row("no tool runs", S.FAILED, "finish draining"),
        ),
        K.CANCEL: (Row("always", S.DRAINING, "signal again"),),
        K.LISTENER_FAILED: _nothing(S.DRAINING),
    },
    S.BETWEEN: {
        K.PROCEED: (
            Row("limit reached", S.FAILED, "fail by the limit"),
            Row("turns left", S.OPENING, "open a turn"),
        ),
        K.CANCEL: (Row("always", S.FAILED, "fail as cancelled"),),
        K.LISTENER_FAILED: _listener_rows(S.BETWEEN),
    },
    S.COMPLETED: {K.CANCEL: _nothing(S.COMPLETED), K.LISTENER_FAILED: _nothing(S.COMPLETED)},
    S.FAILED: {K.CANCEL: _nothing(S.FAILED), K.LISTENER_FAILED: _nothing(S.FAILED)},
}

TABLE: dict[tuple[State, Kind], tuple[Row, ...]] = {
    (state, kind): (
        _busy_rows(state) if kind is Kind.PROMPT and state is not State.IDLE else _ROWS[state].get(kind, ())
    )
    for state in State
    for kind in Kind
}
"""The run's table. Total: an empty tuple is an illegal input, on purpose."""


def row_ids() -> list[RowId]:
    """Every row of the table, by state, input and guard."""
    return [(state, kind, row.guard) for (state, kind), rows in TABLE.items() for row in rows]


Machine.guards = GUARDS
Machine.actions = ACTIONS
