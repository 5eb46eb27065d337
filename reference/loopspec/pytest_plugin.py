"""The pytest plugin: the suite for a named target, and golden traces for anyone.

``pytest --loopspec-target NAME`` runs the suite on a target, without any test file of yours.
``loopspec_snapshot`` is a fixture that compares a trace with its golden file (syrupy keeps them: one
readable file a trace; ``--snapshot-update`` writes them).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SNAPSHOT_FORMAT = 1
"""The version of the golden files' form, in their first line."""


@dataclass
class Chosen:
    """What the command line chose."""

    target: str = "reference"
    variant: str | None = None
    profile: str = "rejecting"
    budget: str = "quick"
    seed: int = 0


chosen = Chosen()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the suite."""
    group = parser.getgroup("loopspec", "conformance of agent loops")
    group.addoption(
        "--loopspec-target", metavar="TARGET",
        help="run the suite on this target: reference, NAME[@VERSION], manifest.toml or MODULE:ATTRIBUTE",
    )  # fmt: skip
    group.addoption("--loopspec-variant", metavar="NAME", help="which variant of the target")
    group.addoption(
        "--loopspec-profile", metavar="NAME", default="rejecting",
        help="whose claims the built-in reference runs with",
    )  # fmt: skip
    group.addoption(
        "--loopspec-budget", choices=["quick", "full"], default="quick", help="how much to explore"
    )
    group.addoption("--loopspec-seed", type=int, default=0, help="same seed, same verdicts")


def pytest_configure(config: pytest.Config) -> None:
    """With a target and no test named, the suite itself is what is collected."""
    target = config.getoption("--loopspec-target")
    if target is None:
        return
    chosen.target = target
    chosen.variant = config.getoption("--loopspec-variant")
    chosen.profile = config.getoption("--loopspec-profile")
    chosen.budget = config.getoption("--loopspec-budget")
    chosen.seed = config.getoption("--loopspec-seed")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = [str(Path(__file__).parent / "suite" / "test_target.py")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A check of the suite that was replaced, or excused without a reason, fails."""
    cls: Any = getattr(item, "cls", None)
    bases = {base.__qualname__ for base in getattr(cls, "__mro__", ())}
    if "LoopConformance" not in bases:
        return
    from loopspec.conformance import LoopConformance

    if not issubclass(cls, LoopConformance):
        return
    name = getattr(item, "originalname", item.name)
    ours = vars(LoopConformance).get(name)
    if ours is not None and getattr(cls, name) is not ours:
        pytest.fail(f"{cls.__qualname__} replaces {name!r}, a check of the suite", pytrace=False)
    for mark in item.iter_markers("xfail"):
        if not mark.kwargs.get("reason"):
            pytest.fail(f"{item.name}: an expected failure of the suite needs a reason", pytrace=False)
    for mark in item.iter_markers("skip"):
        pytest.fail(f"{item.name}: a check of the suite is not skipped by a mark: {mark}", pytrace=False)


def golden_text(trace: Any) -> str:
    """A trace in the form of a golden file: its head, then the sequence diagram."""
    from loopspec.report.sequence import render

    header = trace.header
    claims = ", ".join(f"{name}={value}" for name, value in header.claims.items())
    head = [
        f"loopspec golden trace, format {SNAPSHOT_FORMAT}",
        f"scenario: {header.scenario}",
        f"target: {header.target}, {header.variant}",
        f"claims: {claims}",
    ]
    if header.member is not None:
        head.append(f"member: {header.member} of {header.family}")
    return "\n".join(head) + "\n\n" + render(trace)


class Golden:
    """What the fixture gives: call it with a name, compare the result with a trace."""

    def __init__(self, assertion: Any, folder: Path) -> None:
        self._assertion = assertion
        self._folder = folder
        self._used: set[Path] = set()

    def __call__(self, name: str) -> Any:
        """The golden trace of this name (folders allowed), to compare with ``==``."""
        self._used.add(self._folder / f"{name}.txt")
        return self._assertion(name=name)

    def unused(self, under: str) -> list[str]:
        """Golden files below this folder that the test has not asked for: stale, remove them."""
        there = sorted((self._folder / under).rglob("*.txt"))
        return [str(path.relative_to(self._folder)) for path in there if path not in self._used]


@pytest.fixture
def loopspec_snapshot(request: pytest.FixtureRequest) -> Golden:
    """Golden files, each a trace under a name of your own.

    ``assert trace == loopspec_snapshot("some/name")`` compares. Files lie in ``snapshots/`` beside your pytest configuration and are kept by syrupy:
    ``--snapshot-update`` writes them. ``loopspec_snapshot.unused("some")`` lists those that no
    longer have a trace. Skipped where syrupy is not installed.
    """
    pytest.importorskip("syrupy", reason="golden traces need syrupy: pip install 'loopspec[test]'")
    from loopspec.snapshots import FOLDER, GoldenTraces

    assertion = request.getfixturevalue("snapshot").use_extension(GoldenTraces)
    return Golden(assertion, request.config.rootpath / FOLDER)
