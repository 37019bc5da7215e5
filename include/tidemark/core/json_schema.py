"""JSON Schemas: the types of the fields that they make, after the drafts from 4 on.

What the types of a spec cannot say, such as one of several types or a map, is text: its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from tidemark.core.fields import Struct, parse_type

_WORDS = {"boolean": "boolean", "integer": "long", "number": "double"}
_FORMATS = {"date": "date", "date-time": "timestamp"}
_TEXT = "string"
_TELLING = {"type", "properties", "items", "$ref", "enum", "const", "allOf", "anyOf", "oneOf"}
"""Words that say what a value is, and not only what it must not be."""


def column_of(text: str) -> Struct:
    """The type of the column that objects of a schema make.

    Raises:
        ValueError: No column can be made of it, with why.
    """
    try:
        root = json.loads(text)
        plain = _plain([root], root, ())
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as wrong:
        raise ValueError("it is no JSON Schema") from wrong
    parsed = parse_type(plain)
    if not isinstance(parsed, Struct):
        raise ValueError("it is of no objects with properties")
    return parsed


def _plain(schemas: list[Any], root: Any, above: tuple[str, ...]) -> Any:
    """The type, as specs say it, of values that all of some schemas are about."""
    parts: list[dict[str, Any]] = []
    for schema in schemas:
        for part, seen in _parts(schema, root, above):
            parts.append(part)
            above = (*above, *seen)
    if any(_is_one_of_several(part) for part in parts):
        return _TEXT
    properties: dict[str, list[Any]] = {}
    for part in parts:
        for name, each in (part.get("properties") or {}).items():
            properties.setdefault(name, []).append(each)
    kinds = {kind for part in parts if (kind := _kind(part))}
    if properties and kinds <= {"object"}:
        return {name: _plain(each, root, above) for name, each in properties.items()}
    if len(kinds) != 1:
        return _TEXT
    (kind,) = kinds
    if kind == "array":
        items = [part["items"] for part in parts if isinstance(part.get("items"), dict)]
        return [_plain(items, root, above)]
    if kind == "string":
        formats = {part["format"] for part in parts if part.get("format") in _FORMATS}
        return _FORMATS[formats.pop()] if len(formats) == 1 else _TEXT
    return _WORDS.get(kind, _TEXT)


def _parts(
    schema: Any, root: Any, above: tuple[str, ...]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """A schema, and those that a value has to be of as well; with the references on the way."""
    if not isinstance(schema, dict):
        return
    yield schema, ()
    if reference := schema.get("$ref"):
        if reference in above:
            raise ValueError(f"{reference} contains itself, which no column can")
        for part, seen in _parts(_at(reference, root), root, (*above, reference)):
            yield part, (reference, *seen)
    for member in schema.get("allOf", ()):
        yield from _parts(member, root, above)
    for several in ("oneOf", "anyOf"):
        members = _members(schema, several)
        if len(members) == 1:
            yield from _parts(members[0], root, above)


def _members(schema: dict[str, Any], several: str) -> list[Any]:
    """Members that say what a value is, null left out."""
    return [
        each
        for each in schema.get(several, ())
        if isinstance(each, dict) and each.get("type") != "null" and _TELLING & each.keys()
    ]


def _is_one_of_several(schema: dict[str, Any]) -> bool:
    """Whether it leaves open which of several types a value has."""
    if any(len(_members(schema, several)) > 1 for several in ("oneOf", "anyOf")):
        return True
    kinds = schema.get("type")
    return isinstance(kinds, list) and len([each for each in kinds if each != "null"]) != 1


def _kind(schema: dict[str, Any]) -> str | None:
    """The word for its type; None if it does not say."""
    kind = schema.get("type")
    if isinstance(kind, list):
        return next(str(each) for each in kind if each != "null")
    return str(kind) if kind else None


def _at(reference: str, root: Any) -> Any:
    """The schema that a reference within one document leads to."""
    if not reference.startswith("#"):
        raise ValueError(f"it refers to another schema, {reference}")
    found = root
    for step in unquote(reference).removeprefix("#").strip("/").split("/"):
        found = found[step.replace("~1", "/").replace("~0", "~")] if step else found
    return found
