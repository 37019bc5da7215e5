"""Tests of the conversion of JSON Schemas to columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemark.silver.typed.formats.json_schema import column_of
from tidemark.spec.fields import UnsupportedSchema, plain_type

_NO_NAMES = ("a b", "a,b", "a;b", "{a", "a}", "a(", ")", "a=b", "a`b", "", "a\tb", "a\nb")


def schema(properties: Any, **more: Any) -> str:
    """Return a schema of objects."""
    return json.dumps({"type": "object", "properties": properties, **more})


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ({"type": "integer"}, "long"),
        ({"type": "number"}, "double"),
        ({"type": ["null", "boolean"]}, "boolean"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "long"),
        ({"type": "array", "items": {"type": "integer"}}, ["long"]),
        ({"type": "array"}, ["string"]),
        ({"properties": {"a": {"type": "integer"}}}, {"a": "long"}),
        ({"$ref": "#/definitions/leg~1s"}, {"qty": "long"}),
        # Values without a type in Delta become their JSON.
        ({"type": ["integer", "string"]}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "string"),
        ({"enum": ["A", "B"]}, "string"),
        # Java's serializer writes optional properties so.
        ({"oneOf": [{"type": "null", "title": "Not included"}, {"type": "integer"}]}, "long"),
        # All constraints of a value are combined.
        (
            {"properties": {"a": {"type": "integer"}}, "allOf": [{"$ref": "#/definitions/leg~1s"}]},
            {"a": "long", "qty": "long"},
        ),
        (
            {"$ref": "#/definitions/leg~1s", "properties": {"a": {"type": "boolean"}}},
            {"a": "boolean", "qty": "long"},
        ),
        (
            {"properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"not": {}}]},
            {"a": "long"},
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"type": "integer"}}},
                    {"if": {}, "then": {"required": ["a"]}},
                ]
            },
            {"a": "long"},
        ),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"$ref": "#/definitions/leg~1%73"}, {"qty": "long"}),
        # References to other properties, to anchors, and to schemas with an identifier.
        ({"$ref": "#/properties/g"}, "long"),
        ({"$ref": "#/properties/h/anyOf/1/items"}, "boolean"),
        ({"$ref": "#anchored"}, "double"),
        ({"$ref": "#dynamic"}, "double"),
        ({"$ref": "#fragment"}, "date"),
        ({"$ref": "http://x/y/schema.json#anchored"}, "double"),
        ({"$ref": "schema.json#/properties/g"}, "long"),
        ({"$ref": "/y/schema.json#/properties/g"}, "long"),
        ({"$ref": "inner.json"}, {"own": "boolean"}),
        ({"$ref": "inner.json#/properties/own"}, "boolean"),
        ({"$ref": "urn:example:other"}, {"own": "timestamp"}),
        # No column can have a field with such a name; only the bronze table has its value.
        (
            {"properties": {name: {"type": "integer"} for name in _NO_NAMES} | {"b.c": {}}},
            {"b.c": "string"},
        ),
        ({"properties": {"a b": {"type": "integer"}}}, "string"),
        ({}, "string"),
        (True, "string"),
    ],
)
def test_properties_become_fields(field: Any, kind: Any) -> None:
    """Their types are those of a spec."""
    definitions = {
        "leg/s": {"type": "object", "properties": {"qty": {"type": "integer"}}},
        "anchored": {"$anchor": "anchored", "type": "number"},
        "dynamic": {"$dynamicAnchor": "dynamic", "type": "number"},
        # Drafts 6 and 7 write anchors so.
        "fragment": {"$id": "#fragment", "type": "string", "format": "date"},
        "inner": {"$id": "inner.json", "properties": {"own": {"$ref": "#/definitions/flag"}},
                  "definitions": {"flag": {"type": "boolean"}}},
        "urn": {"$id": "urn:example:other", "properties": {"own": {"$ref": "#at"}},
                "$defs": {"at": {"$anchor": "at", "type": "string", "format": "date-time"}}},
        # A value that is not a schema has no references.
        "values": {"enum": [{"$anchor": "anchored"}], "const": {"$id": "inner.json"}},
    }  # fmt: skip
    others = {
        "g": {"type": "integer"},
        "h": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}}]},
    }
    text = schema(
        {"f": field, **others}, definitions=definitions, **{"$id": "http://x/y/schema.json"}
    )
    assert plain_type(column_of(text)) == {"f": kind, "g": "long", "h": ["boolean"]}


def test_draft_4_has_identifiers_named_id() -> None:
    """In later drafts, `id` may be any property."""
    definitions = {"leg": {"id": "#leg", "type": "integer"}}
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://x/y.json"}
    text = schema({"id": {"$ref": "y.json#leg"}}, definitions=definitions, **draft4)
    assert plain_type(column_of(text)) == {"id": "long"}
    with pytest.raises(
        UnsupportedSchema, match=r"^a: .* refers to #leg, which it does not contain$"
    ):
        column_of(schema({"a": {"$ref": "#leg"}}, definitions=definitions, id="http://x/y.json"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (schema({"next": {"$ref": "#"}}), r"^next\.next: # contains itself"),
        (
            schema({"a": {"$ref": "http://x/self.json"}}, **{"$id": "http://x/self.json"}),
            r"^a\.a: http://x/self\.json contains itself",
        ),
        (
            schema({"a": {"properties": {"b": {"$ref": "#/properties/a"}}}}),
            r"^a\.b\.b: #/properties/a contains itself",
        ),
        (
            schema({"a": {"type": "array", "items": {"$ref": "other.json#/x"}}}),
            r"^a\[\]: the schema refers to another document, other\.json#/x$",
        ),
        (
            schema({"a": {"$ref": "o.json#/x"}}, **{"$id": "http://x/y.json"}),
            "^a: the schema refers to another document, http://x/o.json#/x$",
        ),
        (
            schema({"a": {"$ref": "#/definitions/none"}}),
            "^a: the schema refers to #/definitions/none, which it does not contain$",
        ),
        (schema({"a": {"$ref": "#none"}}), "^a: .* refers to #none, which it does not contain$"),
        (schema({"a": {"$ref": "#/required/7"}}, required=["b"]), "which it does not contain$"),
        (schema({"a b": {"type": "integer"}}), "not describe objects with usable properties"),
        (schema({"in": {"properties": {"a": {}, "A": {}}}}), "^in: .* differ only in case"),
        (json.dumps({"type": "string"}), "not describe objects"),
        ("{", "not a valid JSON Schema"),
    ],
)
def test_a_schema_without_a_column_raises_the_reason(text: str, problem: str) -> None:
    """The error comes before any record is read."""
    with pytest.raises(UnsupportedSchema, match=problem):
        column_of(text)
