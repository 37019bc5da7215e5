"""Avro schemas: their columns and their references."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from tests.support import interop
from tidemark.silver.typed.formats.avro import as_spark_reads, column_of, is_raw, with_references
from tidemark.spec.fields import (
    Decimal,
    FieldType,
    ListOf,
    MapOf,
    Struct,
    UnsupportedSchema,
    added_fields,
    merged_type,
    type_conflicts,
    widened_type,
)


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    """Return a record schema."""
    made = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": made, **more}


_A = record(("b", "int"), name="x.A")
_DATE = {"type": "int", "logicalType": "date"}
_ADDRESS = record(("street", "string"), name="shop.Address")


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ("long", "long"),
        ({"type": "string"}, "string"),
        (["null", "double"], "double"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal(9, 2)),
        (
            {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9},
            Decimal(9, 0),
        ),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"),
        # Other logical types keep their physical type.
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "long"),
        ({"type": "int", "logicalType": "time-millis"}, "integer"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "string", "logicalType": "date"}, "string"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 2}, "binary"),
        # An error is a record; a field that is always null is left out.
        (
            {**record(("a", "int"), ("n", "null"), ("m", {"type": "null"})), "type": "error"},
            Struct((("a", "integer"),)),
        ),
        ({"type": "array", "items": ["null", "int"]}, ListOf("integer")),
        ({"type": "map", "values": "float"}, MapOf("float")),
        (["null", "int", "long"], "long"),
        (["float", "double"], "double"),
        (["int", "string"], Struct((("member_int", "integer"), ("member_string", "string")))),
        (
            ["null", {"type": "enum", "name": "a.E", "symbols": ["X"]}, _ADDRESS, {"type": "int"}],
            Struct(
                (
                    ("member_E", "string"),
                    ("member_Address", Struct((("street", "string"),))),
                    ("member_int", "integer"),
                )
            ),
        ),
        # A union of three types has a field for each.
        (
            [_DATE, {"type": "long", "logicalType": "timestamp-millis"}, "string"],
            Struct(
                (("member_int", "date"), ("member_long", "timestamp"), ("member_string", "string"))
            ),
        ),
        (
            {
                "type": "fixed",
                "name": "F",
                "size": 4,
                "logicalType": "decimal",
                "precision": 18,
                "scale": 2,
            },
            "binary",
        ),
        (
            record(("at", _ADDRESS), ("to", ["null", "shop.Address"]), namespace="shop"),
            Struct(
                (
                    ("at", Struct((("street", "string"),))),
                    ("to", Struct((("street", "string"),))),
                )
            ),
        ),
        # A name resolves in the namespace of the enclosing record.
        (
            record(("at", _ADDRESS), ("to", "Address"), namespace="shop"),
            Struct(
                (
                    ("at", Struct((("street", "string"),))),
                    ("to", Struct((("street", "string"),))),
                )
            ),
        ),
    ],
)
def test_avro_types_become_delta_types(schema: Any, column: FieldType) -> None:
    """Types without a counterpart in Delta keep their physical type."""
    assert column_of(json.dumps(schema)) == column


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (record(("next", ["null", "R"])), "R contains itself"),
        (interop.INTEROP, r"^recordField\.children\[\]: org\.apache\.avro\.Node contains itself"),
        (record(), "R has no fields"),
        (
            [_DATE, "null", {"type": "long"}],
            r"^a union of int \(date\) and long makes one column",
        ),
        (
            record(
                (
                    "legs",
                    {
                        "type": "array",
                        "items": {
                            "type": "map",
                            "values": record(
                                (
                                    "at",
                                    [_DATE, {"type": "long", "logicalType": "timestamp-millis"}],
                                ),
                                name="Leg",
                            ),
                        },
                    },
                )
            ),
            r"^legs\[\]\{\}\.at: a union of int \(date\) and long \(timestamp-millis\) makes one",
        ),
        (
            record(("a", ["null", _A, {**_A, "name": "y.A"}])),
            r"^a: a union of x\.A and y\.A makes fields with the same name, member_A",
        ),
        (
            record(
                ("first", record(("b", "int"), name="A")),
                ("a", ["A", record(("b", "int"), name="y.A")]),
                namespace="x",
            ),
            r"^a: a union of x\.A and y\.A makes",
        ),
        (
            record(("a", ["int", record(("b", "int"), name="Int")])),
            "^a: a union of int and Int makes fields with the same name, member_int, or of names",
        ),
        (record(("a", "null")), "R has no fields"),
        (
            record(("a", {"type": "array", "items": "null"})),
            r"^a\[\]: a field has no type but null",
        ),
        (
            record(("a", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}})),
            r"^a\[\]: F has no bytes",
        ),
        *(
            (
                record(("a", {"type": "fixed", "name": "F", "size": size})),
                "^a: the size of F is not a number of bytes",
            )
            for size in (-1, "16", 1.0, True, None)
        ),
        (record(("a", {"type": "fixed", "name": "F"})), "not valid Avro"),
        (record(("a", ["null"])), "no type but null"),
        (record(("a", "int"), ("A", "int")), "differ only in case: a"),
        (record(("a", "Missing")), "does not define Missing"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2},
            "50 digits, and Delta allows 38",
        ),
        ({"type": "record", "name": "R"}, "not valid Avro"),
        (7, "not valid Avro"),
    ],
)
def test_a_schema_without_a_column_raises_the_reason(schema: Any, problem: str) -> None:
    """The error comes before any record is read."""
    with pytest.raises(UnsupportedSchema, match=problem):
        column_of(json.dumps(schema))


def _fixed(size: Any, precision: Any, scale: Any = 0) -> str:
    number = {"logicalType": "decimal", "precision": precision, "scale": scale}
    return json.dumps({"type": "fixed", "name": "F", "size": size, **number})


@pytest.mark.parametrize("size", range(1, 20))
def test_a_decimal_in_a_fixed_has_at_most_the_digits_of_its_bytes(size: int) -> None:
    """Avro ignores the logical type of a larger decimal, so the column has the bytes."""
    most = len(str(2 ** (8 * size - 1))) - 1
    for precision in range(1, 39):
        expected = Decimal(precision, 0) if precision <= most else "binary"
        assert column_of(_fixed(size, precision)) == expected


def test_a_decimal_of_any_precision_is_read_at_once() -> None:
    """The powers of such numbers take hours, and more memory than any machine has."""
    assert column_of(_fixed(16, 10**9, 2)) == "binary"
    assert column_of(_fixed(10**6, 10**4_000)) == "binary"
    with pytest.raises(UnsupportedSchema, match="1000000 digits, and Delta allows 38"):
        column_of(_fixed(10**6, 10**6))


@pytest.mark.parametrize(("precision", "scale"), [(True, 0), (9, False), ("9", 0), (9.0, 0)])
def test_a_decimal_whose_digits_are_no_integers_is_ignored(precision: Any, scale: Any) -> None:
    assert column_of(_fixed(8, precision, scale)) == "binary"


def test_the_readers_schema_has_numbers_of_64_bits() -> None:
    """The binary form is the same. Ignored parts are removed, and unions keep their names."""
    side = {"type": "enum", "name": "a.Side", "symbols": ["BUY"], "default": "BUY"}
    money = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = record(
        ("t", ["null", {"type": "int", "logicalType": "time-millis"}]),
        ("d", {"type": "array", "items": {"type": "int", "logicalType": "date"}}),
        ("logicalType", {"type": "string", "avro.java.string": "String"}),
        ("side", side),
        ("either", ["int", {"type": "map", "values": ["string", "int"]}, "a.Side"]),
        ("m", money),
        ("u", {"type": "string", "logicalType": "uuid"}),
        # Python writes this number as `Infinity`, which is no JSON.
        ("n", {"type": "bytes", "logicalType": "decimal", "precision": 1e999}),
    )
    schema["fields"][4]["default"] = 1

    def number(name: str, **more: str) -> dict[str, Any]:
        return record(("index", "long"), name=name, **more)

    spark = json.loads(as_spark_reads(json.dumps(schema)))
    assert spark == record(
        ("t", ["null", "long"]),
        ("d", {"type": "array", "items": "long"}),
        ("logicalType", {"type": "string"}),
        ("side", number("a.Side")),
        (
            "either",
            [
                number("int", namespace="tidemark0"),
                {"type": "map", "values": ["string", number("int", namespace="tidemark1")]},
                "a.Side",
            ],
        ),
        ("m", money),
        ("u", {"type": "string"}),
        ("n", {"type": "bytes"}),
    )
    fastavro.parse_schema(spark)


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        ("bytes", True),
        ({"type": "bytes"}, True),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, True),
        (["null", "bytes"], False),
        ({"type": "fixed", "name": "F", "size": 2}, False),
        ({"type": "array", "items": "bytes"}, False),
    ],
)
def test_top_level_bytes_have_no_length(schema: Any, raw: bool) -> None:
    """Confluent's serializers omit it. Bytes inside a union have a length."""
    assert is_raw(json.dumps(schema)) is raw


def test_a_referenced_type_is_defined_at_its_first_use() -> None:
    """A referenced schema may refer to a third one."""
    country = {"type": "enum", "name": "shop.Country", "symbols": ["CH", "AT"]}
    address = record(("country", "shop.Country"), name="Address", namespace="shop")
    order = record(
        ("to", ["null", "shop.Address"]),
        ("from", {"type": "array", "items": "shop.Address"}),
        ("vat", "shop.Country"),
        name="Order",
    )
    whole = with_references(json.dumps(order), map(json.dumps, (address, country)))
    # An independent parser accepts the schema without the referenced ones.
    fastavro.parse_schema(json.loads(whole))
    place = Struct((("country", "string"),))
    assert column_of(whole) == Struct((("to", place), ("from", ListOf(place)), ("vat", "string")))
    assert with_references(json.dumps(order), ()) == json.dumps(order)
    # A name without a namespace stays without one at any place.
    bare = {"type": "enum", "name": "Bare", "symbols": ["A"]}
    inner = record(("b", "Bare"), name="other.Inner")
    outer = record(("b", "Bare"), ("i", inner), name="shop.Outer")
    whole = with_references(json.dumps(outer), [json.dumps(bare)])
    # Java's parser writes the same, because it also resolves names without a namespace.
    assert json.loads(whole)["fields"][0]["type"] == {**bare, "namespace": ""}
    assert column_of(whole) == Struct((("b", "string"), ("i", Struct((("b", "string"),)))))


_LEG = Struct((("qty", "long"),))
_ROW = Struct((("a", "long"), ("legs", ListOf(_LEG)), ("m", MapOf(_LEG))))


@pytest.mark.parametrize(
    ("other", "added"),
    [
        (Struct((("b", "string"), ("a", "long"))), ["value.b"]),
        (
            Struct((("legs", ListOf(Struct((("due", "date"),)))),)),
            ["value.legs[].due"],
        ),
        (Struct((("m", MapOf(Struct((("due", "date"),)))),)), ["value.m{}.due"]),
    ],
)
def test_columns_of_two_schemas_are_merged(other: FieldType, added: list[str]) -> None:
    """Existing fields keep their order. The fields do not depend on the order of the schemas."""
    assert list(type_conflicts(_ROW, other, "value", has_unions=True)) == []
    assert list(added_fields(_ROW, other, "value")) == added
    both = merged_type(_ROW, other)
    for each in (_ROW, other):
        assert list(added_fields(both, each, "value")) == []
    assert list(added_fields(merged_type(other, _ROW), both, "value")) == []
    assert isinstance(both, Struct)
    assert [name for name, _ in both.fields][:3] == ["a", "legs", "m"]


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (Struct((("a", "string"),)), "value.a is long in the table, not string"),
        (Struct((("A", "long"),)), "value.a of the table is A in the schema"),
        (
            Struct((("legs", ListOf(Struct((("qty", "double"),)))),)),
            "value.legs[].qty is long in the table, not double",
        ),
        (
            Struct((("m", MapOf("long")),)),
            'value.m{} is {"qty": "long"} in the table, not long',
        ),
        ("long", 'value is {"a": "long"'),
        (
            Struct((("member_R", Struct((("a", "long"),))), ("member_S", "long"))),
            "value is a union either in the table or in the schema",
        ),
    ],
)
def test_conflicts_have_the_path_and_both_types(other: FieldType, difference: str) -> None:
    """A conflict is between a column and a schema."""
    (found,) = type_conflicts(_ROW, other, "value", has_unions=True)
    assert found.startswith(difference)


def test_numbers_of_four_bytes_are_widened_at_any_depth() -> None:
    """Other types do not change."""
    narrow = Struct((("a", ListOf("integer")), ("m", MapOf("float")), ("d", "date")))
    assert widened_type(narrow) == Struct(
        (("a", ListOf("long")), ("m", MapOf("double")), ("d", "date"))
    )


def test_member_fields_are_plain_fields_in_formats_without_unions() -> None:
    """Protobuf and JSON Schema allow such names."""
    one = Struct((("member_name", "string"),))
    more = Struct((*one.fields, ("city", "string")))
    assert list(type_conflicts(one, more, "value", has_unions=False)) == []
    assert len(list(type_conflicts(one, more, "value", has_unions=True))) == 1
