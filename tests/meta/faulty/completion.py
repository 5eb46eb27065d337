"""Loops that take a reply's reason for another: they run, answer, ask or report what they should not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from loopspec import machine as fsm
from loopspec.loop import ReferenceLoop
from loopspec.machine import ACTIONS, GUARDS, TABLE, Kind, Machine, Row, State
from loopspec.vocabulary import ACCEPTING_REASONS, FailureReason, Outcome, StopReason
from meta.faulty import claims, fault, machine_with
from meta.faulty.parts import sends, set_to, without

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
fault("completion.tool-label-without-calls", "asks-again-for-calls-that-were-promised",
      "A reply labelled `toolUse` without a call leads to the same request again.",
      machine=judges(
          Row("promised calls", State.BETWEEN, "ask again"),
          promised_calls=lambda m, i: (
              fsm._reason(m) == StopReason.TOOL_USE and not m.calls and m.asked_again == 0
          ),
      ))  # fmt: skip

# --------------------------------------------------------------------------------------------
# Replies that are no answers

fault("completion.error-executes-nothing", "runs-the-calls-of-a-reply-with-an-error",
      "Takes a reply that ended with `error` for a whole one.", machine=takes(StopReason.ERROR))  # fmt: skip
fault("completion.aborted-by-provider", "runs-the-calls-of-a-reply-that-the-provider-aborted",
      "Takes a reply that ended with `aborted` for a whole one.", machine=takes(StopReason.ABORTED))  # fmt: skip


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
fault("completion.deferred-is-not-final", "takes-a-deferred-reply-for-the-answer",
      "Completes with what a deferred reply has said so far.",
      machine=takes(StopReason.DEFERRED, StopReason.PENDING))  # fmt: skip
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
      loop=sends(without(lambda message: getattr(message, "stop_reason", "") == StopReason.REFUSAL)),
      machine=judges(
          Row("first refusal", State.BETWEEN, "ask again"),
          first_refusal=lambda m, i: (
              fsm._reason(m) == StopReason.REFUSAL and not m.calls and m.asked_again == 0
          ),
      ))  # fmt: skip
KNOWN = frozenset(reason.value for reason in StopReason)
fault("completion.unknown-reason-fails", "takes-a-reason-that-it-does-not-know-for-a-stop",
      "Completes on every reason that has no other meaning.",
      machine=judges(
          Row("no other meaning", State.COMPLETED, "settle with the answer"),
          no_other_meaning=lambda m, i: fsm._reason(m) not in KNOWN | ACCEPTING_REASONS,
      ))  # fmt: skip
fault("completion.empty-stop", "asks-again-where-it-claims-to-complete",
      "An empty reply is asked for again.", loop=set_to(empty_stop="asks-again"))  # fmt: skip
fault("completion.empty-stop", "fails-where-it-claims-to-complete",
      "An empty reply fails the run.", loop=set_to(empty_stop="fails"))  # fmt: skip

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
fault("completion.length-outcome", "reports-a-length-as-completed",
      "Settles a run that was cut off, and had claimed to fail, as completed.",
      machine=settles("fail as truncated", Outcome.COMPLETED))  # fmt: skip
fault("completion.failure-form", "marks-what-it-claims-to-raise",
      "Returns a failure instead of raising it.", loop=set_to(failure="marked"))  # fmt: skip
fault("completion.failure-form", "raises-what-it-claims-to-mark",
      "Raises a failure instead of returning it with its mark.",
      claims("durable-prefix"), loop=set_to(failure="raises"))  # fmt: skip
fault("completion.failure-carries-message", "keeps-the-provider-s-message-to-itself",
      "Every failure of the provider is told in the same words.",
      machine=settles("fail the reply", message="something went wrong", reason=FailureReason.PROVIDER))  # fmt: skip


class ReturnsNothing(ReferenceLoop):
    """Completes, and lets the caller look for the answer."""

    def _settled(self, run: Any, driver: Any, future: Any) -> None:
        if run.settle is not None and run.settle.outcome is Outcome.COMPLETED:
            run.settle = dataclasses.replace(run.settle, answer=None)
        super()._settled(run, driver, future)


fault("completion.answer-form", "returns-nothing-where-it-claims-to-return-the-answer",
      "The caller gets no message of a completed run.", loop=ReturnsNothing)  # fmt: skip
fault("completion.answer-form", "tells-the-answer-where-it-claims-to-return-it",
      "The answer comes as an event, and not with the return.", loop=set_to(answer="told"))  # fmt: skip
