"""The manifest: what a target says of itself, as data with links.

No verdict rests on what adapter code computed. An adapter passes on the raw settlement (what was
returned, or the chain of exceptions with types and fields), and the manifest maps it to an outcome
by the target's own documentation. What no entry maps is: returned, completed; raised, failed with
an unknown reason.

The same values are read from TOML files for the catalogue and built directly for loops in process.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loopspec.vocabulary import CLAIMS, FailureReason, Form, Grade, Outcome


class ManifestError(ValueError):
    """A manifest cannot be used; the message names the file, the place and the remedy."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Claim(_Model):
    """One claim, with the place in the target's documentation that says so."""

    name: str
    value: str
    source: str
    words: str = ""

    @model_validator(mode="after")
    def _known(self) -> Claim:
        if self.name not in CLAIMS:
            raise ValueError(f"unknown claim {self.name!r}; one of {', '.join(CLAIMS)}")
        if self.value not in CLAIMS[self.name]:
            values = ", ".join(CLAIMS[self.name])
            raise ValueError(f"claim {self.name} has no value {self.value!r}; one of {values}")
        return self


class Mapping(_Model):
    """One entry of the outcome table: if the settlement looks like this, it means that.

    ``raised`` is a qualified exception type, matched anywhere in the chain and in each type's
    bases. ``returned`` matches returned values. ``where`` maps dotted paths into the value (or
    the matching exception's fields) to what must stand there.
    """

    raised: str | None = None
    returned: bool = False
    where: dict[str, Any] = Field(default_factory=dict)
    outcome: Outcome
    reason: FailureReason | None = None
    source: str = ""

    @model_validator(mode="after")
    def _one(self) -> Mapping:
        if (self.raised is None) == (not self.returned):
            raise ValueError("an outcome entry has exactly one of 'raised' and 'returned = true'")
        return self


class Variant(_Model):
    """One way to run the target: its wire, its cancellation, what can be seen of it.

    ``observes`` uses the words of :class:`loopspec.trace.Header`. ``claims`` replace or (with an
    empty value) remove claims of the target for this variant only.
    """

    wire: str = "chat"
    streaming: bool = True
    cancel: str = "native"
    grade: Grade = Grade.EVENT
    observes: tuple[str, ...] = ()
    claims: dict[str, str] = Field(default_factory=dict)
    tools: Literal["sequential", "parallel"] | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    words: str = ""


class Hides(_Model):
    """A core rule that cannot be judged here, and the library's code that hides it."""

    rule: str
    code: str
    words: str


class Manifest(_Model):
    """Everything that the suite takes from a target without running it."""

    name: str
    version: str
    documentation: str = ""
    language: Literal["python", "javascript", "in-process", "other"] = "python"
    command: tuple[str, ...] = ()
    adapter: str | None = None
    requires: tuple[str, ...] = ()
    constraints: str | None = None
    python: str | None = None
    claims: tuple[Claim, ...] = ()
    outcomes: tuple[Mapping, ...] = ()
    hides: tuple[Hides, ...] = ()
    variants: dict[str, Variant] = Field(default_factory=lambda: {"default": Variant()})
    default_variant: str | None = None

    @model_validator(mode="after")
    def _variant(self) -> Manifest:
        if not self.variants:
            raise ValueError("a manifest has at least one variant")
        if self.default_variant is not None and self.default_variant not in self.variants:
            raise ValueError(f"default_variant names no variant; one of {', '.join(self.variants)}")
        return self

    @property
    def first_variant(self) -> str:
        """The variant that runs when none is named."""
        return self.default_variant or next(iter(self.variants))

    def claims_for(self, variant: str) -> dict[str, str]:
        """The claims of one variant, by name."""
        claims = {claim.name: claim.value for claim in self.claims}
        claims.update(self.variants[variant].claims)
        return {name: value for name, value in claims.items() if value}


def load_manifest(path: Path | str) -> Manifest:
    """Read a TOML manifest; raises :class:`ManifestError`."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        return Manifest.model_validate(data)
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path}: not TOML: {error}") from None
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, item['loc']))}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False)
        ]
        raise ManifestError("\n".join(lines)) from None


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a raw settlement means, and the entry (if any) that said so."""

    outcome: str
    form: str
    reason: str | None
    answer: str | None
    message: str | None
    entry: Mapping | None = None


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.lstrip("-").isdigit():
            index = int(part)
            value = value[index] if -len(value) <= index < len(value) else None
        else:
            return None
    return value


def _fits(where: dict[str, Any], value: Any) -> bool:
    return all(_at(value, path) == wanted for path, wanted in where.items())


def interpret(raw: dict[str, Any], manifest: Manifest) -> Meaning:
    """What a raw settlement means by the manifest's table; the first fitting entry wins.

    Parameters
    ----------
    raw: ``{"returned": value}``, ``value["text"]`` being the answer if there is one; or
        ``{"raised": [{"type", "mro", "message", "fields"}, ...]}``, outermost first; either with
        ``"told": true`` when the caller got it as an event instead.
    """
    if "raised" in raw:
        chain = raw["raised"]
        message = next((item["message"] for item in chain if item.get("message")), None)
        for entry in manifest.outcomes:
            for item in chain:
                names = {item["type"], *item.get("mro", ())}
                if entry.raised in names and _fits(entry.where, item.get("fields", {})):
                    return Meaning(entry.outcome, Form.RAISED, entry.reason, None, message, entry)
        return Meaning(Outcome.FAILED, Form.RAISED, FailureReason.UNKNOWN, None, message)
    value = raw.get("returned")
    form = Form.TOLD if raw.get("told") else Form.RETURNED
    text = _at(value, "text")
    message = _at(value, "error")
    for entry in manifest.outcomes:
        if entry.returned and _fits(entry.where, value):
            return Meaning(entry.outcome, form, entry.reason, text, message, entry)
    return Meaning(Outcome.COMPLETED, form, None, text, message)
