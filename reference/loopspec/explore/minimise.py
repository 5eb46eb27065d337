"""From a scenario that breaks a rule to the smallest one that still does.

Plain delta debugging on the scenario's structure: leave out a prompt, a reply, a step, a tool, an
action; set a flag back to its default; and keep what still breaks the same rule. Every candidate is
run for real, so the result is not an argument but an observation. The number of runs is bounded;
the order of the attempts is fixed, so the same target gives the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from loopspec.scenario import Prompt, Reply, Scenario, Tool

RUNS_AT_MOST = 60
"""Candidates tried for one rule."""


def size(scenario: Scenario) -> int:
    """How much there is in a scenario: prompts, replies, steps, tool steps, actions, flags."""
    total = int(scenario.recovery) + int(scenario.settings.max_turns is not None)
    for prompt in scenario.prompts:
        total += 1 + len(prompt.on) + int(prompt.cancel is not None) + int(prompt.fork)
        total += sum(len(tool.steps) for tool in prompt.tools.values())
        for reply in prompt.replies:
            total += 1 + len(reply.steps) + int(reply.deaf) + int(reply.open_body)
            total += int(reply.chunk is not None)
    return total


def _without(items: tuple[Any, ...], at: int) -> tuple[Any, ...]:
    return items[:at] + items[at + 1 :]


def _smaller_replies(reply: Reply) -> Iterator[Reply]:
    for flag, plain in (("deaf", False), ("open_body", False), ("chunk", None)):
        if getattr(reply, flag) != plain:
            yield reply.model_copy(update={flag: plain})
    for at in range(len(reply.steps) - 1, -1, -1):
        yield reply.model_copy(update={"steps": _without(reply.steps, at)})


def _smaller_prompts(prompt: Prompt) -> Iterator[Prompt]:
    for at in range(len(prompt.replies) - 1, -1, -1):
        yield prompt.model_copy(update={"replies": _without(prompt.replies, at)})
    for at in range(len(prompt.on) - 1, -1, -1):
        yield prompt.model_copy(update={"on": _without(prompt.on, at)})
    if prompt.cancel is not None:
        yield prompt.model_copy(update={"cancel": None})
    for label, tool in prompt.tools.items():
        rest = {name: other for name, other in prompt.tools.items() if name != label}
        yield prompt.model_copy(update={"tools": rest})
        for at in range(len(tool.steps) - 1):
            fewer = Tool.model_construct(steps=_without(tool.steps, at))
            yield prompt.model_copy(update={"tools": {**prompt.tools, label: fewer}})
    for at, reply in enumerate(prompt.replies):
        for smaller in _smaller_replies(reply):
            replies = (*prompt.replies[:at], smaller, *prompt.replies[at + 1 :])
            yield prompt.model_copy(update={"replies": replies})


def _used(prompt: Prompt) -> Prompt:
    """The prompt without tools whose call is gone."""
    from loopspec.scenario import calls_of

    labels = {spec.label for spec in calls_of(prompt)}
    kept = {label: tool for label, tool in prompt.tools.items() if label in labels}
    return prompt if len(kept) == len(prompt.tools) else prompt.model_copy(update={"tools": kept})


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Every scenario that is one step smaller, the biggest steps first."""
    prompts = scenario.prompts
    if len(prompts) > 1:
        for at in range(len(prompts) - 1, -1, -1):
            yield scenario.model_copy(update={"prompts": _without(prompts, at)})
    if scenario.recovery:
        yield scenario.model_copy(update={"recovery": False})
    if scenario.settings.max_turns is not None:
        plain = scenario.settings.model_copy(update={"max_turns": None})
        yield scenario.model_copy(update={"settings": plain})
    for at, prompt in enumerate(prompts):
        for fewer in _smaller_prompts(prompt):
            yield scenario.model_copy(update={"prompts": (*prompts[:at], _used(fewer), *prompts[at + 1 :])})


def _valid(scenario: Scenario) -> Scenario | None:
    """The scenario, if a file with it could be read back (and its replies be played)."""
    from loopspec.bench.script import compile_reply

    try:
        checked = Scenario.model_validate(scenario.model_dump())
        for prompt in checked.prompts:
            for reply in prompt.replies:
                compile_reply(reply)
    except (ValidationError, ValueError):
        return None
    return checked


def minimise(
    scenario: Scenario, breaks: Callable[[Scenario], bool], runs_at_most: int = RUNS_AT_MOST
) -> Scenario:
    """The smallest scenario found that still breaks the rule.

    Parameters
    ----------
    scenario: one that does.
    breaks: runs a candidate and says whether the rule is still broken.
    runs_at_most: how many candidates may be run.
    """
    best = scenario
    seen: set[str | None] = {scenario.model_dump_json()}
    runs = 0
    shrinking = True
    while shrinking and runs < runs_at_most:
        shrinking = False
        for candidate in smaller(best):
            checked = _valid(candidate)
            key = checked.model_dump_json() if checked is not None else None
            if checked is None or key in seen:
                continue
            seen.add(key)
            if runs >= runs_at_most:
                break
            runs += 1
            if breaks(checked):
                best, shrinking = checked, True
                break
    return best
