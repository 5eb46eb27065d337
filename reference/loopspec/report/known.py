"""Known failures: what a target is expected to break, and why, until it no longer does.

A YAML file with one entry a rule::

    - rule: completion.length-executes-nothing
      evidence: "was started although the reply ended with length"
      reason: "https://example.org/issues/1"

``evidence`` is a part of the words that the verdict must say: a rule that starts to fail in another
way is a new failure. An entry whose rule no longer fails is stale, and fails the run, so that the
list can only shrink by being corrected.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from loopspec.report.model import Report
from loopspec.rules import RULES
from loopspec.vocabulary import Verdict


class KnownError(ValueError):
    """The file of known failures cannot be used; the message says where and why."""


class Known(BaseModel):
    """One known failure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: str
    evidence: str
    reason: str


def load(path: Path) -> list[Known]:
    """Read a file of known failures; raises :class:`KnownError`."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or []
        entries = TypeAdapter(list[Known]).validate_python(data)
    except OSError as error:
        raise KnownError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise KnownError(f"{path}: not YAML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise KnownError(f"{path}: {place}: {first['msg']}; give rule, evidence and reason") from None
    for entry in entries:
        if entry.rule not in RULES:
            raise KnownError(f"{path}: there is no rule {entry.rule!r}; see 'loopspec list rules'")
    return entries


def apply(report: Report, entries: list[Known]) -> list[str]:
    """Mark the known failures in ``report``; returns a line for each stale entry."""
    stale = []
    for entry in entries:
        rules = [rule for rule in report.rules if rule.id == entry.rule]
        if not rules:
            continue  # not judged in this run
        rule = rules[0]
        if rule.verdict not in (Verdict.FAIL, Verdict.VARIES):
            stale.append(f"stale known failure: {entry.rule} is now '{rule.verdict}'; remove its entry")
            continue
        others = [item.words for item in rule.evidence if entry.evidence not in item.words]
        if not others:
            rule.known = entry.reason
        elif len(others) == len(rule.evidence):
            stale.append(
                f"stale known failure: {entry.rule} fails, but not with {entry.evidence!r}: {others[0]}"
            )
    return stale
