"""A child that is lost in the middle of a scenario costs that scenario, and nothing else.

The other tests of this folder look at the channel. Here the whole bench is round it: the trace says
what was lost, no exception passes, and the next scenario runs on a fresh child.
"""

from __future__ import annotations

import sys

import pytest
from stub_bench import CHILDREN

from loopspec.adapters.manifest import Variant
from loopspec.adapters.process import Limits, ProcessAdapter
from loopspec.adapters.protocol import Returned
from loopspec.adapters.reference import reference_manifest
from loopspec.bench.executor import Executor
from loopspec.explore.campaign import Campaign, SmokeFailed
from loopspec.scenario import parse
from loopspec.trace import Settled, TargetLost
from loopspec.vocabulary import Grade

SCENARIO = parse(
    """
name: plain
prompts:
  - replies:
      - [text: "Hello.", reason: stop]
recovery: false
"""
)[0]


def lost_in(trace):
    """What the trace says that was lost."""
    return [entry.what for entry in trace if isinstance(entry, TargetLost)]


def hostile(tmp_path, *how):
    """A child that does something evil once, and then behaves."""
    variant = Variant(wire="native", grade=Grade.EVENT, observes=("history",))
    manifest = reference_manifest({}, "hostile").model_copy(update={"variants": {"stdio": variant}})
    command = [sys.executable, str(CHILDREN / "hostile.py"), str(tmp_path / "marker"), *how]
    return ProcessAdapter(manifest, command, limits=Limits(answer=5, start=60))


@pytest.mark.parametrize("method", ["open", "prompt", "history", "barrier"])
@pytest.mark.parametrize("how", ["dies", "rubbish", "wrong-shape", "killed"])
def test_a_child_that_is_lost_in_an_operation_leaves_a_trace_that_says_so(tmp_path, how, method):
    """Once, wherever it happens; and the next run is on a child that lives."""
    with Executor(hostile(tmp_path, how, method)) as executor:
        assert len(lost_in(executor.run(SCENARIO))) == 1
        trace = executor.run(SCENARIO)
        assert lost_in(trace) == []
        assert any(isinstance(entry, Settled) for entry in trace)


def test_a_child_that_hangs_is_lost_in_the_same_way(tmp_path):
    """It is told by the watchdog of the channel."""
    with Executor(hostile(tmp_path, "hangs", "history")) as executor:
        (what,) = lost_in(executor.run(SCENARIO))
        assert "history" in what


def test_a_campaign_with_a_child_that_dies_at_once_is_no_fault_of_ours(tmp_path):
    """It is the smoke run that fails, in words."""
    with (
        Executor(hostile(tmp_path, "dies", "prompt")) as executor,
        pytest.raises(SmokeFailed, match="the target was lost: "),
    ):
        Campaign(executor).run()


class _Session:
    """A session in this process whose operations raise."""

    def __init__(self, bench, *raising):
        self.bench, self.raising = bench, raising

    async def prompt(self, text):
        return Returned({"text": "Hello."})

    def cancel(self):
        if "cancel" in self.raising:
            raise RuntimeError("no")

    def history(self):
        raise RuntimeError("no history today")

    async def close(self): ...


class _Adapter:
    manifest = reference_manifest({}, "raising")

    async def open(self, bench, settings):
        return _Session(bench)


def test_a_history_that_raises_ends_the_scenario_in_words():
    """Nobody can say any more what the target holds."""
    with Executor(_Adapter()) as executor:
        (what,) = lost_in(executor.run(SCENARIO))
    assert what == "reading its history raised RuntimeError: no history today"
