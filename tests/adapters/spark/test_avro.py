"""Avro payloads, written by fastavro: what is decoded, and what is not."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import header_schema_id_serializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.support.registry import avro_bytes, framed
from tidemark.adapters.spark.payloads import WriterSchemas, raw, reason, with_decoded
from tidemark.core.avro import column_of
from tidemark.core.decoding import Format, Part, PayloadSpec, RegisteredSchema
from tidemark.core.fields import FieldType, ListOf, MapOf, Struct, merged, widened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
_FIRST = {
    "type": "record",
    "name": "Trade",
    "namespace": "desk",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": ["null", _MONEY]},
        {"name": "legs", "type": {"type": "array", "items": {
            "type": "record", "name": "Leg", "fields": [{"name": "qty", "type": "int"}]}}},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": "float"}},
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "until", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
    ],
}  # fmt: skip
_SECOND = {
    "type": "record",
    "name": "Trade",
    "namespace": "desk",
    "fields": [
        {"name": "note", "type": ["null", "string"]},
        {"name": "id", "type": "long"},
        {"name": "legs", "type": {"type": "array", "items": {
            "type": "record", "name": "Leg", "fields": [
                {"name": "due", "type": ["null", "string"]}, {"name": "qty", "type": "int"}]}}},
    ],
}  # fmt: skip
_THIRD = ["null", "string"]
SCHEMAS = {7: _FIRST, 9: _SECOND}
_AVRO = PayloadSpec(format=Format.AVRO)


def read(
    spark: SparkSession,
    payloads: Sequence[bytes | None],
    schemas: Mapping[int, Any],
    headers: Sequence[Any] | None = None,
) -> list[Any]:
    """What becomes of payloads: value, reason and id of each."""
    columns = [widened(column_of(json.dumps(each))) for each in schemas.values()]
    column = columns[0]
    for each in columns[1:]:
        column = merged(column, each)
    written = WriterSchemas(
        schemas=[
            RegisteredSchema(id=n, kind="AVRO", text=json.dumps(s)) for n, s in schemas.items()
        ],
        refused=(13,),
        column=spark.createDataFrame([], f"value {ddl(column)}").schema["value"].dataType,
    )
    rows = spark.createDataFrame(
        [(*row, headers) for row in enumerate(payloads)],
        f"place int, {raw(Part.VALUE)} binary, headers array<struct<key string, value binary>>",
    ).repartition(2)
    made = with_decoded(rows, Part.VALUE, _AVRO, written)
    found = made.select("place", "value", reason(Part.VALUE), Part.VALUE.schema_id).collect()
    return [
        (row[1].asDict(recursive=True) if hasattr(row[1], "asDict") else row[1], row[2], row[3])
        for row in sorted(found, key=lambda row: row["place"])
    ]


def ddl(kind: FieldType) -> str:
    """A type as Spark's schemas in text have it."""
    match kind:
        case Struct():
            return f"STRUCT<{', '.join(f'{name}: {ddl(each)}' for name, each in kind.fields)}>"
        case ListOf():
            return f"ARRAY<{ddl(kind.element)}>"
        case MapOf():
            return f"MAP<STRING, {ddl(kind.value)}>"
        case _:
            return {"long": "BIGINT", "integer": "INT"}.get(str(kind), str(kind))


def trade(**changes: Any) -> dict[str, Any]:
    """A trade as fastavro takes it."""
    usual = {
        "id": 1,
        "price": Decimal("12.50"),
        "legs": [{"qty": 3}],
        "side": "SELL",
        "day": date(2026, 2, 28),
        "at": datetime(2026, 2, 28, 12, 0, 0, 1, tzinfo=UTC),
        "tags": {"a": 0.5},
        "either": "x",
        "until": 5,
        "code": b"abc",
    }
    return {**usual, **changes}


def test_each_record_is_read_with_its_own_schema(spark: SparkSession) -> None:
    """And has the fields of all of them, in one column of the widest numbers."""
    plain = json.loads(json.dumps(_FIRST).replace('"time-millis"', '"none"'))
    old = avro_bytes(plain, trade())
    payloads = [
        framed(7, old),
        framed(
            9, avro_bytes(_SECOND, {"note": "n", "id": 2**40, "legs": [{"due": "d", "qty": 1}]})
        ),
        framed(7, avro_bytes(plain, trade(price=None, legs=[], day=date(1, 1, 1), either=5))),
        None,
    ]
    first, second, third, tombstone = read(spark, payloads, SCHEMAS)
    assert first == (
        {
            **trade(),
            "price": Decimal("12.50"),
            "at": datetime(2026, 2, 28, 12, 0, 0, 1),
            "legs": [{"qty": 3, "due": None}],
            "either": {"member_int": None, "member_string": "x"},
            "note": None,
            "code": bytearray(b"abc"),
        },
        None,
        7,
    )
    assert second[1:] == (None, 9)
    assert {name: each for name, each in second[0].items() if each is not None} == {
        "id": 2**40,
        "note": "n",
        "legs": [{"qty": 1, "due": "d"}],
    }
    assert (third[0]["price"], third[0]["legs"], third[0]["day"]) == (None, [], date(1, 1, 1))
    assert third[0]["either"] == {"member_int": 5, "member_string": None}
    assert tombstone == (None, None, None)


def test_what_is_not_its_schema_is_malformed(spark: SparkSession) -> None:
    """Cut anywhere, longer by anything, lengths that are none; never null without a reason."""
    whole = avro_bytes(_SECOND, {"note": "note", "id": 300, "legs": [{"due": "due", "qty": 70}]})
    cut = [framed(9, whole[:length]) for length in range(len(whole))]
    longer = [framed(9, whole + more) for more in (b"\x00", b"x", whole, bytes(16))]
    poison = [
        # Texts of 2^31 - 1 bytes, of 2^30 and of less than none; a list of 2^62 elements.
        framed(9, b"\x02" + length + b"abc")
        for length in (b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08", b"\x01")
    ]
    poison.append(framed(9, b"\x00\x02" + b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"))
    poison.append(framed(9, b"\x04"))
    made = read(spark, [*cut, *longer, *poison, framed(9, whole)], SCHEMAS)
    assert made[:-1] == [(None, "malformed", 9)] * (len(made) - 1)
    assert made[-1][1] is None


def test_a_decimal_of_more_digits_than_its_type_is_malformed(spark: SparkSession) -> None:
    """Its bytes hold any number."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "price", "type": _MONEY}]}
    plain = {"type": "record", "name": "R", "fields": [{"name": "price", "type": "bytes"}]}
    payloads = [
        framed(1, avro_bytes(plain, {"price": number.to_bytes(4, "big", signed=True)}))
        for number in (999_999, 1_000_000, -999_999)
    ]
    made = read(spark, payloads, {1: schema})
    assert [each[1] for each in made] == [None, "malformed", None]
    assert made[0][0] == {"price": Decimal("9999.99")}


def test_frames_that_are_none_and_schemas_that_are_not_there(spark: SparkSession) -> None:
    """Each with a reason of its own, and the id as far as there is one."""
    payloads = [b"", b"\x00", b"\x00\x00\x00\x07", b"{}", b"\x01\x00\x00\x00\x07", framed(8, b"x")]
    payloads += [framed(2**32 - 1, b""), framed(13, b"x"), framed(7, b"")]
    assert read(spark, payloads, SCHEMAS) == [
        *[(None, "not_framed", None)] * 5,
        (None, "unknown_schema", 8),
        (None, "unknown_schema", 2**32 - 1),
        (None, "refused_schema", 13),
        (None, "malformed", 7),
    ]


def test_a_header_that_names_the_schema_comes_before_the_payload(spark: SparkSession) -> None:
    """Confluent's header serializer writes no frame: a zero byte is the body's own."""
    context = SerializationContext("trades", MessageField.VALUE, [])
    guid = SchemaId("AVRO", guid="89791762-2336-4186-9674-299b90a802e2")
    body = avro_bytes(_THIRD, None) + bytes(4)
    payload = header_schema_id_serializer(body, context, guid)
    payloads = [payload, framed(9, b""), framed(13, b""), b"plain", b"", None]
    refused = (None, "schema_in_header", None)
    assert read(spark, payloads, SCHEMAS, context.headers) == [*[refused] * 5, (None, None, None)]
    # Those of the other half, and headers without that name, decide nothing.
    for headers in ([], [("__key_schema_id", b"\1"), ("other", None)]):
        assert read(spark, payloads[2:], SCHEMAS, headers) == [
            (None, "refused_schema", 13),
            *[(None, "not_framed", None)] * 2,
            (None, None, None),
        ]


def test_a_payload_that_is_null_by_its_schema_is_decoded(spark: SparkSession) -> None:
    """A union at the top: not every null is a fault."""
    payloads = [framed(1, avro_bytes(_THIRD, each)) for each in (None, "", "text")]
    assert read(spark, payloads, {1: _THIRD}) == [
        (None, None, 1),
        ("", None, 1),
        ("text", None, 1),
    ]


def test_random_records_are_read_as_they_were_written(spark: SparkSession) -> None:
    """By a library that is not Spark's."""
    seed = 7
    random = Random(seed)
    values = [
        {
            "note": random.choice([None, "", "é" * random.randrange(40)]),
            "id": random.randrange(-(2**63), 2**63),
            "legs": [
                {"due": random.choice([None, "x"]), "qty": random.randrange(-(2**31), 2**31)}
                for _ in range(random.randrange(4))
            ],
        }
        for _ in range(300)
    ]
    made = read(spark, [framed(9, avro_bytes(_SECOND, each)) for each in values], {9: _SECOND})
    assert [each[0] for each in made] == values, f"seed {seed}"
