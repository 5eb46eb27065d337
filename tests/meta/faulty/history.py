"""Loops that spoil the conversation: they lose, repeat, add or change what the next request says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from loopspec import machine as fsm
from loopspec.loop import ReferenceLoop
from loopspec.vocabulary import (
    AssistantMessage,
    Block,
    Call,
    Message,
    OtherMessage,
    Outcome,
    SystemMessage,
    Text,
    TextDelta,
    ToolResult,
    UserMessage,
    is_complete_json,
)
from meta.faulty import claims, fault, machine_with
from meta.faulty.over_chat import ChatAdapter
from meta.faulty.pairing import IdsAsTheyCame
from meta.faulty.parts import all_sendable, assembles, sends, set_to, with_arguments

# --------------------------------------------------------------------------------------------
# What does not stay


class RollsBack(ReferenceLoop):
    """A run that fails leaves nothing but its prompt."""

    def _release(self, run: Any) -> None:
        if run.settle is not None and run.settle.outcome is Outcome.FAILED:
            del run.messages[run.first + 1 :]
        super()._release(run)


class StartsAfresh(ReferenceLoop):
    """A run that fails takes everything before it along."""

    def _release(self, run: Any) -> None:
        if run.settle is not None and run.settle.outcome is Outcome.FAILED:
            del run.messages[: run.first]
        super()._release(run)


class ForgetsPrompts(ReferenceLoop):
    """A run that fails takes its prompt back."""

    def _release(self, run: Any) -> None:
        if run.settle is not None and run.settle.outcome is Outcome.FAILED:
            del run.messages[run.first]
        super()._release(run)


fault("history.completed-messages-stay", "rolls-history-back-when-a-run-fails",
      "A failed run leaves nothing but its prompt.", loop=RollsBack)  # fmt: skip
fault("history.completed-messages-stay", "starts-afresh-after-a-failure",
      "A failed run takes all that stood before it along.", loop=StartsAfresh)  # fmt: skip
fault("history.prompt-once", "takes-the-prompt-of-a-failed-run-back",
      "A failed run takes its prompt out of history.", loop=ForgetsPrompts)  # fmt: skip


def _calls_alone(blocks: tuple[Block, ...]) -> Sequence[Block]:
    calls = [block for block in blocks if isinstance(block, Call)]
    return calls or blocks


def _last_text(blocks: tuple[Block, ...]) -> Sequence[Block]:
    """Of several texts the last one is kept."""
    texts = [block for block in blocks if isinstance(block, Text)]
    return [block for block in blocks if not isinstance(block, Text) or block is texts[-1]]


fault("history.text-with-calls-kept", "keeps-calls-without-their-text",
      "A reply with calls is kept without its text.",
      machine=machine_with(assembles=assembles(_calls_alone)))  # fmt: skip
fault("history.text-with-calls-kept", "keeps-the-last-text-of-a-reply",
      "Of the texts of a reply the last one is kept.",
      machine=machine_with(assembles=assembles(_last_text)))  # fmt: skip


def _prompt_again(messages: list[Message]) -> list[Message]:
    """After results the model is reminded of the prompt."""
    if not messages or not isinstance(messages[-1], ToolResult):
        return messages
    return [*messages, [m for m in messages if isinstance(m, UserMessage)][-1]]


fault("history.prompt-once", "repeats-the-prompt-after-results",
      "A request that ends with results has the prompt once more.", loop=sends(_prompt_again))  # fmt: skip


# --------------------------------------------------------------------------------------------
# What comes in


def _keep_delta(m: fsm.Machine, i: fsm.Received, out: list[fsm.Output]) -> None:
    fsm.ACTIONS["take the piece"](m, i, out)
    if isinstance(i.piece, TextDelta) and i.piece.text.strip():
        out.append(fsm.Append(AssistantMessage((Text(i.piece.text),))))


fault("history.no-drafts", "keeps-each-delta-as-a-message", "Each delta of text is a message of its own.",
      machine=machine_with(actions={"take the piece": _keep_delta}))  # fmt: skip


class SendsFailures(ReferenceLoop):
    """Sends replies that failed like any other."""

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return super().normalise(all_sendable(messages))


def _keep_broken(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    """What came of a reply whose stream broke is kept as if it were whole."""
    failed: list[fsm.Output] = []
    fsm.ACTIONS["fail the reply"](m, i, failed)
    blocks = m.assembler.blocks()
    kept = [fsm.Append(AssistantMessage(blocks, stop_reason="stop"))] if blocks else []
    out += [*kept, *(output for output in failed if not isinstance(output, fsm.Append))]


class SendsEmpty(ReferenceLoop):
    """Sends a message without content in the place of a reply that failed."""

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        out: list[Message] = []
        for message in messages:
            failed = isinstance(message, AssistantMessage) and message.stop_reason in ("error", "aborted")
            out += [AssistantMessage(())] if failed else []
        return (*super().normalise(messages), *out)


fault("history.failed-reply-not-sent", "sends-replies-that-failed", "Replies that failed are sent.",
      loop=SendsFailures)  # fmt: skip
fault("history.failed-reply-not-sent", "keeps-what-came-of-a-broken-reply",
      "What came of a reply whose stream broke is kept and sent as if it were whole.",
      machine=machine_with(actions={"fail the reply": _keep_broken}))  # fmt: skip
fault("history.failed-reply-not-sent", "sends-an-empty-message-for-a-failed-reply",
      "A message without content is sent for each reply that failed.", loop=SendsEmpty)  # fmt: skip

for _claimed, _done, _name in (
    ("display", "absent", "keeps-nothing-of-a-failed-reply-that-it-claims-to-display"),
    ("absent", "display", "displays-a-failed-reply-that-it-claims-to-drop"),
    ("attempt", "absent", "records-no-attempt-where-it-claims-to"),
):
    fault("history.failed-reply-display", _name,
          f"A failed reply becomes {_done}, where {_claimed} is claimed.",
          claims(failed_attempt=_claimed), loop=set_to(failed_attempt=_done))  # fmt: skip


# --------------------------------------------------------------------------------------------
# Requests as a whole


def _note_cancelled(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    out.append(fsm.Append(SystemMessage("The user interrupted the reply.")))
    fsm.ACTIONS["discard the prefix"](m, i, out)


def _note_failed(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    out.append(fsm.Append(OtherMessage("attempt")))
    fsm.ACTIONS["fail the reply"](m, i, out)


fault("history.only-messages-reach-the-model", "tells-the-model-of-a-cancellation-as-the-system",
      "A system message in the middle says that the user cancelled.",
      machine=machine_with(actions={"discard the prefix": _note_cancelled}))  # fmt: skip
fault("history.only-messages-reach-the-model", "sends-its-records-of-attempts",
      "A record of a failed attempt is sent with the messages.",
      machine=machine_with(actions={"fail the reply": _note_failed}))  # fmt: skip


def _apologise(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    fsm.ACTIONS["fail the reply"](m, i, out)
    out.insert(0, fsm.Append(AssistantMessage((Text("Sorry, something went wrong."),))))


fault("history.failures-do-not-pile-up", "apologises-in-history-for-each-failure",
      "Each failure leaves an answer of the loop's own in history.",
      machine=machine_with(actions={"fail the reply": _apologise}))  # fmt: skip


# --------------------------------------------------------------------------------------------
# Arguments


def _repaired(text: str) -> str:
    """Arguments that were cut off get the ends that they lack."""
    return next((text + end for end in ("", '"}', "}", "null}") if is_complete_json(text + end)), text)


class RepairsArguments(ReferenceLoop):
    """Sends arguments that were cut off as if they had been finished."""

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return super().normalise(with_arguments(_repaired)(list(messages)))


def _as_text(text: str) -> str:
    """Every value becomes a text."""
    value = json.loads(text) if is_complete_json(text) else None
    return json.dumps({key: str(item) for key, item in value.items()}) if isinstance(value, dict) else text


fault("history.arguments-unaltered", "sends-repaired-arguments",
      "Arguments that were cut off are sent as if they had been finished.", loop=RepairsArguments)  # fmt: skip
fault("history.arguments-unaltered", "sends-arguments-as-texts",
      "The values of arguments are sent as texts.", loop=sends(with_arguments(_as_text)))  # fmt: skip
fault("history.arguments-unaltered", "encodes-arguments-twice",
      "The text of arguments is sent as a JSON text in a JSON text.",
      loop=sends(with_arguments(json.dumps)))  # fmt: skip
fault("history.arguments-unaltered", "sends-no-arguments", "Calls are sent without their arguments.",
      loop=sends(with_arguments(lambda _: "{}")))  # fmt: skip


# --------------------------------------------------------------------------------------------
# Requests that the API would refuse


def _open_last(messages: list[Message]) -> list[Message]:
    """The last result of a request that ends with results is left out."""
    return messages[:-1] if isinstance(messages[-1], ToolResult) else messages


class SendsBrokenArguments(ReferenceLoop):
    """Sends arguments that are not JSON as they came."""

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        came = {call.id: call for m in messages if isinstance(m, AssistantMessage) for call in m.calls}

        def as_it_came(block: Block) -> Block:
            return came.get(block.id, block) if isinstance(block, Call) else block

        return tuple(
            dataclasses.replace(message, blocks=tuple(map(as_it_came, message.blocks)))
            if isinstance(message, AssistantMessage) else message
            for message in super().normalise(messages)
        )  # fmt: skip


_OVER_CHAT = claims(tool_signal="", failed_attempt="")

fault("history.sendable", "leaves-the-last-call-of-a-request-open",
      "A request that ends with results lacks the last of them.", _OVER_CHAT,
      loop=sends(_open_last), adapter=ChatAdapter)  # fmt: skip
fault("history.sendable", "sends-arguments-that-are-no-json",
      "Arguments that were cut off are sent as they came.", _OVER_CHAT,
      loop=SendsBrokenArguments, adapter=ChatAdapter)  # fmt: skip
fault("history.sendable", "sends-repeated-ids-to-an-api", "Repeated ids are sent as they came.",
      _OVER_CHAT, machine=machine_with(assembles=IdsAsTheyCame), adapter=ChatAdapter)  # fmt: skip
