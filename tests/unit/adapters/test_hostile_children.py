"""A child that misbehaves costs one clear error, and nothing of it is left running."""

import asyncio
import gc
import sys
import tracemalloc
from pathlib import Path

import pytest
from stub_bench import CHILDREN, MANIFEST, Bench, run

from loopspec.adapters.jsonrpc import ChildLost, Limits, quoted
from loopspec.adapters.process import ProcessAdapter
from loopspec.adapters.protocol import OpenSettings
from loopspec.trace import TargetLost


def living(leader):
    """The processes of this session or group that are no zombies."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if str(leader) in words[2:4] and words[0] not in "ZX":
            alive.append(stat.parent.name)
    return alive


def adapter_of(tmp_path, *how, **limits):
    command = [sys.executable, str(CHILDREN / "hostile.py"), str(tmp_path / "marker"), *how]
    # What is a hang in these tests is known to be one, so a short watchdog is enough; it still has
    # to be longer than a behaving child needs on a busy machine.
    return ProcessAdapter(MANIFEST, command, limits=Limits(**limits))


async def every_operation(session):
    await session.prompt("hello")
    await session.cancel()
    await session.history()
    await session.barrier()
    await session.close()


def provoke(adapter):
    """Open, do everything until the child is lost, then do it again with a fresh one.

    Returns the error.
    """
    pids = []

    async def attempt():
        await_open = adapter.open(Bench(), OpenSettings())
        task = asyncio.ensure_future(await_open)
        while adapter.pid is None and not task.done():
            await asyncio.sleep(0)
        pids.append(adapter.pid)
        session = await task
        try:
            await every_operation(session)
        finally:
            await session.close()

    async def main():
        try:
            with pytest.raises(ChildLost) as caught:
                await attempt()
            assert adapter.pid is None
            assert living(pids[0]) == []
            await attempt()
            assert pids[0] != pids[1]
        finally:
            await adapter.aclose()
        assert living(pids[1]) == []
        return caught.value

    return asyncio.run(asyncio.wait_for(main(), 60))


METHODS = ["initialize", "open", "prompt", "cancel", "history", "barrier", "close"]


@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_dies_at_a_request(tmp_path, method):
    """The error names the exit status, what was waiting, and the end of stderr."""
    lost = provoke(adapter_of(tmp_path, "dies", method))
    assert lost.what == f"the process ended with exit status 3 while '{method}' waited for an answer"
    assert lost.stderr_tail == "Traceback: something broke"
    assert lost.entry == TargetLost(lost.what)
    assert str(lost).endswith("its stderr ends with:\nTraceback: something broke")


@pytest.mark.parametrize("method", METHODS)
def test_a_child_that_hangs_at_a_request(tmp_path, method):
    """The watchdog ends it, although it ignores SIGTERM."""
    lost = provoke(adapter_of(tmp_path, "hangs", method, start=1.0, answer=1.0, prompt=1.0))
    assert lost.what == f"'{method}' was not answered within 1 s"


def test_a_prompt_has_no_watchdog_of_its_own(tmp_path):
    """Whoever waits decides, and may kill the child; the others that wait get the same error."""
    adapter = adapter_of(tmp_path, "hangs", "prompt")

    async def scenario(session, bench):
        first, second = (asyncio.ensure_future(session.prompt("hello")) for _ in range(2))
        await asyncio.sleep(0)
        pid = adapter.pid
        adapter.kill("it was silent for too long")
        errors = await asyncio.gather(first, second, return_exceptions=True)
        assert living(pid) == []
        with pytest.raises(ChildLost):
            await session.history()
        return errors

    first, second = run(scenario, adapter=adapter)
    assert first is second
    assert first.what == "it was silent for too long"


WORDS = {
    "killed": "the process was ended by SIGKILL while 'prompt' waited for an answer",
    "orphans": "the process ended with exit status 0 while 'prompt' waited for an answer",
    "grandchildren": "the process ended with exit status 3 while 'prompt' waited for an answer",
    "closes-stdout": "the process closed its stdout but runs on while 'prompt' waited for an answer",
    "rubbish": "stdout had a line that is not JSON: '\\x1b[31mhello\\r'",
    "long-rubbish": f"stdout had a line that is not JSON: '{'z' * 200}...'",
    "not-utf8": 'stdout had a line that is not JSON: \'{"jsonrpc": "2.0", "method": "\\xff"}\'',
    "deep": f"stdout had a line that is not JSON: '{'[' * 200}...'",
    "nan": 'stdout had a line that is not JSON: \'{"jsonrpc": "2.0", "id": 1, "result": NaN}\'',
    "batch": 'stdout had a line that is not a JSON-RPC 2.0 message: \'[{"jsonrpc": "2.0"}]\'',
    "unversioned": 'stdout had a line that is not a JSON-RPC 2.0 message: \'{"id": 3, "result": {}}\'',
    "twice": "request 3 was answered twice",
    "stranger": "an answer has an id that was never asked",
    "both": "an answer has neither or both of result and error",
    "no-code": "an error has no code",
    "internal": "'prompt' was answered with error -32603: oops",
    "wrong-shape": "'prompt' is not as agreed at returnd: Extra inputs are not permitted",
    "odd-event": "'event' is not as agreed at event.type: Input should be 'run_start'",
    "odd-session": "a message names session 's99', which is not open",
    "odd-method": "there is no request 'sudo'",
    "odd-notice": "there is no notification 'sudo'",
    "odd-params": "a message has a method that is no text, or params that are no object",
    "odd-id": "a request has an id that is no number or text",
    "odd-tool": "a tool_call names tool 'rm'; there are probe",
    "odd-stream": "'model_next' names no open stream",
}


@pytest.mark.parametrize("how", WORDS)
def test_a_child_that_breaks_the_protocol(tmp_path, how):
    """One error that says what came, with what to do about it; no process survives."""
    lost = provoke(adapter_of(tmp_path, how))
    assert lost.what.startswith(WORDS[how])
    assert lost.hint
    assert len(lost.what) < 600
    assert lost.what.isprintable()


def test_a_child_that_prints_before_it_is_asked(tmp_path):
    """Rubbish before the handshake is rubbish."""
    assert "hello" in provoke(adapter_of(tmp_path, "rubbish", "start")).what


def test_a_child_of_another_version(tmp_path):
    """Both versions are named, whatever else the other one says."""
    lost = provoke(adapter_of(tmp_path, "wrong-version", "initialize"))
    assert lost.what == "the child's kit speaks protocol 99, this loopspec speaks 1"


def test_a_flood_without_a_newline_is_cut_off(tmp_path):
    """100 MB cost the memory of one line."""
    tracemalloc.start()
    try:
        lost = provoke(adapter_of(tmp_path, "floods"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lost.what == f"stdout had more than 8388608 bytes without a newline: '{'x' * 200}...'"
    assert peak < 32 << 20


def test_a_flood_of_events_is_cut_off(tmp_path):
    """Messages without end are no run."""
    lost = provoke(adapter_of(tmp_path, "events", messages=1000))
    assert lost.what == "more than 1000 messages came in one session"


def test_a_flood_of_stderr_keeps_its_tail(tmp_path):
    """Stderr is read, so that nobody blocks on it, and only its end is kept."""
    code = "import sys; sys.stderr.write('a' * 5_000_000 + 'the end'); sys.exit(4)"
    adapter = ProcessAdapter(MANIFEST, [sys.executable, "-c", code], limits=Limits(stderr=100))

    async def scenario(session, bench):
        pytest.fail("it was opened")

    with pytest.raises(ChildLost, match="exit status 4") as caught:
        run(scenario, adapter=adapter)
    assert caught.value.stderr_tail == "a" * 93 + "the end"


def test_a_child_that_does_not_read_its_stdin(tmp_path):
    """What waits to be written is bounded too."""
    adapter = adapter_of(tmp_path, "hangs", "prompt", queue=1 << 20)

    async def scenario(session, bench):
        first = asyncio.ensure_future(session.prompt("hello"))
        await asyncio.sleep(0)
        big = [asyncio.ensure_future(session.prompt("x" * 500_000)) for _ in range(5)]
        return await asyncio.gather(first, *big, return_exceptions=True)

    errors = run(scenario, adapter=adapter)
    assert {type(error) for error in errors} == {ChildLost}
    assert errors[0].what == "more than 1048576 bytes wait for the process to read its stdin"


def test_long_messages_arrive_in_pieces(tmp_path):
    """A prompt of two megabytes is more than a pipe takes at once."""
    adapter = adapter_of(tmp_path, "nothing")

    async def scenario(session, bench):
        return (await session.prompt("x" * 2_000_000)).raw

    assert run(scenario, adapter=adapter) == {"returned": {"text": "well-behaved"}}


def test_closing_ends_what_ignores_sigterm(tmp_path):
    """A grandchild that stays is told to end, then killed."""
    adapter = adapter_of(tmp_path, "lingers", grace=0.2)

    async def main():
        await adapter.open(Bench(), OpenSettings())
        pid = adapter.pid
        assert len(living(pid)) == 2
        await adapter.aclose()
        return living(pid)

    assert asyncio.run(asyncio.wait_for(main(), 60)) == []


def test_an_adapter_that_was_closed_can_be_opened_again(tmp_path):
    """Closing lets go of the child; opening starts another."""
    adapter = adapter_of(tmp_path, "nothing")

    async def main():
        session = await adapter.open(Bench(), OpenSettings())
        await adapter.aclose()
        with pytest.raises(ChildLost, match="the adapter was closed"):
            await session.prompt("hello")
        again = await adapter.open(Bench(), OpenSettings())
        settled = await again.prompt("hello")
        await adapter.aclose()
        await adapter.aclose()
        return settled.raw

    assert asyncio.run(main()) == {"returned": {"text": "well-behaved"}}


def test_a_program_that_is_not_there(tmp_path):
    """The error names the command."""
    adapter = ProcessAdapter(MANIFEST, [str(tmp_path / "no-such-program")])

    async def scenario(session, bench):
        pytest.fail("it was opened")

    with pytest.raises(ChildLost, match=r"cannot be started.*no-such-program"):
        run(scenario, adapter=adapter)


def test_no_descriptor_is_left_open(tmp_path):
    """Neither by children that were lost nor by such that were let go."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        provoke(adapter_of(tmp_path / str(number), "dies"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"", "''"),
        (b"a\x1b[2J\x00\n", r"'a\x1b[2J\x00\n'"),
        ("\u202eevil é".encode(), r"'\u202eevil é'"),
        (b"a" * 201, f"'{'a' * 200}...'"),
    ],
)
def test_quoted_lines_are_short_and_harmless(line, shown):
    """Control characters are escaped, also those that turn the direction of text."""
    assert quoted(line) == shown
