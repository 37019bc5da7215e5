"""Records with schemas of a real registry, decoded with real Spark to real tables.

The judge is fastavro, which the tested code does not use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable

from tests.support.framed_lake import FramedLake, bare
from tests.support.registry import Registry, avro_bytes, framed, registry_proxy
from tidemark.core.offsets import Span
from tidemark.kafka.errors import InvalidConnection
from tidemark.silver.typed import registry as registry_client
from tidemark.silver.typed.errors import (
    RegistryRefused,
    RegistryUnavailable,
    SchemaConflict,
    SchemaReplaced,
)
from tidemark.silver.typed.registry import ConfluentRegistry
from tidemark.silver.typed.replay_preview import offsets_of
from tidemark.silver.typed.schemas import SchemaRegistry
from tidemark.spec.decode import (
    DecodeSpec,
    Format,
    Part,
    PayloadSpec,
    QuarantineReason,
    RegisteredSchema,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.registry, pytest.mark.spark]

_MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4}
AVRO = DecodeSpec(
    key=PayloadSpec(format=Format.STRING),
    value=PayloadSpec(format=Format.AVRO),
    target="silver/events",
)


def trade(*fields: tuple[str, Any]) -> dict[str, Any]:
    """Return a schema of trades with an id and these fields."""
    made = [{"name": name, "type": kind} for name, kind in (("id", "int"), *fields)]
    return {"type": "record", "name": "Trade", "fields": made}


FIRST = trade(("price", ["null", _MONEY]))
_SECOND_FIELDS = (("price", ["null", _MONEY]), ("note", ["null", "string"]))
SECOND = trade(*_SECOND_FIELDS)
THIRD = trade(("legs", {"type": "array", "items": trade(("qty", "long")) | {"name": "Leg"}}))
TEXT_PRICE = trade(("price", "string"))


@dataclass
class Subject:
    """A subject of one test in the shared registry."""

    registry: Registry
    name: str

    def add(self, schema: Any, **more: Any) -> int:
        """Register a schema and return its id."""
        # The namespace differs for each test, so that each test has its own ids.
        return self.registry.register(self.name, {**schema, "namespace": self.name}, **more)


@pytest.fixture
def subject(registry: Registry, request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    """Return a subject with a unique name."""
    return Subject(registry, f"s{abs(hash((request.node.name, str(tmp_path))))}")


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession, registry: Registry) -> FramedLake:
    """Nothing has landed."""
    return FramedLake(root=tmp_path, decode=AVRO, registry=registry.client(), spark=spark)


def trade_value(number: int, price: str | None = "1.5000") -> dict[str, Any]:
    """Return a trade of the first schema."""
    return {"id": number, "price": None if price is None else Decimal(price)}


@pytest.mark.parametrize("flattens", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_s27_each_record_is_decoded_by_its_own_schema_and_invalid_ones_are_quarantined(
    lake: FramedLake, subject: Subject, *, flattens: bool
) -> None:
    """S27: three schemas, broken frames, tombstones and invalid payloads in one range.

    With flattened values, a field with the name of a column of Tidemark has another column.
    """
    lake.decode = replace(AVRO, flattens=flattens)
    written = (FIRST, trade(*_SECOND_FIELDS, ("offset", ["null", "string"])), THIRD)
    ids = [subject.add(each) for each in written]
    schemas = dict(zip(ids, written, strict=True))
    first, second, third = ids
    good = [
        framed(first, avro_bytes(FIRST, trade_value(1))),
        framed(second, avro_bytes(written[1], {**trade_value(2), "note": "n", "offset": "o"})),
        None,
        framed(third, avro_bytes(THIRD, {"id": 3, "legs": [{"id": 1, "qty": 2**40}]})),
        framed(first, avro_bytes(FIRST, trade_value(4, None))),
    ]
    poison = framed(second, b"\x02\x00\x02\xfe\xff\xff\xff\x0f")
    broken = [b"", b"plain", b"\x00\x00\x01", framed(first, b"\x02"), poison, framed(2**31, b"x")]
    lake.land_values([*good, *broken, *good])
    lake.land_values(list(reversed(good)), partition=1)
    work = lake.decodes.next()
    assert work is not None
    assert work.schemas == {Part.VALUE: tuple(sorted(ids))}
    assert lake.run() == [1, 2]
    assert lake.judge(schemas) == 15
    assert lake.reasons() == {
        (0, 5): (QuarantineReason.NOT_FRAMED, None),
        (0, 6): (QuarantineReason.NOT_FRAMED, None),
        (0, 7): (QuarantineReason.NOT_FRAMED, None),
        (0, 8): (QuarantineReason.MALFORMED, first),
        (0, 9): (QuarantineReason.MALFORMED, second),
        (0, 10): (QuarantineReason.UNKNOWN_SCHEMA, 2**31),
    }
    assert sorted(lake.schemas.store.stored(ids)) == sorted(ids)
    assert lake.run() == []


def test_new_fields_become_new_columns(lake: FramedLake, subject: Subject) -> None:
    """The decode that needs the columns adds them; older rows have null."""
    first = subject.add(FIRST)
    lake.land_values([framed(first, avro_bytes(FIRST, trade_value(1)))])
    lake.run()
    second = subject.add(SECOND)
    lake.land_values([framed(second, avro_bytes(SECOND, {**trade_value(2), "note": "new"}))])
    lake.run()
    assert lake.judge({first: FIRST, second: SECOND}) == 2
    commits = [
        json.loads(each.get("userMetadata", "{}")) for each in DeltaTable(lake.typed_uri).history()
    ]
    assert [each["added"] for each in commits if "added" in each] == [["value.note"], ["value"]]
    assert lake.rows()[0, 0]["value"]["note"] is None


def test_a_conflicting_schema_stops_its_plan(lake: FramedLake, subject: Subject) -> None:
    """The error has the offset, the schema and the difference. Other plans are decoded."""
    first, text = subject.add(FIRST), subject.add(TEXT_PRICE)
    good = framed(first, avro_bytes(FIRST, trade_value(1)))
    other = framed(text, avro_bytes(TEXT_PRICE, {"id": 2, "price": "1.5"}))
    lake.land_values([good])
    lake.land_values([good, other, good])
    lake.land_values([good, good], partition=1)
    with pytest.raises(SchemaConflict) as stopped:
        lake.run()
    assert sorted(lake.rows()) == [(0, 0), (1, 0), (1, 1)]
    conflict = stopped.value
    assert (conflict.schema_id, conflict.partition, conflict.offset) == (text, 0, 2)
    assert conflict.differences == ("value.price is decimal(18,4) in the table, not string",)
    # The plan waits until the spec refuses the schema.
    lake.land_values([good], partition=1)
    with pytest.raises(SchemaConflict):
        lake.run()
    assert sorted(lake.rows()) == [(0, 0), (1, 0), (1, 1), (1, 2)]
    # The quarantine limit does not apply to records of refused schemas.
    lake.decode = replace(
        AVRO, refused_schemas=(text,), max_quarantined=0, max_quarantined_percent=0
    )
    lake.run()
    assert lake.judge({first: FIRST}) == 6
    assert lake.reasons() == {(0, 2): (QuarantineReason.REFUSED_SCHEMA, text)}


@pytest.mark.faults
def test_the_earlier_of_two_conflicting_schemas_defines_the_column(
    lake: FramedLake, subject: Subject
) -> None:
    """The order of the log counts, not the order of registration."""
    first, text = subject.add(FIRST), subject.add(TEXT_PRICE)
    lake.land_values([framed(text, avro_bytes(TEXT_PRICE, {"id": 2, "price": "1.5"}))])
    lake.land_values([framed(first, avro_bytes(FIRST, trade_value(1)))])
    with pytest.raises(SchemaConflict) as stopped:
        lake.run()
    assert (stopped.value.schema_id, stopped.value.offset) == (first, 1)
    assert lake.rows()[0, 0]["value"] == {"id": 2, "price": "1.5"}


@pytest.mark.parametrize("widens", [True, pytest.param(False, marks=pytest.mark.faults)])
def test_a_later_schema_may_widen_numbers_if_widening_is_on(
    lake: FramedLake, subject: Subject, widens: bool
) -> None:
    """`int` is stored as `long`; without widening a `long` conflicts."""
    lake.decode = replace(AVRO, widens=widens)
    narrow, wide = trade(), {**trade(), "fields": [{"name": "id", "type": "long"}]}
    ids = [subject.add(narrow), subject.add(wide)]
    lake.land_values([framed(ids[0], avro_bytes(narrow, {"id": 1}))])
    lake.run()
    lake.land_values([framed(ids[1], avro_bytes(wide, {"id": 2**50}))])
    if widens:
        lake.run()
        assert sorted(row["value"]["id"] for row in lake.rows().values()) == [1, 2**50]
    else:
        with pytest.raises(SchemaConflict, match=r"value\.id is integer in the table, not long"):
            lake.run()


def test_a_replay_decodes_records_whose_schema_was_registered_later(
    lake: FramedLake, private_registry: Registry
) -> None:
    """It decodes only these records, and adds the column."""
    lake.registry, subject = private_registry.client(), Subject(private_registry, "trades")
    known = subject.add(FIRST)
    lake.land_values(
        [framed(known + 1, avro_bytes(SECOND, {**trade_value(7), "note": "late"})), None]
    )
    lake.run()
    assert lake.reasons() == {(0, 0): (QuarantineReason.UNKNOWN_SCHEMA, known + 1)}
    assert "value" not in lake.typed.columns()
    assert subject.add(SECOND) == known + 1
    assert lake.replay(Span(0, 1)).records == 1
    assert lake.judge({known + 1: SECOND}) == 2
    assert lake.reasons() == {}


def test_a_record_with_a_schema_id_header_is_quarantined_and_stops_nothing(
    lake: FramedLake, subject: Subject
) -> None:
    """Its payload begins with the id of a conflicting schema, which does not matter."""
    first, text = subject.add(FIRST), subject.add(TEXT_PRICE)
    lake.land_values([framed(first, avro_bytes(FIRST, trade_value(1)))])
    other = framed(text, avro_bytes(TEXT_PRICE, {"id": 2, "price": "1.5"}))
    lake.land_values([other, None], headers=(("__value_schema_id", b"\x01" + bytes(16)),))
    lake.run()
    assert sorted(lake.rows()) == [(0, 0), (0, 2)]
    assert lake.reasons() == {(0, 1): (QuarantineReason.SCHEMA_IN_HEADER, None)}
    assert lake.schemas.store.stored([text]) == {}
    lake.check()


def test_keys_and_values_have_separate_schemas_and_columns(
    lake: FramedLake, subject: Subject
) -> None:
    """A broken key is reported as the key."""
    lake.decode = replace(AVRO, key=PayloadSpec(format=Format.AVRO))
    key_schema = {
        "type": "record",
        "name": "Key",
        "fields": [{"name": "account", "type": "string"}],
    }
    of_key, of_value = subject.add(key_schema), subject.add(FIRST)
    value = framed(of_value, avro_bytes(FIRST, trade_value(1)))
    lake.land_values([value], key=framed(of_key, avro_bytes(key_schema, {"account": "a"})))
    lake.land_values([value, None], key=b"broken")
    lake.land_values([value], key=None)
    lake.land_values([value], key=framed(of_key, b"\x02"))
    lake.run()
    rows = lake.rows()
    assert (rows[0, 0]["key"], rows[0, 0]["key_schema_id"]) == ({"account": "a"}, of_key)
    assert (rows[0, 3]["key"], rows[0, 3]["value_schema_id"]) == (None, of_value)
    assert [each.part for each in lake.quarantine.records()] == [Part.KEY] * 3
    assert lake.reasons() == {
        (0, 1): (QuarantineReason.NOT_FRAMED, None),
        (0, 2): (QuarantineReason.NOT_FRAMED, None),
        (0, 4): (QuarantineReason.MALFORMED, of_key),
    }
    lake.check()


def test_columns_that_a_restore_removed_are_added_again(lake: FramedLake, subject: Subject) -> None:
    """The RESTORE follows the preparation of a decode."""
    first, second = subject.add(FIRST), subject.add(SECOND)
    lake.land_values([framed(first, avro_bytes(FIRST, trade_value(1)))])
    lake.run()
    version = DeltaTable(lake.typed_uri).version()
    lake.land_values([framed(second, avro_bytes(SECOND, {**trade_value(2), "note": "n"}))])
    assert lake.decodes.next() is not None
    DeltaTable(lake.typed_uri).restore(version)
    assert lake.run() == [2]
    assert lake.judge({first: FIRST, second: SECOND}) == 2


def test_referenced_schemas_are_requested_and_stored(lake: FramedLake, subject: Subject) -> None:
    """The stored text contains their definitions."""
    side = {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"], "namespace": "desk"}
    name = f"{subject.name}-side"
    subject.registry.register(name, side)
    schema = trade(("side", "desk.Side"))
    references = [{"name": "desk.Side", "subject": name, "version": 1}]
    order = subject.registry.register(subject.name, schema, references=references)
    whole = trade(("side", side))
    lake.land_values([framed(order, avro_bytes(whole, {"id": 1, "side": "SELL"}))])
    lake.run()
    assert lake.judge({order: whole}) == 1


def test_records_of_schemas_beyond_a_limit_are_quarantined_by_name(
    lake: FramedLake, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that registers such a schema delays no other record."""
    monkeypatch.setattr(registry_client, "MAX_REFERENCES", 1)
    names = [f"{subject.name}_{each}" for each in ("a", "b")]
    for name in names:
        subject.registry.register(name, {"type": "enum", "name": name, "symbols": ["A"]})
    references = [{"name": each, "subject": each, "version": 1} for each in names]
    with_references = trade(*((each, each) for each in names))
    first = subject.add(FIRST)
    many = subject.registry.register(subject.name, with_references, references=references)
    pair: Any = "long"
    for n in range(17):
        fields = [{"name": "a", "type": pair}, {"name": "b", "type": f"R{n - 1}" if n else pair}]
        pair = {"type": "record", "name": f"R{n}", "fields": fields}
    wide = subject.registry.register(f"{subject.name}-wide", pair)
    good = framed(first, avro_bytes(FIRST, trade_value(1)))
    lake.land_values([good, framed(wide, b"x"), framed(many, b"x"), good])
    lake.run()
    assert lake.judge({first: FIRST}) == 2
    too_large = QuarantineReason.SCHEMA_TOO_LARGE
    assert lake.reasons() == {(0, 1): (too_large, wide), (0, 2): (too_large, many)}


def test_payloads_of_confluents_serializer_are_decoded_to_the_written_values(
    lake: FramedLake, registry: Registry
) -> None:
    """Top-level bytes have no length, and an `int` is not limited to 32 bits."""
    client = SchemaRegistryClient({"url": registry.url})
    name = f"own-{lake.root.name}"
    lake.decode = replace(AVRO, key=PayloadSpec(format=Format.AVRO))

    def serialized(schema: Any, field: MessageField, *values: Any) -> list[bytes | None]:
        serializer = AvroSerializer(client, json.dumps(schema))
        made = [serializer(each, SerializationContext(name, field)) for each in values]
        assert all(isinstance(each, bytes) for each in made)
        return [each for each in made if isinstance(each, bytes)]

    keys = [b"", b"a", b"\x02a", bytes(64)]
    numbers = [1, 3_000_000_000, -(2**40), 2**63 - 1]
    values = serialized(trade(), MessageField.VALUE, *({"id": each} for each in numbers))
    for key, value in zip(serialized("bytes", MessageField.KEY, *keys), values, strict=True):
        lake.land_values([value], key=key)
    lake.run()
    rows = [row for _, row in sorted(lake.rows().items())]
    assert [(row["key"], row["value"]["id"]) for row in rows] == list(
        zip(keys, numbers, strict=True)
    )
    lake.check()


def test_json_records_are_decoded_by_their_own_registered_schema(
    lake: FramedLake, registry: Registry
) -> None:
    """A value of another type is quarantined with its field."""
    lake.decode = replace(AVRO, value=PayloadSpec(format=Format.JSON_SCHEMA))
    number = {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}
    grown = {
        **number,
        "legs": {"type": "array", "items": {"properties": {"qty": {"type": "number"}}}},
    }
    old, new = (
        registry.register(f"json-{lake.root.name}", {"type": "object", "properties": each}, "JSON")
        for each in (number, grown)
    )
    lake.land_values(
        [
            framed(old, b'{"id": 1, "at": "2026-02-28T12:00:00Z", "legs": [{"qty": 1}]}'),
            framed(new, b'{"id": 2.0, "legs": [{"qty": 1.5}, {}]}'),
            framed(new, b'{"id": 2.5}'),
            framed(old, b'{"id": 3, "at": "yesterday"}'),
            framed(old, b'{"id": 3} and more'),
            framed(old, b"\xff"),
            b'{"id": 4}',
            None,
        ]
    )
    lake.run()
    decoded = {place: bare(row["value"]) for place, row in lake.rows().items()}
    assert decoded == {
        # Its own schema has no legs.
        (0, 0): {"id": 1, "at": datetime(2026, 2, 28, 12, tzinfo=UTC)},
        (0, 1): {"id": 2, "legs": [{"qty": 1.5}, {}]},
        (0, 7): None,
    }
    assert [
        (each.offset, each.reason, each.detail, each.schema_id)
        for each in lake.quarantine.records()
    ] == [
        (2, QuarantineReason.MALFORMED, "id: expected long, found another number", new),
        (3, QuarantineReason.MALFORMED, "at: expected timestamp, found another text", old),
        (4, QuarantineReason.NOT_JSON, "trailing characters", old),
        (5, QuarantineReason.NOT_UTF8, None, old),
        (6, QuarantineReason.NOT_FRAMED, None, None),
    ]
    lake.check()


@pytest.mark.faults
def test_json_schemas_add_columns_and_stop_on_conflicts(
    lake: FramedLake, registry: Registry
) -> None:
    """The plan with a conflict waits, and adds no columns."""
    lake.decode = replace(AVRO, value=PayloadSpec(format=Format.JSON_SCHEMA))
    number, text = {"id": {"type": "integer"}}, {"note": {"type": "string"}}
    first, second, other = (
        registry.register(f"json-{lake.root.name}", {"type": "object", "properties": each}, "JSON")
        for each in (number, number | text, {"id": {"type": "string"}} | text)
    )
    lake.land_values([framed(first, b'{"id": 1}')])
    lake.run()
    new, good = framed(second, b'{"id": 2, "note": "n"}'), framed(first, b'{"id": 3}')
    lake.land_values([new])
    lake.land_values([framed(other, b'{"id": "4"}'), good])
    lake.land_values([good], partition=1)
    with pytest.raises(SchemaConflict) as stopped:
        lake.run()
    conflict = stopped.value
    assert (conflict.schema_id, conflict.partition, conflict.offset) == (other, 0, 2)
    assert conflict.differences == ("value.id is long in the table, not string",)
    assert {place: row["value"] for place, row in lake.rows().items()} == {
        (0, 0): {"id": 1, "note": None},
        (0, 1): {"id": 2, "note": "n"},
        (1, 0): {"id": 3, "note": None},
    }
    history = DeltaTable(lake.typed_uri).history()
    commits = [json.loads(each.get("userMetadata", "{}")) for each in history]
    assert [each["added"] for each in commits if "added" in each] == [["value.note"], ["value"]]


@pytest.mark.parametrize(
    ("schema", "kind", "difference"),
    [
        (trade(("next", ["null", "Trade"])), "AVRO", "contains itself"),
        (
            {"type": "object", "properties": {"id": {"type": "integer"}}},
            "JSON",
            "the schema is JSON, not AVRO",
        ),
    ],
)
@pytest.mark.faults
def test_a_schema_without_a_column_stops_its_plan(
    lake: FramedLake, registry: Registry, subject: Subject, schema: Any, kind: str, difference: str
) -> None:
    """The error has the reason, and nothing is decoded."""
    number = registry.register(subject.name, schema, kind)
    lake.land_values([framed(number, b"\x02\x00")])
    with pytest.raises(SchemaConflict) as stopped:
        lake.run()
    assert difference in str(stopped.value)
    assert lake.rows() == {}


class UnreachableRegistry:
    """A registry that does not answer."""

    def __init__(self) -> None:
        self.requests = 0

    def schema(self, schema_id: int) -> None:
        """Fail to connect."""
        self.requests += 1
        ConfluentRegistry("away", {"url": "http://127.0.0.1:1", "max.retries": 0}).schema(schema_id)


def test_an_unavailable_registry_stops_only_unknown_schemas(
    lake: FramedLake, subject: Subject
) -> None:
    """Records of stored schemas are decoded; the others raise an error."""
    first, second = subject.add(FIRST), subject.add(SECOND)
    there: SchemaRegistry | None = lake.registry
    lake.land_values([framed(first, avro_bytes(FIRST, trade_value(1)))])
    lake.registry = UnreachableRegistry()
    with pytest.raises(RegistryUnavailable) as away:
        lake.run()
    assert "ConnectError" in str(away.value)
    assert lake.rows() == {}
    lake.registry = there
    lake.run()
    # The schema of the next record is stored.
    lake.registry = UnreachableRegistry()
    lake.land_values([framed(first, avro_bytes(FIRST, trade_value(2)))])
    lake.run()
    assert lake.judge({first: FIRST}) == 2
    lake.land_values([framed(second, avro_bytes(SECOND, {**trade_value(3), "note": "n"}))])
    with pytest.raises(RegistryUnavailable):
        lake.run()
    lake.registry = there
    lake.run()
    assert lake.judge({first: FIRST, second: SECOND}) == 3


def test_a_rebuilt_registry_is_detected(lake: FramedLake, subject: Subject) -> None:
    """The error comes before a record is decoded with another schema than its own."""
    first, text = subject.add(FIRST), subject.add(TEXT_PRICE)

    class RebuiltRegistry:
        def schema(self, schema_id: int) -> Any:
            assert there is not None
            found = there.schema({first: text, text: first}[schema_id])
            return found and replace(found, id=schema_id)

    there: SchemaRegistry | None = lake.registry
    payload = framed(first, avro_bytes(FIRST, trade_value(1)))
    lake.land_values([payload])
    lake.run()
    lake.land_values([payload])
    lake.registry = RebuiltRegistry()
    with pytest.raises(SchemaReplaced, match=f"schema for id {first}"):
        lake.run()
    assert len(lake.rows()) == 1


def test_a_404_of_another_server_does_not_count_as_an_unknown_schema(
    registry: Registry, subject: Subject
) -> None:
    """Valid records would be quarantined."""
    first = subject.add(FIRST)
    client = ConfluentRegistry("right", {"url": registry.url})
    assert client.schema(first + 1000) is None
    assert client.schema(2**31) is None
    with pytest.raises(RegistryRefused, match="the url may lack a path"):
        ConfluentRegistry("short", {"url": registry.url.partition("/apis")[0]}).schema(first)


class Failing:
    """A registry that does not answer for some ids."""

    def __init__(self, there: SchemaRegistry, *failing: int) -> None:
        self.there = there
        self.failing = failing
        self.requests: list[int] = []

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema, or fail."""
        self.requests.append(schema_id)
        if schema_id in self.failing:
            raise RegistryUnavailable(connection="x", schema_id=schema_id, reason="HTTP 429")
        return self.there.schema(schema_id)


def test_answers_before_a_failure_are_stored_and_refused_ids_are_not_requested(
    lake: FramedLake, subject: Subject
) -> None:
    """Runs therefore make progress even if the registry limits requests."""
    ids = [subject.add(each) for each in (FIRST, SECOND, THIRD)]
    values = [
        framed(ids[0], avro_bytes(FIRST, trade_value(1))),
        framed(ids[1], avro_bytes(SECOND, {**trade_value(2), "note": None})),
        framed(ids[2], avro_bytes(THIRD, {"id": 3, "legs": []})),
        framed(2**20, b"x"),
    ]
    lake.land_values([*values])
    there = lake.registry
    assert there is not None
    lake.decode = replace(AVRO, refused_schemas=(ids[2],))
    for _ in range(2):
        lake.registry = failing = Failing(there, 2**20)
        with pytest.raises(RegistryUnavailable):
            lake.run()
        assert {*failing.requests} == {ids[0], ids[1], 2**20}
        assert sorted(lake.schemas.store.stored(ids)) == ids[:2]
    lake.registry = there
    work = lake.decodes.next()
    assert work is not None
    # Rounds need no registry, although one schema is still unknown.
    lake.registry = None
    lake.decodes.decode(work)
    lake.registry = there
    assert lake.judge({ids[0]: FIRST, ids[1]: SECOND}) == 2


def test_schemas_of_a_waiting_plan_do_not_change_columns(
    lake: FramedLake, subject: Subject
) -> None:
    """A replay of another plan continues."""
    first = subject.add(trade())
    other = trade(("note", "string"))
    wide = trade(("note", "long"))
    lake.land_values([framed(first, avro_bytes(trade(), {"id": 1}))])
    lake.land_values([framed(first + 1000, b"x")], partition=1)
    lake.run()
    clashing = {**trade(), "fields": [{"name": "id", "type": "string"}]}
    ids = [subject.add(each) for each in (clashing, other, wide)]
    lake.land_values(
        [
            framed(ids[0], avro_bytes(clashing, {"id": "x"})),
            framed(ids[1], avro_bytes(other, {"id": 2, "note": "n"})),
        ]
    )
    lake.land_values([None, framed(ids[2], avro_bytes(wide, {"id": 3, "note": 4}))], partition=1)
    with pytest.raises(SchemaConflict) as stopped:
        lake.run()
    assert (stopped.value.partition, stopped.value.offset) == (0, 1)
    assert lake.rows()[1, 2]["value"] == {"id": 3, "note": 4}
    (kept,) = lake.quarantine.records()
    work = lake.decodes.replay(offsets_of([kept]))
    assert work is not None
    assert work.replayed == offsets_of([kept])


def test_rules_over_values_apply_while_keys_have_no_column(
    lake: FramedLake, subject: Subject
) -> None:
    """Keys that are all null have no column."""
    lake.decode = replace(
        AVRO, key=PayloadSpec(format=Format.AVRO), rules=(("small", "value.id < 2"), ("k", "key.a"))
    )
    first = subject.add(trade())
    lake.land_values(
        [framed(first, avro_bytes(trade(), {"id": number})) for number in (1, 2)], key=None
    )
    lake.run()
    assert sorted(lake.rows()) == [(0, 0)]
    assert [each.reason for each in lake.quarantine.records()] == [QuarantineReason.RULE_BROKEN]


_SECRET = "s3cret"


def test_credentials_of_the_registry_are_in_no_error_and_no_log(
    registry: Registry, subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers both settings that contain them, and the logs of libraries."""
    caplog.set_level("INFO")
    first = subject.add(FIRST)

    def answer(path: str) -> bytes:
        # These paths answer like pages, without the API of a registry.
        if path.startswith(("/page", "/health")):
            return b"{}" if path.startswith("/health") else b"<html></html>"
        return registry.answer(path)

    with registry_proxy(answer, f"reader:{_SECRET}") as proxy:
        place = proxy.address
        for extra in (
            {"url": f"http://{place}", "basic.auth.user.info": f"reader:{_SECRET}"},
            {"url": f"http://reader:{_SECRET}@{place}"},
        ):
            assert ConfluentRegistry("proxy", extra).schema(first) is not None
        for extra in (
            {"url": f"http://{place}"},
            {"url": f"http://{place}", "basic.auth.user.info": f"writer:{_SECRET}"},
        ):
            with pytest.raises(RegistryRefused, match="HTTP 401") as refused:
                ConfluentRegistry("proxy", extra).schema(first)
            assert _SECRET not in str(refused.value)
        for page in ("page", "health"):
            extra = {"url": f"http://{place}/{page}", "basic.auth.user.info": f"reader:{_SECRET}"}
            with pytest.raises(RegistryRefused, match="not a schema registry's"):
                ConfluentRegistry("proxy", extra).schema(first)
    assert _SECRET not in caplog.text
    for wrong in (
        {"url": f"reader:{_SECRET}"},
        {"url": "http://x", "nonsense": _SECRET},
        {"basic.auth.user.info": _SECRET},
        {"url": "http://x", "ssl.ca.location": f"/{_SECRET}"},
        {"url": "http://x", "timeout": "10"},
        {"url": "http://x", "max.retries": -1},
    ):
        with pytest.raises(InvalidConnection) as invalid:
            ConfluentRegistry("proxy", wrong)
        assert _SECRET not in str(invalid.value)
        assert invalid.value.__cause__ is None
