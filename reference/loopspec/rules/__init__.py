"""The rules, one module a chapter. Importing this package registers them all, in reading order."""

import importlib
import importlib.util

from loopspec.rules.base import RULES, Broke, Finding, Held, Hidden, Rule

CHAPTERS = (
    "completion", "stream", "limits", "tools", "pairing", "history", "cancellation", "prefix",
    "events", "run",
)  # fmt: skip
for _c in CHAPTERS:
    if importlib.util.find_spec(f"loopspec.rules.{_c}"):
        importlib.import_module(f"loopspec.rules.{_c}")
