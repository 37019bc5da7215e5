"""The schema with which Apache Avro's implementations test that they read each other's files.

It is share/test/schemas/interop.avsc of Avro's sources. The logical types are on the fields, where
the specification ignores them.
"""

from __future__ import annotations

from typing import Any

_FOO = {"type": "record", "name": "Foo", "fields": [{"name": "label", "type": "string"}]}
_NODE = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "label", "type": "string"},
        {"name": "children", "type": {"type": "array", "items": "Node"}},
    ],
}
_TIMES = {
    "timeMillisField": "int",
    "timeMicrosField": "long",
    "timestampMillisField": "long",
    "timestampMicrosField": "long",
    "localTimestampMillisField": "long",
    "localTimestampMicrosField": "long",
}
_FIELDS: list[dict[str, Any]] = [
    {"name": "intField", "type": "int"},
    {"name": "longField", "type": "long"},
    {"name": "stringField", "type": "string"},
    {"name": "boolField", "type": "boolean"},
    {"name": "floatField", "type": "float"},
    {"name": "doubleField", "type": "double"},
    {"name": "bytesField", "type": "bytes"},
    {"name": "nullField", "type": "null"},
    {"name": "arrayField", "type": {"type": "array", "items": "double"}},
    {"name": "mapField", "type": {"type": "map", "values": _FOO}},
    {"name": "unionField", "type": ["boolean", "double", {"type": "array", "items": "bytes"}]},
    {"name": "enumField", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
    {"name": "fixedField", "type": {"type": "fixed", "name": "MD5", "size": 16}},
    {"name": "recordField", "type": _NODE},
    *({"name": name, "type": kind, "logicalType": "time-millis"} for name, kind in _TIMES.items()),
]
INTEROP: dict[str, Any] = {
    "type": "record",
    "name": "Interop",
    "namespace": "org.apache.avro",
    "fields": _FIELDS,
}
"""The schema; its field `recordField` is a record that contains itself."""


def without(*names: str) -> dict[str, Any]:
    """The schema without some fields."""
    return {**INTEROP, "fields": [each for each in _FIELDS if each["name"] not in names]}
