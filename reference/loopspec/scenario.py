"""The scenario: everything that the environment does, as data.

A scenario is straight-line data with order and no time. It says which prompts are given, what the
model answers to each request, how each tool behaves, and where a cancellation, a second prompt or
a failing listener comes. Files are YAML (or JSON, which is YAML) with one scenario a document::

    name: cancel-mid-text
    title: A cancel after the first words of an answer
    rules: [cancellation.no-request-after]
    prompts:
      - replies:
          - [text: "The first point ", cancel, text: "and the second.", reason: stop]

**Steps of a reply** are pieces (``text``, ``reasoning``, ``call``, or its parts ``call_start``,
``arguments``, ``call_end``; ``usage``, ``reason``, ``terminator``), actions (``cancel``,
``prompt``, ``open``) and faults (``status``, ``error``, ``disconnect``, ``end``, ``stall``, ``malformed``,
``half_frame``). After ``reason`` the terminator follows by itself, unless a later step says how
the reply really goes on. A reply that stops without a reason simply ends (``end``).

**A tool** is named by its call's label and does ``ok``, ``result: ...``, ``raises``, ``never``
(until the signal comes), ``deaf`` (ignores the signal, returns later), ``deaf_raises`` or
``deaf_never``; before that it may ``cancel``, ``prompt`` or wait ``after`` another call.

Every scenario ends with a recovery prompt unless it says ``recovery: false``: it is the probe that
shows the next request, and the barrier that shows late activity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

PROBE_TOOLS: dict[str, dict[str, Any]] = {
    "probe": {
        "type": "object",
        "properties": {"value": {"type": "string"}},
        "required": ["value"],
    },
    "probe_number": {
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "required": ["amount"],
    },
    "probe_optional": {
        "type": "object",
        "properties": {"note": {"type": "string"}},
        "required": [],
    },
}
"""The tools that every target is given, with the JSON Schema of their arguments.

``probe`` has one required string, ``probe_number`` one required whole number, and
``probe_optional`` nothing required, so that a call repaired to ``{}`` would run it."""


class ScenarioError(ValueError):
    """A scenario file cannot be used; the message has file, line, what is wrong and the remedy."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# --------------------------------------------------------------------------------------------
# Steps of a reply


class TextStep(_Model):
    """More text."""

    text: str


class ReasoningStep(_Model):
    """More reasoning."""

    reasoning: str


class CallSpec(_Model):
    """A tool call.

    ``label`` is its name in the scenario; the id on the wire is the label unless given.
    ``arguments`` is an object, or text to send exactly these characters.
    """

    label: str
    id: str | None = None
    tool: str = "probe"
    arguments: dict[str, Any] | str | None = None

    @property
    def wire_id(self) -> str:
        """The id that the provider gives the call."""
        return self.label if self.id is None else self.id

    @property
    def arguments_text(self) -> str:
        """The arguments as the JSON text that is sent."""
        if isinstance(self.arguments, str):
            return self.arguments
        if self.arguments is None:
            return json.dumps({"value": self.label} if self.tool == "probe" else {})
        return json.dumps(self.arguments)


def _call_shorthand(value: Any) -> Any:
    return {"label": value} if isinstance(value, str) else value


class CallStep(_Model):
    """A whole call: its start, its arguments, its end."""

    call: CallSpec

    _short = field_validator("call", mode="before")(_call_shorthand)


class CallStartStep(_Model):
    """A call begins; its arguments follow in pieces."""

    call_start: CallSpec

    _short = field_validator("call_start", mode="before")(_call_shorthand)


class ArgumentsPart(_Model):
    """Characters of a call's arguments."""

    label: str
    text: str


class ArgumentsStep(_Model):
    """More of the arguments of a call that was started with ``call_start``."""

    arguments: ArgumentsPart


class CallEndStep(_Model):
    """The call with this label is whole."""

    call_end: str


class UsageSpec(_Model):
    """Token counts."""

    input_tokens: int = Field(default=10, ge=0)
    output_tokens: int = Field(default=5, ge=0)


class UsageStep(_Model):
    """Token counts, where the wire has them."""

    usage: UsageSpec


class ReasonStep(_Model):
    """Why the reply ends. ``error`` is the provider's message for ``error`` and ``aborted``."""

    reason: str
    error: str | None = None


class StatusSpec(_Model):
    """An HTTP error instead of a reply."""

    status: int = Field(ge=400, le=599)
    message: str = "the provider failed"
    retry_after: int | None = Field(default=None, ge=0)


class StatusStep(_Model):
    """The request is answered by an HTTP error (native: opening the stream fails)."""

    status: StatusSpec

    @field_validator("status", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"status": value} if isinstance(value, int) else value


class ErrorStep(_Model):
    """An error frame in the stream, with the provider's message."""

    error: str


BARE_STEPS = (
    "cancel", "prompt", "open", "terminator", "disconnect", "end", "stall", "malformed",
    "half_frame",
)  # fmt: skip
BareStep = Literal[
    "cancel", "prompt", "open", "terminator", "disconnect", "end", "stall", "malformed", "half_frame"
]
"""Actions (``cancel``; ``prompt``: a second one while running), faults without a detail, and
``open``: the reply is opened here, so that an action after it finds an open, silent stream. Left
out, a reply opens with its first piece, and actions before that find it not yet opened."""

_STEP_KEYS = (
    "text", "reasoning", "call", "call_start", "arguments", "call_end", "usage", "reason",
    "status", "error",
)  # fmt: skip


def _step_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "bare" if value in BARE_STEPS else None
    keys = list(value) if isinstance(value, dict) else list(type(value).model_fields)
    if "reason" in keys:
        return "reason"
    return keys[0] if keys and keys[0] in _STEP_KEYS else None


Step = Annotated[
    Annotated[TextStep, Tag("text")]
    | Annotated[ReasoningStep, Tag("reasoning")]
    | Annotated[CallStep, Tag("call")]
    | Annotated[CallStartStep, Tag("call_start")]
    | Annotated[ArgumentsStep, Tag("arguments")]
    | Annotated[CallEndStep, Tag("call_end")]
    | Annotated[UsageStep, Tag("usage")]
    | Annotated[ReasonStep, Tag("reason")]
    | Annotated[StatusStep, Tag("status")]
    | Annotated[ErrorStep, Tag("error")]
    | Annotated[BareStep, Tag("bare")],
    Discriminator(
        _step_tag,
        custom_error_type="unknown_step",
        custom_error_message=(
            "not a step; write one of "
            + ", ".join(f"'{key}: ...'" for key in _STEP_KEYS)
            + " or one of the words "
            + ", ".join(BARE_STEPS)
        ),
    ),
]


class Reply(_Model):
    """What the model answers to one request.

    ``deaf``: the provider ignores a cancellation and sends the rest all the same. ``open_body``:
    the body stays open after the terminator. ``chunk``: texts and arguments are cut into pieces of
    this many characters.
    """

    steps: tuple[Step, ...]
    deaf: bool = False
    open_body: bool = False
    chunk: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"steps": value} if isinstance(value, (list, tuple)) else value


# --------------------------------------------------------------------------------------------
# Tools


class AfterStep(_Model):
    """Wait until the call with this label has settled, and the target has seen it."""

    after: str


class ResultStep(_Model):
    """Return exactly this text."""

    result: str


ToolWord = Literal["cancel", "prompt", "ok", "raises", "never", "deaf", "deaf_raises", "deaf_never"]
TOOL_ENDS = ("ok", "raises", "never", "deaf", "deaf_raises", "deaf_never")


def _tool_step_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "word" if value in ("cancel", "prompt", *TOOL_ENDS) else None
    keys = list(value) if isinstance(value, dict) else list(type(value).model_fields)
    return keys[0] if keys and keys[0] in ("after", "result") else None


ToolStep = Annotated[
    Annotated[ToolWord, Tag("word")]
    | Annotated[AfterStep, Tag("after")]
    | Annotated[ResultStep, Tag("result")],
    Discriminator(
        _tool_step_tag,
        custom_error_type="unknown_tool_step",
        custom_error_message=(
            "not something a tool does; write 'result: ...', 'after: LABEL' or one of the words "
            "cancel, prompt, " + ", ".join(TOOL_ENDS)
        ),
    ),
]


class Tool(_Model):
    """What the tool of one call does, from its start to its end."""

    steps: tuple[ToolStep, ...]

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return {"steps": value}
        if isinstance(value, str) or (isinstance(value, dict) and "steps" not in value):
            return {"steps": [value]}
        return value

    @model_validator(mode="after")
    def _ends(self) -> Tool:
        *before, last = self.steps or ("",)
        ends = [step for step in before if step in TOOL_ENDS or isinstance(step, ResultStep)]
        if ends or not (last in TOOL_ENDS or isinstance(last, ResultStep)):
            raise ValueError(
                "a tool's steps end with exactly one of " + ", ".join(TOOL_ENDS) + " or 'result: ...'"
            )
        return self


# --------------------------------------------------------------------------------------------
# Prompts and scenarios


class On(_Model):
    """Do something from inside the target's listener, on the ``nth`` matching event."""

    event: str
    role: str | None = None
    call_id: str | None = None
    nth: int = Field(default=1, ge=1)
    do: Literal["cancel", "raise", "prompt"]


class Prompt(_Model):
    """One prompt and all that happens until it settles.

    ``cancel`` places a cancellation outside the replies: ``before_request`` (in the same tick as
    the prompt), ``idle`` (before the prompt is given). ``fork`` gives the prompt to a fork of the
    session made at this point.
    """

    replies: tuple[Reply, ...] = ()
    tools: dict[str, Tool] = Field(default_factory=dict)
    on: tuple[On, ...] = ()
    cancel: Literal["before_request", "idle"] | None = None
    fork: bool = False


class Family(_Model):
    """The scenario belongs to a relation: its rule compares all members of the family."""

    name: str
    member: str


class Settings(_Model):
    """What the target is opened with. ``None``: as the variant has it."""

    max_turns: int | float | None = None
    tools: Literal["sequential", "parallel"] | None = None


class Scenario(_Model):
    """One scenario.

    ``rules`` are those that it is an example of; ``claims`` those that a target must have for the
    scenario to say anything (the reference takes them as its settings).
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    title: str = ""
    rules: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    claims: dict[str, str] = Field(default_factory=dict)
    settings: Settings = Settings()
    prompts: tuple[Prompt, ...]
    recovery: bool = True
    family: Family | None = None

    @model_validator(mode="after")
    def _whole(self) -> Scenario:
        if not self.prompts:
            raise ValueError("prompts is empty; give at least one prompt")
        for prompt in self.prompts:
            labels = {spec.label for spec in calls_of(prompt)}
            for label in prompt.tools:
                if label not in labels:
                    raise ValueError(
                        f"tools names {label!r}, but no reply of that prompt has a call with this "
                        f"label; calls there: {', '.join(sorted(labels)) or 'none'}"
                    )
        return self


def calls_of(prompt: Prompt) -> Iterator[CallSpec]:
    """Every call that the replies of ``prompt`` begin, in order."""
    for reply in prompt.replies:
        for step in reply.steps:
            if isinstance(step, CallStep):
                yield step.call
            elif isinstance(step, CallStartStep):
                yield step.call_start


# --------------------------------------------------------------------------------------------
# Reading and writing


def _only_true_and_false(resolvers: dict[str, Any]) -> dict[str, Any]:
    """YAML 1.2's booleans: ``on``, ``yes`` and their like are words, as a reader takes them."""
    bool_tag = "tag:yaml.org,2002:bool"
    kept = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != bool_tag]
        for first, pairs in resolvers.items()
    }
    for first in "tTfF":
        kept.setdefault(first, []).append((bool_tag, re.compile("^(?:true|True|false|False)$")))
    return kept


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _only_true_and_false(yaml.SafeLoader.yaml_implicit_resolvers)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _only_true_and_false(yaml.SafeDumper.yaml_implicit_resolvers)


def _line_of(node: yaml.Node | None, path: tuple[int | str, ...]) -> int:
    """The line of the deepest part of ``path`` that exists in the document."""
    line = node.start_mark.line + 1 if node is not None else 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            match = [pair for pair in node.value if pair[0].value == str(part)]
            if not match:
                continue  # a tag or shorthand that pydantic put into the path
            line, node = match[0][0].start_mark.line + 1, match[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _problems(error: ValidationError, node: yaml.Node | None, where: str) -> str:
    lines = []
    for item in error.errors(include_url=False):
        path = ".".join(str(part) for part in item["loc"]) or "scenario"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "no such key here; remove it or mind its spelling"
        lines.append(f"{where}:{_line_of(node, item['loc'])}: {path}: {message}")
    return "\n".join(lines)


def parse(text: str, where: str = "<text>") -> list[Scenario]:
    """All scenarios of a YAML or JSON text, one a document.

    ``where`` stands before the line number in errors. Raises :class:`ScenarioError`.
    """
    scenarios = []
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or error
        raise ScenarioError(f"{where}:{line}: not YAML: {problem}; check indent and quotes") from None
    for node, document in zip(nodes, documents, strict=True):
        if not isinstance(document, dict):
            line = _line_of(node, ())
            raise ScenarioError(f"{where}:{line}: a scenario is a mapping with name and prompts")
        try:
            scenarios.append(Scenario.model_validate(document))
        except ValidationError as error:
            raise ScenarioError(_problems(error, node, where)) from None
    if not scenarios:
        raise ScenarioError(f"{where}:1: no scenario here; write at least name and prompts")
    return scenarios


def load(path: Path | str) -> list[Scenario]:
    """All scenarios of a file; raises :class:`ScenarioError` also when it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}; give a YAML or JSON file") from None
    return parse(text, str(path))


def to_data(scenario: Scenario) -> dict[str, Any]:
    """The scenario as plain data in its short form; :func:`parse` reads it back the same."""
    data: dict[str, Any] = scenario.model_dump(exclude_defaults=True, mode="json")
    for prompt in data["prompts"]:
        for index, reply in enumerate(prompt.get("replies", ())):
            for step in reply["steps"]:
                for key in ("call", "call_start"):
                    if isinstance(step, dict) and set(step.get(key, ())) == {"label"}:
                        step[key] = step[key]["label"]
                if isinstance(step, dict) and step.get("usage") == {}:
                    step["usage"] = UsageSpec().model_dump()
            if set(reply) == {"steps"}:
                prompt["replies"][index] = reply["steps"]
        for label, tool in prompt.get("tools", {}).items():
            steps = tool["steps"]
            prompt["tools"][label] = steps[0] if len(steps) == 1 else steps
    return data


def dumps_all(found: Iterable[Scenario]) -> str:
    """Several scenarios as one YAML text, a document each."""
    return "---\n".join(dumps(scenario) for scenario in found)


def dumps(scenario: Scenario) -> str:
    """The scenario as YAML to paste into a file."""
    text: str = yaml.dump(
        to_data(scenario), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100,
        default_flow_style=None,
    )  # fmt: skip
    return text
