"""The committed set cover goes through all that a profile can go through."""

from __future__ import annotations

import pytest

from loopspec.explore.cover import AT_MOST, covered, variants
from loopspec.explore.coverage import pair_words
from loopspec.explore.reach import reachable
from loopspec.library import cover
from loopspec.machine import Choices
from loopspec.vocabulary import PROFILES

IDLE_CANCEL = "idle + cancel [always]"


def test_it_is_small_enough_for_the_quick_budget() -> None:
    """A target out of process pays for each scenario."""
    assert 0 < len(cover()) <= AT_MOST


def test_each_scenario_has_a_name_of_its_own() -> None:
    """Names are how a person and a report find one."""
    names = [scenario.name for scenario in cover()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("variant", variants()[: len(PROFILES)], ids=lambda variant: variant.name)
def test_every_reachable_pair_and_await_point_of_a_profile_is_gone_through(variant) -> None:
    """Told from the traces that the reference leaves, not from what the scenarios mean to do."""
    whole = reachable(Choices.of(variant.claims))
    pairs, points = covered(cover(), variant)
    # No scenario can say that an idle session is cancelled twice before a prompt.
    assert {pair_words(pair) for pair in whole.pairs - pairs} <= {f"{IDLE_CANCEL} -> {IDLE_CANCEL}"}
    assert {str(point) for point in whole.points} - points == set()
