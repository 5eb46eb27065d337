"""The rules, one module a chapter. Importing this package registers them all, in reading order."""

from loopspec.rules import completion as completion

from loopspec.rules import stream as stream  # isort: skip
from loopspec.rules import limits as limits  # isort: skip
from loopspec.rules import tools as tools  # isort: skip
from loopspec.rules import pairing as pairing  # isort: skip
from loopspec.rules import history as history  # isort: skip
from loopspec.rules import cancellation as cancellation  # isort: skip
from loopspec.rules import prefix as prefix  # isort: skip
from loopspec.rules import events as events  # isort: skip
from loopspec.rules import run as run  # isort: skip
from loopspec.rules.base import RULES, Broke, Finding, Held, Hidden, Rule

CHAPTERS = (
    "completion", "stream", "limits", "tools", "pairing", "history", "cancellation", "prefix",
    "events", "run",
)  # fmt: skip
"""The chapters of the standard, in reading order."""

__all__ = ["CHAPTERS", "RULES", "Broke", "Finding", "Held", "Hidden", "Rule"]
