"""The suite as a class to subclass: your loop, one method, one test a rule.

::

    from loopspec.conformance import LoopConformance


    class TestMyLoop(LoopConformance):
        def make_adapter(self):
            return MyLoopAdapter()

The class runs the whole campaign once and gives each rule one test item. What is not a verdict (not
exercised, not observable, not claimed, observed) is skipped with its reason: only a rule that was
exercised and held passes.

The suite refuses to be weakened. A subclass that overrides a check is an error, not a smaller
suite. A rule that is known to fail is named in ``known`` with a reason; it is then an expected
failure, and an unexpected pass fails, because the entry is stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from loopspec.bench.executor import Executor
from loopspec.explore.campaign import Campaign
from loopspec.judge import RuleResult
from loopspec.rules import RULES
from loopspec.vocabulary import Level, Verdict

SETTINGS = frozenset({"make_adapter", "variant", "budget", "seed", "known"})
"""What a subclass may set. Everything else that the suite defines is the suite's own."""


class Weakened(TypeError):
    """A subclass overrides a part of the suite."""


class LoopConformance:
    """The suite for one loop; see the module's text.

    ``variant``, ``budget`` (``quick`` or ``full``) and ``seed`` are as for ``loopspec run``.
    ``known`` maps the ids of rules that are known to fail to the reason.
    """

    variant: ClassVar[str | None] = None
    budget: ClassVar[str] = "quick"
    seed: ClassVar[int] = 0
    known: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ours = {name for name in vars(LoopConformance) if not name.startswith("__")}
        for name in vars(cls):
            if name in ours and name not in SETTINGS:
                raise Weakened(
                    f"{cls.__qualname__} overrides {name!r}, a check of the suite. Set only "
                    f"{', '.join(sorted(SETTINGS))}; name a rule that fails in 'known', with a reason"
                )
        for rule, reason in cls.known.items():
            if rule not in RULES:
                raise Weakened(f"{cls.__qualname__}.known names {rule!r}, which is no rule")
            if not str(reason).strip():
                raise Weakened(f"{cls.__qualname__}.known[{rule!r}] gives no reason")

    def make_adapter(self) -> Any:
        """Make the adapter of your loop: the one method to write."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define make_adapter()")

    @pytest.fixture(scope="class")
    def verdicts(self, request: pytest.FixtureRequest) -> Iterator[Mapping[str, RuleResult]]:
        """The results of the campaign, run once for the class."""
        suite = request.cls()
        with Executor(suite.make_adapter(), suite.variant) as executor:
            yield Campaign(executor, seed=suite.seed, budget=suite.budget).run().results

    @pytest.mark.parametrize("rule", list(RULES))
    def test_rule(self, rule: str, verdicts: Mapping[str, RuleResult]) -> None:
        """The loop keeps the rule, in every scenario that exercises it."""
        judge_result(verdicts[rule], self.known.get(rule))


def judge_result(result: RuleResult, known: str | None = None) -> None:
    """Turn a rule's result into the outcome of the running test."""
    rule, verdict = result.rule, result.verdict
    broken = verdict in (Verdict.FAIL, Verdict.VARIES)
    if known is not None and not broken:
        pytest.fail(f"{rule.id} is known to fail ({known}), but is '{verdict}'; take it out of 'known'")
    if broken:
        places = "\n".join(
            f"  {item.scenario}: {item.words} (entries {', '.join(map(str, item.at))})"
            for item in result.breaks[:5]
        )
        words = f"{rule.id}: {rule.sentence}\n{places}"
        if known is not None:
            pytest.xfail(f"{known}\n{words}")
        if rule.level is Level.ADVISORY:
            pytest.skip(f"advice, not met: {words}")
        pytest.fail(words, pytrace=False)
    if verdict is not Verdict.PASS:
        pytest.skip(f"{verdict}: {'; '.join(result.hidden) or rule.id}")
