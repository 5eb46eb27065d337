"""What the generated pages say in words about states and claims: data, a sentence each."""

from __future__ import annotations

from loopspec.machine import CallState, State

STATES: dict[State, str] = {
    State.IDLE: "Nothing runs. It waits for a prompt.",
    State.OPENING: "A turn is open and nothing has been asked. It waits for the listeners of what was told.",
    State.REQUESTING: "The model was asked. It waits for the reply to open.",
    State.STREAMING: "The reply is open. It waits for the next piece.",
    State.ENDING: "The reply has said why it ends. It waits for the terminator.",
    State.RECORDED: "The reply has become a message. It waits for the listeners of its end.",
    State.DISPATCHING: "A call is next. It waits for the listeners of what was told.",
    State.STARTING: "A call's start was told and its tool not entered. It waits for the listeners.",
    State.EXECUTING: "Tools run. It waits for the next one to settle.",
    State.DRAINING: "The batch was ended early. It waits for the tools that were started.",
    State.BETWEEN: "The batch is complete. It waits for the listeners of its results.",
    State.COMPLETED: "Settled, with an answer.",
    State.FAILED: "Settled, with a failure.",
}
"""What a run waits for in each state."""

CALL_STATES: dict[CallState, str] = {
    CallState.ANNOUNCED: "The reply asked for it, and nothing has become of it yet.",
    CallState.STARTED: "Its tool was entered.",
    CallState.ANSWERED: "It has its result.",
    CallState.SKIPPED: "Its tool was never entered, and it has an error result that says so.",
}
"""What a call's states mean."""

CLAIMS: dict[str, str] = {
    "failure": "A run that fails raises at its caller, or settles and bears a mark that says so.",
    "answer": "A completed run returns its last message, or tells it in an event.",
    "length": "A reply cut off by its length fails the run, or has its calls answered with errors and the "
    "run goes on, or ends the run as it is, marked, without its calls.",
    "deferred": "A reply that is deferred or pending fails the run, or the run asks again and resumes.",
    "max_turns": "There is a limit of requests in one run; reaching it fails the run, or marks it.",
    "cancelled_prefix": "What a cancelled reply had delivered is discarded, or becomes a message that is "
    "marked as interrupted.",
    "failed_attempt": "A failed reply leaves nothing in history, or is kept there for display, or is "
    "recorded as an attempt beside it.",
    "tools": "The calls of a reply run one after the other, or together; together, results are recorded in "
    "the order of the calls or in that in which they came.",
    "cancelled_tool": "A cancelled run waits for the tools that were started, or leaves them behind.",
    "late_result": "A result that comes after the cancellation is kept, or replaced by one that says "
    "aborted.",
    "tool_signal": "A running tool can see the cancellation.",
    "unknown_tool": "A call of a tool that does not exist gets an error result and the model goes on, or "
    "it fails the run.",
    "invalid_arguments": "So it is with arguments that the tool's schema does not allow.",
    "tool_exception": "So it is with a tool that fails.",
    "empty_stop": "A reply that stops with neither text nor calls completes the run, or fails it, or is "
    "asked for again, a bounded number of times.",
    "concurrent_prompt": "A prompt while a run is under way is refused, or waits for its turn, or runs "
    "apart from it.",
    "refused_prompt": "A prompt that failed by a refusal of the model is dropped from history.",
    "listener_failure": "A listener that fails fails the run, or is ignored.",
    "brackets": "Events that open and close each turn, or each run, or both, or neither.",
    "result_codes": "Error results bear a code, so that a call that was never run can be told from one "
    "that was aborted.",
    "fork": "A conversation can be opened that starts with the history of another.",
}
"""What each claim chooses between."""
