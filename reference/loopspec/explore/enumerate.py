"""All abstract scenarios up to a bound, in a fixed order.

A scenario is built from the letters of :mod:`loopspec.explore.alphabet`, and one or two things that
somebody does meanwhile: cancel, prompt again, or raise from inside a listener. Six kinds, one
generator each:

``replies``      one reply, every content with every end, tools and limits where calls are run;
``turns``        a first reply with calls, then every content and end as the second;
``actions``      at every gate of a reply and in every tool: up to two of cancel and prompt, with an
                 environment that heeds the signal and with a deaf one;
``listeners``    on every event of a run: up to two of cancel, prompt and raise, from inside;
``next_events``  a listener that fails, and what may follow at once;
``rounds``       what lies round a run: cancelled while idle or before its first request, failures
                 in a row, forks, the same reply cut into other pieces.

Generators are lazy and yield :class:`~loopspec.explore.alphabet.Draft`, which is cheap;
``Draft.scenario()`` makes the validated value. Names are stable, and say what is in them:
``x-text-call.tooluse.c1-cancel-deaf``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from loopspec.explore.alphabet import (
    ACTIONS,
    DONE,
    ENDS,
    FAULTS,
    IN_REPLIES,
    LATE_ENDS,
    NARROW,
    ONE_ACTION,
    TOOLS,
    WIDE,
    Bound,
    Draft,
    Steps,
    content,
    content_names,
    faulty,
    heard,
    is_accepted,
    labels,
    prompt_of,
    reason,
    reply_of,
    runnable,
)
from loopspec.explore.listening import listeners, next_events
from loopspec.scenario import AfterStep, Family, Prompt, Reply, Scenario, Tool

__all__ = [
    "NARROW", "WIDE", "Bound", "Draft", "actions", "count", "drafts", "listeners", "next_events",
    "replies", "rounds", "scenarios", "turns",
]  # fmt: skip

# --------------------------------------------------------------------------------------------
# replies, turns


def _with_tools(name: str, replies: tuple[Reply, ...], called: list[str]) -> Iterator[Draft]:
    """Every behaviour for each call, the others being plain; and both behaving the same."""
    yield Draft(name, (prompt_of(*replies),))
    choices = list(TOOLS.items())[1:]
    for (word, tool), label in product(choices, called):
        yield Draft(f"{name}.{label}-{word}", (prompt_of(*replies, tools={label: tool}),))
    if len(called) > 1:
        for word, tool in choices:
            both = dict.fromkeys(called, tool)
            yield Draft(f"{name}.all-{word}", (prompt_of(*replies, tools=both),))
        # In a sequential loop a call that waits for a later one would never end.
        tools = {called[0]: Tool(steps=(AfterStep(after=called[1]), "ok"))}
        yield Draft(f"{name}.{called[0]}-after-{called[1]}", (prompt_of(*replies, tools=tools),),
                    claims={"tools": "parallel-completion-order"})  # fmt: skip


def _replies_of(bound: Bound, c: str) -> Iterator[tuple[str, Reply, list[str], bool]]:
    """Name, reply, labels of its calls, and whether its calls are run."""
    for name in content_names(bound.blocks):
        steps = content(name, c)
        late = LATE_ENDS if bound.every or name in ("text", "nothing") else {}
        for end in (*ENDS, *late):
            yield f"{name}.{end}", reply_of(steps, end), labels(steps), is_accepted(end)
        for end, broken in faulty(steps):
            yield f"{name}.{end}", Reply(steps=broken), [], False


def replies(bound: Bound = WIDE) -> Iterator[Draft]:
    """One reply: every content with every end."""
    for name, reply, called, accepted in _replies_of(bound, "c"):
        if not called:
            yield Draft(f"x-{name}", (prompt_of(reply),))
            if accepted and name.startswith(("nothing.", "blank.")):
                for turns in (1, 2):
                    yield Draft(f"x-{name}", (prompt_of(reply),)).limited(turns)
        elif not accepted:
            yield Draft(f"x-{name}", (prompt_of(reply, DONE),))
        else:
            yield from _with_tools(f"x-{name}", (reply, DONE), called)
            for turns in (1, 2):
                yield Draft(f"x-{name}", (prompt_of(reply, DONE),)).limited(turns)


_FIRSTS = ("call.tooluse", "call.stop", "text-call.tooluse", "call-call.tooluse", "unknown-tool.tooluse")


def turns(bound: Bound = WIDE) -> Iterator[Draft]:
    """A first reply with calls, then every content with every end."""
    seconds = list(_replies_of(bound, "d"))
    if not bound.every:
        plain = ("nothing", "text", "call", "reasoning")
        seconds = [item for item in seconds if item[0].split(".")[0] in plain]
    for first in _FIRSTS if bound.every else _FIRSTS[:1]:
        name, _, end = first.partition(".")
        opening = reply_of(content(name), end)
        for second, reply, called, accepted in seconds:
            rest = (DONE,) if called else ()
            draft = Draft(f"x-{first}-then-{second}", (prompt_of(opening, reply, *rest),))
            yield draft
            if called and accepted:
                for limit in (1, 2, 3):
                    yield draft.limited(limit)


# --------------------------------------------------------------------------------------------
# actions

_IN_TOOLS = (
    *ONE_ACTION,
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
    for (name, fault), actions in product(FAULTS.items(), IN_REPLIES):
        reply = Reply(steps=(*actions, fault))
        yield Draft(f"x-nothing.{'-'.join(actions)}-{name}-at-once", (prompt_of(reply, DONE),))
    for name, said, ending in _bases():
        steps = (*said, *ending)
        called = labels(steps)
        every = bound.every or (len(said) < 2 and name.count("-") < 2)
        for at, actions in product(range(len(steps) + 1), IN_REPLIES if every else ONE_ACTION):
            played = _played(steps, at, actions)
            where = f"x-{name}.{'-'.join(actions)}-at-{at}"
            yield Draft(where, (prompt_of(Reply(steps=played), DONE),))
            if "cancel" in actions and every:
                yield Draft(f"{where}-deaf", (prompt_of(Reply(steps=played, deaf=True), DONE),))
                silent: Steps = (*played[: at + len(actions)], "stall")
                if set(labels(silent)) <= set(called):
                    yield Draft(f"{where}-silent", (prompt_of(Reply(steps=silent, deaf=True), DONE),))


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
        called = [label for label in called if label in runnable(said)]
        for label, actions, end in product(called, _IN_TOOLS, _TOOL_ENDS):
            if end == "never" and "cancel" not in actions:
                continue  # nothing would ever end it
            word = end.replace("_", "-")
            where = f"x-{name}.{label}-{'-'.join(actions)}-{word}"
            tools = {label: Tool.model_validate([*actions, end])}
            yield Draft(where, (prompt_of(*replies, tools=tools),))
            if len(called) > 1 and end in ("ok", "deaf") and len(actions) < 3:
                other = next(item for item in called if item != label)
                # In a sequential loop an earlier call that never ends lets no later one begin.
                ways = ("deaf", "deaf_raises", "never")[: 3 if label < other else 2]
                for way in ways if "cancel" in actions else ways[:1]:
                    both = {**tools, other: Tool(steps=(way,))}
                    beside = f"{where}-{other}-{way.replace('_', '-')}"
                    yield Draft(beside, (prompt_of(*replies, tools=both),))


def actions(bound: Bound = WIDE) -> Iterator[Draft]:
    """Cancellations and prompts at every gate of a reply and in every tool."""
    yield from _in_reply(bound)
    yield from _in_tools(bound)


# --------------------------------------------------------------------------------------------
# rounds

_ROUND = (
    "text.stop", "text.error", "text.no-reason", "text.length", "call.tooluse", "text-call.tooluse",
    "call-call.tooluse", "nothing.stop", "unknown-tool.tooluse", "text.refusal",
)  # fmt: skip


def rounds(bound: Bound = WIDE) -> Iterator[Draft]:
    """What lies round a run: idle cancellations, failures in a row, forks, other pieces."""
    for base in _ROUND:
        replies, _ = heard(base)
        plain = prompt_of(*replies)
        for where in ("before_request", "idle"):
            word = where.replace("_", "-")
            first = plain.model_copy(update={"cancel": where})
            yield Draft(f"x-{base}.cancel-{word}", (first,))
            yield Draft(f"x-{base}.cancel-{word}-then-{base}", (first, plain))
            yield Draft(f"x-{base}-then-cancel-{word}", (plain, first))
        for after in _ROUND:
            yield Draft(f"x-{base}-and-{after}", (plain, prompt_of(*heard(after)[0])))
        fork = Prompt(replies=(DONE,), fork=True)
        yield Draft(f"x-{base}.fork", (plain, fork), claims={"fork": "yes"})
        cut = Reply(steps=(*replies[0].steps[:1], "cancel", *replies[0].steps[1:]))
        yield Draft(f"x-{base}.cancel-fork", (prompt_of(cut, DONE), fork), claims={"fork": "yes"})
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
            yield Draft(f"x-{name}.{end}.{member}", (prompt_of(reply, DONE),), family=family)


# --------------------------------------------------------------------------------------------


def drafts(bound: Bound = WIDE) -> Iterator[Draft]:
    """Every scenario up to the bound, not yet made, in a fixed order."""
    yield from replies(bound)
    yield from rounds(bound)
    yield from actions(bound)
    yield from listeners(bound)
    yield from next_events()
    yield from turns(bound)


def scenarios(bound: Bound = WIDE) -> Iterator[Scenario]:
    """Every scenario up to the bound, in a fixed order."""
    return (draft.scenario() for draft in drafts(bound))


def count(bound: Bound = WIDE) -> int:
    """How many scenarios there are up to the bound."""
    return sum(1 for _ in drafts(bound))
