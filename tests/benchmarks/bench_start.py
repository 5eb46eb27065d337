"""Start-up, and the quick run of the reference, as ratios measured in one run.

``loopspec --help`` against importing click; ``loopspec run reference --budget quick`` against the
start-up of pytest on an empty folder. Whole processes, the median of several runs, taken in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path


def seconds(*command: str, cwd: Path) -> float:
    """CPU seconds of a whole process (its own and its children's)."""
    before = os.times()
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, capture_output=True, check=False)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu or time.perf_counter() - start


def ratio(ours: tuple[str, ...], theirs: tuple[str, ...], cwd: Path, runs: int = 5) -> float:
    """The median of the pairwise ratios."""
    pairs = [(seconds(*ours, cwd=cwd), seconds(*theirs, cwd=cwd)) for _ in range(runs + 1)][1:]
    return statistics.median(a / b for a, b in pairs)


def test_help_and_quick_run_as_ratios(tmp_path: Path) -> None:
    """--help: at most 1.5 times importing click. A quick run: at most 10 times pytest's start-up."""
    python = sys.executable
    shown = ratio((python, "-m", "loopspec", "--help"), (python, "-c", "import click"), tmp_path)
    quick = ratio(
        (python, "-m", "loopspec", "run", "reference", "--budget", "quick", "--json", "report.json"),
        (python, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        tmp_path,
    )
    coverage = json.loads((tmp_path / "report.json").read_text())["coverage"]["transitions"]
    print(f"\nload {os.getloadavg()[0]:.1f}")
    print(f"loopspec --help / python -c 'import click': {shown:.2f} (aim: at most 1.5)")
    print(f"run reference, quick / pytest on an empty folder: {quick:.2f} (aim: at most 10)")
    print(f"rows of the table covered by it: {coverage['exercised']} of {coverage['all']}")
