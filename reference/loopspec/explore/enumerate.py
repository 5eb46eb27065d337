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
    "call-unknown-tool-call": lambda c: (
        _call(f"{c}1"), _call(f"{c}2", tool="no_such_tool", arguments={}), _call(f"{c}3"),
    ),
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


def _runnable(steps: Steps) -> set[str]:
    """The labels of the calls whose tool is entered."""
    calls = [step.call for step in steps if isinstance(step, CallStep)]
    calls += [step.call_start for step in steps if isinstance(step, CallStartStep)]
    return {call.label for call in calls if call.tool == "probe"}


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
    for name, step in late.items():
        yield f"error-{name}", (reason("error"), step, "terminator")
        yield f"stop-{name}-no-terminator", (again, step, "end")
        yield f"error-{name}-no-terminator", (reason("error"), step, "end")
        yield f"stop-{name}-fault", (again, step, _FAULTS["fault"])
    for (one, first), (two, second) in product(late.items(), repeat=2):
        if (one, two) != ("call", "call"):
            yield f"stop-{one}-{two}", (again, first, second, "terminator")


def _ends() -> dict[str, Steps]:
    ends: dict[str, Steps] = {name: (reason(name),) for name in REASONS}
    ends["no-reason"] = ()
    ends["terminator"] = ("terminator",)
    for name in REASONS:
        ends[f"{name}-no-terminator"] = (reason(name), "end")
    for name in ACCEPTING:
        ends[f"{name}-open"] = (reason(name),)
    ends["stop-late-text"] = (reason("stop"), "terminator", MORE)
    ends["stop-late-call"] = (reason("stop"), "terminator", _call("z1"))
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
    every: combine everything with everything. Otherwise what cannot matter to the machine is left
        out: long contents get one action and a heeding environment, second replies are plain.
    """

    blocks: int = 2
    every: bool = True


NARROW = Bound(blocks=1, every=False)
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
    return end.partition("-")[0] in ACCEPTING and not end.endswith(("fault", "disconnect", "malformed"))


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
        late = LATE_ENDS if bound.every or name in ("text", "nothing") else {}
        for end in (*ENDS, *late):
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
            if accepted and name.startswith(("nothing.", "blank.")):
                for turns in (1, 2):
                    yield Draft(f"x-{name}", (_prompt(reply),)).limited(turns)
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
    if not bound.every:
        plain = ("nothing", "text", "call", "reasoning")
        seconds = [item for item in seconds if item[0].split(".")[0] in plain]
    for first in _FIRSTS if bound.every else _FIRSTS[:1]:
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
_ONE_ACTION = (("cancel",), ("prompt",))
_IN_REPLIES = (*_ONE_ACTION, ("prompt", "prompt"), ("prompt", "cancel"))
"""Nothing after a cancellation: the reply is over for the loop, and so is the run."""
_IN_TOOLS = (
    *_ONE_ACTION,
    *product(ACTIONS, repeat=2),
    *(("cancel", *rest) for rest in product(ACTIONS, repeat=2)),
)


def _bases() -> Iterator[tuple[str, Steps, Steps]]:
    """What actions are placed in: name, content, and the steps from the reason on."""
    for name in content_names(2):
        steps = content(name)
        end = "tooluse" if labels(steps) else "stop"
        yield f"{name}.{end}", steps, (reason(end), "terminator")
    for end in ("length", "error", "refusal"):
        yield f"text.{end}", content("text"), (reason(end), "terminator")
    for name, late in LATE_ENDS.items():
        if name.startswith("stop-") and late[-1] == "terminator":
            yield f"text.{name}", content("text"), late
            yield f"nothing.{name}", (), late
    for name in ("stop-no-terminator", "stop-fault", "error-no-terminator", "terminator"):
        yield f"text.{name}", content("text"), ENDS[name]


def _played(steps: Steps, at: int, actions: tuple[str, ...]) -> Steps:
    """The steps with the actions before step ``at``; at 0 nothing is open, at 1 the reply is."""
    opened: Steps = ("open", *steps)
    return (*opened[:at], *actions, *opened[at:])  # type: ignore[arg-type]


def _in_reply(bound: Bound) -> Iterator[Draft]:
    for (name, fault), actions in product(_FAULTS.items(), _IN_REPLIES):
        reply = Reply(steps=(*actions, fault))  # type: ignore[arg-type]
        yield Draft(f"x-nothing.{'-'.join(actions)}-{name}-at-once", (_prompt(reply, DONE),))
    for name, said, ending in _bases():
        steps = (*said, *ending)
        called = labels(steps)
        every = bound.every or (len(said) < 2 and name.count("-") < 2)
        for at, actions in product(range(len(steps) + 1), _IN_REPLIES if every else _ONE_ACTION):
            played = _played(steps, at, actions)
            where = f"x-{name}.{'-'.join(actions)}-at-{at}"
            yield Draft(where, (_prompt(Reply(steps=played), DONE),))
            if "cancel" in actions and every:
                yield Draft(f"{where}-deaf", (_prompt(Reply(steps=played, deaf=True), DONE),))
                silent: Steps = (*played[: at + len(actions)], "stall")
                if set(labels(silent)) <= set(called):
                    yield Draft(f"{where}-silent", (_prompt(Reply(steps=silent, deaf=True), DONE),))


_WITH_CALLS = ("call", "text-call", "call-call", "unknown-tool-call", "call-unknown-tool")
_TOOL_ENDS = ("ok", "raises", "never", "deaf", "deaf_raises")


def _in_tools(bound: Bound) -> Iterator[Draft]:
    for name, said, ending in _bases():
        called = labels(said)
        if not called or name.startswith(("unknown-tool.", "wrong-type.", "cut", "unfinished")):
            continue
        if not bound.every and name.partition(".")[0] not in _WITH_CALLS:
            continue
        replies = (Reply(steps=(*said, *ending[:1])), DONE)
        called = [label for label in called if label in _runnable(said)]
        for label, actions, end in product(called, _IN_TOOLS, _TOOL_ENDS):
            if end == "never" and "cancel" not in actions:
                continue  # nothing would ever end it
            word = end.replace("_", "-")
            steps: tuple[ToolStep, ...] = (*actions, end)  # type: ignore[assignment]
            where = f"x-{name}.{label}-{'-'.join(actions)}-{word}"
            tools = {label: Tool(steps=steps)}
            yield Draft(where, (_prompt(*replies, tools=tools),))
            if len(called) > 1 and end in ("ok", "deaf") and len(actions) < 3:
                other = next(item for item in called if item != label)
                # In a sequential loop an earlier call that never ends lets no later one begin.
                ways = ("deaf", "deaf_raises", "never")[: 3 if label < other else 2]
                for way in ways if "cancel" in actions else ways[:1]:
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
    "nothing.stop-text", "text.stop-fault", "text.stop-no-terminator", "text.error-no-terminator",
    "text.length-no-terminator", "text.fault-at-start",
    "text.status-at-once", "text.terminator", "call.length",
    "call.refusal", "call.deferred", "call.unknown", "call.error", "call.stop-no-terminator",
    "call.tooluse", "text-call.tooluse", "call-call.tooluse", "call-call.length", "unknown-tool.tooluse",
    "unknown-tool-call.tooluse", "call-unknown-tool.tooluse", "wrong-type-call.tooluse",
    "call-unknown-tool-call.tooluse",
)  # fmt: skip
_THOROUGH = (
    "text.stop", "text.error", "text.terminator", "text.stop-text", "nothing.stop-text", "call.tooluse",
    "call-call.tooluse", "unknown-tool-call.tooluse",
)  # fmt: skip
_DOES = ("cancel", "raise", "prompt")
_DONE_TOGETHER = (("cancel",), ("raise",), ("prompt",), *product(("cancel", "prompt"), _DOES))
_ONLY_WITH = {
    "text": ("text",), "reasoning": ("reasoning",), "call": ("call", "tool", "type"),
    "tool-start": ("call", "tool", "type"), "tool-end": ("call", "tool", "type"),
    "result-start": ("call", "tool", "type"), "result-end": ("call", "tool", "type"),
    "attempt": ("nothing", "no-reason", "error", "fault"),
}  # fmt: skip
"""Triggers that only such contents or ends can pull."""
_LAST_OF_TURN = ("result-end", "turn-end", "run-end")
_REPEATED = ("answer-start", "text", "answer-end", "stream-end", "tool-start", "tool-end", "turn-end",
             "result-start", "result-end", "turn-start")  # fmt: skip


def _can_be_told(where: str, base: str) -> bool:
    return any(word in base for word in _ONLY_WITH.get(where, ("",)))


def _batch(where: str) -> bool:
    """Whether an event belongs to a batch of tools."""
    return where.startswith(("tool", "result"))


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
        behaviours: list[tuple[str, dict[str, Tool]]] = [("", {})]
        if len(called) > 1:
            behaviours += [(f".{label}-slow", {label: TOOLS["slow"]}) for label in called]
        if called:
            behaviours += [(f".{called[0]}-raises", {called[0]: TOOLS["raises"]})]
        for (where, trigger), number, does, (words, tools) in product(
            _TRIGGERS.items(), (1, 2), _DONE_TOGETHER, behaviours
        ):
            if not _can_be_told(where, base):
                continue
            twice = (called and where in _REPEATED) or (where in ("text", "reasoning") and "-" in base)
            among_slow = where == "tool-start" and words.endswith("-slow") and len(called) > 1
            if number == 2 and not (twice and (bound.every or len(does) == 1 or among_slow)):
                continue
            if not bound.every and not among_slow and (
                (len(does) > 1 and base not in _THOROUGH)
                or (words and (len(called) < 2 or len(does) > 1 or not _batch(where)))
            ):
                continue
            on = tuple(On.model_validate({**trigger, "nth": number, "do": do}) for do in does)
            name = f"x-{base}{words}.{'-'.join(does)}-on-{where}-{number}"
            draft = Draft(name, (Prompt(replies=replies, tools=tools, on=on),))
            yield draft
            if (called or base == "nothing.stop") and not words and where in _LAST_OF_TURN:
                yield draft.limited(1)


def next_events(bound: Bound = WIDE) -> Iterator[Draft]:
    """A listener that fails, and something else on the event after it."""
    chains = (
        ("user-start", "user-end"), ("answer-start", "text"), ("answer-end", "stream-end"),
        ("tool-end", "result-start"), ("result-start", "result-end"), ("result-end", "turn-end"),
        ("turn-end", "run-end"), ("run-start", "user-end"), ("text", "answer-end"),
        ("tool-start", "tool-end"), ("turn-start", "user-end"), ("answer-end", "result-start"),
        ("answer-end", "run-end"), ("stream-end", "run-end"), ("text", "run-end"),
        ("tool-end", "run-end"), ("answer-start", "answer-end"),
    )  # fmt: skip
    for base in _LISTENED:
        replies, called = _heard(base)
        behaviours: list[tuple[str, dict[str, Tool]]] = [("", {})]
        behaviours += [(f".{label}-slow", {label: TOOLS["slow"]}) for label in called[:1]]
        for (first, second), do, (words, tools) in product(chains, _DOES, behaviours):
            if not (_can_be_told(first, base) and _can_be_told(second, base)):
                continue
            on = (
                On.model_validate({**_TRIGGERS[first], "do": "raise"}),
                On.model_validate({**_TRIGGERS[second], "do": do}),
            )
            name = f"x-{base}{words}.raise-on-{first}-{do}-on-{second}"
            yield Draft(name, (Prompt(replies=replies, tools=tools, on=on),))
    yield from _draining()
    yield from _raised_in_reply(bound)


def _raised_in_reply(bound: Bound) -> Iterator[Draft]:
    """A listener that fails in the middle of a reply, before each thing that can follow."""
    raised = (On.model_validate({**_TRIGGERS["answer-start"], "do": "raise"}),)
    for name in content_names(2):
        steps = content(name)
        for end in ("tooluse" if labels(steps) else "stop", "no-reason", "terminator", "error"):
            reply = _reply(steps, end)
            assert reply is not None
            yield Draft(f"x-{name}.{end}.raise-on-answer-start",
                        (Prompt(replies=(reply, DONE), on=raised),))  # fmt: skip
        reply = Reply(steps=(*steps, _FAULTS["fault"]))
        yield Draft(f"x-{name}.fault.raise-on-answer-start", (Prompt(replies=(reply, DONE), on=raised),))
    for name, late in LATE_ENDS.items():
        reply = Reply(steps=late)
        yield Draft(f"x-nothing.{name}.raise-on-answer-start", (Prompt(replies=(reply, DONE), on=raised),))


def _draining() -> Iterator[Draft]:
    """What a cancellation ends early, and something on what is told of its end."""
    for at, name in enumerate(("nothing", "open", "text")):
        said: Steps = ("open", TEXT, reason("stop"))
        reply = Reply(steps=(*said[:at], "cancel", *said[at:]))
        for where, do in product(("attempt", "answer-end", "turn-end", "run-end"), _DOES):
            on = (On.model_validate({**_TRIGGERS[where], "do": do}),)
            yield Draft(f"x-{name}.cancel.{do}-on-{where}", (Prompt(replies=(reply, DONE), on=on),))
    slow = Tool(steps=("deaf",))
    ends = {f"{word.replace('_', '-')}": Tool(steps=("cancel", word)) for word in ("deaf", "deaf_raises")}
    for base, (word, tool) in product(("call.tooluse", "call-call.tooluse"), ends.items()):
        replies, called = _heard(base)
        tools = {called[0]: tool, **dict.fromkeys(called[1:], slow)}
        for where, does in product(("tool-end", "result-start", "result-end", "turn-end", "run-end"),
                                   _DONE_TOGETHER):  # fmt: skip
            on = tuple(On.model_validate({**_TRIGGERS[where], "do": do}) for do in does)
            name = f"x-{base}.c1-cancel-{word}.{'-'.join(does)}-on-{where}"
            yield Draft(name, (Prompt(replies=replies, tools=tools, on=on),))
    replies, called = _heard("call-call.tooluse")
    for do, actions in product(("raise", "cancel"), _IN_REPLIES):  # where tools run side by side
        acting = Tool(steps=(*actions, "deaf"))  # type: ignore[arg-type]
        on = (On.model_validate({**_TRIGGERS["tool-start"], "nth": 2, "do": do}),)
        name = f"x-call-call.tooluse.c1-{'-'.join(actions)}-deaf.{do}-on-tool-start-2"
        yield Draft(name, (Prompt(replies=replies, tools={"c1": acting}, on=on),))
    tools = {"c1": ends["deaf"], "c2": slow}
    for do, where in product(_DOES, ("result-start", "result-end")):
        on = (
            On.model_validate({**_TRIGGERS["tool-end"], "do": "raise"}),
            On.model_validate({**_TRIGGERS[where], "do": do}),
        )
        name = f"x-call-call.tooluse.c1-cancel-deaf.raise-on-tool-end-{do}-on-{where}"
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
    for name in content_names(bound.blocks):
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
