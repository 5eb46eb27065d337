"""The enumeration's listeners: on every event of a run somebody cancels, prompts again or raises.

What is done from inside a listener comes at a moment that no gate has: between what the loop told
and what it does next. For the narrow bound, combinations that cannot go another way through the
machine than simpler ones do are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from loopspec.explore.alphabet import (
    DONE,
    FAULTS,
    IN_REPLIES,
    LATE_ENDS,
    TEXT,
    TOOLS,
    WIDE,
    Bound,
    Draft,
    Steps,
    content,
    content_names,
    heard,
    labels,
    reason,
    reply_of,
)
from loopspec.scenario import On, Prompt, Reply, Tool

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


def can_be_told(where: str, base: str) -> bool:
    """Whether a run with this content and end can pull this trigger at all."""
    return any(word in base for word in _ONLY_WITH.get(where, ("",)))


def _matters(base: str, where: str, number: int, does: tuple[str, ...], words: str) -> bool:
    """Whether a combination can go another way through the machine than simpler ones do."""
    several = base.startswith(("call-", "unknown-tool-call", "wrong-type-call"))
    if where == "tool-start" and words.endswith("-slow") and several:
        return True
    if len(does) > 1:
        return base in _THOROUGH and number == 1 and not words
    return not words or (several and where.startswith(("tool", "result")))


def listeners(bound: Bound = WIDE) -> Iterator[Draft]:
    """On every event: cancel, prompt again or raise, from inside the listener."""
    for base in _LISTENED:
        replies, called = heard(base)
        behaviours: list[tuple[str, dict[str, Tool]]] = [("", {})]
        if len(called) > 1:
            behaviours += [(f".{label}-slow", {label: TOOLS["slow"]}) for label in called]
        if called:
            behaviours += [(f".{called[0]}-raises", {called[0]: TOOLS["raises"]})]
        for where, number, does, (words, tools) in product(_TRIGGERS, (1, 2), _DONE_TOGETHER, behaviours):
            if not can_be_told(where, base):
                continue
            twice = (called and where in _REPEATED) or (where in ("text", "reasoning") and "-" in base)
            if number == 2 and not twice:
                continue
            if not (bound.every or _matters(base, where, number, does, words)):
                continue
            on = _on(where, *does, nth=number)
            name = f"x-{base}{words}.{'-'.join(does)}-on-{where}-{number}"
            draft = Draft(name, (Prompt(replies=replies, tools=tools, on=on),))
            yield draft
            if (called or base == "nothing.stop") and not words and where in _LAST_OF_TURN:
                yield draft.limited(1)


def next_events() -> Iterator[Draft]:
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
        replies, called = heard(base)
        behaviours: list[tuple[str, dict[str, Tool]]] = [("", {})]
        behaviours += [(f".{label}-slow", {label: TOOLS["slow"]}) for label in called[:1]]
        for (first, second), do, (words, tools) in product(chains, _DOES, behaviours):
            if not (can_be_told(first, base) and can_be_told(second, base)):
                continue
            on = (*_on(first, "raise"), *_on(second, do))
            name = f"x-{base}{words}.raise-on-{first}-{do}-on-{second}"
            yield Draft(name, (Prompt(replies=replies, tools=tools, on=on),))
    yield from _draining()
    yield from _raised_in_reply()


def _raised_in_reply() -> Iterator[Draft]:
    """A listener that fails in the middle of a reply, before each thing that can follow."""
    raised = _on("answer-start", "raise")
    for name in content_names(2):
        steps = content(name)
        for end in ("tooluse" if labels(steps) else "stop", "no-reason", "terminator", "error"):
            reply = reply_of(steps, end)
            yield Draft(f"x-{name}.{end}.raise-on-answer-start",
                        (Prompt(replies=(reply, DONE), on=raised),))  # fmt: skip
        reply = Reply(steps=(*steps, FAULTS["fault"]))
        yield Draft(f"x-{name}.fault.raise-on-answer-start", (Prompt(replies=(reply, DONE), on=raised),))
    for name, late in LATE_ENDS.items():
        reply = Reply(steps=late)
        yield Draft(f"x-nothing.{name}.raise-on-answer-start", (Prompt(replies=(reply, DONE), on=raised),))


def _on(where: str, *does: str, nth: int = 1) -> tuple[On, ...]:
    return tuple(On.model_validate({**_TRIGGERS[where], "nth": nth, "do": do}) for do in does)


def _draining() -> Iterator[Draft]:
    """What a cancellation ends early, and something on what is told of its end."""
    said: Steps = ("open", TEXT, reason("stop"))
    for at, name in enumerate(("nothing", "open", "text")):
        reply = Reply(steps=(*said[:at], "cancel", *said[at:]))
        for where, do in product(("attempt", "answer-end", "turn-end", "run-end"), _DOES):
            on = _on(where, do)
            yield Draft(f"x-{name}.cancel.{do}-on-{where}", (Prompt(replies=(reply, DONE), on=on),))
    ends = {word.replace("_", "-"): Tool(steps=("cancel", word)) for word in ("deaf", "deaf_raises")}
    wheres = ("tool-end", "result-start", "result-end", "turn-end", "run-end")
    for base, (word, tool) in product(("call.tooluse", "call-call.tooluse"), ends.items()):
        replies, called = heard(base)
        tools = {called[0]: tool, **dict.fromkeys(called[1:], TOOLS["slow"])}
        for where, does in product(wheres, _DONE_TOGETHER):
            name = f"x-{base}.c1-cancel-{word}.{'-'.join(does)}-on-{where}"
            yield Draft(name, (Prompt(replies=replies, tools=tools, on=_on(where, *does)),))
    yield from _side_by_side(ends["deaf"])


def _side_by_side(cancels: Tool) -> Iterator[Draft]:
    """What needs tools that run at the same time."""
    replies, _ = heard("call-call.tooluse")
    for do, actions in product(("raise", "cancel"), IN_REPLIES):
        acting = Tool(steps=(*actions, "deaf"))
        name = f"x-call-call.tooluse.c1-{'-'.join(actions)}-deaf.{do}-on-tool-start-2"
        on = _on("tool-start", do, nth=2)
        yield Draft(name, (Prompt(replies=replies, tools={"c1": acting}, on=on),))
    tools = {"c1": cancels, "c2": TOOLS["slow"]}
    for do, where in product(_DOES, ("result-start", "result-end")):
        name = f"x-call-call.tooluse.c1-cancel-deaf.raise-on-tool-end-{do}-on-{where}"
        on = (*_on("tool-end", "raise"), *_on(where, do))
        yield Draft(name, (Prompt(replies=replies, tools=tools, on=on),))
