"""A two-turn scenario over stdio, in bare NDJSON round trips on the same machine."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import loopspec
from loopspec.adapters.manifest import Variant
from loopspec.adapters.process import ProcessAdapter
from loopspec.adapters.reference import reference_manifest
from loopspec.bench.executor import Executor
from loopspec.scenario import parse
from loopspec.vocabulary import Grade

ECHO = """
import json, sys
for line in sys.stdin:
    sys.stdout.write(json.dumps(json.loads(line)) + chr(10))
    sys.stdout.flush()
"""

NULL = """
import loopspec_kit as kit

class Session:
    def __init__(self, bench):
        self.bench, self.history_, self.tool = bench, [], bench.tools[0]
    async def prompt(self, text):
        self.history_.append({"role": "user", "text": text})
        while True:
            blocks, calls = [], []
            async for piece in self.bench.model(self.history_, ["probe"]):
                if piece["type"] == "text":
                    blocks.append({"type": "text", "text": piece["text"]})
                elif piece["type"] == "call_start":
                    calls.append({"type": "call", "id": piece["id"], "name": piece["name"], "arguments": ""})
                elif piece["type"] == "arguments":
                    calls[piece["index"]]["arguments"] += piece["text"]
            self.history_.append({"role": "assistant", "blocks": blocks + calls})
            if not calls:
                return kit.Returned({"text": blocks[-1]["text"]})
            for call in calls:
                result = await self.tool.call(call["arguments"], call["id"])
                self.history_.append({"role": "tool", "call_id": call["id"], "name": "probe", "text": result})
    def cancel(self): ...
    def history(self):
        return self.history_

class Adapter:
    async def open(self, bench, settings):
        return Session(bench)

kit.serve(Adapter())
"""

SCENARIO = parse(
    """
name: two-turns
prompts:
  - replies:
      - [call: c1, reason: toolUse]
      - [text: "It is there.", reason: stop]
recovery: false
"""
)[0]


async def lockstep(seconds: float) -> float:
    """Bare NDJSON round trips a second: one message a line, parsed and written at both ends."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "barrier", "params": {}}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ECHO, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        child.stdin.write(json.dumps(message).encode() + b"\n")
        json.loads(await child.stdout.readline())
        count += 1
    took = time.perf_counter() - start
    child.stdin.close()
    await child.wait()
    return count / took


def round_trips_per_second(seconds: float = 1.0) -> float:
    """Bare NDJSON round trips a second with a child that echoes messages."""
    return asyncio.run(lockstep(seconds))


def test_a_scenario_in_round_trips(tmp_path: Path) -> None:
    """A two-turn scenario on a null target over stdio: at most 15 bare NDJSON round trips."""
    (tmp_path / "null.py").write_text(NULL)
    variant = Variant(wire="native", grade=Grade.EVENT, observes=("history",))
    manifest = reference_manifest({}, "null").model_copy(update={"variants": {"stdio": variant}})
    assert Path(loopspec.__file__).is_file()
    with Executor(ProcessAdapter(manifest, [sys.executable, str(tmp_path / "null.py")])) as executor:
        executor.run(SCENARIO)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < 2:
            executor.run(SCENARIO)
            count += 1
        each = (time.perf_counter() - start) / count
    trips = each * round_trips_per_second()
    print(f"\nload {os.getloadavg()[0]:.1f}")
    print(f"a two-turn scenario over stdio: {trips:.1f} bare round trips (aim: at most 15)")
