"""The standard's own files: example scenarios and the committed set cover, wherever they lie.

Installed, they are inside the package; in a checkout, in ``spec/`` at the top.
"""

from __future__ import annotations

import functools
from pathlib import Path

from loopspec import scenario as scenarios
from loopspec.scenario import Scenario


def spec_folder() -> Path:
    """The folder of the standard's files."""
    here = Path(__file__).parent
    inside = here / "_spec"
    return inside if inside.is_dir() else here.parents[1] / "spec"


@functools.cache
def examples() -> tuple[Scenario, ...]:
    """All example scenarios, by chapter and name."""
    found: list[Scenario] = []
    for path in sorted((spec_folder() / "scenarios").glob("*/*.yaml")):
        found += scenarios.load(path)
    return tuple(found)


@functools.cache
def cover() -> tuple[Scenario, ...]:
    """The committed set cover; empty where there is none."""
    path = spec_folder() / "cover.yaml"
    return tuple(scenarios.load(path)) if path.is_file() else ()


def examples_of(rule: str) -> list[Scenario]:
    """The examples of one rule."""
    return [scenario for scenario in examples() if rule in scenario.rules]


def by_name(name: str) -> list[Scenario]:
    """The scenarios with this name (all members of a family), of the examples or the cover."""
    return [scenario for scenario in (*examples(), *cover()) if scenario.name == name]
