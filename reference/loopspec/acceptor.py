"""The acceptor: is there a legal path of the machine that gives this trace?

A trace says what the bench did and saw, in the order in which the bench came to know of it. The
loop takes things in later than they were sent, and does things of which the trace shows nothing.
So a trace does not name one path. The acceptor keeps the set of all **configurations** that the
target may be in: machines of the runs that are open, with what each has still to carry out and to
take in. It goes through the trace once:

* what the *environment* does (a piece sent, a tool settled, a prompt, a cancellation) is put where
  each configuration will take it in;
* what the *target* does (an event told, a request, a tool started, a settlement) must be the next
  visible thing that some configuration has to do. Before that a configuration may take any number
  of **silent steps**: it takes in what came, proceeds, appends a message, closes a stream. Those
  that cannot get there are dropped.

When none is left, the trace has left the legal paths at that entry. That says where, and what
would have been legal there; which rule is broken is for the rules to say.

A cancellation takes effect at some moment between its being sent and its return. Until then both
are possible; from the return on only configurations in which it was taken are kept. What was asked
of the model or of a tool but had not begun when it came does not begin.

Only what the trace shows is compared, see :mod:`loopspec.resemblance`. Claims that a target does
not make stand at their defaults in :class:`~loopspec.machine.Choices`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from loopspec import machine as fsm
from loopspec import resemblance as alike
from loopspec import trace as t
from loopspec.machine import Choices, Machine, State
from loopspec.vocabulary import Call, CallStart, EventType, FailureReason, FaultKind, Message, Outcome

AT_MOST = 2000
"""How many configurations are followed at a time."""

_IN_REPLY = (State.REQUESTING, State.STREAMING, State.ENDING)
_IN_BATCH = (State.EXECUTING, State.DRAINING)
_PROCEEDS = (State.OPENING, State.RECORDED, State.DISPATCHING, State.STARTING, State.BETWEEN)
_NOT_BEGUN = (fsm.SendRequest, fsm.StartTool)
_DELTAS = (EventType.TEXT_DELTA, EventType.REASONING_DELTA)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the acceptor says of a trace; true if it was accepted.

    ``at`` is the entry at which the legal paths were left, ``words`` say how. ``bounded``: there
    were more than :data:`AT_MOST` configurations, and only so many were followed; then a rejection
    is not certain.
    """

    accepted: bool
    at: int | None = None
    words: str = "accepted"
    bounded: bool = False

    def __bool__(self) -> bool:
        return self.accepted


@dataclass(frozen=True, slots=True)
class _Run:
    """One run in one configuration. The machine is never fed in place; a copy is."""

    prompt: int
    machine: Machine
    outbox: tuple[fsm.Output, ...] = ()
    apart: bool = False
    messages: tuple[Message, ...] = ()  # of a run apart; the others share the configuration's
    first: int = 0
    request: int | None = None
    reply: tuple[fsm.Input, ...] = ()  # sent and not yet taken in
    settled: tuple[fsm.ToolSettled, ...] = ()  # likewise
    starts: tuple[tuple[int, int], ...] = ()  # a start's number, its call's place
    signalled: bool = False
    settle: fsm.Settle | None = None  # released; its settlement has not been seen

    def key(self) -> tuple[object, ...]:
        return (
            self.prompt, self.machine.snapshot(), self.outbox, self.messages, self.request,
            self.reply, self.settled, self.starts, self.signalled, self.settle,
        )  # fmt: skip

    def fed(self, given: fsm.Input) -> _Run | None:
        """The run after an input, or ``None`` if it is illegal."""
        machine = self.machine.copy()
        try:
            outputs = machine.feed(given)
        except fsm.IllegalInput:
            return None
        machine.path.clear()
        machine.call_path.clear()
        return replace(self, machine=machine, outbox=(*self.outbox, *outputs))

    def popped(self) -> _Run:
        return replace(self, outbox=self.outbox[1:])


@dataclass(frozen=True, slots=True)
class _Config:
    """Where the target may be."""

    runs: tuple[_Run, ...] = ()
    history: tuple[Message, ...] = ()
    held_back: tuple[Message, ...] = ()
    waiting: tuple[tuple[int, str], ...] = ()
    refused: tuple[int, ...] = ()
    cancels: tuple[int, ...] = ()  # sent and not yet taken in
    teller: int | None = None

    def key(self) -> tuple[object, ...]:
        runs = tuple(run.key() for run in self.runs)
        return (runs, self.history, self.held_back, self.waiting, self.refused, self.cancels, self.teller)

    @property
    def base(self) -> _Run | None:
        """The run that is not apart and holds the conversation."""
        return next((run for run in self.runs if not run.apart and run.settle is None), None)

    def with_run(self, old: _Run, new: _Run) -> _Config:
        return replace(self, runs=tuple(new if run is old else run for run in self.runs))

    def without(self, old: _Run) -> _Config:
        return replace(self, runs=tuple(run for run in self.runs if run is not old))

    def messages_of(self, run: _Run) -> tuple[Message, ...]:
        return run.messages if run.apart else self.history


Fits = Callable[[Call], bool]


class Acceptor:
    """Takes a trace entry by entry; :func:`accept` does so for a whole one.

    Parameters
    ----------
    header: the trace's header.
    claims: the claims to hold it to; ``None``: the header's.
    fits: whether a call's arguments fit its tool's schema; ``None``: either is thought possible.
    tells: the types of event that the target tells; ``None``: all of them, if it tells events.
    """

    def __init__(
        self,
        header: t.Header,
        claims: dict[str, str] | None = None,
        fits: Fits | None = None,
        tells: Collection[str] | None = None,
    ) -> None:
        self.header = header
        self.claims = header.claims if claims is None else claims
        self.choices = Choices.of(self.claims)
        limit = header.max_turns
        self.limit_is_one = limit is None or (type(limit) is int and limit > 0)
        self.max_turns = limit if type(limit) is int and limit > 0 else None
        self.bounded = False
        self._fits = fits
        types = tuple(EventType) if tells is None else tells
        shown = [kind for kind in types if header.streaming or kind not in _DELTAS]
        self._tells = frozenset(shown if "events" in header.observes else ())
        self._marks_call_ends = "call_end" in header.can_express
        self._sent_ids: set[str] = set()
        self._tools: tuple[str, ...] = ()
        self._started: set[int] = set()
        self._over = False
        self._configs: list[_Config] = [_Config()]

    # -- the set -----------------------------------------------------------------------------

    def take(self, entry: t.Entry) -> str | None:
        """Take one entry; returns ``None``, or in words what was wrong with it."""
        handler = _HANDLERS.get(type(entry))
        if handler is None or self._over:
            return None
        before = self._configs
        if type(entry) in _AFTER_SILENCE:
            before = self._closure(before)
        after = [config for item in before for config in handler(self, item, entry)]
        if not after:
            return f"{alike.entry_in_words(entry)}, but {self._stood(before)}"
        self._configs = self._distinct(after)
        self._note(entry)
        return None

    def end(self) -> str | None:
        """The trace is over; returns ``None``, or in words what is missing."""
        if self._over or any(not item.runs and not item.waiting for item in self._configs):
            return None
        return f"the trace ends, but {self._stood(self._closure(self._configs))}"

    def _note(self, entry: t.Entry) -> None:
        """What is the same in every configuration."""
        if isinstance(entry, t.Requested) and entry.serves != "auxiliary":
            self._tools = entry.tools
        elif isinstance(entry, t.Sent) and isinstance(entry.piece, CallStart):
            self._sent_ids.add(entry.piece.id)
        elif isinstance(entry, t.ToolStarted):
            self._started.add(entry.start)
        elif isinstance(entry, t.Hung):
            self._over = True

    def _distinct(self, configs: Iterable[_Config]) -> list[_Config]:
        out = {config.key(): config for config in configs}
        if len(out) > AT_MOST:
            self.bounded = True
        return list(out.values())[:AT_MOST]

    def _closure(self, configs: Iterable[_Config]) -> list[_Config]:
        """All configurations that silent steps can lead to, these included."""
        seen = {config.key(): config for config in configs}
        todo = list(seen.values())
        while todo:
            for following in self._steps(todo.pop()):
                key = following.key()
                if key not in seen:
                    if len(seen) >= AT_MOST:
                        self.bounded = True
                        return list(seen.values())
                    seen[key] = following
                    todo.append(following)
        return list(seen.values())

    def _stood(self, configs: Iterable[_Config]) -> str:
        """Where the machine was and what would have been legal, in words."""
        configs = list(configs)
        open_runs = [run for config in configs for run in config.runs]
        states = dict.fromkeys(str(run.machine.state) for run in open_runs if run.settle is None)
        legal = {
            alike.output_in_words(head): None
            for run in open_runs
            if (head := run.settle or (run.outbox[0] if run.outbox else None)) and self._visible(head)
        }
        for run in open_runs:
            running = [call.call.id for call in run.machine.running]
            if run.machine.state in _IN_BATCH and running and not run.outbox:
                legal[f"the tool of {', '.join(running)} settling"] = None
            if run.machine.state in _IN_REPLY and not run.reply and not run.outbox:
                legal["more of the reply"] = None
        if not open_runs:
            legal["a prompt"] = None
        where = " or ".join(states) or ("settled" if open_runs else "idle")
        return f"the machine was {where}; legal: {', '.join(legal) or 'nothing'}"

    # -- silent steps ------------------------------------------------------------------------

    def _visible(self, output: fsm.Output) -> bool:
        if isinstance(output, fsm.Emit):
            return output.event.type in self._tells
        return isinstance(output, fsm.SendRequest | fsm.StartTool | fsm.Settle)

    def _steps(self, config: _Config) -> Iterator[_Config]:
        if config.cancels:
            yield from self._cancelled(config)
        for run in config.runs:
            if run.settle is not None:
                continue
            if run.outbox:
                yield from self._carried_out(config, run, run.outbox[0])
                continue
            after = self._moved(run)
            if after is not None:
                yield config.with_run(run, after)

    @staticmethod
    def _moved(run: _Run) -> _Run | None:
        """The run after it took in the next thing or proceeded, if it can."""
        if run.machine.state in _PROCEEDS:
            return run.fed(fsm.Proceed())
        if run.machine.state in _IN_REPLY and run.reply:
            return replace(run, reply=run.reply[1:]).fed(run.reply[0])
        if run.machine.state in _IN_BATCH and run.settled:
            return replace(run, settled=run.settled[1:]).fed(run.settled[0])
        return None

    @staticmethod
    def _cancelled(config: _Config) -> Iterator[_Config]:
        taken = replace(config, cancels=config.cancels[1:])
        run = config.base
        if run is None:
            yield taken
            return
        # What had not begun when the cancellation came does not begin.
        kept = tuple(output for output in run.outbox if not isinstance(output, _NOT_BEGUN))
        after = replace(run, outbox=kept).fed(fsm.Cancelled())
        if after is not None:
            yield taken.with_run(run, after)

    def _carried_out(self, config: _Config, run: _Run, head: fsm.Output) -> Iterator[_Config]:
        after = run.popped()
        if isinstance(head, fsm.Settle):
            yield self._released(config, run, replace(after, settle=head))
        elif isinstance(head, fsm.StartTool):
            failure = self._not_entered(head)
            answered = failure and after.fed(fsm.ToolSettled(head.place, "", failure))
            if answered:
                yield config.with_run(run, answered)
        elif isinstance(head, fsm.Append):
            if run.apart:
                yield config.with_run(run, replace(after, messages=(*run.messages, head.message)))
            else:
                yield replace(config.with_run(run, after), history=(*config.history, head.message))
        elif isinstance(head, fsm.CloseStream):
            yield config.with_run(run, replace(after, reply=(), request=None))
        elif isinstance(head, fsm.SignalTools):
            yield config.with_run(run, replace(after, signalled=True))
        elif not self._visible(head):
            yield config.with_run(run, after)

    def _not_entered(self, start: fsm.StartTool) -> str | None:
        """Why the call may be answered without its tool being entered, if it may."""
        if self._tools and start.call.name not in self._tools:
            return "unknown_tool"
        must_not = not self._may_enter(start)
        unsure = self._fits is None
        return "invalid_arguments" if must_not or unsure else None

    def _may_enter(self, start: fsm.StartTool) -> bool:
        if self._tools and start.call.name not in self._tools:
            return False
        if self._marks_call_ends and not start.whole:
            return False
        try:
            value = json.loads(start.call.arguments)
        except ValueError:
            return False
        return isinstance(value, dict) and (self._fits is None or self._fits(start.call))

    def _released(self, config: _Config, old: _Run, run: _Run) -> _Config:
        """The run is over: what waited for that follows."""
        config = config.with_run(old, run)
        if run.apart:
            config = replace(config, held_back=(*config.held_back, *run.messages[run.first :]))
        if config.base is None:
            config = replace(config, history=config.history + config.held_back, held_back=())
        if config.base is None and config.waiting:
            (prompt, text), *rest = config.waiting
            config = self._begun(replace(config, waiting=tuple(rest)), prompt, text)
        return config

    def _begun(self, config: _Config, prompt: int, text: str, *, apart: bool = False) -> _Config:
        messages = config.history if apart else ()
        run = _Run(prompt, Machine(self.choices, self.max_turns), apart=apart, messages=messages)
        run = replace(run, first=len(messages)).fed(fsm.Prompted(text)) or run
        return replace(config, runs=(*config.runs, run))

    # -- what the environment does -----------------------------------------------------------

    def _prompted(self, config: _Config, entry: t.Prompted) -> Iterator[_Config]:
        base = config.base
        if not entry.running and (config.runs or config.waiting):
            return
        if base is None:
            yield self._begun(config, entry.prompt, entry.text)
            return
        after = base.fed(fsm.Prompted(entry.text))
        if after is None:
            return
        busy = next(output for output in after.outbox if isinstance(output, fsm.Busy))
        if busy.how == "refused":
            yield replace(config, refused=(*config.refused, entry.prompt))
        elif busy.how == "queued":
            yield replace(config, waiting=(*config.waiting, (entry.prompt, entry.text)))
        else:
            yield self._begun(config, entry.prompt, entry.text, apart=True)

    @staticmethod
    def _to_reply(config: _Config, request: int, *given: fsm.Input) -> _Config:
        for run in config.runs:
            if run.request == request:
                return config.with_run(run, replace(run, reply=(*run.reply, *given)))
        return config

    def _opened(self, config: _Config, entry: t.Opened) -> Iterator[_Config]:
        yield self._to_reply(config, entry.request, fsm.Opened())

    def _sent(self, config: _Config, entry: t.Sent) -> Iterator[_Config]:
        yield self._to_reply(config, entry.request, fsm.Received(entry.piece))

    def _faulted(self, config: _Config, entry: t.Faulted) -> Iterator[_Config]:
        if entry.fault == FaultKind.STALL:
            yield config
            return
        failed, ended = fsm.StreamFailed(entry.detail or entry.fault), fsm.StreamEnded()
        if entry.fault != FaultKind.END:
            yield self._to_reply(config, entry.request, failed)
        if entry.fault == FaultKind.END or (
            entry.fault == FaultKind.HALF_FRAME and self.header.wire != "native"
        ):
            yield self._to_reply(config, entry.request, ended)

    def _tool_settled(self, config: _Config, entry: t.ToolSettled) -> Iterator[_Config]:
        for run in config.runs:
            place = dict(run.starts).get(entry.start)
            if place is not None:
                failure = "tool_exception" if entry.how == "raised" else None
                settled = fsm.ToolSettled(place, entry.text, failure, entry.how == "cancelled")
                yield config.with_run(run, replace(run, settled=(*run.settled, settled)))
                return
        if entry.start in self._started:
            yield config  # its run is over

    def _cancel_sent(self, config: _Config, entry: t.CancelSent) -> Iterator[_Config]:
        yield replace(config, cancels=(*config.cancels, entry.cancel))

    def _cancel_returned(self, config: _Config, entry: t.CancelReturned) -> Iterator[_Config]:
        if entry.cancel not in config.cancels:
            yield config

    def _listener_raised(self, config: _Config, entry: t.ListenerRaised) -> Iterator[_Config]:
        for run in config.runs:
            if run.prompt == config.teller or (config.teller is None and not self._tells):
                after = run.fed(fsm.ListenerFailed("the listener failed"))
                if after is not None:
                    yield config.with_run(run, after)

    # -- what the target does ----------------------------------------------------------------

    def _told(self, config: _Config, entry: t.Told) -> Iterator[_Config]:
        if entry.event.type not in self._tells:
            yield config
            return
        for run in config.runs:
            head = run.outbox[0] if run.outbox else None
            if isinstance(head, fsm.Emit) and alike.same_event(head.event, entry.event):
                yield replace(config.with_run(run, run.popped()), teller=run.prompt)

    def _requested(self, config: _Config, entry: t.Requested) -> Iterator[_Config]:
        if entry.serves == "auxiliary":
            yield config
            return
        for run in config.runs:
            asks = bool(run.outbox) and isinstance(run.outbox[0], fsm.SendRequest)
            history = config.messages_of(run)
            if asks and run.prompt == entry.prompt and alike.same_request(history, entry.messages):
                yield config.with_run(run, replace(run.popped(), request=entry.request, reply=()))

    def _tool_started(self, config: _Config, entry: t.ToolStarted) -> Iterator[_Config]:
        for run in config.runs:
            head = run.outbox[0] if run.outbox else None
            if not isinstance(head, fsm.StartTool) or not self._may_enter(head):
                continue
            if not alike.same_call(head.call, entry, self._sent_ids):
                continue
            after = run.popped().fed(fsm.ToolStarted(head.place))
            if after is not None:  # its first output is to enter the tool, and that was seen
                starts = (*run.starts, (entry.start, head.place))
                yield config.with_run(run, replace(after.popped(), starts=starts))

    def _signalled(self, config: _Config, entry: t.Signalled) -> Iterator[_Config]:
        run = next((run for run in config.runs if entry.number in dict(run.starts)), None)
        if entry.where != "tool" or run is None or run.signalled:
            yield config

    def _settled(self, config: _Config, entry: t.Settled) -> Iterator[_Config]:
        if entry.outcome == Outcome.REFUSED:
            if entry.prompt in config.refused and entry.reason == FailureReason.BUSY:
                yield replace(config, refused=tuple(n for n in config.refused if n != entry.prompt))
            elif not self.limit_is_one and entry.reason == FailureReason.INVALID:
                yield replace(config, runs=())
            return
        for run in config.runs:
            settle = run.settle
            if run.prompt == entry.prompt and settle is not None:
                if alike.same_settlement(settle, entry, self.choices):
                    yield config.without(run)

    def _hung(self, config: _Config, entry: t.Hung) -> Iterator[_Config]:
        known = {run.prompt for run in config.runs} | {prompt for prompt, _ in config.waiting}
        rests = not any(self._steps(config)) and not any(run.outbox or run.settle for run in config.runs)
        if entry.prompt in known and rests:
            yield config

    def _history(self, config: _Config, entry: t.HistoryRead) -> Iterator[_Config]:
        failed = "failed_attempt" in self.claims
        at_rest = not config.runs and not config.waiting
        if at_rest and alike.same_history(config.history, entry.messages, failed=failed):
            yield config

    def _lost(self, config: _Config, entry: t.TargetLost) -> Iterator[_Config]:
        """No machine is ever lost."""
        yield from ()


_HANDLERS: dict[type, Callable[[Acceptor, _Config, t.Entry], Iterator[_Config]]] = {
    t.Prompted: Acceptor._prompted,
    t.Requested: Acceptor._requested,
    t.Opened: Acceptor._opened,
    t.Sent: Acceptor._sent,
    t.Faulted: Acceptor._faulted,
    t.Signalled: Acceptor._signalled,
    t.ToolStarted: Acceptor._tool_started,
    t.ToolSettled: Acceptor._tool_settled,
    t.CancelSent: Acceptor._cancel_sent,
    t.CancelReturned: Acceptor._cancel_returned,
    t.Told: Acceptor._told,
    t.ListenerRaised: Acceptor._listener_raised,
    t.Settled: Acceptor._settled,
    t.Hung: Acceptor._hung,
    t.HistoryRead: Acceptor._history,
    t.TargetLost: Acceptor._lost,
}  # type: ignore[dict-item]

_AFTER_SILENCE = frozenset(_HANDLERS) - {
    t.Opened, t.Sent, t.Faulted, t.ToolSettled, t.CancelSent, t.ListenerRaised,
}  # fmt: skip
"""The entries before which a configuration may take silent steps. The others are put where they
are taken in later, or come at once."""


def accept(
    trace: t.Trace,
    claims: dict[str, str] | None = None,
    fits: Fits | None = None,
    tells: Collection[str] | None = None,
) -> Acceptance:
    """Whether the machine has a path that gives ``trace``; parameters as in :class:`Acceptor`."""
    acceptor = Acceptor(trace.header, claims, fits, tells)
    for at, entry in enumerate(trace.entries[1:], 1):
        wrong = acceptor.take(entry)
        if wrong is not None:
            return _rejected(acceptor, at, f"entry {at}: {wrong}")
    wrong = acceptor.end()
    if wrong is not None:
        return _rejected(acceptor, len(trace), wrong)
    return Acceptance(accepted=True, bounded=acceptor.bounded)


def _rejected(acceptor: Acceptor, at: int, words: str) -> Acceptance:
    if acceptor.bounded:
        words += f" (not certain: only {AT_MOST} configurations were followed at a time)"
    return Acceptance(accepted=False, at=at, words=words, bounded=acceptor.bounded)
