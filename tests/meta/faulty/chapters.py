"""All faulty loops and legal variants, by the chapter whose rules they are about."""

from __future__ import annotations

import importlib
import importlib.util

for _chapter in ("completion", "stream", "limits", "tools", "pairing", "history", "cancellation",
                 "prefix", "events", "run", "controls"):  # fmt: skip
    if importlib.util.find_spec(f"meta.faulty.{_chapter}"):
        importlib.import_module(f"meta.faulty.{_chapter}")
