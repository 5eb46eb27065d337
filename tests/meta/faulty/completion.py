"""Loops that take a reply's reason for another: they run, answer, ask or report what they should not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from loopspec import machine as fsm
from loopspec.loop import ReferenceLoop, Settlement
from loopspec.machine import ACTIONS, GUARDS, TABLE, Kind, Machine, Row, State
from loopspec.vocabulary import (
    KNOWN_REASONS,
    AssistantMessage,
    Call,
    FailureReason,
    Outcome,
    Reason,
    StopReason,
    Text,
)
from meta.faulty import claims, fault, machine_with
from meta.faulty.parts import keeps_results, set_to

Guard = Callable[[Machine, Any], bool]
JUDGING = (State.RECORDED, Kind.PROCEED)


def judges(*rows: Row, **guards: Guard) -> type[Machine]:
    """A machine that tries these rows first when a reply has become a message.

    A guard's name has spaces, which a keyword writes as underscores.
    """
    named = {name.replace("_", " "): guard for name, guard in guards.items()}
    return machine_with(rows={JUDGING: (*rows, *TABLE[JUDGING])}, guards=named)


def ended_with(*reasons: str) -> Guard:
    """Whether the reply ended with one of these reasons."""
    return lambda m, _: fsm._reason(m) in reasons


def takes(*reasons: str) -> type[Machine]:
    """A machine that takes replies with these reasons for whole answers and batches."""
    wanted = ended_with(*reasons)
    return machine_with(
        rows={
            JUDGING: (
                Row("calls all the same", State.DISPATCHING, "do nothing"),
                Row("text all the same", State.COMPLETED, "settle with the answer"),
                *TABLE[JUDGING],
            )
        },
        guards={
            "calls all the same": lambda m, i: wanted(m, i) and bool(m.calls),
            "text all the same": lambda m, i: wanted(m, i) and not m.calls,
            "failed reply": lambda m, i: GUARDS["failed reply"](m, i) and not wanted(m, i),
            "whole reply": lambda m, i: GUARDS["whole reply"](m, i) or wanted(m, i),
        },
    )


def runs_calls_of(*reasons: str) -> type[Machine]:
    """A machine that runs the calls of such replies, and is right about those without calls."""
    wanted = ended_with(*reasons)
    return judges(
        Row("calls all the same", State.DISPATCHING, "do nothing"),
        calls_all_the_same=lambda m, i: wanted(m, i) and bool(m.calls),
    )


# --------------------------------------------------------------------------------------------
# Answers and batches

_has_text = GUARDS["answer"]

fault("completion.answer-without-calls", "asks-again-after-an-answer",
      "Sends a further request when the model has answered.",
      machine=judges(
          Row("first answer", State.BETWEEN, "ask again"),
          first_answer=lambda m, i: _has_text(m, i) and m.asked_again == 0,
      ))  # fmt: skip
fault("completion.answer-without-calls", "fails-on-an-answer-that-is-labelled-tooluse",
      "Takes a text without calls for a failure where it ended with `toolUse`.",
      machine=judges(
          Row("labelled answer", State.FAILED, "fail as empty"),
          labelled_answer=lambda m, i: _has_text(m, i) and fsm._reason(m) == StopReason.TOOL_USE,
      ))  # fmt: skip
fault("completion.calls-decide", "takes-calls-that-are-labelled-stop-for-an-answer",
      "Looks at the label and not at the calls.",
      machine=judges(
          Row("labelled stop", State.COMPLETED, "settle with the answer"),
          labelled_stop=lambda m, i: fsm._reason(m) == StopReason.STOP,
      ))  # fmt: skip
fault("completion.calls-decide", "completes-after-a-batch",
      "Ends the run with the last results, and never shows them to the model.",
      machine=machine_with(rows={
          (State.BETWEEN, Kind.PROCEED): (
              Row("batch done", State.COMPLETED, "settle with the answer"),
              *TABLE[State.BETWEEN, Kind.PROCEED],
          )
      }, guards={"batch done": lambda m, i: bool(m.calls)}))  # fmt: skip
fault("completion.calls-decide", "takes-a-reply-that-begins-with-text-for-an-answer",
      "Looks at the first block and not at the calls after it.",
      machine=judges(
          Row("text first", State.COMPLETED, "settle with the answer"),
          text_first=lambda m, i: (
              GUARDS["with calls"](m, i) and m.reply is not None and isinstance(m.reply.blocks[0], Text)
          ),
      ))  # fmt: skip
fault("completion.tool-label-without-calls", "asks-again-for-calls-that-were-promised",
      "A reply labelled `toolUse` without a call leads to the same request again.",
      machine=judges(
          Row("promised calls", State.BETWEEN, "ask again"),
          promised_calls=lambda m, i: (
              fsm._reason(m) == StopReason.TOOL_USE and not m.calls and m.asked_again == 0
          ),
      ))  # fmt: skip

fault("completion.tool-label-without-calls", "asks-again-after-nothing-whatever-its-label",
      "Asks again after any empty reply, where it claims to do so after an empty stop.",
      claims(empty_stop="asks-again"),
      machine=judges(
          Row("nothing", State.BETWEEN, "ask again"),
          nothing=lambda m, i: fsm._accepting(m) and fsm._empty(m) and m.asked_again == 0,
      ))  # fmt: skip

# --------------------------------------------------------------------------------------------
# Replies that are no answers

ENDS = ((State.ENDING, Kind.TERMINATOR), (State.ENDING, Kind.STREAM_ENDED))
_error = ended_with(StopReason.ERROR)

fault("completion.error-executes-nothing", "runs-the-calls-of-a-reply-with-an-error",
      "Takes a reply that ended with `error` for a whole one.", machine=takes(StopReason.ERROR))  # fmt: skip
fault("completion.error-executes-nothing", "fails-only-when-it-has-run-the-calls",
      "Runs the batch of a reply that ended with `error`, and then fails as it should.",
      machine=machine_with(
          rows={
              **{
                  end: (Row("error with calls", State.RECORDED, "record the reply"), *TABLE[end])
                  for end in ENDS
              },
              JUDGING: (Row("error", State.DISPATCHING, "do nothing"), *TABLE[JUDGING]),
              (State.BETWEEN, Kind.PROCEED): (
                  Row("error", State.FAILED, "fail as unknown"), *TABLE[State.BETWEEN, Kind.PROCEED],
              ),
          },
          guards={
              "error": _error,
              "error with calls": lambda m, i: (
                  _error(m, i) and any(isinstance(block, Call) for block in m.assembler.blocks())
              ),
          },
      ))  # fmt: skip
fault("completion.aborted-by-provider", "runs-the-calls-of-a-reply-that-the-provider-aborted",
      "Takes a reply that ended with `aborted` for a whole one.",
      machine=takes(StopReason.ABORTED))  # fmt: skip


def _as_cancelled(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    ACTIONS["fail the reply"](m, i, out)
    if fsm._reason(m) == StopReason.ABORTED:
        out[:] = [fsm.CANCELLED if isinstance(output, fsm.Settle) else output for output in out]


fault("completion.aborted-by-provider", "takes-the-provider-s-abort-for-a-cancellation",
      "Reports a reply that ended with `aborted` as cancelled, although nobody cancelled.",
      machine=machine_with(actions={"fail the reply": _as_cancelled}))  # fmt: skip
fault("completion.length-executes-nothing", "runs-the-calls-of-a-reply-that-was-cut-off",
      "Runs whatever calls a reply with `length` has.", machine=runs_calls_of(StopReason.LENGTH))  # fmt: skip
fault("completion.length-executes-nothing", "runs-only-the-whole-calls-of-a-reply-that-was-cut-off",
      "Drops the call that the cut went through, and runs those before it.",
      machine=judges(
          Row("whole calls", State.DISPATCHING, "do nothing"),
          whole_calls=lambda m, i: (
              fsm._reason(m) == StopReason.LENGTH and bool(m.calls) and m.calls[0].whole
          ),
      ))  # fmt: skip
fault("completion.length-outcome", "goes-on-after-a-length-that-it-claims-to-fail-on",
      "Answers the calls unrun and asks again.", loop=set_to(length="answers"))  # fmt: skip
fault("completion.length-outcome", "takes-a-length-for-an-answer",
      "Completes with the text that came before the cut.",
      machine=judges(
          Row("cut answer", State.COMPLETED, "settle with the answer"),
          cut_answer=lambda m, i: fsm._reason(m) == StopReason.LENGTH and not m.calls,
      ))  # fmt: skip
fault("completion.length-outcome", "fails-on-a-length-that-it-claims-to-answer",
      "Ends the run after a reply that was cut off.",
      claims(length="answers"), loop=set_to(length="fails"))  # fmt: skip
fault("completion.length-outcome", "calls-the-calls-of-a-cut-reply-a-success",
      "Answers the calls of a reply that was cut off with results that are no errors.",
      claims(length="answers"),
      loop=keeps_results(
          lambda result: [
              dataclasses.replace(result, is_error=result.is_error and "was cut off" not in result.text)
          ]
      ))  # fmt: skip
fault("completion.deferred-is-not-final", "takes-a-deferred-reply-for-the-answer",
      "Completes with what a deferred reply has said so far.",
      machine=takes(StopReason.DEFERRED, StopReason.PENDING))  # fmt: skip
fault("completion.deferred-is-not-final", "runs-the-calls-of-a-reply-that-is-not-finished",
      "Runs what a deferred reply has called so far.",
      machine=runs_calls_of(StopReason.DEFERRED, StopReason.PENDING))  # fmt: skip
fault("completion.deferred-outcome", "polls-where-it-claims-to-fail",
      "Asks for the rest of a deferred reply.", loop=set_to(deferred="resumes"))  # fmt: skip
fault("completion.deferred-outcome", "fails-where-it-claims-to-resume",
      "Fails on a deferred reply.", claims(deferred="resumes"), loop=set_to(deferred="fails"))  # fmt: skip
fault("completion.refusal-executes-nothing", "runs-the-calls-of-a-refusal",
      "Runs what a reply that was refused in its middle had called.",
      machine=runs_calls_of(StopReason.REFUSAL))  # fmt: skip
fault("completion.refusal-is-told", "takes-a-refusal-for-an-answer",
      "Completes with the words of a refusal.", machine=takes(StopReason.REFUSAL))  # fmt: skip
fault("completion.refusal-is-told", "asks-again-after-a-refusal",
      "Sends the request that was refused a second time.",
      machine=judges(
          Row("first refusal", State.BETWEEN, "ask again"),
          first_refusal=lambda m, i: (
              fsm._reason(m) == StopReason.REFUSAL and not m.calls and m.asked_again == 0
          ),
      ))  # fmt: skip
fault("completion.unknown-reason-fails", "takes-a-reason-that-it-does-not-know-for-a-stop",
      "Completes on every reason that has no other meaning.",
      machine=judges(
          Row("no other meaning", State.COMPLETED, "settle with the answer"),
          no_other_meaning=lambda m, i: fsm._reason(m) not in KNOWN_REASONS,
      ))  # fmt: skip
fault("completion.unknown-reason-fails", "runs-the-calls-whatever-the-reason",
      "Runs the calls of a reply whose reason it does not know.",
      machine=judges(
          Row("calls at least", State.DISPATCHING, "do nothing"),
          calls_at_least=lambda m, i: fsm._reason(m) not in KNOWN_REASONS and bool(m.calls),
      ))  # fmt: skip
fault("completion.empty-stop", "asks-again-where-it-claims-to-complete",
      "An empty reply is asked for again.", loop=set_to(empty_stop="asks-again"))  # fmt: skip
fault("completion.empty-stop", "fails-where-it-claims-to-complete",
      "An empty reply fails the run.", loop=set_to(empty_stop="fails"))  # fmt: skip
fault("completion.empty-stop", "asks-again-without-end",
      "Asks for an empty reply again as often as it comes.",
      claims(empty_stop="asks-again"),
      machine=judges(
          Row("empty stop", State.BETWEEN, "ask again"),
          empty_stop=lambda m, i: fsm._reason(m) == StopReason.STOP and fsm._empty(m),
      ))  # fmt: skip

# --------------------------------------------------------------------------------------------
# What the caller is told


def settles(action: str, *settle: Any, **changes: Any) -> type[Machine]:
    """A machine whose action ends the run with another settlement, or with a part of it changed."""

    def other(m: Machine, i: Any, out: list[fsm.Output]) -> None:
        ACTIONS[action](m, i, out)
        out[:] = [
            (fsm.Settle(*settle) if settle else dataclasses.replace(output, **changes))
            if isinstance(output, fsm.Settle) else output
            for output in out
        ]  # fmt: skip

    return machine_with(actions={action: other})


fault("completion.failure-is-told", "reports-a-failed-reply-as-completed",
      "Completes with nothing when the provider fails.",
      machine=settles("fail the reply", Outcome.COMPLETED))  # fmt: skip
fault("completion.failure-is-told", "reports-a-cancelled-batch-as-completed",
      "Completes when a cancellation has ended its batch.",
      machine=settles("finish draining", Outcome.COMPLETED))  # fmt: skip


def _answer_with_what_came(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    m.reason = Reason(StopReason.STOP)
    ACTIONS["record the reply"](m, i, out)
    ACTIONS["settle with the answer"](m, i, out)


fault("completion.failure-is-told", "takes-a-broken-stream-for-the-end-of-the-answer",
      "Completes with what came before the connection was lost.",
      machine=machine_with(
          rows={
              (State.STREAMING, Kind.STREAM_FAILED): (
                  Row("always", State.COMPLETED, "answer with what came"),
              )
          },
          actions={"answer with what came": _answer_with_what_came},
      ))  # fmt: skip
fault("completion.length-outcome", "reports-a-length-as-completed",
      "Settles a run that was cut off, and had claimed to fail, as completed.",
      machine=settles("fail as truncated", Outcome.COMPLETED))  # fmt: skip
fault("completion.failure-form", "marks-what-it-claims-to-raise",
      "Returns a failure instead of raising it.", loop=set_to(failure="marked"))  # fmt: skip
fault("completion.failure-form", "raises-what-it-claims-to-mark",
      "Raises a failure instead of returning it with its mark.",
      claims("durable-prefix"), loop=set_to(failure="raises"))  # fmt: skip


class MarksRefusals(ReferenceLoop):
    """Raises every failure but a refusal, which it returns."""

    def _settled(self, run: Any, driver: Any, future: Any) -> None:
        if run.settle is not None and run.settle.reason is FailureReason.REFUSAL and not future.done():
            settle = run.settle
            future.set_result(Settlement(settle.outcome, settle.reason, settle.message))
        super()._settled(run, driver, future)


fault("completion.failure-form", "marks-a-refusal-where-it-claims-to-raise",
      "Returns a refusal, and raises all else.", loop=MarksRefusals)  # fmt: skip
fault("completion.failure-carries-message", "keeps-the-provider-s-message-to-itself",
      "Every failure of the provider is told in the same words.",
      machine=settles("fail the reply", message="something went wrong"))  # fmt: skip


def _fail_without_words(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    broken = fsm.StreamFailed("the stream failed") if isinstance(i, fsm.StreamFailed) else i
    ACTIONS["fail the reply"](m, broken, out)


fault("completion.failure-carries-message", "loses-the-message-of-a-stream-that-fails",
      "Tells what a reply says of its error, and not what comes in a reply's place.",
      machine=machine_with(actions={"fail the reply": _fail_without_words}))  # fmt: skip


def answers_with(pick: Callable[[list[AssistantMessage]], AssistantMessage | None]) -> type[ReferenceLoop]:
    """A loop that gives another answer, picked from the assistant messages of its run."""

    class Answers(ReferenceLoop):
        def _settled(self, run: Any, driver: Any, future: Any) -> None:
            if run.settle is not None and run.settle.outcome is Outcome.COMPLETED:
                own = [m for m in run.messages[run.first :] if isinstance(m, AssistantMessage)]
                run.settle = dataclasses.replace(run.settle, answer=pick(own))
            super()._settled(run, driver, future)

    return Answers


fault("completion.answer-form", "returns-nothing-where-it-claims-to-return-the-answer",
      "The caller gets no message of a completed run.", loop=answers_with(lambda own: None))  # fmt: skip
fault("completion.answer-form", "returns-its-first-message",
      "The caller gets what the model said before its tools ran.",
      loop=answers_with(lambda own: own[0]))  # fmt: skip
fault("completion.answer-form", "runs-all-its-messages-together",
      "The caller gets all that the model said in the run as one text.",
      loop=answers_with(
          lambda own: AssistantMessage((Text("".join(message.text for message in own)),))
      ))  # fmt: skip
fault("completion.answer-form", "tells-the-answer-where-it-claims-to-return-it",
      "The answer comes as an event, and not with the return.", loop=set_to(answer="told"))  # fmt: skip
