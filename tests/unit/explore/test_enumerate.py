"""The enumeration: the same scenarios in the same order, each valid, each with its own name."""

from __future__ import annotations

from itertools import islice

from loopspec.bench.script import compile_reply
from loopspec.explore import enumerate as enumeration
from loopspec.scenario import Scenario, dumps, parse


def test_names_are_their_own() -> None:
    """A name says what is in a scenario, so two scenarios never share one (a family's members do)."""
    names = [draft.name for draft in enumeration.drafts(enumeration.NARROW) if draft.family is None]
    assert len(names) > 10_000
    assert len(set(names)) == len(names)


def test_the_order_is_fixed() -> None:
    """Nothing is random, so a set cover that is chosen again is the same."""
    first = [draft.name for draft in enumeration.drafts(enumeration.NARROW)]
    assert first == [draft.name for draft in enumeration.drafts(enumeration.NARROW)]


def test_what_is_enumerated_can_be_read_back_and_played() -> None:
    """Every 50th of them, as a file has it."""
    for draft in islice(enumeration.drafts(enumeration.NARROW), 0, None, 50):
        scenario = draft.scenario()
        assert parse(dumps(scenario)) == [Scenario.model_validate(scenario.model_dump())]
        for prompt in scenario.prompts:
            for reply in prompt.replies:
                compile_reply(reply)
