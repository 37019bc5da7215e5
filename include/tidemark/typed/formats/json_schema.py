"""JSON Schemas: the types of the fields that they make, after the drafts from 4 on.

What the types of a spec cannot say, such as one of several types or a map, is text: its JSON.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from tidemark.spec.fields import FIELD_NAME, FieldType, ListOf, NoColumn, Struct, within

_WORDS = {"boolean": "boolean", "integer": "long", "number": "double"}
_FORMATS = {"date": "date", "date-time": "timestamp"}
_TEXT = "string"
_ANCHORS = ("$anchor", "$dynamicAnchor")
_VALUES = {"const", "default", "enum", "examples"}
"""Keywords with values that are not schemas."""
_TELLING = {"type", "properties", "items", "$ref", "enum", "const", "allOf", "anyOf", "oneOf"}
"""Words that say what a value is, and not only what it must not be."""


def column_of(text: str) -> Struct:
    """The type of the column for objects of a schema.

    Leaves out properties with names that no column can have.

    Raises:
        NoColumn: The schema has no column.
    """
    try:
        document = _Document(json.loads(text))
        made = _type([document.root], document, ())
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise NoColumn("it is no JSON Schema") from wrong
    if not isinstance(made, Struct):
        raise NoColumn("it is of no objects with properties that a column can have")
    return made


class _Document:
    """A schema with absolute references, and their targets.

    Args:
        raw: The schema, as JSON has it.
    """

    def __init__(self, raw: Any) -> None:
        is_old = isinstance(raw, dict) and "draft-04" in str(raw.get("$schema"))
        self._id = "id" if is_old else "$id"
        self._named: dict[str, Any] = {}
        self.root = self._absolute(raw, "")
        self._named[""] = self.root

    def _absolute(self, schema: Any, base: str) -> Any:
        """A copy with absolute references; stores the parts with an identifier or an anchor."""
        if isinstance(schema, list):
            return [self._absolute(each, base) for each in schema]
        if not isinstance(schema, dict):
            return schema
        names = []
        if isinstance(own := schema.get(self._id), str):
            # Before draft 8 an anchor was an identifier that is only a fragment.
            base, anchor = urldefrag(_joined(base, own))
            names.append(f"{base}#{anchor}" if anchor else base)
        names += [
            f"{base}#{schema[word]}" for word in _ANCHORS if isinstance(schema.get(word), str)
        ]
        made = {
            name: each if name in _VALUES else self._absolute(each, base)
            for name, each in schema.items()
        }
        if isinstance(reference := schema.get("$ref"), str):
            made["$ref"] = _joined(base, reference)
        for each in names:
            self._named.setdefault(each, made)
        return made

    def at(self, reference: str) -> Any:
        """The schema that an absolute reference leads to."""
        found = self._named.get(reference)
        if found is not None:
            return found
        base, fragment = urldefrag(reference)
        found = self._named.get(base)
        if found is None:
            raise NoColumn(f"it refers to another document, {reference}")
        if fragment and not fragment.startswith("/"):
            raise NoColumn(f"it refers to {reference}, which it does not have")
        try:
            for step in unquote(fragment).split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                found = found[int(step) if isinstance(found, list) else step]
        except (LookupError, TypeError, ValueError):
            raise NoColumn(f"it refers to {reference}, which it does not have") from None
        return found


def _joined(base: str, reference: str) -> str:
    """A reference in a document as an absolute one."""
    return f"{base}{reference}" if reference.startswith("#") else urljoin(base, reference)


def _type(schemas: list[Any], document: _Document, above: tuple[str, ...]) -> FieldType:
    """The type of values that all of some schemas describe."""
    parts: list[dict[str, Any]] = []
    for schema in schemas:
        for part, seen in _parts(schema, document, above):
            parts.append(part)
            above = (*above, *seen)
    if any(_is_one_of_several(part) for part in parts):
        return _TEXT
    properties = _properties(parts)
    kinds = {kind for part in parts if (kind := _kind(part))}
    if properties and kinds <= {"object"}:
        return _struct(properties, document, above)
    if len(kinds) != 1:
        return _TEXT
    (kind,) = kinds
    if kind == "array":
        items = [part["items"] for part in parts if isinstance(part.get("items"), dict)]
        with within("[]"):
            return ListOf(_type(items, document, above))
    if kind == "string":
        formats = {part["format"] for part in parts if part.get("format") in _FORMATS}
        return _FORMATS[formats.pop()] if len(formats) == 1 else _TEXT
    return _WORDS.get(kind, _TEXT)


def _properties(parts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The schemas of each property, by name; without names that no column can have."""
    properties: dict[str, list[Any]] = {}
    for part in parts:
        for name, each in (part.get("properties") or {}).items():
            if re.fullmatch(FIELD_NAME, name):
                properties.setdefault(name, []).append(each)
    return properties


def _struct(
    properties: dict[str, list[Any]], document: _Document, above: tuple[str, ...]
) -> Struct:
    folded = Counter(name.lower() for name in properties)
    if twice := sorted(name for name, times in folded.items() if times > 1):
        raise NoColumn(f"it has fields that differ in upper and lower case alone: {twice[0]}")
    fields = []
    for name, schemas in properties.items():
        with within(name):
            fields.append((name, _type(schemas, document, above)))
    return Struct(tuple(fields))


def _parts(
    schema: Any, document: _Document, above: tuple[str, ...]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """A schema, and those that a value has to be of as well; with the references on the way."""
    if not isinstance(schema, dict):
        return
    yield schema, ()
    if reference := schema.get("$ref"):
        if reference in above:
            raise NoColumn(f"{reference} contains itself, which no column can")
        for part, seen in _parts(document.at(reference), document, (*above, reference)):
            yield part, (reference, *seen)
    for member in schema.get("allOf", ()):
        yield from _parts(member, document, above)
    for several in ("oneOf", "anyOf"):
        members = _members(schema, several)
        if len(members) == 1:
            yield from _parts(members[0], document, above)


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
