"""Children that break the protocol, each in one way: ``hostile.py MARKER HOW [METHOD]``.

The first child of a test does it (on ``METHOD``, ``prompt`` if not given); once the marker file is
there, a child behaves.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

marker, how, *rest = sys.argv[1:]
method = rest[0] if rest else "prompt"
evil = not Path(marker).exists()
Path(marker).touch()


def say(message):
    raw((json.dumps({"jsonrpc": "2.0", **message}) + "\n").encode())


def raw(data):
    while data:
        data = data[os.write(1, data) :]


def grandchild(*lines):
    """Start a process that ignores SIGTERM, and wait until it does."""
    code = "\n".join(
        [
            "import os, signal",
            *lines,
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
            "os.write(2, b'ready\\n')",
            "signal.pause()",
        ]
    )
    reader, writer = os.pipe()
    subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    assert os.read(reader, 6) == b"ready\n"


def hang(_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()


def die(_):
    sys.stderr.write("Traceback: something broke\n")
    sys.stderr.flush()
    os._exit(3)


def flood(_):
    block = b"x" * (1 << 20)
    for _ in range(100):
        raw(block)


def events(request):
    session = request["params"]["session"]
    while True:
        say({"method": "event", "params": {"session": session, "event": {"type": "run_start"}}})


def grandchildren(request):
    grandchild()
    grandchild("os.setpgid(0, 0)")
    die(request)


def close_stdout(request):
    os.close(1)
    hang(request)


def end_quietly(_):
    grandchild()
    os._exit(0)


HOW = {
    "hangs": hang,
    "dies": die,
    "floods": flood,
    "events": events,
    "grandchildren": grandchildren,
    "orphans": end_quietly,
    "closes-stdout": close_stdout,
    "killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "rubbish": lambda _: raw(b"\x1b[31mhello\r\n" + b"y" * 1000),
    "long-rubbish": lambda _: raw(b"z" * 1000 + b"\n"),
    "not-utf8": lambda _: raw(b'{"jsonrpc": "2.0", "method": "\xff"}\n'),
    "deep": lambda _: raw(b"[" * 100_000 + b"\n"),
    "nan": lambda _: raw(b'{"jsonrpc": "2.0", "id": 1, "result": NaN}\n'),
    "batch": lambda _: raw(b'[{"jsonrpc": "2.0"}]\n'),
    "unversioned": lambda r: raw(json.dumps({"id": r["id"], "result": {}}).encode() + b"\n"),
    "twice": lambda r: [say({"id": r["id"], "result": {"returned": 1}}) for _ in range(2)],
    "stranger": lambda _: say({"id": 4711, "result": {}}),
    "both": lambda r: say({"id": r["id"], "result": {}, "error": {"code": 1, "message": ""}}),
    "no-code": lambda r: say({"id": r["id"], "error": "bad"}),
    "internal": lambda r: say({"id": r["id"], "error": {"code": -32603, "message": "oops"}}),
    "wrong-shape": lambda r: say({"id": r["id"], "result": {"returnd": 1}}),
    "wrong-version": lambda r: say({"id": r["id"], "result": {"protocol": 99, "new": True}}),
    "odd-event": lambda r: say(
        {"method": "event", "params": {"session": r["params"]["session"], "event": {"type": "hello"}}}
    ),
    "odd-session": lambda _: say({"method": "listener_raised", "params": {"session": "s99"}}),
    "odd-method": lambda _: say({"id": 1, "method": "sudo", "params": {}}),
    "odd-notice": lambda _: say({"method": "sudo", "params": {}}),
    "odd-params": lambda _: say({"id": 1, "method": "tool_call", "params": []}),
    "odd-id": lambda _: say({"id": [1], "method": "tool_call", "params": {}}),
    "odd-tool": lambda r: say(
        {"id": 1, "method": "tool_call",
         "params": {"session": r["params"]["session"], "tool": "rm", "arguments": {}}}
    ),
    "odd-stream": lambda _: say({"id": 1, "method": "model_next", "params": {"stream": 5}}),
}  # fmt: skip

RESULTS = {
    "initialize": {"protocol": 1, "kit": "none", "language": "none"},
    "prompt": {"returned": {"text": "well-behaved"}},
    "history": {"messages": []},
    "barrier": {"timers": False, "threads": False},
}

evil = evil and how in HOW
if evil and method == "start":
    HOW[how](None)
    sys.exit(0)
if how == "lingers":
    grandchild()
for line in sys.stdin:
    request = json.loads(line)
    if evil and request["method"] == method:
        HOW[how](request)
    else:
        say({"id": request["id"], "result": RESULTS.get(request["method"], {})})
