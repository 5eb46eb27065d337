"""The suite for the target that ``--loopspec-target`` names."""

from typing import Any

from loopspec import pytest_plugin
from loopspec.conformance import LoopConformance


class TestTarget(LoopConformance):
    """Each rule of the standard, on the target of the command line."""

    variant = pytest_plugin.chosen.variant
    budget = pytest_plugin.chosen.budget
    seed = pytest_plugin.chosen.seed

    def make_adapter(self) -> Any:
        """The adapter of the target that was named."""
        from loopspec import targets

        return targets.resolve(pytest_plugin.chosen.target, profile=pytest_plugin.chosen.profile)
