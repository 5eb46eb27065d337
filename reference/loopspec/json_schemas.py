"""JSON Schemas of everything that is exchanged as data, made from the code that reads and writes it.

Scenario, manifest, report and protocol are pydantic models already. A trace is dataclasses whose
written form differs from their fields in three things: each entry has its ``kind``, each message
its ``role``, each block and piece its ``type``; and a request is written as what it adds to the one
before. These are put into the schema here.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from loopspec import trace as t
from loopspec import vocabulary as v
from loopspec.adapters import wire_models
from loopspec.adapters.manifest import Manifest
from loopspec.report.model import Report
from loopspec.scenario import Scenario

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TAGS = {
    **{cls.__name__: ("type", cls.type) for cls in (v.Text, v.Reasoning, v.Call)},
    **{cls.__name__: ("type", cls.type) for cls in v.Piece.__args__},
    **{cls.__name__: ("role", cls.role) for cls in v.Message.__args__},
}
"""By class: the member that tells values of this class from others, and what stands in it."""


def _tagged(schema: dict[str, Any], member: str, value: str) -> dict[str, Any]:
    properties = {member: {"const": value}, **schema.get("properties", {})}
    required = [member, *schema.get("required", ())]
    return {**schema, "properties": properties, "required": required, "additionalProperties": False}


def _entry_schema(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = TypeAdapter(cls).json_schema(ref_template="#/$defs/{model}")
    for name, definition in schema.pop("$defs", {}).items():
        if name in _TAGS:
            definition = _tagged(definition, *_TAGS[name])
        definitions[name] = {**definition, "additionalProperties": False}
    schema = _tagged(schema, "kind", cls.kind)  # type: ignore[attr-defined]
    if cls is t.Requested:
        messages = schema["properties"]["messages"]
        messages["description"] = "What follows the messages kept from the request before."
        kept = {"type": "integer", "minimum": 0, "description": "So many messages are as in the one before."}
        schema["properties"]["kept"] = kept
        schema["required"].append("kept")
    return schema


def trace_schema() -> dict[str, Any]:
    """The schema of one line of a trace."""
    definitions: dict[str, Any] = {}
    for cls in t.ENTRIES.values():
        definitions[cls.__name__] = _entry_schema(cls, definitions)
    return {
        "$schema": DIALECT,
        "title": "Entry",
        "description": "One line of a trace. The first line is the header.",
        "oneOf": [{"$ref": f"#/$defs/{cls.__name__}"} for cls in t.ENTRIES.values()],
        "$defs": dict(sorted(definitions.items())),
    }


def scenario_schema() -> dict[str, Any]:
    """The schema of a scenario as people write it: its short forms are put beside the long ones."""
    schema = {"$schema": DIALECT, **Scenario.model_json_schema()}
    definitions: dict[str, Any] = schema["$defs"]
    text: dict[str, Any] = {"type": "string"}
    for name, member, short in (
        ("CallStep", "call", text),
        ("CallStartStep", "call_start", text),
        ("StatusStep", "status", {"type": "integer", "minimum": 400, "maximum": 599}),
    ):
        properties = definitions[name]["properties"]
        properties[member] = {"anyOf": [properties[member], short]}
    for name in ("Reply", "Tool"):
        long = definitions[name]
        steps = long["properties"]["steps"]
        forms = [long, steps] if name == "Reply" else [long, steps, steps["items"]]
        definitions[name] = {"anyOf": forms}
    return schema


def all_schemas() -> dict[str, dict[str, Any]]:
    """Every schema by the name of its file, without ``.json``."""
    schemas = {
        "scenario": scenario_schema(),
        "manifest": {"$schema": DIALECT, **Manifest.model_json_schema()},
        "report": {"$schema": DIALECT, **Report.model_json_schema(mode="serialization")},
        "trace": trace_schema(),
    }
    schemas |= {f"protocol/{name}": schema for name, schema in wire_models.schemas().items()}
    return schemas


def schema_files() -> dict[str, str]:
    """The text of every schema file, by its path below ``spec/``."""
    return {
        f"schemas/{name}.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in all_schemas().items()
    }
