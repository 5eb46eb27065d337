"""The page of the protocol says what the wire models say, and its transcripts are real."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import loopspec
from loopspec.adapters import jsonrpc, wire_models
from loopspec.adapters.manifest import Claim, Hides, Manifest, Variant
from loopspec.adapters.manifest import Mapping as OutcomeEntry
from loopspec.adapters.process import KITS
from loopspec.adapters.reference import OBSERVES
from loopspec.adapters.wire_models import (
    CHILD_NOTIFICATIONS,
    CHILD_REQUESTS,
    HOST_NOTIFICATIONS,
    HOST_REQUESTS,
    ProviderErrorData,
    RaisedData,
)
from loopspec.library import spec_folder
from loopspec.vocabulary import EventType, FailureReason, Outcome, StopReason

PAGE = (spec_folder() / "protocol.md").read_text(encoding="utf-8")
CHILD = Path(loopspec.__file__).parent / "adapters" / "reference_child.py"
SECONDS = 60
"""A watchdog: a child that does not answer a recorded line has hung."""


# --------------------------------------------------------------------------------------------
# Reading the page


def section(title: str) -> str:
    """The text under a heading of the second level."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a text: rows of cells, the head first."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def table(title: str, head: str) -> list[list[str]]:
    """The rows of the tables of a section whose first column has this head."""
    return [row for found in tables(section(title)) if found[0][0] == head for row in found[1:]]


def words(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def members(cell: str) -> dict[str, bool]:
    """The members that a cell names, and whether each must be there.

    A part between semicolons begins with its member; a question mark says that it may be left out.
    """
    found = [re.match(r"`(\w+)`(\??)", part.strip()) for part in cell.split(";")]
    return {match[1]: not match[2] for match in found if match}


def fields(model: type[Any]) -> dict[str, bool]:
    """The same of a model."""
    return {field.alias or name: field.is_required() for name, field in model.model_fields.items()}


def blocks() -> Iterator[list[str]]:
    """The lines of each fenced block."""
    for block in re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        yield block.splitlines()


def transcripts() -> list[list[tuple[str, str]]]:
    """The blocks with messages: who speaks (``>`` the host, ``<`` the child) and the line."""
    found = [[(line[0], line[2:]) for line in lines if line[:3] in ("> {", "< {")] for lines in blocks()]
    return [lines for lines in found if lines]


# --------------------------------------------------------------------------------------------
# Names


@pytest.mark.parametrize(
    ("title", "requests", "notifications"),
    [
        ("What the host asks", HOST_REQUESTS, HOST_NOTIFICATIONS),
        ("What the child asks and tells", CHILD_REQUESTS, CHILD_NOTIFICATIONS),
    ],
)
def test_the_tables_have_the_messages_of_the_models(title: str, requests: Any, notifications: Any) -> None:
    """Each message once, with its members, and which of them may be left out."""
    asked, told = table(title, "request"), table(title, "notification")
    assert [words(row[0]) for row in asked] == [[name] for name in requests]
    assert [words(row[0]) for row in told] == [[name] for name in notifications]
    for row, (params, result) in zip(asked, requests.values(), strict=True):
        assert members(row[1]) == fields(params), row[0]
        assert members(row[2]) == fields(result), row[0]
    for row, params in zip(told, notifications.values(), strict=True):
        assert members(row[1]) == fields(params), row[0]


def test_the_page_names_the_version_and_the_limits() -> None:
    """The numbers of the code."""
    limits = jsonrpc.Limits()
    assert f"Protocol version: **{wire_models.PROTOCOL}**" in PAGE
    for number in (limits.line, limits.messages):
        assert str(number) in PAGE
    assert f"`initialize` or `open` not answered in {limits.start:g} s" in PAGE
    assert f"another request but `prompt` in {limits.answer:g} s" in PAGE
    assert f"more than {limits.line >> 20} MiB" in PAGE
    assert f"{limits.queue >> 20} MiB wait for it" in PAGE
    assert f"after {limits.grace:g} s SIGKILL" in PAGE
    assert f"{limits.stderr >> 10} KiB stand in an error report" in PAGE


def test_the_page_has_the_error_codes() -> None:
    """Those of the code and no others."""
    codes = {jsonrpc.TARGET_RAISED, jsonrpc.TOOL_FAILED, jsonrpc.PROVIDER_FAILED, jsonrpc.CANCELLED}
    assert {int(row[0]) for row in table("Errors", "code")} == codes | {jsonrpc.NO_SUCH_METHOD}
    assert {int(code) for code in re.findall(r"-32\d\d\d", PAGE)} == codes | {jsonrpc.NO_SUCH_METHOD}


def first_words(title: str, head: str) -> set[str]:
    """All that stands in backticks in the first column."""
    return {word for row in table(title, head) for word in words(row[0])}


def test_the_page_has_the_words_of_settings_events_and_manifests() -> None:
    """Each table of words is complete, and has nothing that the code lacks."""
    assert first_words("What the host asks", "member") == set(fields(wire_models.WireSettings))
    assert first_words("Events", "`type`") == {str(kind) for kind in EventType}
    assert first_words("Settlements and the manifest", "word") == set(OBSERVES)
    keys = first_words("Settlements and the manifest", "key")
    lists = {"[[claims]]", "[[outcomes]]", "[[hides]]", "[variants.NAME]"}
    outcome = {key.split(" ")[0] for key in keys if " = " in key}
    assert lists <= keys
    models = set(fields(Manifest)) | set(fields(Variant)) | set(fields(OutcomeEntry))
    named = {key for key in keys - lists if " = " not in key} | outcome
    assert named | {key.strip("[]").split(".")[0] for key in lists} == models
    for model in (Claim, Hides):
        assert all(f"`{name}`" in section("Settlements and the manifest") for name in fields(model))
    for word in [*FailureReason, *Outcome, *StopReason]:
        assert f"`{word}`" in PAGE


# --------------------------------------------------------------------------------------------
# Messages


def test_there_are_two_transcripts_and_no_other_json() -> None:
    """One of two turns with a tool, one of a cancellation; what is JSON is a message of somebody."""
    assert len(transcripts()) == 2
    assert not any(line.lstrip("<> ").startswith("{") and line[:3] not in ("> {", "< {")
                   for lines in blocks() for line in lines)  # fmt: skip
    first, second = ({json.loads(line).get("method") for _, line in lines} for lines in transcripts())
    assert {"initialize", "open", "prompt", "model_open", "tool_call", "history", "close"} <= first
    assert {"cancel", "signal", "cancelled", "cancel_seen", "model_next", "model_close"} <= second


@pytest.mark.parametrize("lines", transcripts(), ids=["two turns", "cancellation"])
def test_every_line_is_a_message_of_the_models(lines: list[tuple[str, str]]) -> None:
    """Parameters, results and error data; each request is answered once, by the other side."""
    open_requests: dict[tuple[str, int], type[Any]] = {}
    for side, line in lines:
        message = jsonrpc.decode(line.encode())
        method, number = message.get("method"), message.get("id")
        requests = HOST_REQUESTS if side == ">" else CHILD_REQUESTS
        notifications = HOST_NOTIFICATIONS if side == ">" else CHILD_NOTIFICATIONS
        if method is None:
            assert set(message) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
            result = open_requests.pop(("<" if side == ">" else ">", message["id"]))
            if "result" in message:
                result.model_validate(message["result"])
            elif message["error"]["code"] == jsonrpc.TARGET_RAISED:
                RaisedData.model_validate(message["error"]["data"])
            else:
                ProviderErrorData.model_validate(message["error"].get("data", {}))
        elif number is None:
            assert set(message) == {"jsonrpc", "method", "params"}
            notifications[method].model_validate(message["params"])
        else:
            assert set(message) == {"jsonrpc", "id", "method", "params"}
            params, open_requests[side, number] = requests[method]
            params.model_validate(message["params"])
    assert open_requests == {}


def without_language(line: str) -> Any:
    """The message, without the version of the Python that runs it."""
    message = json.loads(line)
    if "language" in message.get("result", {}):
        message["result"]["language"] = message["result"]["language"].split(" ")[0]
    return message


class Replay:
    """The reference child, spoken to by hand."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env={"PYTHONPATH": str(KITS), "LOOPSPEC_CHILD": "1"}, start_new_session=True,
        )  # fmt: skip
        assert self.child.stdout is not None
        self.ready = select.poll()
        self.ready.register(self.child.stdout, select.POLLIN)

    def say(self, text: str) -> None:
        """Write lines in one go."""
        assert self.child.stdin is not None
        self.child.stdin.write(text.encode())

    def hear(self) -> str:
        """The next line, or what there is of it when the child has ended or hung."""
        assert self.child.stdout is not None
        line = b""
        while not line.endswith(b"\n") and self.ready.poll(SECONDS * 1000):
            byte = self.child.stdout.read(1)
            if not byte:
                break
            line += byte
        return line.decode()

    def end(self) -> int:
        """Let go of the child; its exit status."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        status = self.child.wait(SECONDS)
        self.child.stdin.close()
        self.child.stdout.close()
        return status


@pytest.mark.parametrize("lines", transcripts(), ids=["two turns", "cancellation"])
def test_the_reference_plays_the_transcript_again(lines: list[tuple[str, str]]) -> None:
    """Given the host's lines of the page in their order, the child writes those of the page.

    The host's lines that stand together are written together: what the child does with the first
    of them may depend on whether the second has come.
    """
    replay, together = Replay(), ""
    try:
        for side, line in lines:
            if side == ">":
                together += line + "\n"
                continue
            replay.say(together)
            together = ""
            assert without_language(replay.hear()) == without_language(line)
        assert replay.end() == 0
    finally:
        replay.child.kill()
