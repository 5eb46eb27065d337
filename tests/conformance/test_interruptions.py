"""Killed at any moment: no process, no temporary file, and a clear message.

The main job is started for real, on a target in a child process, and ended from outside while it
plays scenarios: by Ctrl-C, by a signal, without warning, and by killing the target under it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import loopspec

PACKAGE = Path(loopspec.__file__).parent
MANIFEST = """
name = "mine"
version = "1"
command = ["{python}", "{child}"]

[variants.default]
wire = "native"
grade = "event"
observes = ["history"]

[variants.default.options]
claims = {{}}
"""


def children_of(pid: int) -> set[int]:
    """The processes whose parent is ``pid``, read from /proc."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it has just ended
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.add(int(entry.name))
    return found


def gone(pid: int) -> bool:
    """The process has ended (a zombie that nobody has waited for has, too)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def until(condition, words: str) -> None:
    """Poll for a fact of the operating system that nobody announces; fail after a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, words
        os.sched_yield()


@pytest.fixture
def main_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """``loopspec run`` on a target in a child process, caught while it plays scenarios."""
    child = PACKAGE / "adapters" / "reference_child.py"
    (tmp_path / "mine.toml").write_text(MANIFEST.format(python=sys.executable, child=child))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "loopspec", "run", "mine.toml", "--json", "report.json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(temporary)}, start_new_session=True,
    )  # fmt: skip
    until(lambda: children_of(process.pid) or process.poll() is not None, "no target was started")
    assert process.poll() is None
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert list(temporary.iterdir()) == [], "temporary files were left"
    assert tempfile.gettempdir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_run_says_so_and_leaves_no_process(
    main_job: subprocess.Popen[str], number: int
) -> None:
    """It says that it is not complete, exits with 2, and takes its target with it."""
    targets = children_of(main_job.pid)
    main_job.send_signal(number)
    out, err = main_job.communicate(timeout=60)
    assert main_job.returncode == 2, err
    assert "interrupted" in out + err
    until(lambda: all(gone(pid) for pid in targets), "the target outlived the run")


def test_a_killed_run_takes_its_target_with_it(main_job: subprocess.Popen[str]) -> None:
    """The target notices that nobody holds the other end of its pipe, and ends."""
    targets = children_of(main_job.pid)
    main_job.kill()
    main_job.communicate(timeout=60)
    assert main_job.returncode != 0
    until(lambda: all(gone(pid) for pid in targets), "the target outlived the run")


def test_a_killed_target_costs_one_scenario_and_a_restart(
    main_job: subprocess.Popen[str], tmp_path: Path
) -> None:
    """The run goes on with a fresh child, names the loss, and leaves no process."""
    (target,) = children_of(main_job.pid)
    os.kill(target, signal.SIGKILL)
    out, err = main_job.communicate(timeout=120)
    assert main_job.returncode in (1, 2), err
    text = out + err
    assert "the target was lost" in text or "did not pass the smoke run" in text, text
    until(lambda: gone(target), "the target is still there")
