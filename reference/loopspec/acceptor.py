"""The acceptor: it tells whether the machine has a legal path that gives this trace.

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
of the model or of a tool but had not begun when it came does not begin. At grade ``exact`` the
bench cancels at a gate only when the target is at rest, so only configurations that are at rest
are kept there.

Only what the trace shows is compared, see :mod:`loopspec.resemblance`. Claims that a target does
not make stand at their defaults in :class:`~loopspec.machine.Choices`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from loopspec import machine as fsm
from loopspec import resemblance as alike
from loopspec import trace as t
from loopspec.configurations import IN_BATCH, IN_REPLY, Config, Run
from loopspec.machine import Choices, Machine
from loopspec.vocabulary import Call, CallStart, EventType, FailureReason, FaultKind, Grade, Outcome

AT_MOST = 2000
"""How many configurations are followed at a time."""

_IN_MOTION = ("listener of", "before the first request")
"""How the place of a cancellation begins that does not wait until the target is at rest."""
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
        self._parallel = self.choices.tools != "sequential"
        self._marks_call_ends = "call_end" in header.can_express
        self._sent_ids: set[str] = set()
        self._tools: tuple[str, ...] = ()
        self._started: set[int] = set()
        self._over = False
        self._configs: list[Config] = [Config()]
        self._closed: list[Config] | None = None

    # -- the set -----------------------------------------------------------------------------

    def take(self, entry: t.Entry) -> str | None:
        """Take one entry; returns ``None``, or in words what was wrong with it."""
        handler = _HANDLERS.get(type(entry))
        if handler is None or self._over:
            return None
        before = self._configs
        if type(entry) in _AFTER_SILENCE or self._finds_rest(entry):
            before = self._reachable()
        after = [config for item in before for config in handler(self, item, entry)]
        if not after:
            return f"{alike.entry_in_words(entry)}, but {self._stood(before)}"
        self._configs, self._closed = self._distinct(after), None
        self._note(entry)
        return None

    def _reachable(self) -> list[Config]:
        """What silent steps lead to from here; kept until the next entry."""
        if self._closed is None:
            self._closed = self._closure(self._configs)
        return self._closed

    def may_rest(self) -> bool:
        """Whether a target that does nothing more until somebody else does is where it may be."""
        if self._over or any(self._rests(item) for item in self._configs):
            return True
        return any(self._rests(item) for item in self._reachable())

    def expected(self) -> str:
        """Where the machine is and what would be legal there, in words."""
        return self._stood(self._reachable())

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

    def _distinct(self, configs: Iterable[Config]) -> list[Config]:
        found = list(configs)
        if len(found) < 2:
            return found
        out = {config.key(): config for config in found}
        if len(out) > AT_MOST:
            self.bounded = True
        return list(out.values())[:AT_MOST]

    def _closure(self, configs: Iterable[Config]) -> list[Config]:
        """All configurations that silent steps can lead to, these included."""
        first = list(configs)
        chain: list[Config] = []
        # A single one mostly has a single way on, and no step leads back: nothing to compare.
        while len(first) == 1 and len(chain) < AT_MOST:
            chain += first
            first = list(self._steps(chain[-1]))
        seen = {config.key(): config for config in first}
        todo = list(seen.values())
        while todo:
            for following in self._steps(todo.pop()):
                key = following.key()
                if key not in seen:
                    if len(chain) + len(seen) >= AT_MOST:
                        self.bounded = True
                        return [*chain, *seen.values()]
                    seen[key] = following
                    todo.append(following)
        return [*chain, *seen.values()]

    def _stood(self, configs: Iterable[Config]) -> str:
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
            for place in run.entering:
                legal[f"the tool of {run.machine.calls[place].call.id} started"] = None
            running = [call.call.id for call in run.machine.running]
            if run.machine.state in IN_BATCH and running and not run.outbox:
                legal[f"the tool of {', '.join(running)} settling"] = None
            if run.machine.state in IN_REPLY and not run.reply and not run.outbox:
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

    def _rests(self, config: Config) -> bool:
        """Nothing can move here until the environment does something."""
        busy = any(run.outbox or run.settle or run.entering for run in config.runs)
        return not busy and next(self._steps(config), None) is None

    def _finds_rest(self, entry: t.Entry) -> bool:
        """Whether the bench waited for the target to be at rest before this cancellation."""
        exact = self.header.grade == Grade.EXACT
        return exact and isinstance(entry, t.CancelSent) and not entry.at.startswith(_IN_MOTION)

    def _steps(self, config: Config) -> Iterator[Config]:
        if config.cancels:
            yield from config.cancelled()
        for run in config.runs:
            if run.settle is not None:
                continue
            if run.outbox:
                yield from self._carried_out(config, run, run.outbox[0])
                continue
            after = run.moved()
            if after is not None:
                yield config.with_run(run, after)

    def _carried_out(self, config: Config, run: Run, head: fsm.Output) -> Iterator[Config]:
        after = run.popped()
        if isinstance(head, fsm.Settle):
            yield config.released(run, replace(after, settle=head), self._new)
        elif isinstance(head, fsm.StartTool):
            failure = self._not_entered(head)
            answered = failure and after.fed(fsm.ToolSettled(head.place, "", failure))
            if answered:
                yield config.with_run(run, answered)
            # Among parallel tools one may be entered after others have been told of.
            later = self._parallel and self._may_enter(head) and after.fed(fsm.ToolStarted(head.place))
            if later:
                yield config.with_run(run, replace(later.popped(), entering=(*run.entering, head.place)))
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
        is_object = isinstance(alike.arguments_value(start.call.arguments), dict)
        return is_object and (self._fits is None or self._fits(start.call))

    def _new(self) -> Machine:
        return Machine(self.choices, self.max_turns)

    # -- what the environment does -----------------------------------------------------------

    def _prompted(self, config: Config, entry: t.Prompted) -> Iterator[Config]:
        base = config.base
        if not entry.running and (config.runs or config.waiting):
            return
        if base is None:
            yield config.begun(self._new, entry.prompt, entry.text)
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
            yield config.begun(self._new, entry.prompt, entry.text, apart=True)

    def _opened(self, config: Config, entry: t.Opened) -> Iterator[Config]:
        yield config.to_reply(entry.request, fsm.Opened())

    def _sent(self, config: Config, entry: t.Sent) -> Iterator[Config]:
        yield config.to_reply(entry.request, fsm.Received(entry.piece))

    def _faulted(self, config: Config, entry: t.Faulted) -> Iterator[Config]:
        if entry.fault == FaultKind.STALL:
            yield config
            return
        failed, ended = fsm.StreamFailed(entry.detail or entry.fault), fsm.StreamEnded()
        if entry.fault != FaultKind.END:
            yield config.to_reply(entry.request, failed)
        if entry.fault == FaultKind.END or (
            entry.fault == FaultKind.HALF_FRAME and self.header.wire != "native"
        ):
            yield config.to_reply(entry.request, ended)

    def _tool_settled(self, config: Config, entry: t.ToolSettled) -> Iterator[Config]:
        for run in config.runs:
            place = dict(run.starts).get(entry.start)
            if place is not None:
                failure = "tool_exception" if entry.how == "raised" else None
                settled = fsm.ToolSettled(place, entry.text, failure, entry.how == "cancelled")
                yield config.with_run(run, replace(run, settled=(*run.settled, settled)))
                return
        if entry.start in self._started:
            yield config  # its run is over

    def _cancel_sent(self, config: Config, entry: t.CancelSent) -> Iterator[Config]:
        if self._finds_rest(entry) and not self._rests(config):
            return
        yield replace(config, cancels=(*config.cancels, entry.cancel))

    def _cancel_returned(self, config: Config, entry: t.CancelReturned) -> Iterator[Config]:
        if entry.cancel not in config.cancels:
            yield config

    def _listener_raised(self, config: Config, entry: t.ListenerRaised) -> Iterator[Config]:
        for run in config.runs:
            if run.prompt == config.teller or (config.teller is None and not self._tells):
                after = run.fed(fsm.ListenerFailed("the listener failed"))
                if after is not None:
                    yield config.with_run(run, after)

    # -- what the target does ----------------------------------------------------------------

    def _told(self, config: Config, entry: t.Told) -> Iterator[Config]:
        if entry.event.type not in self._tells:
            yield config
            return
        for run in config.runs:
            head = run.outbox[0] if run.outbox else None
            if isinstance(head, fsm.Emit) and alike.same_event(head.event, entry.event):
                yield replace(config.with_run(run, run.popped()), teller=run.prompt)

    def _requested(self, config: Config, entry: t.Requested) -> Iterator[Config]:
        if entry.serves == "auxiliary":
            yield config
            return
        for run in config.runs:
            asks = bool(run.outbox) and isinstance(run.outbox[0], fsm.SendRequest)
            history = config.messages_of(run)
            if asks and run.prompt == entry.prompt and alike.same_request(history, entry.messages):
                yield config.with_run(run, replace(run.popped(), request=entry.request, reply=()))

    def _tool_started(self, config: Config, entry: t.ToolStarted) -> Iterator[Config]:
        for run in config.runs:
            for place in run.entering:
                if alike.same_call(run.machine.calls[place].call, entry, self._sent_ids):
                    entering = tuple(other for other in run.entering if other != place)
                    starts = (*run.starts, (entry.start, place))
                    yield config.with_run(run, replace(run, entering=entering, starts=starts))
            head = run.outbox[0] if run.outbox else None
            if not isinstance(head, fsm.StartTool) or not self._may_enter(head):
                continue
            if not alike.same_call(head.call, entry, self._sent_ids):
                continue
            after = run.popped().fed(fsm.ToolStarted(head.place))
            if after is not None:  # its first output is to enter the tool, and that was seen
                starts = (*run.starts, (entry.start, head.place))
                yield config.with_run(run, replace(after.popped(), starts=starts))

    def _signalled(self, config: Config, entry: t.Signalled) -> Iterator[Config]:
        run = next((run for run in config.runs if entry.number in dict(run.starts)), None)
        if entry.where != "tool" or run is None or run.signalled:
            yield config

    def _settled(self, config: Config, entry: t.Settled) -> Iterator[Config]:
        if entry.outcome == Outcome.REFUSED:
            if entry.prompt in config.refused and entry.reason == FailureReason.BUSY:
                yield replace(config, refused=tuple(n for n in config.refused if n != entry.prompt))
            elif not self.limit_is_one and entry.reason == FailureReason.INVALID:
                yield replace(config, runs=())
            return
        for run in config.runs:
            settle = run.settle
            if settle is None or run.prompt != entry.prompt:
                continue
            if alike.same_settlement(settle, entry, self.choices):
                yield config.without(run)

    def _hung(self, config: Config, entry: t.Hung) -> Iterator[Config]:
        known = {run.prompt for run in config.runs} | {prompt for prompt, _ in config.waiting}
        if entry.prompt in known and self._rests(config):
            yield config

    def _history(self, config: Config, entry: t.HistoryRead) -> Iterator[Config]:
        failed = "failed_attempt" in self.claims
        at_rest = not config.runs and not config.waiting
        if at_rest and alike.same_history(config.history, entry.messages, failed=failed):
            yield config

    def _lost(self, config: Config, entry: t.TargetLost) -> Iterator[Config]:
        """No machine is ever lost."""
        yield from ()


_HANDLERS: dict[type, Callable[[Acceptor, Config, Any], Iterator[Config]]] = {
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
}

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
