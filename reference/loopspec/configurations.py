"""Configurations: where a target may be, as values that are copied and never changed.

A configuration is the machines of all runs that are open, each with what it has still to carry out
and what has come and was not yet taken in, round one history. The methods are the moves that need
nothing but the configuration itself; what can be seen of a move is the acceptor's question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from loopspec import machine as fsm
from loopspec.machine import Machine, State
from loopspec.vocabulary import Message

IN_REPLY = (State.REQUESTING, State.STREAMING, State.ENDING)
IN_BATCH = (State.EXECUTING, State.DRAINING)
_PROCEEDS = (State.OPENING, State.RECORDED, State.DISPATCHING, State.STARTING, State.BETWEEN)
_NOT_BEGUN = (fsm.SendRequest, fsm.StartTool)


@dataclass(frozen=True, slots=True)
class Run:
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
    entering: tuple[int, ...] = ()  # the places of calls whose tools are about to be entered
    starts: tuple[tuple[int, int], ...] = ()  # a start's number, its call's place
    signalled: bool = False
    settle: fsm.Settle | None = None  # released; its settlement has not been seen

    def key(self) -> tuple[object, ...]:
        """The run as a value to compare and hash."""
        return (
            self.prompt, self.machine.snapshot(), self.outbox, self.messages, self.request,
            self.reply, self.settled, self.entering, self.starts, self.signalled, self.settle,
        )  # fmt: skip

    def fed(self, given: fsm.Input) -> Run | None:
        """The run after an input, or ``None`` if it is illegal."""
        machine = self.machine.copy()
        try:
            outputs = machine.feed(given)
        except fsm.IllegalInput:
            return None
        machine.path.clear()
        machine.call_path.clear()
        after = replace(self, machine=machine, outbox=(*self.outbox, *outputs))
        return after if machine.cause is None else after._nothing_entered()

    def _nothing_entered(self) -> Run:
        """The batch was ended early: a tool that was about to be entered is not."""
        aborted = tuple(fsm.ToolSettled(place, "", aborted=True) for place in self.entering)
        return replace(self, settled=self.settled + aborted, entering=())

    def popped(self) -> Run:
        """The run after it carried out the next output."""
        return replace(self, outbox=self.outbox[1:])

    def moved(self) -> Run | None:
        """The run after it took in the next thing or proceeded, if it can."""
        if self.machine.state in _PROCEEDS:
            return self.fed(fsm.Proceed())
        if self.machine.state in IN_REPLY and self.reply:
            return replace(self, reply=self.reply[1:]).fed(self.reply[0])
        if self.machine.state in IN_BATCH and self.settled:
            return replace(self, settled=self.settled[1:]).fed(self.settled[0])
        return None


@dataclass(frozen=True, slots=True)
class Config:
    """Where the target may be."""

    runs: tuple[Run, ...] = ()
    history: tuple[Message, ...] = ()
    held_back: tuple[Message, ...] = ()
    waiting: tuple[tuple[int, str], ...] = ()
    refused: tuple[int, ...] = ()
    cancels: tuple[int, ...] = ()  # sent and not yet taken in
    teller: int | None = None

    def key(self) -> tuple[object, ...]:
        """The configuration as a value to compare and hash."""
        runs = tuple(run.key() for run in self.runs)
        return (runs, self.history, self.held_back, self.waiting, self.refused, self.cancels, self.teller)

    @property
    def base(self) -> Run | None:
        """The run that is not apart and holds the conversation."""
        return next((run for run in self.runs if not run.apart and run.settle is None), None)

    def with_run(self, old: Run, new: Run) -> Config:
        """The configuration with ``new`` in the place of ``old``."""
        return replace(self, runs=tuple(new if run is old else run for run in self.runs))

    def without(self, old: Run) -> Config:
        """The configuration without a run whose settlement was seen."""
        return replace(self, runs=tuple(run for run in self.runs if run is not old))

    def messages_of(self, run: Run) -> tuple[Message, ...]:
        """The history that a run works on."""
        return run.messages if run.apart else self.history

    def to_reply(self, request: int, given: fsm.Input) -> Config:
        """Something of a reply was sent; nobody waits for more of one that was closed."""
        for run in self.runs:
            if run.request == request:
                return self.with_run(run, replace(run, reply=(*run.reply, given)))
        return self

    def cancelled(self) -> Iterator[Config]:
        """The first cancellation that is on its way is taken in."""
        taken = replace(self, cancels=self.cancels[1:])
        run = self.base
        if run is None:
            yield taken
            return
        # What had not begun when the cancellation came does not begin.
        kept = tuple(output for output in run.outbox if not isinstance(output, _NOT_BEGUN))
        after = replace(run, outbox=kept).fed(fsm.Cancelled())
        if after is not None:
            yield taken.with_run(run, after)

    def begun(self, new: Callable[[], Machine], prompt: int, text: str, *, apart: bool = False) -> Config:
        """A run begins with this prompt; ``new`` makes its machine."""
        messages = self.history if apart else ()
        run = Run(prompt, new(), apart=apart, messages=messages, first=len(messages))
        return replace(self, runs=(*self.runs, run.fed(fsm.Prompted(text)) or run))

    def released(self, old: Run, run: Run, new: Callable[[], Machine]) -> Config:
        """The run is over; what waited for that follows."""
        config = self.with_run(old, run)
        if run.apart:
            config = replace(config, held_back=(*config.held_back, *run.messages[run.first :]))
        if config.base is None:
            config = replace(config, history=config.history + config.held_back, held_back=())
        if config.base is None and config.waiting:
            (prompt, text), *rest = config.waiting
            config = replace(config, waiting=tuple(rest)).begun(new, prompt, text)
        return config
