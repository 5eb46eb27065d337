"""Walks over the tables: scenarios and claims that together take every row at least once.

Each walk is a scenario in the scenario language and the claims in which the loop differs from the
profile ``rejecting``. They are data, kept as small as the rows allow. ``test_rows.py`` checks that
they cover both tables, and deletes each row to see the loop stop there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loopspec import scenario as scenarios
from loopspec.scenario import Scenario
from loopspec.vocabulary import PROFILES

FINALIZE = {"cancelled_prefix": "finalize"}
IGNORED = {"listener_failure": "ignored"}
PARALLEL = {"tools": "parallel-completion-order"}
RUN = {"brackets": "run"}
BOTH = {"brackets": "both"}
BUSY = ({"concurrent_prompt": how} for how in ("refused", "queued", "apart"))


@dataclass(frozen=True, slots=True)
class Walk:
    """A scenario to be run on the reference loop with ``claims``."""

    scenario: Scenario
    claims: Mapping[str, str]

    def __str__(self) -> str:
        different = [v for k, v in self.claims.items() if PROFILES["rejecting"].get(k) != v]
        return " ".join([self.scenario.name, *different])


def _walks(text: str, *differences: Mapping[str, str]) -> Iterator[Walk]:
    for scenario in scenarios.parse(text):
        for difference in differences or ({},):
            yield Walk(scenario, {**PROFILES["rejecting"], **difference})


_BUSY = ({"concurrent_prompt": "refused"}, {"concurrent_prompt": "queued"}, {"concurrent_prompt": "apart"})

PLAIN = """
name: two-turns
prompts:
  - replies:
      - [reasoning: "Hm. ", text: "I look. ", usage: {}, call: c1, call: c2, reason: toolUse]
      - [text: "Done.", reason: stop]
---
name: cancel-while-idle
prompts:
  - {cancel: idle, replies: [[text: "a", reason: stop]]}
---
name: after-the-reason
prompts:
  - replies:
      - [reason: stop, reasoning: "a", text: "b", call: c1, usage: {}, reason: stop, terminator]
      - [text: "a", reason: stop]
---
name: limit
settings: {max_turns: 1}
prompts:
  - replies: [[call: c1, reason: toolUse]]
---
name: unknown-tool
prompts:
  - replies:
      - [call: {label: c1, tool: missing}, reason: toolUse]
      - [text: "a", reason: stop]
"""

ENDS = """
name: never-opened
prompts: [{replies: [[status: 500]]}]
---
name: failed-in-the-middle
prompts: [{replies: [[text: "a", error: "down"]]}]
---
name: failed-after-its-reason
prompts: [{replies: [[reason: stop, error: "down"]]}]
---
name: ended-without-a-reason
prompts: [{replies: [[text: "a", end]]}]
---
name: terminator-without-a-reason
prompts: [{replies: [[text: "a", terminator]]}]
---
name: no-terminator
prompts: [{replies: [[text: "a", reason: stop, end]]}]
---
name: no-terminator-of-a-failed-reply
prompts: [{replies: [[text: "a", reason: error, end]]}]
---
name: error
prompts: [{replies: [[text: "a", reason: error]]}]
---
name: length
prompts: [{replies: [[text: "a", reason: length]]}]
---
name: deferred
prompts: [{replies: [[text: "a", reason: deferred]]}]
---
name: refusal
prompts: [{replies: [[text: "a", reason: refusal]]}]
---
name: unknown-reason
prompts: [{replies: [[text: "a", reason: sideways]]}]
---
name: empty
prompts: [{replies: [[reason: stop]]}]
"""

CANCELS = """
name: cancel-before-the-first-request
prompts:
  - {cancel: before_request, replies: [[text: "a", reason: stop]]}
---
name: cancel-before-it-opens
prompts: [{replies: [[cancel, text: "a", reason: stop]]}]
---
name: cancel-in-the-middle
prompts: [{replies: [[text: "a", cancel, text: "b", reason: stop]]}]
---
name: cancel-before-the-terminator
prompts: [{replies: [[text: "a", reason: stop, cancel, terminator]]}]
---
name: cancel-at-the-reply's-end
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: message_end, role: assistant, do: cancel}]
---
name: cancel-at-a-tool's-start
prompts:
  - replies: [[call: c1, reason: toolUse]]
    on: [{event: tool_start, do: cancel}]
---
name: cancel-between-calls
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse]]
    on: [{event: tool_end, call_id: c1, do: cancel}]
---
name: cancel-after-the-batch
prompts:
  - replies: [[call: c1, reason: toolUse]]
    on: [{event: message_end, role: tool, do: cancel}]
---
name: cancel-in-a-tool-twice
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse]]
    tools: {c1: [cancel, cancel, deaf]}
""".replace("'s", "s")

SETTLED = """
name: cancel-when-completed
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: run_end, do: cancel}]
---
name: cancel-when-failed
prompts:
  - replies: [[text: "a", reason: error]]
    on: [{event: run_end, do: cancel}]
---
name: listener-fails-when-completed
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: run_end, do: raise}]
---
name: listener-fails-when-failed
prompts:
  - replies: [[text: "a", reason: error]]
    on: [{event: run_end, do: raise}]
"""

LISTENERS = """
name: listener-fails-on-the-prompt
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: message_end, role: user, do: raise}]
---
name: listener-fails-on-a-delta
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: text_delta, do: raise}]
---
name: listener-fails-on-a-late-delta
prompts:
  - replies: [[reason: stop, text: "a", terminator]]
    on: [{event: text_delta, do: raise}]
---
name: listener-fails-on-the-reply
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: message_end, role: assistant, do: raise}]
---
name: listener-fails-on-a-tools-start
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse], [text: "a", reason: stop]]
    on: [{event: tool_start, do: raise}]
---
name: listener-fails-between-calls
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse], [text: "a", reason: stop]]
    on: [{event: tool_end, call_id: c1, do: raise}]
---
name: listener-fails-after-the-batch
prompts:
  - replies: [[call: c1, reason: toolUse], [text: "a", reason: stop]]
    on: [{event: message_end, role: tool, do: raise}]
"""

TOGETHER = """
name: one-by-one
prompts:
  - replies: [[call: c1, call: c2, call: c3, reason: toolUse], [text: "a", reason: stop]]
    tools: {c1: ok, c2: deaf, c3: deaf}
---
name: cancel-two-running
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse]]
    tools: {c1: [cancel, deaf], c2: deaf}
---
name: cancel-at-the-second-tools-start
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse]]
    tools: {c1: deaf}
    on: [{event: tool_start, call_id: c2, do: cancel}]
---
name: cancel-at-an-unknown-tools-end
prompts:
  - replies: [[call: c1, call: {label: c2, tool: missing}, call: c3, reason: toolUse]]
    tools: {c1: deaf}
    on: [{event: tool_end, call_id: c2, do: cancel}]
---
name: listener-fails-while-draining
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse]]
    tools: {c1: [cancel, deaf], c2: deaf}
    on: [{event: tool_end, do: raise}]
"""

TOGETHER_LISTENERS = """
name: listener-fails-at-the-second-tools-start
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse], [text: "a", reason: stop]]
    tools: {c1: deaf}
    on: [{event: tool_start, call_id: c2, do: raise}]
---
name: listener-fails-at-an-unknown-tools-end
prompts:
  - replies: [[call: c1, call: {label: c2, tool: missing}, call: c3, reason: toolUse], [text: "a", reason: stop]]
    tools: {c1: deaf}
    on: [{event: tool_end, call_id: c2, do: raise}]
---
name: listener-fails-while-others-run
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse], [text: "a", reason: stop]]
    tools: {c1: ok, c2: deaf}
    on: [{event: tool_end, call_id: c1, do: raise}]
"""

RAISES = """
name: tool-raises
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse]]
    tools: {c1: raises}
"""

RAISES_TOGETHER = """
name: tool-raises-while-others-run
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse]]
    tools: {c1: raises, c2: deaf}
"""

GOES_ON = """
name: length-with-a-call
prompts: [{replies: [[call: c1, reason: length], [text: "a", reason: stop]]}]
"""

RESUMES = """
name: deferred
prompts: [{replies: [[text: "a", reason: deferred], [text: "b", reason: stop]]}]
"""

ASKS_AGAIN = """
name: empty-then-not
prompts: [{replies: [[reason: stop], [text: "a", reason: stop]]}]
"""

PROMPTS = """
name: prompt-at-the-prompt
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: message_end, role: user, do: prompt}]
---
name: prompt-before-it-opens
prompts: [{replies: [[prompt, text: "a", reason: stop]]}]
---
name: prompt-in-the-middle
prompts: [{replies: [[text: "a", prompt, reason: stop]]}]
---
name: prompt-before-the-terminator
prompts: [{replies: [[text: "a", reason: stop, prompt, terminator]]}]
---
name: prompt-at-the-replys-end
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: message_end, role: assistant, do: prompt}]
---
name: prompt-at-a-tools-start
prompts:
  - replies: [[call: c1, reason: toolUse], [text: "a", reason: stop]]
    on: [{event: tool_start, do: prompt}]
---
name: prompt-between-calls
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse], [text: "a", reason: stop]]
    on: [{event: tool_end, call_id: c1, do: prompt}]
---
name: prompt-in-a-tool
prompts:
  - replies: [[call: c1, reason: toolUse], [text: "a", reason: stop]]
    tools: {c1: [prompt, ok]}
---
name: prompt-while-draining
prompts:
  - replies: [[call: c1, reason: toolUse]]
    tools: {c1: [cancel, prompt, deaf]}
---
name: prompt-after-the-batch
prompts:
  - replies: [[call: c1, reason: toolUse], [text: "a", reason: stop]]
    on: [{event: message_end, role: tool, do: prompt}]
---
name: prompt-when-completed
prompts:
  - replies: [[text: "a", reason: stop]]
    on: [{event: run_end, do: prompt}]
---
name: prompt-when-failed
prompts:
  - replies: [[text: "a", reason: error]]
    on: [{event: run_end, do: prompt}]
"""

WALKS: tuple[Walk, ...] = (
    *_walks(PLAIN),
    *_walks(ENDS),
    *_walks(ENDS.split("---")[-1], {"empty_stop": "fails"}),
    *_walks(CANCELS, {}, FINALIZE),
    *_walks(CANCELS.split("---")[-1], {"cancelled_tool": "races"}),
    *_walks(SETTLED, RUN),
    *_walks(LISTENERS, {}, IGNORED),
    *_walks(TOGETHER, PARALLEL),
    *_walks(TOGETHER_LISTENERS, PARALLEL, {**PARALLEL, **IGNORED}),
    *_walks(RAISES, {"tool_exception": "raises"}),
    *_walks(RAISES_TOGETHER, {**PARALLEL, "tool_exception": "raises"}),
    *_walks(GOES_ON, {"length": "answers"}),
    *_walks(RESUMES, {"deferred": "resumes"}),
    *_walks(ASKS_AGAIN, {"empty_stop": "asks-again"}),
    *_walks(PROMPTS, *({**RUN, **busy} for busy in _BUSY)),
)
"""Every walk. A row that none of them takes fails the tests."""
