"""JSON Schemas to columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemark.core.fields import plain
from tidemark.core.json_schema import column_of


def schema(properties: Any, **more: Any) -> str:
    """A schema of objects."""
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
        # What has no type here is its JSON.
        ({"type": ["integer", "string"]}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "string"),
        ({"enum": ["A", "B"]}, "string"),
        # As Java's serializer writes what may be left out.
        ({"oneOf": [{"type": "null", "title": "Not included"}, {"type": "integer"}]}, "long"),
        # All that holds for a value at once.
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
        ({}, "string"),
        (True, "string"),
    ],
)
def test_a_property_makes_a_field(field: Any, kind: Any) -> None:
    """Of the types that specs have."""
    legs = {"leg/s": {"type": "object", "properties": {"qty": {"type": "integer"}}}}
    assert plain(column_of(schema({"f": field}, definitions=legs))) == {"f": kind}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (schema({"next": {"$ref": "#"}}), "# contains itself"),
        (schema({"a": {"$ref": "other.json#/x"}}), "refers to another schema, other.json#/x"),
        (schema({"a": {"$ref": "#/definitions/none"}}), "no JSON Schema"),
        (schema({"a b": {"type": "integer"}}), "names of fields without spaces"),
        (schema({"a": {}, "A": {}}), "upper and lower case"),
        (json.dumps({"type": "string"}), "no objects with properties"),
        ("{", "no JSON Schema"),
    ],
)
def test_a_schema_that_makes_no_column_says_why(text: str, problem: str) -> None:
    """Before anything is read with it."""
    with pytest.raises(ValueError, match=problem):
        column_of(text)
