"""A child process as the operating system has it: pipes, the tail of stderr, and a certain end.

The child leads a session and process group of its own, so that whatever it starts can be ended
with it. Ending is certain and in bounded time: the group gets a signal, the processes that are
left (Linux: everything of the child's session, also what made a process group of its own) are
waited for by their pidfd, and the leader is reaped last, so that its number stays its own until
nobody needs it.

Nothing here knows the protocol, and nothing here waits on the event loop.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_CHUNK = 1 << 16
_KILL_SECONDS = 5.0
"""How long a killed process may take to be gone; only an uninterruptible one takes any time."""


def session_members(leader: int) -> list[int]:
    """The living processes of the session or group that ``leader`` leads, itself included.

    Zombies are not alive. Without ``/proc`` the list is empty.
    """
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended meanwhile
        state, _, group, session = stat.rpartition(")")[2].split()[:4]
        if leader in (int(group), int(session)) and state not in "ZX":
            members.append(int(entry.name))
    return members


def wait_until_dead(pids: Iterable[int], seconds: float) -> bool:
    """Wait until all of these processes have ended, and say whether they have."""
    if not hasattr(os, "pidfd_open"):
        return True
    poll, handles = select.poll(), set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            poll.register(handle, select.POLLIN)
            handles.add(handle)
    try:
        deadline = time.monotonic() + seconds
        waiting = set(handles)
        while waiting:
            left = deadline - time.monotonic()
            ended = poll.poll(max(left, 0) * 1000)
            for handle, _ in ended:
                poll.unregister(handle)
                waiting.discard(handle)
            if not ended and left <= 0:
                return False
        return True
    finally:
        for handle in handles:
            os.close(handle)


class ChildProcess:
    """A started child with three non-blocking pipes.

    Parameters
    ----------
    command: the program and its arguments.
    env: its whole environment; ``None`` takes over ours.
    cwd: where it runs; ``None`` is here.
    tail: how many bytes of its stderr are kept.

    Raises ``OSError`` when it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, tail: int
    ) -> None:
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            bufsize=0, env=env, cwd=cwd, start_new_session=True,
        )  # fmt: skip
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in pipes if pipe)
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(descriptor, False)
        # Becomes readable when the process ends, even if others keep its pipes open.
        self.handle = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._tail = bytearray()
        self._keep = tail
        self._ended = False

    @property
    def pid(self) -> int:
        """The number of the process, its group and its session."""
        return self._process.pid

    def read(self) -> bytes | None:
        """What stdout has: bytes, ``b""`` at its end, ``None`` if there is nothing now."""
        try:
            return os.read(self.stdout, _CHUNK)
        except BlockingIOError:
            return None

    def write(self, data: bytes) -> int:
        """Write what the pipe takes and return how much; ``BrokenPipeError`` if nobody reads."""
        try:
            return os.write(self.stdin, data)
        except BlockingIOError:
            return 0

    def read_stderr(self) -> bool:
        """Take in what stderr has; ``False`` at its end."""
        try:
            data = os.read(self.stderr, _CHUNK)
        except BlockingIOError:
            return True
        self._tail += data
        del self._tail[: -self._keep]
        return bool(data)

    @property
    def stderr_tail(self) -> str:
        """The last of what it wrote to stderr."""
        return self._tail.decode("utf-8", "replace").strip()

    def ending(self, seconds: float) -> str:
        """Wait for the child to end by itself, and say in words how it did."""
        status = self._process.returncode
        if status is None:
            wait_until_dead([self.pid], seconds)
            # On Linux the leader is looked at without reaping it; elsewhere there is only wait().
            if hasattr(os, "waitid"):
                options = os.WEXITED | os.WNOWAIT | os.WNOHANG
                info = os.waitid(os.P_PID, self.pid, options)
                if info is None:
                    return "the process closed its stdout but runs on"
                status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
            else:
                status = self._process.poll()
        if status is None:
            return "the process closed its stdout but runs on"
        if status < 0:
            return f"the process was ended by {signal.Signals(-status).name}"
        return f"the process ended with exit status {status}"

    def stop(self, grace: float = 0.0) -> None:
        """End the child and everything of its session; afterwards nothing of it is alive.

        With a ``grace`` it is first told to end by SIGTERM and has that many seconds. Safe to
        call again.
        """
        if self._ended:
            return
        self._ended = True
        if grace > 0 and (members := session_members(self.pid) or [self.pid]):
            self._signal(members, signal.SIGTERM)
            wait_until_dead(members, grace)
        # More than one round: a member may have started another one while it was looked at.
        for _ in range(10):
            members = session_members(self.pid)
            self._signal(members, signal.SIGKILL)
            if not members or not wait_until_dead(members, _KILL_SECONDS):
                break
        self._drain_stderr()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self.handle is not None:
            os.close(self.handle)

    def _signal(self, members: Iterable[int], number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _drain_stderr(self) -> None:
        for _ in range(64):  # a pipe holds at most a megabyte
            before = bytes(self._tail)
            if not self.read_stderr() or bytes(self._tail) == before:
                return
