"""One reading of a trace, shared by all rules.

A rule asks questions such as "which calls did the reply to request 2 make, and did one of them
start after the cancel returned?". The index answers them from the entries alone: it groups entries
into *runs* (a prompt and what belongs to it), *exchanges* (a request and its reply) and *starts*
(a tool that was entered). It judges nothing, and it keeps for everything the position in the trace
at which it stands, because positions are what a verdict's evidence is made of.

The index is built once a trace, in one pass, and is read-only after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from loopspec.trace import (
    CancelReturned,
    CancelSent,
    Closed,
    Entry,
    Faulted,
    Header,
    HistoryRead,
    Hung,
    ListenerRaised,
    Opened,
    Prompted,
    Requested,
    Sent,
    Settled,
    Signalled,
    TargetLost,
    Told,
    ToolSettled,
    ToolStarted,
    Trace,
)
from loopspec.vocabulary import (
    ACCEPTING_REASONS,
    FAILED_REASONS,
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Message,
    Outcome,
    Reason,
    ReasoningDelta,
    Terminator,
    TextDelta,
    ToolResult,
    UserMessage,
    is_complete_json,
)


@dataclass(slots=True)
class SentCall:
    """A call as the bench sent it. ``ended_at`` is where the wire said that it is whole."""

    index: int
    id: str
    name: str
    began_at: int
    arguments: str = ""
    ended_at: int | None = None

    @property
    def whole(self) -> bool:
        """Whether its arguments are complete JSON (where they are empty: no)."""
        return is_complete_json(self.arguments)


@dataclass(slots=True)
class Exchange:
    """A request and what the bench sent back."""

    request: Requested
    at: int
    opened_at: int | None = None
    sent: list[tuple[int, Sent]] = field(default_factory=list)
    faults: list[tuple[int, Faulted]] = field(default_factory=list)
    calls: list[SentCall] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    reason: str | None = None
    reason_at: int | None = None
    error: str | None = None
    contradictory: bool = False
    """It gave two different reasons: neither accepted nor failed, and judged by no rule of either."""
    terminator_at: int | None = None
    closed_at: int | None = None
    closed_by: str | None = None
    signalled_at: int | None = None
    cancelled_at: int | None = None
    """Where a cancellation was sent before the reply had ended, or None."""

    @property
    def number(self) -> int:
        """The request's number."""
        return self.request.request

    @property
    def fault(self) -> Faulted | None:
        """The first fault, if the bench broke the reply (a stall is one too)."""
        return self.faults[0][1] if self.faults else None

    @property
    def ended_at(self) -> int | None:
        """Where the reply was over for a reader: its terminator, or its reason if none came."""
        return self.terminator_at if self.terminator_at is not None else self.reason_at

    @property
    def broken(self) -> bool:
        """The stream failed, or ended without a reason: it never became a reply."""
        failed = any(f.fault != "stall" for _, f in self.faults)
        return failed and self.terminator_at is None and (self.reason is None or self._hard_fault)

    @property
    def _hard_fault(self) -> bool:
        return any(f.fault in ("error", "disconnect", "malformed") for _, f in self.faults)

    @property
    def failed(self) -> bool:
        """A *failed reply*: its reason is error or aborted, or its stream failed."""
        return not self.contradictory and (self.broken or self.reason in FAILED_REASONS)

    @property
    def accepted(self) -> bool:
        """It ended with ``stop`` or ``toolUse`` and its terminator, unbroken and uncancelled."""
        return (
            self.reason in ACCEPTING_REASONS
            and not self.contradictory
            and self.terminator_at is not None
            and not self.broken
            and self.cancelled_at is None
        )


@dataclass(slots=True)
class Start:
    """A tool that was entered. ``call`` is the sent call it serves, if the bench knew one."""

    entry: ToolStarted
    at: int
    call: SentCall | None = None
    exchange: Exchange | None = None
    settled: ToolSettled | None = None
    settled_at: int | None = None
    signalled_at: int | None = None


@dataclass(slots=True)
class Cancel:
    """A cancellation: where the bench sent it and where it came back (None: it never did)."""

    number: int
    at: str
    sent_at: int
    returned_at: int | None = None


@dataclass(slots=True)
class Run:
    """A prompt and what belongs to it.

    ``cancels`` are those that were sent while it ran (an ``idle`` one belongs to no run).
    """

    prompted: Prompted
    at: int
    exchanges: list[Exchange] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    settled: Settled | None = None
    settled_at: int | None = None
    hung_at: int | None = None
    lost_at: int | None = None
    listener_raised_at: list[int] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The prompt's number."""
        return self.prompted.prompt

    @property
    def end(self) -> int | None:
        """Where it settled or hung or was lost."""
        for at in (self.settled_at, self.hung_at, self.lost_at):
            if at is not None:
                return at
        return None

    @property
    def completed(self) -> bool:
        """It was reported as completed."""
        return self.settled is not None and self.settled.outcome == Outcome.COMPLETED

    @property
    def refused(self) -> bool:
        """The target did not accept the prompt."""
        return self.settled is not None and self.settled.outcome == Outcome.REFUSED

    @property
    def last(self) -> Exchange | None:
        """Its last exchange with a scripted reply."""
        return self.exchanges[-1] if self.exchanges else None


class TraceIndex:
    """The index of one trace; see the module's text.

    Parameters
    ----------
    trace: the whole trace; its first entry is the header.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.header: Header = trace.header
        self.runs: list[Run] = []
        self.exchanges: list[Exchange] = []
        self.auxiliary: list[Exchange] = []
        self.starts: list[Start] = []
        self.cancels: list[Cancel] = []
        self.events: list[tuple[int, Event]] = []
        self.histories: list[tuple[int, HistoryRead]] = []
        self.lost_at: int | None = None
        self._runs_by_number: dict[int, Run] = {}
        self._exchanges_by_number: dict[int, Exchange] = {}
        self._starts_by_number: dict[int, Start] = {}
        self._open_calls: dict[tuple[int, int], SentCall] = {}
        for at, entry in enumerate(trace.entries):
            handler = _HANDLERS.get(type(entry))
            if handler is not None:
                handler(self, at, entry)

    # -- questions ---------------------------------------------------------------------------

    def claim(self, name: str) -> str | None:
        """The value of a claim of the target, or None."""
        return self.header.claims.get(name)

    def observes(self, what: str) -> bool:
        """Whether this variant lets the bench see ``what`` (see :class:`Header`)."""
        return what in self.header.observes

    def exchange(self, number: int) -> Exchange:
        """The exchange of a request number."""
        return self._exchanges_by_number[number]

    def run(self, number: int) -> Run:
        """The run of a prompt number."""
        return self._runs_by_number[number]

    def run_of(self, exchange: Exchange) -> Run | None:
        """The run that a request belongs to."""
        number = exchange.request.prompt
        return self._runs_by_number.get(number) if number is not None else None

    def starts_of(self, exchange: Exchange) -> list[Start]:
        """The tools that were entered for the calls of this reply."""
        return [start for start in self.starts if start.exchange is exchange]

    def start_of(self, call: SentCall) -> Start | None:
        """The first start that serves this call."""
        return next((start for start in self.starts if start.call is call), None)

    def later_requests(self, at: int) -> list[Exchange]:
        """The exchanges whose request stands after position ``at`` (auxiliary ones left out)."""
        return [exchange for exchange in self.exchanges if exchange.at > at]

    def next_in_run(self, exchange: Exchange) -> Exchange | None:
        """The next request of the same run."""
        run = self.run_of(exchange)
        later = [item for item in run.exchanges if item.at > exchange.at] if run else []
        return later[0] if later else None

    def next_run(self, run: Run) -> Run | None:
        """The run of the next prompt."""
        later = [item for item in self.runs if item.at > run.at]
        return later[0] if later else None

    def run_events(self, run: Run) -> list[tuple[int, Event]]:
        """The events told between a prompt and its end (of the next prompt, if it has none)."""
        following = self.next_run(run)
        end = following.at if following is not None else len(self.trace)
        return [(at, event) for at, event in self.events if run.at < at < end]

    def history_after(self, run: Run) -> tuple[int, HistoryRead] | None:
        """The history that was read at rest after this run."""
        for at, history in self.histories:
            if history.prompt == run.number:
                return at, history
        return None

    def between(self, first: int, last: int | None = None) -> Iterator[tuple[int, Entry]]:
        """The entries strictly between two positions."""
        end = len(self.trace) if last is None else last
        for at in range(first + 1, end):
            yield at, self.trace.entries[at]

    # -- building ----------------------------------------------------------------------------

    def _running(self) -> list[Run]:
        return [run for run in self.runs if run.end is None]

    def _prompted(self, at: int, entry: Prompted) -> None:
        run = Run(entry, at)
        self.runs.append(run)
        self._runs_by_number[entry.prompt] = run

    def _requested(self, at: int, entry: Requested) -> None:
        exchange = Exchange(entry, at)
        self._exchanges_by_number[entry.request] = exchange
        if entry.serves == "auxiliary":
            self.auxiliary.append(exchange)
            return
        self.exchanges.append(exchange)
        run = self._runs_by_number.get(entry.prompt) if entry.prompt is not None else None
        if run is not None:
            run.exchanges.append(exchange)

    def _opened(self, at: int, entry: Opened) -> None:
        self._exchanges_by_number[entry.request].opened_at = at

    def _sent(self, at: int, entry: Sent) -> None:
        exchange = self._exchanges_by_number[entry.request]
        exchange.sent.append((at, entry))
        if exchange.terminator_at is not None:
            return  # what comes after the terminator is not part of the reply
        piece = entry.piece
        if isinstance(piece, TextDelta):
            exchange.text += piece.text
        elif isinstance(piece, ReasoningDelta):
            exchange.reasoning += piece.text
        elif isinstance(piece, CallStart):
            call = SentCall(piece.index, piece.id, piece.name, at)
            exchange.calls.append(call)
            self._open_calls[exchange.number, piece.index] = call
        elif isinstance(piece, ArgumentsDelta):
            self._open_calls[exchange.number, piece.index].arguments += piece.text
        elif isinstance(piece, CallEnd):
            self._open_calls[exchange.number, piece.index].ended_at = at
        elif isinstance(piece, Reason):
            if exchange.reason is None:
                exchange.reason, exchange.reason_at = piece.reason, at
                exchange.error = piece.error
            elif exchange.reason != piece.reason:
                exchange.contradictory = True
        elif isinstance(piece, Terminator):
            exchange.terminator_at = at

    def _faulted(self, at: int, entry: Faulted) -> None:
        exchange = self._exchanges_by_number[entry.request]
        exchange.faults.append((at, entry))
        if exchange.error is None and entry.fault in ("error", "status"):
            exchange.error = entry.detail

    def _closed(self, at: int, entry: Closed) -> None:
        exchange = self._exchanges_by_number[entry.request]
        if exchange.closed_at is None:
            exchange.closed_at, exchange.closed_by = at, entry.by

    def _signalled(self, at: int, entry: Signalled) -> None:
        if entry.where == "provider":
            self._exchanges_by_number[entry.number].signalled_at = at
        else:
            self._starts_by_number[entry.number].signalled_at = at

    def _tool_started(self, at: int, entry: ToolStarted) -> None:
        exchange = self._exchanges_by_number.get(entry.request or 0)
        start = Start(entry, at, exchange=exchange)
        if exchange is not None and entry.call_id is not None:
            taken = [other.call for other in self.starts]
            same = [call for call in exchange.calls if call.id == entry.call_id]
            free = [call for call in same if not any(call is item for item in taken)]
            exact = [call for call in free if call.arguments == entry.arguments]
            start.call = next(iter(exact or free or same), None)
        self.starts.append(start)
        self._starts_by_number[entry.start] = start

    def _tool_settled(self, at: int, entry: ToolSettled) -> None:
        start = self._starts_by_number[entry.start]
        start.settled, start.settled_at = entry, at

    def _cancel_sent(self, at: int, entry: CancelSent) -> None:
        cancel = Cancel(entry.cancel, entry.at, at)
        self.cancels.append(cancel)
        for run in self._running():
            run.cancels.append(cancel)
            for exchange in run.exchanges:
                over = exchange.terminator_at is not None or exchange.broken
                if not over and exchange.closed_at is None and exchange.cancelled_at is None:
                    exchange.cancelled_at = at

    def _cancel_returned(self, at: int, entry: CancelReturned) -> None:
        for cancel in self.cancels:
            if cancel.number == entry.cancel:
                cancel.returned_at = at

    def _told(self, at: int, entry: Told) -> None:
        self.events.append((at, entry.event))

    def _listener_raised(self, at: int, entry: ListenerRaised) -> None:
        for run in self._running():
            run.listener_raised_at.append(at)

    def _settled(self, at: int, entry: Settled) -> None:
        run = self._runs_by_number[entry.prompt]
        run.settled, run.settled_at = entry, at

    def _hung(self, at: int, entry: Hung) -> None:
        self._runs_by_number[entry.prompt].hung_at = at

    def _history(self, at: int, entry: HistoryRead) -> None:
        self.histories.append((at, entry))

    def _lost(self, at: int, entry: TargetLost) -> None:
        self.lost_at = at
        for run in self._running():
            run.lost_at = at


_HANDLERS: dict[type, Callable[[TraceIndex, int, Any], None]] = {
    Prompted: TraceIndex._prompted,
    Requested: TraceIndex._requested,
    Opened: TraceIndex._opened,
    Sent: TraceIndex._sent,
    Faulted: TraceIndex._faulted,
    Closed: TraceIndex._closed,
    Signalled: TraceIndex._signalled,
    ToolStarted: TraceIndex._tool_started,
    ToolSettled: TraceIndex._tool_settled,
    CancelSent: TraceIndex._cancel_sent,
    CancelReturned: TraceIndex._cancel_returned,
    Told: TraceIndex._told,
    ListenerRaised: TraceIndex._listener_raised,
    Settled: TraceIndex._settled,
    Hung: TraceIndex._hung,
    HistoryRead: TraceIndex._history,
    TargetLost: TraceIndex._lost,
}


# --------------------------------------------------------------------------------------------
# Questions about message lists that several rules ask


def results_after(messages: Iterable[Message], position: int) -> list[ToolResult]:
    """The tool results that stand directly after the message at ``position``."""
    results = []
    for message in list(messages)[position + 1 :]:
        if not isinstance(message, ToolResult):
            break
        results.append(message)
    return results


def users(messages: Iterable[Message]) -> str:
    """The text of all user messages, joined (adjacent ones may have been merged)."""
    return "\n".join(message.text for message in messages if isinstance(message, UserMessage))
