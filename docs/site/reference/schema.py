"""The page about reports as JSON, generated from docs/report.schema.json."""

import json
from collections.abc import Mapping
from typing import Any

from docs.site.pages import ROOT, cell, table

INTRODUCTION = """# A report as JSON

{description} The schema itself is [report.schema.json](../report.schema.json).
"""


def page() -> str:
    schema = json.loads((ROOT / "docs/report.schema.json").read_text(encoding="utf-8"))
    parts = [INTRODUCTION.format(description=schema["description"]), _section("A report", "report", schema)]
    return "\n".join([*parts, *(_section(name, name, part) for name, part in schema["$defs"].items())])


def _section(title: str, anchor: str, part: Mapping[str, Any]) -> str:
    told = cell(part.get("description", ""))
    if "properties" not in part:
        told = " ".join([_type(part) + ".", told])
    required = part.get("required", [])
    rows = [
        (f"`{name}`{'' if name in required else ' (optional)'}", _type(field), cell(field.get("description", "")))
        for name, field in part.get("properties", {}).items()
    ]
    listed = table(("field", "type", "is"), rows) if rows else ""
    return "\n\n".join([f"## {title} {{#{anchor}}}", *(text for text in (told.strip(), listed) if text)]) + "\n"


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    for among in ("anyOf", "oneOf"):
        if among in field:
            return " or ".join(map(_type, field[among]))
    if "enum" in field:
        return " or ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    named = field.get("type", "any value")
    kind = named if isinstance(named, str) else " or ".join(named)
    if kind == "array" and "items" in field:
        return f"array of {_type(field['items'])}"
    if kind == "object" and isinstance(field.get("additionalProperties"), Mapping) and "properties" not in field:
        return f"object of {_type(field['additionalProperties'])} by name"
    return kind
