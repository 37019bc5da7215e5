"""Records with Protobuf schemas of a real registry, decoded with real Spark to real tables.

Google's compiler and library write the messages. The tests contain the expected values.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.support.framed_lake import FramedLake
from tests.support.protobuf import message, proto_bytes
from tests.support.registry import Registry, framed
from tidemark.silver.typed.errors import SchemaConflict
from tidemark.silver.typed.replay_preview import offsets_of
from tidemark.spec.decode import DecodeSpec, Format, Part, PayloadSpec, QuarantineReason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.registry, pytest.mark.spark]

PROTOBUF = DecodeSpec(
    key=PayloadSpec(format=Format.STRING),
    value=PayloadSpec(format=Format.PROTOBUF),
    target="silver/events",
)
_MESSAGE = "shop.Trade"


def trade(fields: str, leg: str = "int32 qty = 1;", imports: str = "") -> str:
    """Return a schema of trades with an id and these fields, and the messages that they use."""
    return f"""
      syntax = "proto3";
      package shop;
      import "google/protobuf/timestamp.proto";
      {imports}
      message Trade {{ int32 id = 1; {fields} }}
      message Leg {{ {leg} }}
      enum Side {{ NO = 0; BUY = 1; }}
    """


FIRST = trade("optional string note = 2;")
SECOND = trade(
    "optional string note = 2; google.protobuf.Timestamp at = 3; Side side = 4; uint64 size = 5;"
)
THIRD = trade("repeated Leg legs = 6; map<string, Leg> by = 7;")


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession, registry: Registry) -> FramedLake:
    """Nothing has landed."""
    return FramedLake(root=tmp_path, decode=PROTOBUF, registry=registry.client(), spark=spark)


def add(lake: FramedLake, registry: Registry, schema: str, **more: Any) -> int:
    """Register a schema in a subject of this test, and return its id."""
    # The text differs for each test, so that each test has its own ids.
    text = f"// {lake.root}\n{schema}"
    return registry.register(f"protobuf-{lake.root.name}", text, "PROTOBUF", **more)


def trade_payload(number: int, schema: str, values: Any) -> bytes:
    """Return a trade with its schema id."""
    return framed(number, proto_bytes(schema, _MESSAGE, values))


def values(lake: FramedLake) -> dict[tuple[int, int], Any]:
    """Return decoded values by partition and offset."""
    return {place: row["value"] for place, row in lake.rows().items()}


def quarantined(lake: FramedLake) -> list[tuple[int, QuarantineReason, str | None, int | None]]:
    """Return offset, reason, detail and schema id of quarantined records."""
    records = lake.quarantine.records()
    return [(each.offset, each.reason, each.detail, each.schema_id) for each in records]


def test_s27_each_record_is_decoded_by_its_own_schema_and_invalid_ones_are_quarantined(
    lake: FramedLake, registry: Registry
) -> None:
    """S27: three schemas, broken frames, tombstones and invalid payloads in one range."""
    lake.decode = replace(PROTOBUF, rules=(("small", "value.id < 100"),))
    first, second, third = (add(lake, registry, each) for each in (FIRST, SECOND, THIRD))
    whole = trade_payload(first, FIRST, {"id": 5})
    lake.land_values(
        [
            trade_payload(first, FIRST, {"id": 1}),
            trade_payload(
                second,
                SECOND,
                {
                    "id": 2,
                    "note": "",
                    "at": "2026-02-28T12:00:00.123456Z",
                    "side": "BUY",
                    "size": str(2**64 - 1),
                },
            ),
            None,
            trade_payload(
                third, THIRD, {"id": 3, "legs": [{"qty": 1}, {}], "by": {"k": {"qty": 2}}}
            ),
            trade_payload(second, SECOND, {"side": 9}),
            # The following records are quarantined.
            b"plain",
            b"\x00\x00\x01",
            whole[:-1],
            whole + b"\x7f",
            framed(first, b""),
            framed(first, b"\x02\x02\x08\x01"),
            trade_payload(first, SECOND, {"side": "BUY"}),
            trade_payload(2**20, FIRST, {"id": 1}),
            trade_payload(third, THIRD, {"id": 100}),
            framed(second, b"\x00\x1a\x07\x08\xff\xff\xff\xff\xff\x7f"),
        ]
    )
    lake.land_values([whole, None], partition=1)
    assert lake.run() == [1, 2]
    nothing = dict.fromkeys(("note", "at", "side", "size", "legs", "by"))
    assert values(lake) == {
        (0, 0): {"id": 1, **nothing},
        (0, 1): {
            **nothing,
            "id": 2,
            "note": "",
            "at": datetime(2026, 2, 28, 12, 0, 0, 123456, tzinfo=UTC),
            "side": "BUY",
            "size": Decimal(2**64 - 1),
        },
        (0, 2): None,
        (0, 3): {**nothing, "id": 3, "legs": [{"qty": 1}, {"qty": 0}], "by": [("k", {"qty": 2})]},
        (0, 4): {**nothing, "id": 0, "side": "9", "size": Decimal(0)},
        (1, 0): {"id": 5, **nothing},
        (1, 1): None,
    }
    assert quarantined(lake) == [
        (5, QuarantineReason.NOT_FRAMED, None, None),
        (6, QuarantineReason.NOT_FRAMED, None, None),
        (7, QuarantineReason.MALFORMED, None, first),
        (8, QuarantineReason.MALFORMED, None, first),
        (9, QuarantineReason.MALFORMED, None, first),
        (10, QuarantineReason.MALFORMED, "message 1", first),
        (11, QuarantineReason.MALFORMED, None, first),
        (12, QuarantineReason.UNKNOWN_SCHEMA, None, 2**20),
        (13, QuarantineReason.RULE_BROKEN, "small", third),
        (14, QuarantineReason.MALFORMED, "at", second),
    ]
    assert {row["value_schema_id"] for row in lake.rows().values()} == {first, second, third, None}
    lake.check()
    assert lake.run() == []


def test_new_fields_of_nested_messages_become_new_columns(
    lake: FramedLake, registry: Registry
) -> None:
    """The decode that needs the columns adds them; older rows have null."""
    old = trade("repeated Leg legs = 2;")
    new = trade("repeated Leg legs = 2;", leg="int64 qty = 1; string venue = 2;")
    first, second = add(lake, registry, old), add(lake, registry, new)
    lake.land_values([trade_payload(first, old, {"legs": [{"qty": 1}]})])
    lake.run()
    # The registry returns the first schema again, unchanged.
    lake.land_values(
        [
            trade_payload(second, new, {"legs": [{"qty": str(2**40), "venue": "XNYS"}]}),
            trade_payload(first, old, {"id": 2}),
        ]
    )
    lake.run()
    assert values(lake) == {
        (0, 0): {"id": 0, "legs": [{"qty": 1, "venue": None}]},
        (0, 1): {"id": 0, "legs": [{"qty": 2**40, "venue": "XNYS"}]},
        (0, 2): {"id": 2, "legs": []},
    }
    commits = [
        json.loads(each.get("userMetadata", "{}")) for each in DeltaTable(lake.typed_uri).history()
    ]
    added = [each["added"] for each in commits if "added" in each]
    assert added == [["value.legs[].venue"], ["value"]]
    lake.check()


@pytest.mark.faults
def test_a_conflicting_schema_stops_its_plan(lake: FramedLake, registry: Registry) -> None:
    """The error has the first offset, the schema and the difference."""
    other = trade("bytes note = 2;")
    first, second = add(lake, registry, FIRST), add(lake, registry, other)
    good = trade_payload(first, FIRST, {"note": "n"})
    lake.land_values([good])
    lake.land_values([good, trade_payload(second, other, {"note": "AA=="}), good])
    lake.land_values([good], partition=1)
    with pytest.raises(SchemaConflict) as stopped:
        lake.run()
    assert sorted(lake.rows()) == [(0, 0), (1, 0)]
    conflict = stopped.value
    assert (conflict.schema_id, conflict.partition, conflict.offset) == (second, 0, 2)
    assert conflict.differences == ("value.note is string in the table, not binary",)


@pytest.mark.parametrize(
    ("schema", "kind", "difference"),
    [
        (trade("Trade next = 2;"), "PROTOBUF", "shop.Trade contains itself"),
        (trade("Other next = 2;"), "PROTOBUF", "Protobuf schema does not compile"),
        ("string", "AVRO", "the schema is AVRO, not PROTOBUF"),
    ],
)
@pytest.mark.faults
def test_a_schema_without_a_column_stops_its_plan(
    lake: FramedLake, registry: Registry, schema: str, kind: str, difference: str
) -> None:
    """The error has the reason, and nothing is decoded."""
    number = registry.register(f"protobuf-{lake.root.name}", schema, kind)
    lake.land_values([framed(number, b"\x00")])
    with pytest.raises(SchemaConflict) as stopped:
        lake.run()
    assert difference in str(stopped.value)
    assert lake.rows() == {}
    # A later compiler may accept the schema, so its rejection is not stored.
    assert len(lake.schemas.store.stored([number])) == ("compile" not in difference)


@pytest.mark.faults
def test_keys_and_values_have_separate_schemas_and_columns(
    lake: FramedLake, registry: Registry
) -> None:
    """A broken key is reported as the key."""
    lake.decode = replace(PROTOBUF, key=PayloadSpec(format=Format.PROTOBUF))
    account = 'syntax = "proto3"; message Account { string name = 1; }'
    of_key, of_value = add(lake, registry, account), add(lake, registry, FIRST)
    value = trade_payload(of_value, FIRST, {"id": 1})
    key = framed(of_key, proto_bytes(account, "Account", {"name": "a"}))
    lake.land_values([value], key=key)
    lake.land_values([value, None], key=key + b"\xff")
    lake.land_values([value], key=None)
    lake.land_values([framed(of_value, b"\x02\x02\x08\x01")], key=key + b"\xff")
    lake.run()
    rows = lake.rows()
    assert (rows[0, 0]["key"], rows[0, 0]["key_schema_id"]) == ({"name": "a"}, of_key)
    assert rows[0, 0]["value"] == rows[0, 3]["value"] == {"id": 1, "note": None}
    assert (rows[0, 3]["key"], rows[0, 3]["value_schema_id"]) == (None, of_value)
    assert [each.part for each in lake.quarantine.records()] == [Part.KEY] * 3
    # The last record's detail is that of its value, so its key has none.
    assert quarantined(lake) == [(n, QuarantineReason.MALFORMED, None, of_key) for n in (1, 2, 4)]
    lake.check()


def test_imported_schemas_are_requested_and_stored(lake: FramedLake, registry: Registry) -> None:
    """Indirect imports are included."""
    unit = 'syntax = "proto3"; package desk; enum Unit { PIECE = 0; LOT = 1; }'
    price = """
      syntax = "proto3";
      package desk;
      import "desk/unit.proto";
      message Price { int64 units = 1; Unit unit = 2; }
    """
    schema = trade("desk.Price price = 2;", imports='import "desk/price.proto";')
    names = {name: f"{lake.root.name}-{name}" for name in ("unit", "price")}
    registry.register(names["unit"], unit, "PROTOBUF")
    of_unit = [{"name": "desk/unit.proto", "subject": names["unit"], "version": 1}]
    registry.register(names["price"], price, "PROTOBUF", references=of_unit)
    of_price = [{"name": "desk/price.proto", "subject": names["price"], "version": 1}]
    number = add(lake, registry, schema, references=of_price)
    imports = {"desk/unit.proto": unit, "desk/price.proto": price}
    made = message(schema, _MESSAGE, {"price": {"units": "5", "unit": "LOT"}}, imports)
    lake.land_values([framed(number, b"\x00" + made.SerializeToString())])
    lake.run()
    assert values(lake) == {(0, 0): {"id": 0, "price": {"units": 5, "unit": "LOT"}}}


def test_a_direct_import_takes_precedence_over_an_older_indirect_one(
    lake: FramedLake, registry: Registry
) -> None:
    """Another import refers to an older version of the same file."""
    unit = 'syntax = "proto3"; package desk; enum Unit { PIECE = 0; LOT = 1; }'
    newer = unit.replace("LOT = 1;", "LOT = 1; BOX = 2;")
    price = 'syntax = "proto3"; package desk; import "unit.proto"; message Price { Unit unit = 1; }'
    schema = trade(
        "desk.Price price = 2; desk.Unit unit = 3;",
        imports='import "unit.proto"; import "price.proto";',
    )
    names = {name: f"{lake.root.name}-newer-{name}" for name in ("unit", "price")}
    for each in (unit, newer):
        registry.register(names["unit"], each, "PROTOBUF")
    of_unit = {"name": "unit.proto", "subject": names["unit"]}
    of_price = {"name": "price.proto", "subject": names["price"], "version": 1}
    registry.register(names["price"], price, "PROTOBUF", references=[{**of_unit, "version": 1}])
    number = add(lake, registry, schema, references=[{**of_unit, "version": 2}, of_price])
    imports = {"unit.proto": newer, "price.proto": price}
    made = message(schema, _MESSAGE, {"unit": "BOX"}, imports)
    lake.land_values([framed(number, b"\x00" + made.SerializeToString())])
    lake.run()
    assert values(lake) == {(0, 0): {"id": 0, "price": None, "unit": "BOX"}}


@pytest.mark.faults
def test_a_replay_decodes_records_whose_schema_was_registered_later(
    lake: FramedLake, private_registry: Registry
) -> None:
    """Its rounds use the stored schema, and no registry."""
    lake.registry = private_registry.client()
    known = add(lake, private_registry, FIRST)
    lake.land_values([trade_payload(known + 1, SECOND, {"id": 7, "side": "BUY"})])
    lake.run()
    assert quarantined(lake) == [(0, QuarantineReason.UNKNOWN_SCHEMA, None, known + 1)]
    assert add(lake, private_registry, SECOND) == known + 1
    work = lake.decodes.replay(offsets_of(lake.quarantine.records()))
    assert work is not None
    lake.registry = None
    lake.decodes.decode(work)
    assert values(lake)[0, 0]["side"] == "BUY"
    assert quarantined(lake) == []
