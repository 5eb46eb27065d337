"""What a reply costs the chat server, against what it costs the official client.

The reply is a stream of 22 events (the role, twenty tokens, the finish) with nothing held. The server
runs in a process of its own, so that its CPU time and the client's are told apart; it counts reading and
checking the request, choosing and recording the reply, and writing it. Printed as a ratio measured in
one run, with the load at that moment. Run it by itself, or with ``pytest -s``.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

from openai import AsyncOpenAI

from loopspec.bench.provider import Provider
from loopspec.bench.recorder import Recorder
from loopspec.bench.server import Server
from loopspec.scenario import Reply
from loopspec.trace import Header

AIM = 0.10
REPLIES = 1000
WARM_UP = 100
STEPS = [*({"text": f"token{n} "} for n in range(20)), {"reason": "stop"}]


async def nothing(action: str, where: str) -> None:
    """The reply has no gate."""


async def serve() -> None:
    """Serve until standard input ends; each line there is answered with the CPU time so far."""
    provider = Provider(Recorder(Header("bench", "bench", "bench", "chat", "event")), nothing)
    provider.script(1, "[prompt 1]", [Reply.model_validate(STEPS)] * (REPLIES + WARM_UP))
    loop = asyncio.get_running_loop()
    async with Server() as server:
        print(server.mount("chat", provider), flush=True)
        asked: asyncio.Queue[str] = asyncio.Queue()
        loop.add_reader(sys.stdin, lambda: asked.put_nowait(sys.stdin.readline()))
        while await asked.get():
            print(time.process_time(), flush=True)
        loop.remove_reader(sys.stdin)


async def ask(client: AsyncOpenAI, times: int) -> None:
    """Ask for the reply and read it to its end, again and again."""
    for _ in range(times):
        messages = [{"role": "user", "content": "[prompt 1] go"}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        count = 0
        async for _chunk in stream:
            count += 1
        assert count == 22


def measure() -> tuple[float, float]:
    """Seconds of CPU time a reply: of the server, and of the client."""
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()

        def server_time() -> float:
            process.stdin.write("cpu\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        async def main() -> tuple[float, float]:
            async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
                await ask(client, WARM_UP)
                before = server_time(), time.process_time()
                await ask(client, REPLIES)
                after = server_time(), time.process_time()
            return (after[0] - before[0]) / REPLIES, (after[1] - before[1]) / REPLIES

        try:
            return asyncio.run(main())
        finally:
            process.stdin.close()


def test_the_server_costs_little_beside_the_client() -> None:
    """The server's CPU time is at most a tenth of the official client's."""
    server, client = measure()
    print(f"\nload {os.getloadavg()[0]:.1f}")
    print(f"server {server * 1e6:.0f} us, official client {client * 1e6:.0f} us a reply of 22 events")
    print(f"server / official client: {server / client:.3f} (aim: at most {AIM:.2f})")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
    else:
        test_the_server_costs_little_beside_the_client()
