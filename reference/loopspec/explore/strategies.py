"""Hypothesis strategies for whole scenarios: past the bound of the enumeration.

What is drawn is valid by construction, and is such that a legal loop always comes to an end: a tool
that never ends is one that was cancelled before and heeds it, a stream that stalls was cancelled
too. Only what the variant's wire can say and what its target claims and shows is drawn.

Simple things stand first in every choice, so that Hypothesis shrinks towards a plain answer.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from loopspec.bench.native import CAN_EXPRESS
from loopspec.scenario import Scenario
from loopspec.vocabulary import EventType, StopReason

Data = dict[str, Any]

ODD_TEXTS = (
    "The answer.", "a", " ", "\n", "", "é", "\U0001f600", "data: [DONE]\n\n", '{"a": 1}', "[DONE]",
    "a\u2028b", "  kept  ", "\x7f",
)  # fmt: skip
"""Texts that some loop or wire somewhere mistakes for something else."""

ODD_ARGUMENTS: tuple[Any, ...] = (
    None, {"value": ""}, {"value": "é\u2028"}, {"value": "a", "more": [1, {"b": None}]}, {"value": 1},
    {}, '{"value": "a"', "", "null", "[1]", '{"value": "a"} ', "{'value': 'a'}",
)  # fmt: skip
"""Arguments: the plain ones of the tool, and others; text is sent as it stands."""

_TOOLS = ("probe", "probe_number", "probe_optional", "no_such_tool")
_TOOL_ENDS = ("ok", "raises", "deaf", "deaf_raises")
_TEXT = st.sampled_from(ODD_TEXTS) | st.text(max_size=8)


def _drawn_calls(draw: DrawFn, label: str, shared_id: str) -> list[Data]:
    """A call, whole or in pieces, perhaps never ended. ``shared_id`` may come again in its reply."""
    tool = draw(st.sampled_from(_TOOLS))
    spec: Data = {"label": label, "tool": tool, "arguments": draw(st.sampled_from(ODD_ARGUMENTS))}
    spec["id"] = draw(st.sampled_from((None, None, "", shared_id)))
    if draw(st.sampled_from(("whole", "pieces"))) == "whole":
        return [{"call": spec}]
    text = draw(st.sampled_from(('{"value": "a"}', '{"note": "a"', "{}", "")))
    spec["arguments"] = text  # so that the bench knows its tool again
    at = draw(st.integers(0, len(text)))
    steps: list[Data] = [{"call_start": spec}]
    steps += [{"arguments": {"label": label, "text": part}} for part in (text[:at], text[at:]) if part]
    return [*steps, {"call_end": label}] if draw(st.booleans()) else steps


def _drawn_end(draw: DrawFn, can_express: Collection[str]) -> list[Any]:
    """The reason and what follows it, or a fault."""
    reasons = [reason.value for reason in StopReason if reason in can_express]
    reasons += ["novel_reason"] if "unknown" in can_express else []
    faults: list[Any] = ["end"]
    faults += [word for word in ("disconnect", "malformed", "half_frame") if word in can_express]
    faults += [{"error": "the provider failed"}] if "error" in can_express else []
    way = draw(st.sampled_from(("reason", "reason", "reason then fault", "late usage", "fault", "late")))
    if way == "fault":
        return [draw(st.sampled_from(faults))]
    reason: Data = {"reason": draw(st.sampled_from(reasons))}
    if way == "reason then fault":
        return [reason, draw(st.sampled_from(faults))]
    if way == "late usage":
        return [reason, {"usage": {"input_tokens": 7, "output_tokens": 3}}]
    return [reason, "terminator", {"text": "late"}] if way == "late" else [reason]


class _Drawing:
    """What one scenario needs to know while it is drawn."""

    def __init__(self, draw: DrawFn, can_express: Collection[str], claims: Mapping[str, str],
                 observes: Collection[str]) -> None:  # fmt: skip
        self.draw = draw
        self.can_express = can_express
        self.claims = claims
        self.observes = observes
        self.calls = 0
        self.replies = 0

    def reply(self) -> tuple[Data, list[str]]:
        """A reply and the labels of its calls."""
        draw = self.draw
        self.replies += 1
        if "status" in self.can_express and draw(st.sampled_from((False,) * 15 + (True,))):
            return {"steps": [{"status": draw(st.sampled_from((500, 400, 429)))}]}, []
        kinds = ["text", "call", "usage"] + (["reasoning"] if "reasoning" in self.can_express else [])
        steps: list[Any] = []
        labels: list[str] = []
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=4)):
            if kind == "call":
                self.calls += 1
                labels.append(f"c{self.calls}")
                steps += _drawn_calls(draw, labels[-1], f"same{self.replies}")
            elif kind == "usage":
                steps.append({"usage": {"input_tokens": 7, "output_tokens": 3}})
            else:
                steps.append({kind: draw(_TEXT)})
        steps += _drawn_end(draw, self.can_express)
        reply: Data = {"steps": self._acted(steps)}
        reply["deaf"] = "cancel" in steps and draw(st.booleans())
        reply["chunk"] = draw(st.sampled_from((None, None, 1, 3)))
        plain = isinstance(steps[-1], dict) and "reason" in steps[-1]
        reply["open_body"] = plain and draw(st.sampled_from((False, False, False, True)))
        return reply, labels

    def _acted(self, steps: list[Any]) -> list[Any]:
        """The steps with perhaps an action among them, and nothing after a cancellation."""
        actions = self.draw(st.lists(st.sampled_from(("prompt", "cancel")), max_size=2))
        lowest = 0
        for action in actions:
            lowest = self.draw(st.integers(lowest, len(steps)))
            if lowest == len(steps):
                break
            steps.insert(lowest, action)
            lowest += 1
            if action == "cancel":
                if "stall" in self.can_express and self.draw(st.sampled_from((False, False, True))):
                    steps[lowest:] = ["stall"]
                break
        return steps

    def tool(self) -> list[Any]:
        """What a tool does."""
        draw = self.draw
        actions = draw(st.lists(st.sampled_from(("prompt", "cancel")), max_size=2))
        ends: list[Any] = [*_TOOL_ENDS, {"result": ""}, {"result": draw(_TEXT)}]
        if "cancel" in actions and "tool_signal" in self.claims:
            ends.append("never")
        return [*actions, draw(st.sampled_from(ends))]

    def on(self) -> list[Data]:
        """What is done from inside listeners."""
        if "events" not in self.observes:
            return []
        one = st.fixed_dictionaries({
            "event": st.sampled_from([event.value for event in EventType]),
            "nth": st.integers(1, 2),
            "do": st.sampled_from(("cancel", "prompt", "raise")),
        })  # fmt: skip
        return self.draw(st.just([]) | st.lists(one, max_size=2))

    def prompt(self, first: bool) -> Data:
        """A prompt with all that belongs to it."""
        replies: list[Data] = []
        tools: Data = {}
        for _ in range(self.draw(st.integers(1, 3))):
            reply, labels = self.reply()
            begun = {
                (step.get("call") or step["call_start"])["label"]
                for step in reply["steps"]
                if isinstance(step, dict) and ("call" in step or "call_start" in step)
            }
            tools.update({label: self.tool() for label in labels if label in begun})
            replies.append(reply)
        prompt: Data = {"replies": replies, "tools": tools, "on": self.on()}
        prompt["cancel"] = self.draw(st.sampled_from((None,) * 8 + ("before_request", "idle")))
        if not first and self.claims.get("fork") == "yes":
            prompt["fork"] = self.draw(st.booleans())
        return prompt


@st.composite
def _scenarios(
    draw: DrawFn, can_express: Collection[str], claims: Mapping[str, str], observes: Collection[str]
) -> Scenario:
    drawing = _Drawing(draw, can_express, claims, observes)
    prompts = [drawing.prompt(at == 0) for at in range(draw(st.integers(1, 2)))]
    limits = (None, None, None, 1, 2, 3) if "limit" in observes else (None,)
    data: Data = {"prompts": prompts, "settings": {"max_turns": draw(st.sampled_from(limits))}}
    number = zlib.crc32(json.dumps(data, sort_keys=True).encode())
    return Scenario.model_validate({"name": f"h-{number:08x}", **data})


def scenarios(
    can_express: Collection[str] = CAN_EXPRESS,
    claims: Mapping[str, str] | None = None,
    observes: Collection[str] = ("events", "limit"),
) -> SearchStrategy[Scenario]:
    """Whole scenarios for a variant.

    Parameters
    ----------
    can_express: what its wire can say, in the words of :class:`loopspec.trace.Header`.
    claims: the target's claims.
    observes: what its variant shows: ``events`` for listeners, ``limit`` for turn limits.
    """
    return _scenarios(frozenset(can_express), dict(claims or {}), frozenset(observes))


def sample(
    number: int, seed: int, fits: Callable[[Scenario], bool] = lambda _: True, **variant: Any
) -> list[Scenario]:
    """Scenarios drawn without a test, the same for the same seed, each once.

    Parameters
    ----------
    number: how many are drawn; fewer come back where some do not fit or are drawn twice.
    seed: chooses them.
    fits: which of them to keep.
    variant: as for :func:`scenarios`.
    """
    found: dict[str, Scenario] = {}

    @seeded(seed)
    @settings(
        max_examples=number, phases=[Phase.generate], database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(scenarios(**variant))
    def collect(scenario: Scenario) -> None:
        if fits(scenario):
            found.setdefault(scenario.name, scenario)

    collect()
    return list(found.values())
