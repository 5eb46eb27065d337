"""All abstract scenarios up to a bound, in a fixed order.

A scenario is built from a small alphabet: what a reply says (*content*), how it ends (*end*), what
its tools do, and one or two things that somebody does meanwhile: cancel, prompt again, or raise
from inside a listener. *Abstract* means that texts stand for all texts: there is a plain one and a
blank one, because no loop may tell any others apart.

Five kinds, one generator each:

``replies``    one reply, every content with every end, tools and limits where calls are run;
``turns``      a first reply with calls, then every content and end as the second;
``actions``    at every gate of a reply and in every tool: up to two of cancel and prompt, with an
               environment that heeds the signal and with a deaf one;
``listeners``  on every event of a run: up to two of cancel, prompt and raise, from inside;
``rounds``     what lies round a run: cancelled while idle or before its first request, failures in
               a row, forks, the same reply cut into other pieces.

Generators are lazy and yield :class:`Draft`, which is cheap; :meth:`Draft.scenario` makes the
validated value. Names are stable, and say what is in them: ``x-text-call.tooluse.c1-cancel-deaf``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from loopspec.scenario import (
    ArgumentsPart,
    ArgumentsStep,
    CallEndStep,
    CallSpec,
    CallStartStep,
    CallStep,
    ErrorStep,
    Family,
    On,
    Prompt,
    ReasoningStep,
    ReasonStep,
    Reply,
    ResultStep,
    Scenario,
    Settings,
    StatusSpec,
    StatusStep,
    Step,
    TextStep,
    Tool,
    ToolStep,
    UsageSpec,
    UsageStep,
)

Steps = tuple[Step, ...]

# --------------------------------------------------------------------------------------------
# Contents


def _call(label: str, **fields: object) -> CallStep:
    return CallStep(call=CallSpec.model_validate({"label": label, **fields}))


def _start(label: str, **fields: object) -> CallStartStep:
    return CallStartStep(call_start=CallSpec.model_validate({"label": label, **fields}))


def _arguments(label: str, text: str) -> ArgumentsStep:
    return ArgumentsStep(arguments=ArgumentsPart(label=label, text=text))


TEXT = TextStep(text="The answer. ")
MORE = TextStep(text="And more.")
BLANK = TextStep(text="  \n")
THOUGHT = ReasoningStep(reasoning="A thought. ")
USAGE = UsageStep(usage=UsageSpec(input_tokens=7, output_tokens=3))
DONE = Reply(steps=(TextStep(text="Done."), ReasonStep(reason="stop")))

_BLOCKS: dict[str, Callable[[str], Step]] = {
    "text": lambda label: TEXT,
    "reasoning": lambda label: THOUGHT,
    "call": _call,
    "usage": lambda label: USAGE,
}


def _interleaved(c: str) -> Steps:
    one, two = f"{c}1", f"{c}2"
    return (
        _start(one), _start(two),
        _arguments(one, '{"value": '), _arguments(two, '{"value": "'),
        _arguments(one, f'"{one}"}}'), _arguments(two, f'{two}"}}'),
        CallEndStep(call_end=one), CallEndStep(call_end=two),
    )  # fmt: skip


def _cut(c: str) -> Steps:
    """Arguments that a repair would make runnable."""
    label = f"{c}1"
    start = _start(label, tool="probe_optional", arguments='{"note": "rm -r')
    return (start, _arguments(label, '{"note": "rm -r'), CallEndStep(call_end=label))


def _unfinished(c: str) -> Steps:
    """Whole arguments, but the wire never said that the call ended."""
    return (_start(f"{c}1"), _arguments(f"{c}1", f'{{"value": "{c}1"}}'))


_SPECIAL: dict[str, Callable[[str], Steps]] = {
    "blank": lambda c: (BLANK,),
    "blank-call": lambda c: (BLANK, _call(f"{c}1")),
    "interleaved": _interleaved,
    "cut-call": _cut,
    "call-cut-call": lambda c: (_call(f"{c}2"), *_cut(c)),
    "unfinished-call": _unfinished,
    "call-unfinished-call": lambda c: (_call(f"{c}2"), *_unfinished(c)),
    "empty-id": lambda c: (_call(f"{c}1", id=""),),
    "empty-ids": lambda c: (_call(f"{c}1", id=""), _call(f"{c}2", id="")),
    "repeated-ids": lambda c: (_call(f"{c}1", id=f"{c}0"), _call(f"{c}2", id=f"{c}0")),
    "unknown-tool": lambda c: (_call(f"{c}1", tool="no_such_tool", arguments={}),),
    "unknown-tool-call": lambda c: (_call(f"{c}1", tool="no_such_tool", arguments={}), _call(f"{c}2")),
    "call-unknown-tool": lambda c: (_call(f"{c}1"), _call(f"{c}2", tool="no_such_tool", arguments={})),
    "wrong-type": lambda c: (_call(f"{c}1", tool="probe_number", arguments={"amount": "many"}),),
    "wrong-type-call": lambda c: (
        _call(f"{c}1", tool="probe_number", arguments={"amount": "many"}), _call(f"{c}2"),
    ),
    "call-wrong-type": lambda c: (
        _call(f"{c}1"), _call(f"{c}2", tool="probe_number", arguments={"amount": "many"}),
    ),
}  # fmt: skip


def _numbered(blocks: tuple[str, ...], c: str) -> Steps:
    calls = 0
    steps: list[Step] = []
    for block in blocks:
        calls += block == "call"
        steps.append(_BLOCKS[block](f"{c}{calls}"))
    return tuple(steps)


def content_names(blocks: int) -> list[str]:
    """The names of all contents with at most this many plain blocks, simple ones first."""
    names = ["nothing", *_BLOCKS]
    for length in range(2, blocks + 1):
        names += ["-".join(item) for item in product(_BLOCKS, repeat=length)]
    return [*names, *_SPECIAL]


def content(name: str, c: str = "c") -> Steps:
    """The steps of a content; ``c`` is the letter that its calls' labels begin with."""
    if name in _SPECIAL:
        return _SPECIAL[name](c)
    return () if name == "nothing" else _numbered(tuple(name.split("-")), c)


def labels(steps: Steps) -> list[str]:
    """The labels of the calls that begin in ``steps``."""
    return [
        step.call.label if isinstance(step, CallStep) else step.call_start.label
        for step in steps
        if isinstance(step, CallStep | CallStartStep)
    ]


# --------------------------------------------------------------------------------------------
# Ends

REASONS = {
    "stop": "stop", "tooluse": "toolUse", "length": "length", "error": "error", "aborted": "aborted",
    "deferred": "deferred", "pending": "pending", "refusal": "refusal", "unknown": "novel_reason",
}  # fmt: skip
ACCEPTING = ("stop", "tooluse")

_FAULTS: dict[str, Step] = {
    "status": StatusStep(status=StatusSpec(status=500)),
    "fault": ErrorStep(error="the provider failed"),
    "disconnect": "disconnect",
    "end": "end",
    "malformed": "malformed",
    "half-frame": "half_frame",
}


def reason(name: str) -> ReasonStep:
    """The step that ends a reply for this reason, with a message where it is a failure."""
    error = "overloaded" if name in ("error", "aborted") else None
    return ReasonStep(reason=REASONS[name], error=error)


def _after_reason() -> Iterator[tuple[str, Steps]]:
    """What may stand between the reason and the terminator, or after it."""
    again = ReasonStep(reason="stop")
    late: dict[str, Step] = {
        "usage": USAGE, "text": MORE, "reasoning": THOUGHT, "call": _call("z1"), "reason": again,
    }  # fmt: skip
    for name, step in late.items():
        yield f"stop-{name}", (again, step, "terminator")
    for (one, first), (two, second) in product(late.items(), repeat=2):
        if (one, two) != ("call", "call"):
            yield f"stop-{one}-{two}", (again, first, second, "terminator")


def _ends() -> dict[str, Steps]:
    ends: dict[str, Steps] = {name: (reason(name),) for name in REASONS}
    ends["no-reason"] = ()
    ends["terminator"] = ("terminator",)
    for name in ACCEPTING:
        ends[f"{name}-no-terminator"] = (reason(name), "end")
        ends[f"{name}-open"] = (reason(name),)
    ends["stop-late-text"] = (reason("stop"), "terminator", MORE)
    ends["stop-late-call"] = (reason("stop"), "terminator", _call("z1"))
    ends["error-no-terminator"] = (reason("error"), "end")
    for name, fault in _FAULTS.items():
        if name != "status":
            ends[f"stop-{name}"] = (reason("stop"), fault)
    ends.pop("stop-end")
    return ends


ENDS = _ends()
"""Every end by name: the steps from the reason on."""

LATE_ENDS = dict(_after_reason())
"""Ends with something between the reason and the terminator."""


def _faulty(steps: Steps) -> Iterator[tuple[str, Steps]]:
    """A fault before the reply, at its start, in its middle and after its content."""
    for name, fault in _FAULTS.items():
        yield f"{name}-at-once", (fault,)
        if name == "status":
            continue
        yield f"{name}-at-start", ("open", fault)
        if len(steps) > 1:
            yield f"{name}-in-middle", (*steps[:1], fault)
        if steps and name != "end":  # at the end that is no-reason
            yield f"{name}-at-end", (*steps, fault)


# --------------------------------------------------------------------------------------------
# Drafts

_NO_SETTINGS = Settings()


@dataclass(frozen=True, slots=True)
class Draft:
    """A scenario that has not been made yet."""

    name: str
    prompts: tuple[Prompt, ...]
    settings: Settings = _NO_SETTINGS
    family: Family | None = None
    claims: dict[str, str] = field(default_factory=dict)

    def scenario(self) -> Scenario:
        """The validated scenario."""
        return Scenario(
            name=self.name, prompts=self.prompts, settings=self.settings, family=self.family,
            claims=self.claims,
        )  # fmt: skip

    def limited(self, turns: int) -> Draft:
        """The same with a turn limit."""
        return replace(self, name=f"{self.name}.limit-{turns}", settings=Settings(max_turns=turns))


@dataclass(frozen=True, slots=True)
class Bound:
    """How far the enumeration goes.

    Parameters
    ----------
    blocks: plain blocks of a reply.
    seconds: whether every content and end is tried as a second reply too, or only plain ones.
    bases: how many contents actions and listeners are placed in (the first so many).
    late: whether ends with pieces after the reason are combined with every content.
    """

    blocks: int = 2
    seconds: bool = True
    bases: int | None = None
    late: bool = True


NARROW = Bound(blocks=2, seconds=False, late=False)
"""What the set cover is chosen from."""

WIDE = Bound(blocks=2)
"""What a full run is drawn from."""


def _prompt(*replies: Reply, tools: dict[str, Tool] | None = None) -> Prompt:
    return Prompt(replies=replies, tools=tools or {})


def _reply(steps: Steps, end: str) -> Reply | None:
    """A reply that ends like this; ``None`` if it would have no steps at all."""
    steps = (*steps, *(ENDS[end] if end in ENDS else LATE_ENDS[end]))
    if not steps:
        return Reply(steps=("open", "end"))
    return Reply(steps=steps, open_body=end.endswith("-open"))


def _is_accepted(end: str) -> bool:
    return end.partition("-")[0] in ACCEPTING and end not in ("stop-fault", "stop-disconnect")


# --------------------------------------------------------------------------------------------
# replies, turns

TOOLS: dict[str, Tool] = {
    "ok": Tool(steps=("ok",)),
    "raises": Tool(steps=("raises",)),
    "empty": Tool(steps=(ResultStep(result=""),)),
    "json": Tool(steps=(ResultStep(result='{"a": [1, "é"]}'),)),
    "slow": Tool(steps=("deaf",)),
    "slow-raises": Tool(steps=("deaf_raises",)),
}
"""Tool behaviours that need no cancellation to end."""


def _with_tools(name: str, replies: tuple[Reply, ...], called: list[str]) -> Iterator[Draft]:
    """Every behaviour for each call, the others being plain; and both behaving the same."""
    yield Draft(name, (_prompt(*replies),))
    choices = list(TOOLS.items())[1:]
    for (word, tool), label in product(choices, called):
        yield Draft(f"{name}.{label}-{word}", (_prompt(*replies, tools={label: tool}),))
    if len(called) > 1:
        for word, tool in choices:
            both = dict.fromkeys(called, tool)
            yield Draft(f"{name}.all-{word}", (_prompt(*replies, tools=both),))
        for before, after in (called, called[::-1]):
            tools = {before: Tool(steps=({"after": after}, "ok"))}  # type: ignore[arg-type]
            if before < after:  # in a sequential loop the other way could never end
                yield Draft(f"{name}.{before}-after-{after}", (_prompt(*replies, tools=tools),),
                            claims={"tools": "parallel-completion-order"})  # fmt: skip


def _replies_of(bound: Bound, c: str) -> Iterator[tuple[str, Reply, list[str], bool]]:
    """Name, reply, labels of its calls, and whether its calls are run."""
    for name in content_names(bound.blocks):
        steps = content(name, c)
        ends = dict(ENDS) if not bound.late and name not in ("text", "nothing") else {**ENDS, **LATE_ENDS}
        for end in ends:
            reply = _reply(steps, end)
            if reply is not None:
                yield f"{name}.{end}", reply, labels(steps), _is_accepted(end)
        for end, broken in _faulty(steps):
            yield f"{name}.{end}", Reply(steps=broken), [], False


def replies(bound: Bound = WIDE) -> Iterator[Draft]:
    """One reply: every content with every end."""
    for name, reply, called, accepted in _replies_of(bound, "c"):
        if not called:
            yield Draft(f"x-{name}", (_prompt(reply),))
        elif not accepted:
            yield Draft(f"x-{name}", (_prompt(reply, DONE),))
        else:
            yield from _with_tools(f"x-{name}", (reply, DONE), called)
            for turns in (1, 2):
                yield Draft(f"x-{name}", (_prompt(reply, DONE),)).limited(turns)


_FIRSTS = ("call.tooluse", "call.stop", "text-call.tooluse", "call-call.tooluse", "unknown-tool.tooluse")


def turns(bound: Bound = WIDE) -> Iterator[Draft]:
    """A first reply with calls, then every content with every end."""
    seconds = list(_replies_of(bound, "d"))
    if not bound.seconds:
        plain = ("nothing", "text", "call", "reasoning")
        seconds = [item for item in seconds if item[0].split(".")[0] in plain]
    for first in _FIRSTS if bound.seconds else _FIRSTS[:1]:
        name, _, end = first.partition(".")
        opening = _reply(content(name), end)
        assert opening is not None
        for second, reply, called, accepted in seconds:
            rest = (DONE,) if called else ()
            draft = Draft(f"x-{first}-then-{second}", (_prompt(opening, reply, *rest),))
            yield draft
            if called and accepted:
                for limit in (1, 2, 3):
                    yield draft.limited(limit)


# --------------------------------------------------------------------------------------------
# actions

ACTIONS = ("cancel", "prompt")
_SEQUENCES = (("cancel",), ("prompt",), *product(ACTIONS, repeat=2))


def _bases(bound: Bound) -> Iterator[tuple[str, Steps, Steps]]:
    """What actions are placed in: name, content, and the steps from the reason on."""
    for name in content_names(bound.blocks)[: bound.bases]:
        steps = content(name)
        end = "tooluse" if labels(steps) else "stop"
        yield f"{name}.{end}", steps, (reason(end), "terminator")
    for end in ("length", "error", "refusal"):
        yield f"text.{end}", content("text"), (reason(end), "terminator")
    for name, late in LATE_ENDS.items():
        if bound.late or name.count("-") == 1:
            yield f"text.{name}", content("text"), late


def _played(steps: Steps, at: int, actions: tuple[str, ...]) -> Steps:
    """The steps with the actions before step ``at``; at 0 nothing is open, at 1 the reply is."""
    opened: Steps = ("open", *steps)
    return (*opened[:at], *actions, *opened[at:])  # type: ignore[arg-type]


def _in_reply(bound: Bound) -> Iterator[Draft]:
    for name, said, ending in _bases(bound):
        steps = (*said, *ending)
        called = labels(steps)
        for at, actions in product(range(len(steps) + 1), _SEQUENCES):
            played = _played(steps, at, actions)
            where = f"x-{name}.{'-'.join(actions)}-at-{at}"
            yield Draft(where, (_prompt(Reply(steps=played), DONE),))
            if "cancel" in actions:
                yield Draft(f"{where}-deaf", (_prompt(Reply(steps=played, deaf=True), DONE),))
                silent: Steps = (*played[: at + len(actions)], "stall")
                if set(labels(silent)) <= set(called):
                    yield Draft(f"{where}-silent", (_prompt(Reply(steps=silent, deaf=True), DONE),))
        for at in range(len(steps)):  # again, one step later
            played = _played(_played(steps, at, ("cancel",))[1:], at + 2, ("cancel",))
            if at:
                played = ("open", *_twice(steps, at))
            yield Draft(f"x-{name}.cancel-at-{at}-and-later-deaf",
                        (_prompt(Reply(steps=played, deaf=True), DONE),))  # fmt: skip


def _twice(steps: Steps, at: int) -> Steps:
    return (*steps[:at], "cancel", steps[at], "cancel", *steps[at + 1 :])


_TOOL_ENDS = ("ok", "raises", "never", "deaf", "deaf_raises")


def _in_tools(bound: Bound) -> Iterator[Draft]:
    for name, said, ending in _bases(bound):
        called = labels(said)
        if not called or name.startswith(("unknown-tool.", "wrong-type.", "cut", "unfinished")):
            continue
        replies = (Reply(steps=(*said, *ending[:1])), DONE)
        for label, actions, end in product(called, _SEQUENCES, _TOOL_ENDS):
            if end == "never" and "cancel" not in actions:
                continue  # nothing would ever end it
            word = end.replace("_", "-")
            steps: tuple[ToolStep, ...] = (*actions, end)  # type: ignore[assignment]
            where = f"x-{name}.{label}-{'-'.join(actions)}-{word}"
            tools = {label: Tool(steps=steps)}
            yield Draft(where, (_prompt(*replies, tools=tools),))
            if len(called) > 1 and end in ("ok", "deaf") and "cancel" in actions:
                other = next(item for item in called if item != label)
                for way in ("never", "deaf", "deaf_raises"):
                    both = {**tools, other: Tool(steps=(way,))}  # type: ignore[arg-type]
                    beside = f"{where}-{other}-{way.replace('_', '-')}"
                    yield Draft(beside, (_prompt(*replies, tools=both),))


def actions(bound: Bound = WIDE) -> Iterator[Draft]:
    """Cancellations and prompts at every gate of a reply and in every tool."""
    yield from _in_reply(bound)
    yield from _in_tools(bound)


# --------------------------------------------------------------------------------------------
# listeners

_TRIGGERS: dict[str, dict[str, str]] = {
    "run-start": {"event": "run_start"},
    "turn-start": {"event": "turn_start"},
    "user-start": {"event": "message_start", "role": "user"},
    "user-end": {"event": "message_end", "role": "user"},
    "answer-start": {"event": "message_start", "role": "assistant"},
    "text": {"event": "text_delta"},
    "reasoning": {"event": "reasoning_delta"},
    "answer-end": {"event": "message_end", "role": "assistant"},
    "stream-end": {"event": "stream_end"},
    "call": {"event": "call"},
    "tool-start": {"event": "tool_start"},
    "tool-end": {"event": "tool_end"},
    "result-start": {"event": "message_start", "role": "tool"},
    "result-end": {"event": "message_end", "role": "tool"},
    "attempt": {"event": "attempt"},
    "turn-end": {"event": "turn_end"},
    "run-end": {"event": "run_end"},
}
_LISTENED = (
    "text.stop", "reasoning-text.stop", "nothing.stop", "text.length", "text.error", "text.refusal",
    "text.deferred", "text.no-reason", "text.stop-text", "text.stop-reasoning", "text.fault-at-end",
    "call.tooluse", "text-call.tooluse", "call-call.tooluse", "call-call.length", "unknown-tool.tooluse",
    "unknown-tool-call.tooluse", "call-unknown-tool.tooluse", "wrong-type-call.tooluse",
)  # fmt: skip
_DOES = ("cancel", "raise", "prompt")
_DONE_TOGETHER = (("cancel",), ("raise",), ("prompt",), *product(("cancel", "prompt"), _DOES))


def _heard(name: str) -> tuple[tuple[Reply, ...], list[str]]:
    said, _, end = name.partition(".")
    steps = content(said)
    if end in ENDS or end in LATE_ENDS:
        reply = _reply(steps, end)
    else:
        reply = Reply(steps=dict(_faulty(steps))[end])
    assert reply is not None
    return (reply, DONE), labels(steps)


def listeners(bound: Bound = WIDE) -> Iterator[Draft]:
    """On every event: cancel, prompt again or raise, from inside the listener."""
    for base in _LISTENED:
        replies, called = _heard(base)
        numbers = (1, 2) if called or "-" in base else (1,)
        behaviours = [("", {})]
        if len(called) > 1:
            behaviours += [(f".{label}-slow", {label: TOOLS["slow"]}) for label in called]
        if called:
            behaviours += [(f".{called[0]}-raises", {called[0]: TOOLS["raises"]})]
        for (where, trigger), number, does, (words, tools) in product(
            _TRIGGERS.items(), numbers, _DONE_TOGETHER, behaviours
        ):
            on = tuple(On.model_validate({**trigger, "nth": number, "do": do}) for do in does)
            name = f"x-{base}{words}.{'-'.join(does)}-on-{where}-{number}"
            yield Draft(name, (Prompt(replies=replies, tools=tools, on=on),))


def next_events(bound: Bound = WIDE) -> Iterator[Draft]:
    """A listener that fails, and something else on the event after it."""
    chains = (
        ("user-start", "user-end"), ("answer-start", "text"), ("answer-end", "stream-end"),
        ("tool-end", "result-start"), ("result-start", "result-end"), ("result-end", "turn-end"),
        ("turn-end", "run-end"), ("run-start", "user-end"), ("text", "answer-end"),
        ("tool-start", "tool-end"), ("turn-start", "user-end"),
    )  # fmt: skip
    for base in _LISTENED:
        replies, called = _heard(base)
        behaviours = [("", {})] + [(f".{label}-slow", {label: TOOLS["slow"]}) for label in called[:1]]
        for (first, second), do, (words, tools) in product(chains, _DOES, behaviours):
            on = (
                On.model_validate({**_TRIGGERS[first], "do": "raise"}),
                On.model_validate({**_TRIGGERS[second], "do": do}),
            )
            name = f"x-{base}{words}.raise-on-{first}-{do}-on-{second}"
            yield Draft(name, (Prompt(replies=replies, tools=tools, on=on),))


# --------------------------------------------------------------------------------------------
# rounds

_ROUND = (
    "text.stop", "text.error", "text.no-reason", "text.length", "call.tooluse", "text-call.tooluse",
    "call-call.tooluse", "nothing.stop", "unknown-tool.tooluse", "text.refusal",
)  # fmt: skip


def rounds(bound: Bound = WIDE) -> Iterator[Draft]:
    """What lies round a run: idle cancellations, failures in a row, forks, other pieces."""
    for base in _ROUND:
        replies, called = _heard(base)
        plain = _prompt(*replies)
        for where in ("before_request", "idle"):
            word = where.replace("_", "-")
            first = plain.model_copy(update={"cancel": where})
            yield Draft(f"x-{base}.cancel-{word}", (first,))
            yield Draft(f"x-{base}.cancel-{word}-then-{base}", (first, plain))
            yield Draft(f"x-{base}-then-cancel-{word}", (plain, first))
        for after in _ROUND:
            yield Draft(f"x-{base}-and-{after}", (plain, _prompt(*_heard(after)[0])))
        fork = Prompt(replies=(DONE,), fork=True)
        yield Draft(f"x-{base}.fork", (plain, fork), claims={"fork": "yes"})
        cut = Reply(steps=(*replies[0].steps[:1], "cancel", *replies[0].steps[1:]))
        yield Draft(f"x-{base}.cancel-fork", (_prompt(cut, DONE), fork), claims={"fork": "yes"})
    yield from _families(bound)


def _families(bound: Bound) -> Iterator[Draft]:
    """The same reply in other pieces."""
    for name in content_names(min(bound.blocks, 2)):
        steps = content(name)
        if name == "nothing":
            continue
        end = "tooluse" if labels(steps) else "stop"
        rule = "stream.chunking-invariant"
        for chunk in (None, 1, 3):
            member = "whole" if chunk is None else f"by-{chunk}"
            reply = Reply(steps=(*steps, reason(end)), chunk=chunk)
            family = Family(name=f"{rule}/{name}", member=member)
            yield Draft(f"x-{name}.{end}.{member}", (_prompt(reply, DONE),), family=family)


# --------------------------------------------------------------------------------------------


def drafts(bound: Bound = WIDE) -> Iterator[Draft]:
    """Every scenario up to the bound, not yet made, in a fixed order."""
    yield from replies(bound)
    yield from rounds(bound)
    yield from actions(bound)
    yield from listeners(bound)
    yield from next_events(bound)
    yield from turns(bound)


def scenarios(bound: Bound = WIDE) -> Iterator[Scenario]:
    """Every scenario up to the bound, in a fixed order."""
    return (draft.scenario() for draft in drafts(bound))


def count(bound: Bound = WIDE) -> int:
    """How many scenarios there are up to the bound."""
    return sum(1 for _ in drafts(bound))
