"""Lockstep: a loop and the machine, step by step, with steps that nobody wrote down.

Scenarios are fixed before they are run. Here Hypothesis draws one step, the live bench does it, the
target runs until nothing moves any more, and what it did is compared with what the machine may do,
before the next step is drawn. So the next step can be chosen by where the target really is, and a
difference is seen at the very step that makes it.

The comparison is the acceptor's (:mod:`loopspec.acceptor`): it keeps every configuration in which
a target with these claims may be. A step is wrong if

* what the target told, asked, started or settled is nothing that any configuration has to do, or
* the target rests, and in no configuration there is nothing left to do.

A step that cannot be made where the target is does not wait for its turn: the plainest legal moves
lead there first, and each of them is compared like any other. Hypothesis leaves out some kinds of
step in each example; so no example comes to a halt because the one that leads on was left out.

When Hypothesis has drawn its last step, all that is open is brought to an end, and the trace goes
to the rules, which know nothing of the machine: the two oracles do not share a line.

    TestMine = lockstep(MyAdapter).TestCase
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from loopspec.acceptor import Acceptor
from loopspec.adapters.protocol import Adapter
from loopspec.bench.live import LiveRun
from loopspec.bench.script import Element, Fault
from loopspec.judge import Judge
from loopspec.loop import check_arguments
from loopspec.rules import RULES, Broke
from loopspec.scenario import PROBE_TOOLS
from loopspec.trace import Trace, dumps
from loopspec.vocabulary import (
    ArgumentsDelta,
    Call,
    CallEnd,
    CallStart,
    FaultKind,
    Level,
    Reason,
    ReasoningDelta,
    StopReason,
    Terminator,
    TextDelta,
    Usage,
)

TEXTS = ("a", "The answer. ", " ", "\n", "é\U0001f600")
"""Pieces of text and reasoning."""

CALLS = (
    ("probe", '{"value": "a"}'), ("probe", '{"value": "b"}'), ("probe_number", '{"amount": 3}'),
    ("probe_number", '{"amount": "many"}'), ("no_such_tool", "{}"), ("probe_optional", ""),
    ("probe_optional", '{"note": "rm -r'),
)  # fmt: skip
"""Tools and arguments of calls; the last ones are not what the tool takes, or are cut."""

REASONS = st.sampled_from([*(str(reason) for reason in StopReason), "novel_reason"])
STATUS = st.sampled_from((None, None, None, None, None, 400, 429, 500))
BREAKS = st.sampled_from([FaultKind.ERROR, FaultKind.DISCONNECT, FaultKind.END, None])
TOOL_ENDS = ("ok", "ok", "raises", "heeds")
_AT_MOST_PLAIN = 30
"""So many plain moves bring any legal loop to its end."""


class Difference(AssertionError):
    """The target did what the machine cannot do, or broke a rule; with the trace."""


def _fits(call: Call) -> bool:
    schema: Any = PROBE_TOOLS.get(call.name)
    return schema is not None and check_arguments(call.arguments, schema)[0] is not None


class Lockstep(RuleBasedStateMachine):
    """One conversation; made for a target by :func:`lockstep`."""

    make_adapter: Callable[[], Adapter]
    variant: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.bench: LiveRun | None = None
        self._taken = 1
        self._index = 0
        self._reasoned = False
        self._lost = False
        self._unread = False
        self._cancels = 0
        self._again = False
        self._said = 0

    # -- the two sides ----------------------------------------------------------------------

    @initialize(max_turns=st.sampled_from((None, None, 1, 2, 3)))
    def opens(self, max_turns: int | None) -> None:
        """A session with a limit, or without."""
        adapter = type(self).make_adapter()
        name = self.variant or adapter.manifest.first_variant
        limited = "limit" in adapter.manifest.variants[name].observes
        self.bench = LiveRun(adapter, self.variant, max_turns if limited else None)
        self.acceptor = Acceptor(self.bench.header, fits=_fits)

    @property
    def _run(self) -> LiveRun:
        assert self.bench is not None
        return self.bench

    @property
    def _open(self) -> bool:
        reply = self._run.reply
        return reply is not None and reply.open

    @property
    def _unopened(self) -> bool:
        reply = self._run.reply
        return reply is not None and reply.unopened

    def _compare(self) -> None:
        """What the target did about the last step, against what the machine may do."""
        self._take()
        if not self.acceptor.may_rest():
            self._differs(f"the target does nothing, but {self.acceptor.expected()}")
        if self._unread and not self._run.busy:
            self._unread = False
            self._run.read_history()
            self._take()

    def _take(self) -> None:
        entries = self._run.entries()
        for at in range(self._taken, len(entries)):
            wrong = self.acceptor.take(entries[at])
            if wrong is not None:
                self._differs(f"entry {at}: {wrong}")
        self._taken = len(entries)

    def _differs(self, words: str) -> NoReturn:
        """Say it once, with the trace: what comes after a difference means nothing."""
        self._lost = True
        raise Difference(f"{words}\n{dumps(Trace(tuple(self._run.entries())))}")

    # -- moves: each is one thing that the environment does, and a comparison ----------------

    def _prompt(self, *, fork: bool = False) -> None:
        self._unread = True
        self._run.prompt(fork=fork)
        self._compare()

    def _begin(self, *, fork: bool = False) -> None:
        self._cancels, self._again = 0, False
        self._prompt(fork=fork)

    def _open_reply(self, *, deaf: bool = False) -> None:
        self._index, self._reasoned = 0, False
        self._run.open_reply(deaf=deaf)
        self._compare()

    def _send(self, *elements: Element) -> None:
        self._reasoned = self._reasoned or any(isinstance(item, Reason) for item in elements)
        self._run.send(*elements)
        self._compare()

    def _call(self, tool: str, arguments: str, *, ended: bool = True) -> None:
        spec = self._run.call(tool, arguments)
        self._index += 1
        pieces: list[Element] = [CallStart(self._index, spec.wire_id, tool)]
        pieces += [ArgumentsDelta(self._index, arguments)] if arguments else []
        pieces += [CallEnd(self._index)] if ended else []
        self._send(*pieces)

    def _settle(self, start: int, how: str = "ok") -> None:
        self._run.settle(start, how)
        self._compare()

    def _go_on(self, *, with_calls: bool = False) -> None:
        """The plainest move; ``with_calls``: one that leads to a tool, if it can."""
        if not self._run.busy:
            self._begin()
        elif self._unopened:
            self._open_reply()
        elif self._open and self._reasoned:
            self._send(Terminator())
        elif self._open and with_calls and not self._index:
            self._call(*CALLS[0])
        elif self._open:
            self._send(Reason("toolUse" if self._index else "stop"))
        elif self._run.running:
            self._settle(min(self._run.running))
        else:
            self._differs("nothing can end this run")

    def _reach(self, ready: Callable[[], bool], *, with_calls: bool = False) -> bool:
        """Make plain moves until the target is where a step can be made; whether it is."""
        for _ in range(_AT_MOST_PLAIN):
            if ready():
                return True
            self._go_on(with_calls=with_calls)
        return ready()

    # -- the caller's steps -----------------------------------------------------------------

    @rule()
    def prompts(self) -> None:
        """A prompt, while nothing runs."""
        if self._reach(lambda: not self._run.busy):
            self._begin()

    @precondition(lambda self: self.bench is not None and self.bench.header.claims.get("fork") == "yes")
    @rule()
    def forks(self) -> None:
        """A prompt to a fork of the conversation, which goes on from there."""
        if self._reach(lambda: not self._run.busy):
            self._begin(fork=True)

    @rule()
    def prompts_again(self) -> None:
        """A prompt, while another runs; once for each that does."""
        if self._reach(lambda: self._run.busy and not self._again):
            self._again = True
            self._prompt()

    @rule()
    def cancels(self) -> None:
        """A cancellation, wherever the target is: twice at most in a run, and once while idle."""
        if self._reach(lambda: self._cancels < (2 if self._run.busy else 1)):
            self._cancels += 1
            self._run.cancel()
            self._compare()

    @precondition(lambda self: self.bench is not None and "listeners" in self.bench.variant.observes)
    @rule()
    def will_raise_in_the_listener(self) -> None:
        """The next event that is told meets a listener that fails."""
        if self._reach(lambda: self._run.busy):
            self._run.listener_raises = True

    # -- the provider's steps ---------------------------------------------------------------

    @rule(deaf=st.booleans(), status=STATUS)
    def answers_the_request(self, deaf: bool, status: int | None) -> None:
        """The stream is there (a deaf one ignores cancellations), or a status in its place."""
        if not self._reach(lambda: self._unopened):
            return
        if status is not None:
            self._send(Fault(FaultKind.STATUS, "the provider failed", status))
        else:
            self._open_reply(deaf=deaf)

    @rule(text=st.sampled_from(TEXTS), thought=st.booleans())
    def says(self, text: str, thought: bool) -> None:
        """A piece of text or of reasoning; what is not blank is said once in a conversation."""
        self._said += 1
        text = f"{text}{self._said}" if text.strip() else text
        if self._reach(lambda: self._open):
            self._send(ReasoningDelta(text) if thought else TextDelta(text))

    @rule(call=st.sampled_from(CALLS), ended=st.sampled_from((True, True, True, False)))
    def calls(self, call: tuple[str, str], ended: bool) -> None:
        """A call, in one piece; perhaps its end never comes."""
        if self._reach(lambda: self._open):
            self._call(*call, ended=ended)

    @rule()
    def counts(self) -> None:
        """Usage, which changes nothing."""
        if self._reach(lambda: self._open):
            self._send(Usage(7, 3))

    @rule(reason=REASONS)
    def ends_for(self, reason: str) -> None:
        """The reason for which the reply ends."""
        if self._reach(lambda: self._open and not self._reasoned):
            self._send(Reason(reason))

    @rule()
    def terminates(self) -> None:
        """The end of a reply whose reason has come."""
        if self._reach(lambda: self._open and self._reasoned):
            self._send(Terminator())

    @rule(kind=BREAKS)
    def breaks(self, kind: FaultKind | None) -> None:
        """The stream fails, or ends too early; ``None``: with a terminator, as if it were over."""
        if self._reach(lambda: self._open):
            self._send(Terminator() if kind is None else Fault(kind))

    # -- the tools' steps -------------------------------------------------------------------

    @rule(data=st.data(), how=st.sampled_from(TOOL_ENDS))
    def ends_a_tool(self, data: st.DataObject, how: str) -> None:
        """A tool returns, raises, or heeds the signal that it saw."""
        if not self._reach(lambda: bool(self._run.running), with_calls=True):
            return
        start = data.draw(st.sampled_from(sorted(self._run.running)))
        if how == "heeds" and not self._run.saw_signal(start):
            how = "ok"
        self._settle(start, how)

    # -- the end ----------------------------------------------------------------------------

    def teardown(self) -> None:
        """Bring all to an end, compare once more, and ask the rules."""
        if self.bench is None:
            return
        bench = self.bench
        bench.listener_raises = False
        try:
            if not self._lost:
                self._wind_down()
        finally:
            self.bench = None
            trace = bench.close()
        if not self._lost:
            self._judge(trace)

    def _wind_down(self) -> None:
        if not self._reach(lambda: not self._run.busy):
            self._differs(f"the run goes on after {_AT_MOST_PLAIN} plain moves")

    def _judge(self, trace: Trace) -> None:
        broken = {
            name: next(item.words for item in found if isinstance(item, Broke))
            for name, found in Judge(trace.header.claims).add(trace).items()
            if RULES[name].level is not Level.OBSERVED and any(isinstance(item, Broke) for item in found)
        }
        if broken:
            words = "\n".join(f"{name}: {what}" for name, what in broken.items())
            raise Difference(f"{words}\n{dumps(trace)}")


def lockstep(make_adapter: Callable[[], Adapter], variant: str | None = None) -> type[Lockstep]:
    """The state machine for a target; its ``TestCase`` is a test for pytest and unittest.

    Parameters
    ----------
    make_adapter: makes the adapter, in this process, anew for each example.
    variant: the name of a variant of grade ``exact``; ``None``: the first.
    """
    made = {"make_adapter": staticmethod(make_adapter), "variant": variant}
    return type("LockstepOfTarget", (Lockstep,), made)


__all__ = ["CALLS", "TEXTS", "Difference", "Lockstep", "lockstep"]
