"""The whole that coverage is a part of: which rows can follow which."""

from __future__ import annotations

from itertools import product

import pytest

from loopspec.explore.reach import fitting_pairs, reachable
from loopspec.explore.walk import Point
from loopspec.machine import AWAIT_POINTS, TABLE, Choices
from loopspec.vocabulary import CLAIMS, PROFILES


def test_every_row_is_reachable_under_some_claims() -> None:
    """A row that nothing leads to would be a sentence of the standard without a case."""
    rows = {(state, kind, row.guard) for (state, kind), choices in TABLE.items() for row in choices}
    reached: set[object] = set()
    together = ("tools", "tool_exception", "listener_failure")  # some rows need more than one
    for number, chosen in enumerate(product(*(CLAIMS[claim] for claim in together))):
        others = {claim: values[number % len(values)] for claim, values in CLAIMS.items()}
        with_them = {**others, **dict(zip(together, chosen, strict=True))}
        reached |= reachable(Choices.of(with_them)).rows
    assert rows - reached == set()


@pytest.mark.parametrize("profile", PROFILES)
def test_reachable_pairs_fit_by_their_states(profile: str) -> None:
    """The second row starts in the state that the first leads to."""
    assert reachable(Choices.of(PROFILES[profile])).pairs <= set(fitting_pairs())


@pytest.mark.parametrize("profile", PROFILES)
def test_every_await_point_is_wanted_at_least_heeding(profile: str) -> None:
    """A cancellation is counted at each of them; deaf where something there can be deaf."""
    points = reachable(Choices.of(PROFILES[profile])).points
    assert {point.state for point in points} <= set(AWAIT_POINTS)
    assert all(Point(point.state, "heeding") in points for point in points)
