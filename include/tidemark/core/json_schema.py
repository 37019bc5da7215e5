"""JSON Schemas: the types of the fields that they make, after the drafts from 4 on.

What the types of a spec cannot say, such as one of several types or a map, is text: its JSON.
"""

from __future__ import annotations

import json
from typing import Any

from tidemark.core.fields import Struct, parse_type

_WORDS = {"boolean": "boolean", "integer": "long", "number": "double"}
_FORMATS = {"date": "date", "date-time": "timestamp"}
_TEXT = "string"


def column_of(text: str) -> Struct:
    """The type of the column that objects of a schema make.

    Raises:
        ValueError: No column can be made of it, with why.
    """
    try:
        root = json.loads(text)
        plain = _plain(root, root, ())
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as wrong:
        raise ValueError("it is no JSON Schema") from wrong
    parsed = parse_type(plain)
    if not isinstance(parsed, Struct):
        raise ValueError("it is of no objects with properties")
    return parsed


def _plain(schema: Any, root: Any, above: tuple[str, ...]) -> Any:
    """A type as specs say it."""
    if not isinstance(schema, dict):
        return _TEXT
    if reference := schema.get("$ref"):
        if reference in above:
            raise ValueError(f"{reference} contains itself, which no column can")
        return _plain(_at(reference, root), root, (*above, reference))
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            members = [each for each in schema[several] if each != {"type": "null"}]
            return _plain(members[0], root, above) if len(members) == 1 else _TEXT
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        words = [each for each in kind if each != "null"]
        kind = words[0] if len(words) == 1 else None
    if kind == "object" and schema.get("properties"):
        fields = schema["properties"].items()
        return {name: _plain(each, root, above) for name, each in fields}
    if kind == "array":
        return [_plain(schema.get("items"), root, above)]
    if kind == "string":
        return _FORMATS.get(schema.get("format", ""), _TEXT)
    return _WORDS.get(str(kind), _TEXT)


def _at(reference: str, root: Any) -> Any:
    """The schema that a reference within one document leads to."""
    if not reference.startswith("#"):
        raise ValueError(f"it refers to another schema, {reference}")
    found = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found[step.replace("~1", "/").replace("~0", "~")] if step else found
    return found
