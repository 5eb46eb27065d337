"""Small well-behaved targets over the kit: a native-wire loop, and ways to be asked for oddities."""

import asyncio
import threading

import loopspec_kit as kit


class DomainError(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code
        self.secret = object()
        self._private = 1


class Session:
    """A loop of a dozen lines; the first word of a prompt chooses what it does."""

    def __init__(self, bench, settings, history=()):
        self.bench, self.settings = bench, settings
        self.messages = list(history)
        self.signal = kit.Signal()
        self.idle = asyncio.Event()

    async def prompt(self, text):
        return await getattr(self, f"do_{text.split()[0]}", self.run)(text)

    async def run(self, text):
        self.signal = kit.Signal()
        self.messages.append({"role": "user", "text": text})
        self.bench.tell(type="run_start")
        while True:
            blocks = await self.turn()
            if not blocks["calls"]:
                self.bench.tell({"type": "run_end", "reason": "completed"})
                return kit.Returned({"text": blocks["text"]})
            for call in blocks["calls"]:
                await self.answer(call)

    async def turn(self):
        text, calls, reason = "", [], None
        tools = [tool.name for tool in self.bench.tools]
        async for piece in self.bench.model(self.messages, tools, self.signal):
            if piece["type"] == "text":
                text += piece["text"]
                self.bench.tell(type="text_delta", text=piece["text"])
            elif piece["type"] == "call_start":
                calls.append({"type": "call", "id": piece["id"], "name": piece["name"], "arguments": ""})
            elif piece["type"] == "arguments":
                calls[-1]["arguments"] += piece["text"]
            elif piece["type"] == "reason":
                reason = piece["reason"]
        blocks = ([{"type": "text", "text": text}] if text else []) + calls
        self.messages.append({"role": "assistant", "blocks": blocks, "stop_reason": reason})
        return {"text": text, "calls": calls}

    async def answer(self, call):
        tool = next(tool for tool in self.bench.tools if tool.name == call["name"])
        try:
            text, failed = await tool.call(call["arguments"], call["id"], self.signal), False
        except kit.ToolError as error:
            text, failed = str(error), True
        self.messages.append(
            {"role": "tool", "call_id": call["id"], "name": tool.name, "text": text, "is_error": failed}
        )

    async def do_echo(self, text):
        return kit.Returned({"text": text}, told="told" in text)

    async def do_odd(self, text):
        return {"object": {1, 2}.__class__, "nan": float("nan"), "pair": (1, "x")}

    async def do_raise(self, text):
        try:
            raise ValueError("inside")
        except ValueError as error:
            raise DomainError("outside", 7) from error

    async def do_exit(self, text):
        raise SystemExit("leaving")

    async def do_print(self, text):
        print("this is not protocol")
        return kit.Returned({"text": "printed"})

    async def do_wait(self, text):
        self.bench.tell(type="run_start")
        await self.idle.wait()
        return kit.Returned({"text": "woken"})

    async def do_timer(self, text):
        handle = asyncio.get_running_loop().call_later(3600, print)
        await self.idle.wait()
        handle.cancel()

    async def do_thread(self, text):
        await asyncio.to_thread(self.gate().wait)

    async def do_sync(self, text):
        """A loop that runs in a thread, and tells and calls from there."""

        def loop():
            self.bench.tell(type="tool_start", call_id="c")
            answer = self.bench.tools[0].call_sync({"value": "1"}, "c")
            self.bench.tell(type="tool_end", call_id="c")
            return answer

        return kit.Returned({"text": await asyncio.to_thread(loop)})

    async def do_stuck(self, text):
        self.bench.tools[0].call_sync({})

    async def do_late(self, text):
        """Tell something right after the settlement, and leave nothing running."""
        asyncio.get_running_loop().call_soon(self.tell_after, 3)
        return kit.Returned({"text": "early"})

    def tell_after(self, passes):
        if passes:
            asyncio.get_running_loop().call_soon(self.tell_after, passes - 1)
        else:
            self.bench.tell(type="run_end")

    def gate(self):
        self.threads = threading.Event()
        return self.threads

    def cancel(self):
        self.signal.set()
        self.idle.set()
        if hasattr(self, "threads"):
            self.threads.set()

    def history(self):
        return self.messages

    def fork(self, bench):
        return Session(bench, self.settings, self.messages)


class AsyncSession(Session):
    """The same with awaitable operations and no fork."""

    fork = property()

    async def cancel(self):
        await asyncio.sleep(0)
        super().cancel()

    async def history(self):
        await asyncio.sleep(0)
        return self.messages

    async def close(self):
        raise RuntimeError("cannot close")


class Adapter:
    async def open(self, bench, settings):
        if settings.max_turns is not None and not settings.max_turns > 0:
            raise ValueError(f"max_turns is {settings.max_turns}")
        return (AsyncSession if settings.options.get("awaits") else Session)(bench, settings)


if __name__ == "__main__":
    print("printed by an import")
    kit.serve(Adapter)
