"""JSON Schemas: their column types, for draft 4 and later.

A value without a type in a spec, such as a map or one of several types, becomes its JSON text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from tidemark.silver.typed.formats.struct_type import struct_type
from tidemark.spec.fields import (
    FIELD_NAME,
    FieldType,
    ListOf,
    Struct,
    UnsupportedSchema,
    path_prefix,
)
from tidemark.spec.schema_limits import MAX_PARTS, MAX_TEXT_LEVELS, SchemaTooLarge, load_json

_SIMPLE_TYPES = {"boolean": "boolean", "integer": "long", "number": "double"}
_FORMATS = {"date": "date", "date-time": "timestamp"}
_TEXT = "string"
_ANCHORS = ("$anchor", "$dynamicAnchor")
_VALUES = {"const", "default", "enum", "examples"}
"""Keywords with values that are not schemas."""
_TOO_DEEP = "the references of the schema are nested too deep"
_TYPE_KEYWORDS = {"type", "properties", "items", "$ref", "enum", "const", "allOf", "anyOf", "oneOf"}
"""Keywords that describe the type of a value, and not only restrict it."""


def column_of(text: str) -> Struct:
    """Return the type of the column for objects of a schema.

    Leaves out properties whose names are not valid names of columns.

    Raises:
        SchemaTooLarge: The schema exceeds a limit.
        UnsupportedSchema: The schema has no column.
    """
    try:
        document = _Document(load_json(text))
        made = _type([document.root], document, frozenset())
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as wrong:
        raise UnsupportedSchema("the schema is not a valid JSON Schema") from wrong
    except RecursionError:
        raise SchemaTooLarge(_TOO_DEEP) from None
    if not isinstance(made, Struct):
        raise UnsupportedSchema("the schema does not describe objects with usable properties")
    return made


class _Document:
    """A schema with absolute references, and their targets.

    Args:
        raw: The parsed JSON of the schema.
    """

    def __init__(self, raw: Any) -> None:
        is_old = isinstance(raw, dict) and "draft-04" in str(raw.get("$schema"))
        self._id = "id" if is_old else "$id"
        self._named: dict[str, Any] = {}
        self._parts = 0
        self.root = self._absolute(raw, "")
        self._named[""] = self.root

    def _absolute(self, schema: Any, base: str) -> Any:
        """Return a copy with absolute references; store parts with an identifier or an anchor."""
        if isinstance(schema, list):
            return [self._absolute(each, base) for each in schema]
        if not isinstance(schema, dict):
            return schema
        names = []
        if isinstance(own := schema.get(self._id), str):
            # Before draft 8, an anchor is an identifier with only a fragment.
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

    def count_part(self) -> None:
        """Count a part that is read, each time that a reference leads to it.

        Raises:
            SchemaTooLarge: There are too many parts.
        """
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise SchemaTooLarge(
                f"the schema has more than {MAX_PARTS:,} parts, each counted at every reference"
            )

    def at(self, reference: str) -> Any:
        """Return the target of an absolute reference."""
        found = self._named.get(reference)
        if found is not None:
            return found
        base, fragment = urldefrag(reference)
        found = self._named.get(base)
        if found is None:
            raise UnsupportedSchema(f"the schema refers to another document, {reference}")
        if fragment and not fragment.startswith("/"):
            raise UnsupportedSchema(f"the schema refers to {reference}, which it does not contain")
        try:
            for step in unquote(fragment).split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                found = found[int(step) if isinstance(found, list) else step]
        except (LookupError, TypeError, ValueError):
            raise UnsupportedSchema(
                f"the schema refers to {reference}, which it does not contain"
            ) from None
        self._named[reference] = found
        return found


def _joined(base: str, reference: str) -> str:
    """Return a reference of a document as an absolute one."""
    return f"{base}{reference}" if reference.startswith("#") else urljoin(base, reference)


def _type(schemas: list[Any], document: _Document, above: frozenset[str]) -> FieldType:
    """Return the type of values that match all of some schemas.

    Args:
        schemas: The schemas.
        document: The document that contains them.
        above: The references that lead to the values around these.
    """
    followed: set[str] = set()
    parts = [part for each in schemas for part in _parts(each, document, above, followed=followed)]
    if followed:
        above |= followed
    if any(_is_one_of_several(part) for part in parts):
        return _TEXT
    properties = _properties(parts, document)
    kinds = {kind for part in parts if (kind := _kind(part))}
    if properties and kinds <= {"object"}:
        fields = properties.items()
        return struct_type("the schema", fields, lambda each: _type(each, document, above))
    if len(kinds) != 1:
        return _TEXT
    (kind,) = kinds
    if kind == "array":
        items = [part["items"] for part in parts if isinstance(part.get("items"), dict)]
        with path_prefix("[]"):
            return ListOf(_type(items, document, above))
    if kind == "string":
        formats = {part["format"] for part in parts if part.get("format") in _FORMATS}
        return _FORMATS[formats.pop()] if len(formats) == 1 else _TEXT
    return _SIMPLE_TYPES.get(kind, _TEXT)


def _properties(parts: list[dict[str, Any]], document: _Document) -> dict[str, list[Any]]:
    """Return the schemas of each property by name, without names that are invalid for columns."""
    properties: dict[str, list[Any]] = {}
    for part in parts:
        for name, each in (part.get("properties") or {}).items():
            document.count_part()
            if re.fullmatch(FIELD_NAME, name):
                properties.setdefault(name, []).append(each)
    return properties


def _parts(
    schema: Any,
    document: _Document,
    above: frozenset[str],
    *,
    followed: set[str],
    levels: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield all schemas that values of a schema must match.

    Args:
        schema: The schema.
        document: The document that contains it.
        above: The references that lead to the schema.
        followed: The references whose schemas the values must match too. A second reference to one
            of them adds nothing.
        levels: Number of references and combinations between the values' own schema and this one.
    """
    if not isinstance(schema, dict):
        return
    if levels > MAX_TEXT_LEVELS:
        raise SchemaTooLarge(_TOO_DEEP)
    document.count_part()
    yield schema
    inner = []
    if reference := schema.get("$ref"):
        if reference in above:
            raise UnsupportedSchema(f"{reference} contains itself")
        if reference not in followed:
            followed.add(reference)
            inner.append((document.at(reference), above | {reference}))
    inner += [(member, above) for member in schema.get("allOf", ())]
    for several in ("oneOf", "anyOf"):
        members = _members(schema, several)
        inner += [(member, above) for member in members if len(members) == 1]
    for each, path in inner:
        yield from _parts(each, document, path, followed=followed, levels=levels + 1)


def _members(schema: dict[str, Any], several: str) -> list[Any]:
    """Return the members that describe a type, without null."""
    return [
        each
        for each in schema.get(several, ())
        if isinstance(each, dict) and each.get("type") != "null" and _TYPE_KEYWORDS & each.keys()
    ]


def _is_one_of_several(schema: dict[str, Any]) -> bool:
    """Return whether a value may have one of several types."""
    if any(len(_members(schema, several)) > 1 for several in ("oneOf", "anyOf")):
        return True
    kinds = schema.get("type")
    return isinstance(kinds, list) and len([each for each in kinds if each != "null"]) != 1


def _kind(schema: dict[str, Any]) -> str | None:
    """Return the name of the schema's type; None if it has none."""
    kind = schema.get("type")
    if isinstance(kind, list):
        return next(str(each) for each in kind if each != "null")
    return str(kind) if kind else None
