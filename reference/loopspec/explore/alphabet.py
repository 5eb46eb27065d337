"""The alphabet of the enumeration: what a reply says, how it ends, what its tools do.

Texts stand for all texts: there is a plain one and a blank one, because no loop may tell any others
apart. Each letter has a name, and the names make up the names of the scenarios.
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

_BLOCKS: dict[str, Step | None] = {"text": TEXT, "reasoning": THOUGHT, "call": None, "usage": USAGE}
"""The plain blocks; a call is made for its place."""


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
    "blank": lambda _: (BLANK,),
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
        steps.append(_BLOCKS[block] or _call(f"{c}{calls}"))
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


def runnable(steps: Steps) -> set[str]:
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

FAULTS: dict[str, Step] = {
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
        yield f"stop-{name}-fault", (again, step, FAULTS["fault"])
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
    for name, fault in FAULTS.items():
        if name != "status":
            ends[f"stop-{name}"] = (reason("stop"), fault)
    ends.pop("stop-end")
    return ends


ENDS = _ends()
"""Every end by name: the steps from the reason on."""

LATE_ENDS = dict(_after_reason())
"""Ends with something between the reason and the terminator."""


def faulty(steps: Steps) -> Iterator[tuple[str, Steps]]:
    """A fault before the reply, at its start, in its middle and after its content."""
    for name, fault in FAULTS.items():
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


def prompt_of(*replies: Reply, tools: dict[str, Tool] | None = None) -> Prompt:
    """A prompt that gets these replies."""
    return Prompt(replies=replies, tools=tools or {})


def reply_of(steps: Steps, end: str) -> Reply:
    """A reply that says this and ends like that."""
    steps = (*steps, *(ENDS[end] if end in ENDS else LATE_ENDS[end]))
    if not steps:
        return Reply(steps=("open", "end"))
    return Reply(steps=steps, open_body=end.endswith("-open"))


def is_accepted(end: str) -> bool:
    """Whether the calls of a reply that ends like this are run."""
    return end.partition("-")[0] in ACCEPTING and not end.endswith(("fault", "disconnect", "malformed"))


# --------------------------------------------------------------------------------------------
# Tools

TOOLS: dict[str, Tool] = {
    "ok": Tool(steps=("ok",)),
    "raises": Tool(steps=("raises",)),
    "empty": Tool(steps=(ResultStep(result=""),)),
    "json": Tool(steps=(ResultStep(result='{"a": [1, "é"]}'),)),
    "slow": Tool(steps=("deaf",)),
    "slow-raises": Tool(steps=("deaf_raises",)),
}
"""Tool behaviours that need no cancellation to end."""

ACTIONS = ("cancel", "prompt")
ONE_ACTION = (("cancel",), ("prompt",))
IN_REPLIES = (*ONE_ACTION, ("prompt", "prompt"), ("prompt", "cancel"))
"""What is done at a gate of a reply. Nothing after a cancellation: then the run is over."""


def heard(name: str) -> tuple[tuple[Reply, ...], list[str]]:
    """The replies of a base, ``content.end``, with what follows calls; and its calls' labels."""
    said, _, end = name.partition(".")
    steps = content(said)
    known = end in ENDS or end in LATE_ENDS
    reply = reply_of(steps, end) if known else Reply(steps=dict(faulty(steps))[end])
    return (reply, DONE), labels(steps)
