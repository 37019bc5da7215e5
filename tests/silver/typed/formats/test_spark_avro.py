"""Tests of valid and invalid Avro payloads, written by fastavro."""

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

from tests.support import interop
from tests.support.registry import avro_bytes, framed
from tests.support.typed_values import differences
from tidemark.silver.typed.formats.avro import column_of
from tidemark.silver.typed.formats.spark_payloads import (
    WriterSchemas,
    detail,
    raw,
    reason,
    with_decoded,
)
from tidemark.spec.decode import Format, Part, PayloadSpec, RegisteredSchema
from tidemark.spec.fields import FieldType, ListOf, MapOf, Struct, merged_type, widened_type

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


def decode_payloads(
    spark: SparkSession,
    payloads: Sequence[bytes | None],
    schemas: Mapping[int, Any],
    headers: Sequence[Any] | None = None,
    *,
    part: Part = Part.VALUE,
    widens: bool = True,
) -> list[Any]:
    """Return value, reason, schema id and detail of each payload.

    Checks that decoding without Spark returns the same values.
    """
    columns = [column_of(json.dumps(each)) for each in schemas.values()]
    if widens:
        columns = [widened_type(each) for each in columns]
    column = columns[0]
    for each in columns[1:]:
        column = merged_type(column, each)
    written = WriterSchemas(
        schemas=[
            RegisteredSchema(id=n, kind="AVRO", text=json.dumps(s)) for n, s in schemas.items()
        ],
        refused=(13,),
        column=spark.createDataFrame([], f"value {ddl(column)}").schema["value"].dataType,
        widens=widens,
    )
    rows = spark.createDataFrame(
        [(*row, headers) for row in enumerate(payloads)],
        f"place int, {raw(part)} binary, headers array<struct<key string, value binary>>",
    ).repartition(2)
    made = with_decoded(rows, part, _AVRO, written)
    found = made.select("place", part.value, reason(part), part.schema_id, detail(part)).collect()
    results = [
        (row[1].asDict(recursive=True) if hasattr(row[1], "asDict") else row[1], *row[2:])
        for row in sorted(found, key=lambda row: row["place"])
    ]
    by_id = {each.id: each for each in written.schemas}
    for payload, (value, why, schema_id, _) in zip(payloads, results, strict=True):
        if why is None:
            schema = by_id.get(schema_id)
            assert differences(payload, _AVRO, value, schema, column) == []
    return results


def read(
    spark: SparkSession,
    payloads: Sequence[bytes | None],
    schemas: Mapping[int, Any],
    headers: Sequence[Any] | None = None,
) -> list[Any]:
    """Return value, reason and schema id of each payload."""
    return [row[:3] for row in decode_payloads(spark, payloads, schemas, headers)]


def ddl(kind: FieldType) -> str:
    """Return a type in the syntax of Spark's DDL."""
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
    """Return a trade for fastavro."""
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
    """One column has the fields of all schemas, with the widest numbers."""
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


def test_a_payload_that_does_not_match_its_schema_is_malformed(spark: SparkSession) -> None:
    """Covers truncated and long payloads and invalid lengths. No value is null without a reason."""
    whole = avro_bytes(_SECOND, {"note": "note", "id": 300, "legs": [{"due": "due", "qty": 70}]})
    cut = [framed(9, whole[:length]) for length in range(len(whole))]
    longer = [framed(9, whole + more) for more in (b"\x00", b"x", whole, bytes(16))]
    poison = [
        # Texts of 2^31 - 1, 2^30 and -1 bytes; a list of 2^62 elements.
        framed(9, b"\x02" + length + b"abc")
        for length in (b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08", b"\x01")
    ]
    poison.append(framed(9, b"\x00\x02" + b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"))
    poison.append(framed(9, b"\x04"))
    made = decode_payloads(spark, [*cut, *longer, *poison, framed(9, whole)], SCHEMAS)
    assert [row[:3] for row in made[:-1]] == [(None, "malformed", 9)] * (len(made) - 1)
    details = [row[3] for row in made]
    short = "truncated, or written with another schema"
    assert details[: len(cut)] == [short] * len(cut)
    above = slice(len(cut), len(cut) + len(longer))
    assert details[above] == ["bytes after the end of the record"] * len(longer)
    assert None not in details[above.stop : -1]
    assert details[-1] is None
    assert made[-1][1] is None


def test_a_decimal_of_more_digits_than_its_type_is_malformed(spark: SparkSession) -> None:
    """Its bytes can store any number."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "price", "type": _MONEY}]}
    plain = {"type": "record", "name": "R", "fields": [{"name": "price", "type": "bytes"}]}
    payloads = [
        framed(1, avro_bytes(plain, {"price": number.to_bytes(4, "big", signed=True)}))
        for number in (999_999, 1_000_000, -999_999)
    ]
    made = read(spark, payloads, {1: schema})
    assert [each[1] for each in made] == [None, "malformed", None]
    assert made[0][0] == {"price": Decimal("9999.99")}


def test_missing_frames_and_unknown_schemas_have_separate_reasons(spark: SparkSession) -> None:
    """Rows have the schema id if the payload has one."""
    payloads = [b"", b"\x00", b"\x00\x00\x00\x07", b"{}", b"\x01\x00\x00\x00\x07", framed(8, b"x")]
    payloads += [framed(2**32 - 1, b""), framed(13, b"x"), framed(7, b"")]
    assert read(spark, payloads, SCHEMAS) == [
        *[(None, "not_framed", None)] * 5,
        (None, "unknown_schema", 8),
        (None, "unknown_schema", 2**32 - 1),
        (None, "refused_schema", 13),
        (None, "malformed", 7),
    ]


def test_a_schema_id_header_takes_precedence_over_the_payload(spark: SparkSession) -> None:
    """Confluent's header serializer writes no frame; a leading zero byte belongs to the record."""
    context = SerializationContext("trades", MessageField.VALUE, [])
    guid = SchemaId("AVRO", guid="89791762-2336-4186-9674-299b90a802e2")
    body = avro_bytes(_THIRD, None) + bytes(4)
    payload = header_schema_id_serializer(body, context, guid)
    payloads = [payload, framed(9, b""), framed(13, b""), b"plain", b"", None]
    refused = (None, "schema_in_header", None)
    assert read(spark, payloads, SCHEMAS, context.headers) == [*[refused] * 5, (None, None, None)]
    # Headers of the key and headers with other names have no effect.
    for headers in ([], [("__key_schema_id", b"\1"), ("other", None)]):
        assert read(spark, payloads[2:], SCHEMAS, headers) == [
            (None, "refused_schema", 13),
            *[(None, "not_framed", None)] * 2,
            (None, None, None),
        ]


def test_a_null_of_a_top_level_union_is_decoded(spark: SparkSession) -> None:
    """Not every null is a fault."""
    payloads = [framed(1, avro_bytes(_THIRD, each)) for each in (None, "", "text")]
    assert read(spark, payloads, {1: _THIRD}) == [
        (None, None, 1),
        ("", None, 1),
        ("text", None, 1),
    ]


def test_random_records_are_read_as_they_were_written(spark: SparkSession) -> None:
    """The library fastavro writes them."""
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


_LARGE = 3_000_000_000
_DAY = {"type": "int", "logicalType": "date"}
_SIDE = {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    """Return a record schema."""
    made = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "R", "fields": made}


def test_an_int_beyond_32_bits_is_read_exactly(spark: SparkSession) -> None:
    """The library fastavro, and so Confluent's Python serializer, writes such numbers."""
    schema = record(
        ("n", {"type": "int"}),
        ("maybe", ["null", "int"]),
        ("either", ["int", "string"]),
        ("again", [{"type": "int"}, "null", "boolean"]),
        ("wide", ["int", "long"]),
        ("list", {"type": "array", "items": "int"}),
        ("lists", {"type": "array", "items": {"type": "map", "values": ["string", "int"]}}),
        ("inner", {**record(("n", "int")), "name": "Inner"}),
        ("until", {"type": "int", "logicalType": "time-millis"}),
    )
    schema["fields"][0]["default"] = 5
    value = {
        "n": _LARGE,
        "maybe": -_LARGE,
        "either": _LARGE,
        "again": _LARGE,
        "wide": _LARGE,
        "list": [1, _LARGE],
        "lists": [{"a": "text"}, {"b": _LARGE}],
        "inner": {"n": _LARGE},
        "until": _LARGE,
    }
    small = {**value, "n": 1, "either": "x", "again": True, "maybe": None}
    # In unions fastavro checks numbers, so the test writes a record of one `long`.
    plain = json.loads(json.dumps(schema).replace("time-millis", "none").replace('"int"', '"long"'))
    plain["fields"][4]["type"][0] = {**record(("n", "long")), "name": "Int"}
    payloads = [
        framed(1, avro_bytes(plain, {**each, "wide": {"n": _LARGE}})) for each in (value, small)
    ]
    assert payloads[0].startswith(b"\x00\x00\x00\x00\x01\x80\xf8\x82\xad\x16")
    first, second = read(spark, payloads, {1: schema})
    lists = [
        {"a": {"member_string": "text", "member_int": None}},
        {"b": {"member_string": None, "member_int": _LARGE}},
    ]
    assert first == (
        {
            **value,
            "either": {"member_int": _LARGE, "member_string": None},
            "again": {"member_int": _LARGE, "member_boolean": None},
            "lists": lists,
        },
        None,
        1,
    )
    assert second[0] == {
        **small,
        "either": {"member_int": None, "member_string": "x"},
        "again": {"member_int": None, "member_boolean": True},
        "lists": lists,
    }
    # A serializer writes a top-level `int` so.
    assert read(spark, [framed(1, avro_bytes("int", _LARGE))], {1: "int"}) == [(_LARGE, None, 1)]


def test_an_int_beyond_the_column_is_malformed(spark: SparkSession) -> None:
    """With `widen: false`, the column has 32 bits."""
    schema = record(("n", "int"), ("list", {"type": "array", "items": "int"}))
    values = [(2**31 - 1, -(2**31)), (2**31, 1), (1, -(2**31) - 1)]
    payloads = [framed(1, avro_bytes(schema, {"n": n, "list": [each]})) for n, each in values]
    made = decode_payloads(spark, payloads, {1: schema}, widens=False)
    assert made[0] == ({"n": 2**31 - 1, "list": [-(2**31)]}, None, 1, None)
    assert made[1:] == [(None, "malformed", 1, "n"), (None, "malformed", 1, "list[]")]


@pytest.mark.parametrize(
    ("kind", "values", "wrong"),
    [
        (
            _DAY,
            {-719_162: date(1, 1, 1), 20_512: date(2026, 2, 28), 2_932_896: date(9999, 12, 31)},
            [-719_163, 2_932_897, 2**32 + 20_512, -(2**40)],
        ),
        (_SIDE, {0: "BUY", 1: "SELL"}, [2, -1, 2**32, 2**32 + 1]),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            {
                # Python cannot represent the outermost days in every time zone.
                -62_135_424_000_000_000: datetime(1, 1, 3),
                253_402_127_999_999_999: datetime(9999, 12, 29, 23, 59, 59, 999_999),
            },
            [-62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1],
        ),
    ],
)
def test_a_date_timestamp_or_symbol_out_of_bounds_is_malformed(
    spark: SparkSession, kind: Any, values: dict[int, Any], wrong: list[int]
) -> None:
    """Truncated to 32 bits, it would be another date or symbol. The detail is the field."""
    several = [{**kind, "name": "Other"}, "string"] if kind is _SIDE else [kind, "string"]
    member = "Other" if kind is _SIDE else kind["type"]
    schema = record(
        ("a", kind),
        ("b", ["null", "Side" if kind is _SIDE else kind]),
        ("c", {"type": "array", "items": {"type": "map", "values": several}}),
    )
    plain = record(
        ("a", "long"),
        ("b", ["null", "long"]),
        ("c", {"type": "array", "items": {"type": "map", "values": ["long", "string"]}}),
    )

    def payload(a: int, b: int | None, c: int | str) -> bytes:
        return framed(1, avro_bytes(plain, {"a": a, "b": b, "c": [{"k": c}]}))

    numbers = list(values)
    good = [payload(each, each, each) for each in numbers] + [payload(numbers[0], None, "text")]
    bad = [
        (payload(each if at == "a" else numbers[0], each if at == "b" else None, last), at)
        for each in wrong
        for at, last in (("a", "text"), ("b", "text"), ("c[]", each))
    ]
    made = decode_payloads(spark, [*good, *(each for each, _ in bad)], {1: schema})
    assert [row[0] for row in made[: len(numbers)]] == [
        {"a": each, "b": each, "c": [{"k": {f"member_{member}": each, "member_string": None}}]}
        for each in values.values()
    ]
    assert made[len(numbers)][1:] == (None, 1, None)
    assert made[len(good) :] == [(None, "malformed", 1, at) for _, at in bad]


def test_a_boolean_of_another_byte_than_0_or_1_is_malformed(spark: SparkSession) -> None:
    """Java reads every byte except 1 as false. The detail is the field."""
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "yes", "type": "boolean"},
        {"name": "maybe", "type": ["null", {"type": "boolean"}, "string"]},
        {"name": "many", "type": {"type": "array", "items": ["null", "boolean"]}},
        {"name": "by", "type": {"type": "map", "values": "boolean"}},
    ]}  # fmt: skip
    good = {"yes": True, "maybe": False, "many": [True, None, False], "by": {"a": True}}
    whole = avro_bytes(schema, good)
    assert whole == b"\x01\x02\x00\x06\x02\x01\x00\x02\x00\x00\x02\x02a\x01\x00"
    places = {0: "yes", 2: "maybe.member_boolean", 5: "many[]", 13: "by{}"}
    broken = [
        framed(1, whole[:place] + byte + whole[place + 1 :])
        for place in places
        for byte in (b"\x02", b"\xff")
    ]
    made = decode_payloads(spark, [framed(1, whole), *broken], {1: schema})
    union = {"member_boolean": False, "member_string": None}
    assert made[0] == ({**good, "maybe": union}, None, 1, None)
    assert made[1:] == [(None, "malformed", 1, path) for path in places.values() for _ in range(2)]


def test_a_field_of_type_null_has_no_column(spark: SparkSession) -> None:
    """An error is a record, and a schema may use the names of internal types."""
    schema = {"type": "error", "name": "tidemark_record", "fields": [
        {"name": "nothing", "type": "null"},
        {"name": "tidemark_end", "type": {
            "type": "record", "name": "tidemark_end", "fields": [
                {"name": "n", "type": "int"}, {"name": "none", "type": {"type": "null"}}]}},
        {"name": "when", "type": [
            {"type": "int", "logicalType": "date"},
            {"type": "long", "logicalType": "timestamp-millis"}, "string"]},
        {"name": "read", "type": "string"},
    ]}  # fmt: skip
    at = datetime(2026, 2, 28, 12, tzinfo=UTC)
    some: list[Any] = [date(2026, 2, 28), at, "soon"]
    record = {"nothing": None, "tidemark_end": {"n": 1, "none": None}, "read": "r"}
    plain = {**schema, "fields": [
        *schema["fields"][:2], {"name": "when", "type": ["int", "long", "string"]},
        schema["fields"][3]]}  # fmt: skip
    written = [20_512, 1_772_280_000_000, "soon"]
    payloads = [framed(1, avro_bytes(plain, {**record, "when": each})) for each in written]
    made = read(spark, payloads, {1: schema})
    assert [each[1] for each in made] == [None] * 3
    assert {name for each in made for name in each[0]} == {"tidemark_end", "when", "read"}
    assert [each[0]["tidemark_end"] for each in made] == [{"n": 1}] * 3
    names = ("member_int", "member_long", "member_string")
    assert [[each[0]["when"][name] for name in names] for each in made] == [
        [some[0], None, None],
        [None, at.replace(tzinfo=None), None],
        [None, None, "soon"],
    ]


def test_a_text_that_is_not_utf8_has_its_own_reason(spark: SparkSession) -> None:
    """Readers of Parquet fail on a whole file with one such text."""
    java = {"type": "string", "avro.java.string": "String"}
    schema = record(
        ("text", "string"),
        ("java", java),
        ("maybe", ["null", java]),
        ("either", ["int", "string"]),
        ("list", {"type": "array", "items": "string"}),
        ("map", {"type": "map", "avro.java.string": "String", "values": "string"}),
        ("inner", {**record(("text", "string")), "name": "Inner"}),
    )
    plain = json.loads(
        json.dumps(schema)
        .replace(', "avro.java.string": "String"', "")
        .replace('"string"', '"bytes"')
    )
    usual = {
        "text": b"a",
        "java": "Grüße".encode(),
        "maybe": None,
        "either": b"b",
        "list": [b""],
        "map": {"k": b"v"},
        "inner": {"text": b"c"},
    }
    good = avro_bytes(plain, usual)
    wrong: list[tuple[bytes, str]] = [
        (avro_bytes(plain, {**usual, name: value}), at)
        for text in (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"a\xc3")
        for name, value, at in (
            ("text", text, "text"),
            ("java", text, "java"),
            ("maybe", text, "maybe"),
            ("either", text, "either.member_string"),
            ("list", [b"a", text], "list[]"),
            ("map", {"k": text}, "map{}"),
            ("inner", {"text": text}, "inner.text"),
        )
    ]
    wrong.append((good.replace(b"\x02k\x02v", b"\x02\xff\x02v"), "map{}"))
    made = decode_payloads(
        spark,
        [framed(1, each) for each in (good, *(payload for payload, _ in wrong))],
        {1: schema},
    )
    assert made[0][0]["java"] == "Grüße"
    assert made[1:] == [(None, "not_utf8", 1, at) for _, at in wrong]
    # A top-level text has no name.
    assert decode_payloads(spark, [framed(1, b"\x02\xff")], {1: java}, part=Part.KEY) == [
        (None, "not_utf8", 1, None)
    ]


def test_top_level_bytes_are_the_rest_of_the_payload(spark: SparkSession) -> None:
    """Serializers write them without a length, also for decimals."""
    texts = [b"", b"a", b"\x02a", bytes(63), bytes(64), bytes(range(256)) * 40, b"x" * 2**21]
    made = decode_payloads(
        spark,
        [framed(schema_id, each) for schema_id in (1, 2) for each in texts],
        {1: "bytes", 2: {"type": "bytes"}},
    )
    assert made == [(bytearray(each), None, number, None) for number in (1, 2) for each in texts]
    numbers = [(125).to_bytes(1, "big"), (-125).to_bytes(3, "big", signed=True), b"\x7f" * 4]
    made = decode_payloads(spark, [framed(1, each) for each in numbers], {1: _MONEY})
    assert made[:2] == [(Decimal("1.25"), None, 1, None), (Decimal("-1.25"), None, 1, None)]
    assert made[2][:2] == (None, "malformed")
    # A top-level union has its usual form.
    made = decode_payloads(
        spark, [framed(1, b"\x02\x02a"), framed(1, b"\x02a")], {1: ["null", "bytes"]}
    )
    detail = "truncated, or written with another schema"
    assert made == [(bytearray(b"a"), None, 1, None), (None, "malformed", 1, detail)]


def test_records_of_avros_interop_schema_are_decoded(spark: SparkSession) -> None:
    """The recursive record is left out of the schema, and the null field has no column."""
    schema = interop.without("recordField")
    value = {
        "intField": -(2**31),
        "longField": 2**63 - 1,
        "stringField": "Gr\u00fc\u00dfe \U0001f600",
        "boolField": True,
        "floatField": -0.5,
        "doubleField": 1e-300,
        "bytesField": bytes(range(256)),
        "nullField": None,
        "arrayField": [1.5, float("inf"), -0.0],
        "mapField": {"a": {"label": "x"}, "": {"label": ""}},
        "unionField": 12.25,
        "enumField": "C",
        "fixedField": bytes(range(16)),
        "timeMillisField": 86_399_999,
        "timeMicrosField": 86_399_999_999,
        "timestampMillisField": -1,
        "timestampMicrosField": -(2**63),
        "localTimestampMillisField": 0,
        "localTimestampMicrosField": 1,
    }
    unions: list[tuple[Any, dict[str, Any]]] = [
        (12.25, {"member_double": 12.25}),
        (False, {"member_boolean": False}),
        ([b"", b"\xff"], {"member_array": [b"", b"\xff"]}),
        ([], {"member_array": []}),
    ]
    payloads = [avro_bytes(schema, {**value, "unionField": union}) for union, _ in unions]
    made = decode_payloads(spark, [framed(1, each) for each in payloads], {1: schema})
    members = dict.fromkeys(("member_boolean", "member_double", "member_array"))
    typed = {name: each for name, each in value.items() if name != "nullField"}
    assert made == [
        ({**typed, "unionField": {**members, **union}}, None, 1, None) for _, union in unions
    ]
    # A payload with one byte less or one more is malformed.
    wrong = [framed(1, each) for payload in payloads for each in (payload[:-1], payload + b"\0")]
    assert {row[1] for row in decode_payloads(spark, wrong, {1: schema})} == {"malformed"}
