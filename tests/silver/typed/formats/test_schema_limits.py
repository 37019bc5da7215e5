"""Small schemas that describe huge types, and schemas beyond the other limits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.silver.typed.formats.test_protobuf import schema as protobuf_schema
from tidemark.silver.typed.formats import avro, json_schema, protobuf_reader
from tidemark.spec.fields import FieldType, ListOf, MapOf, Struct
from tidemark.spec.schema_limits import MAX_COLUMNS, MAX_LEVELS, SchemaTooLarge

_Read = Callable[[str], FieldType]


def _avro_record(*types: Any) -> Any:
    fields = [{"name": f"f{n}", "type": each} for n, each in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields}


def _doubling_records(depth: int) -> str:
    """Return an Avro record in which each level contains the next level twice."""
    schema: Any = "long"
    for level in range(depth, 0, -1):
        again = schema if isinstance(schema, str) else schema["name"]
        schema = {**_avro_record(schema, again), "name": f"R{level}"}
    return json.dumps(schema)


def _definitions(depth: int, form: Callable[[Any], Any]) -> str:
    """Return a JSON Schema whose definitions each refer to the next one."""
    place = "#/definitions/"
    made = {str(n): form({"$ref": f"{place}{n + 1}"}) for n in range(depth)}
    made[str(depth)] = {"properties": {"id": {"type": "integer"}}}
    return json.dumps({"definitions": made, "$ref": f"{place}0"})


def _nested(levels: int, place: str, end: Any, **more: Any) -> Any:
    schema = end
    for _ in range(levels):
        schema = {**more, place: schema}
    return schema


def _repeated_parts() -> str:
    properties = {f"f{n}": {"$ref": "#/definitions/a"} for n in range(1_000)}
    return json.dumps({"definitions": {"a": {"allOf": [{}] * 1_000}}, "properties": properties})


_BOMBS: list[tuple[_Read, str, str]] = [
    (avro.column_of, _doubling_records(17), "has more than 2,000 columns"),
    (avro.column_of, json.dumps(_avro_record(*["int"] * 2_001)), "has more than 2,000 columns"),
    (
        avro.column_of,
        json.dumps(_avro_record(_nested(60, "items", "int", type="array"))),
        "has more than 50 levels",
    ),
    (avro.column_of, "[" * 3_000 + "]" * 3_000, "has more than 250 levels in its text"),
    (avro.column_of, json.dumps({"type": "int", "doc": "x" * 4_000_000}), "4,000,000 characters"),
    *(
        (
            avro.column_of,
            json.dumps(_avro_record({"type": "fixed", "name": "F", "size": size, **more})),
            "^f0: F has more than 67,108,864 bytes",
        )
        for size in (64 * 2**20 + 1, 2**31, 10**4_000)
        for more in ({}, {"logicalType": "decimal", "precision": 9})
    ),
    (
        json_schema.column_of,
        _definitions(17, lambda each: {"properties": {"a": each, "b": each}}),
        "has more than 2,000 columns",
    ),
    (json_schema.column_of, _definitions(3_000, lambda each: each), "nested too deep"),
    (
        json_schema.column_of,
        _definitions(1_000, lambda each: {"properties": {"a": each}}),
        "nested too deep",
    ),
    (
        json_schema.column_of,
        '{"properties":{"a":' * 2_000 + "{}" + "}}" * 2_000,
        "has more than 250 levels in its text",
    ),
    (json_schema.column_of, _repeated_parts(), "has more than 50,000 parts"),
    (
        json_schema.column_of,
        f'{{"properties": {{"a": {{"maximum": -{"1" * 4_301}}}}}}}',
        "has a number of more than 4,300 digits",
    ),
    (
        avro.column_of,
        f'{{"type": "int", "default": {"1" * 4_301}}}',
        "has a number of more than 4,300 digits",
    ),
    (
        lambda fields: protobuf_reader.column_of(protobuf_schema(fields)),
        "".join(f"int32 f{n} = {n + 1};" for n in range(2_001)),
        "has more than 2,000 columns",
    ),
]


@pytest.mark.parametrize(("read", "text", "problem"), _BOMBS, ids=[each[2] for each in _BOMBS])
def test_a_schema_beyond_a_limit_is_refused_while_it_is_read(
    read: _Read, text: str, problem: str
) -> None:
    """The work ends at the limit. Without a limit, some of these schemas take hours."""
    with pytest.raises(SchemaTooLarge, match=problem):
        read(text)


def test_the_time_to_read_a_union_is_proportional_to_its_members() -> None:
    union = [{**_avro_record("int"), "name": f"R{n}"} for n in range(20_000)]
    started = time.process_time()
    with pytest.raises(SchemaTooLarge, match="has more than 2,000 columns"):
        avro.column_of(json.dumps(union))
    assert time.process_time() - started < 4


def test_a_definition_that_several_parts_refer_to_is_read_once() -> None:
    """The references of each level lead to the same next level; 2^60 paths lead to the last one."""
    text = _definitions(60, lambda each: {"allOf": [each, each]})
    assert json_schema.column_of(text) == Struct((("id", "long"),))


def test_a_schema_at_the_limits_has_a_column() -> None:
    wide = avro.column_of(json.dumps(_avro_record(*["int"] * MAX_COLUMNS)))
    assert isinstance(wide, Struct)
    assert (wide.columns, wide.levels) == (MAX_COLUMNS, 1)
    lists = _nested(MAX_LEVELS - 1, "items", "int", type="array")
    deep = avro.column_of(json.dumps(_avro_record(lists)))
    assert isinstance(deep, Struct)
    assert (deep.columns, deep.levels) == (1, MAX_LEVELS)
    assert avro.column_of(json.dumps({"type": "int", "default": -(10**4_299)})) == "integer"
    assert (
        avro.column_of(json.dumps({"type": "fixed", "name": "F", "size": 64 * 2**20})) == "binary"
    )


def test_references_of_avro_that_are_nested_too_deep_are_refused() -> None:
    others = [
        json.dumps({**_avro_record(f"R{n + 1}"), "name": f"R{n}"}) for n in reversed(range(2_000))
    ]
    with pytest.raises(SchemaTooLarge, match="nested too deep"):
        avro.with_references(json.dumps(_avro_record("R0")), others)


def test_a_type_counts_the_columns_and_levels_inside() -> None:
    leg = Struct((("a", "long"), ("b", MapOf(ListOf("string")))))
    assert (leg.columns, leg.levels) == (2, 3)
    both = Struct((("x", leg), ("y", ListOf(leg)), ("z", "long")))
    assert (both.columns, both.levels) == (5, 5)
