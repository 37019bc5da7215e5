"""Verification of a typed table decodes bronze rows again, and finds every difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.quality.test_publication import check
from tests.support.file_lake import Payload
from tests.support.typed_lake import DECODE, TypedLake
from tidemark.core.offsets import Span
from tidemark.core.publication import PublishRule
from tidemark.core.table_state import TableSize
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.opened_tables import reopen_tables
from tidemark.ops.report.errors import TableDiffers
from tidemark.ops.report.typed_verification import TypedDifferenceKind as Kind
from tidemark.ops.report.typed_verification import TypedVerification
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec, RegisteredSchema
from tidemark.spec.fields import FieldType, Struct

Tamper: TypeAlias = Callable[[TypedLake], object]


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> TypedLake:
    """Return a lake with six records in each of two partitions; one is in quarantine."""
    made = TypedLake(tmp_path_factory.mktemp("typed"), broken={4})
    for partition in (0, 1):
        made.land_values([f"v{number}".encode() for number in range(5)] + [None], partition)
    made.run()
    return made


@pytest.fixture
def lake(decoded: TypedLake, tmp_path: Path) -> TypedLake:
    return decoded.copied(tmp_path / "lake")


def counts(found: TypedVerification) -> list[tuple[int, ...]]:
    return [(v.partition, v.rows, v.typed, v.quarantined) for v in found.partitions]


def test_an_equal_table_has_no_differences(decoded: TypedLake) -> None:
    """Every bronze row is in one of both tables."""
    found = decoded.verifier.verify()
    found.check()
    assert counts(found) == [(0, 6, 5, 1), (1, 6, 6, 0)]
    assert found.as_record()["equal"] is True


def append_copy(uri: Path, partition: int, copied: int, **changes: object) -> None:
    """Append a copy of the row at an offset, with changes."""
    rows = pa.table(DeltaTable(uri).scan())
    (row,) = (
        row for row in rows.to_pylist() if (row["partition"], row["offset"]) == (partition, copied)
    )
    write_deltalake(uri, pa.Table.from_pylist([{**row, **changes}], rows.schema), mode="append")


def change_at(uri: Path, where: str, columns: dict[str, str]) -> None:
    """Update rows, as another program."""
    DeltaTable(uri).update(columns, predicate=where)


def update(column: str, value: str, where: str = 'partition = 0 AND "offset" = 1') -> Tamper:
    """Return a change of typed rows."""
    return lambda lake: change_at(lake.typed_uri, where, {column: value})


TAMPERING: Mapping[str, tuple[Tamper, Kind, str]] = {
    "value": (update("value", "'other'"), Kind.ALTERED, "0 offset 1 value (plan 1)"),
    "null value": (update("value", "NULL"), Kind.ALTERED, "0 offset 1 value (plan 1)"),
    "tombstone": (
        update("value", "''", 'partition = 1 AND "offset" = 5'),
        Kind.ALTERED,
        "1 offset 5 value (plan 2)",
    ),
    "key": (update("key", "NULL"), Kind.ALTERED, "0 offset 1 key (plan 1)"),
    "timestamp": (
        update("timestamp", "to_timestamp('2020-01-01')"),
        Kind.ALTERED,
        "0 offset 1 timestamp (plan 1)",
    ),
    "two columns": (
        lambda lake: change_at(
            lake.typed_uri,
            'partition = 0 AND "offset" = 1',
            {"topic": "'other'", "value": "'other'"},
        ),
        Kind.ALTERED,
        "0 offset 1 topic value (plan 1)",
    ),
    "deleted row": (
        lambda lake: DeltaTable(lake.typed_uri).delete('partition = 0 AND "offset" = 1'),
        Kind.MISSING,
        "0 offset 1 (plan 1)",
    ),
    "deleted entry": (
        lambda lake: DeltaTable(lake.quarantine_uri).delete(),
        Kind.MISSING,
        "0 offset 4 (plan 1)",
    ),
    "doubled row": (
        lambda lake: append_copy(lake.typed_uri, 1, 2),
        Kind.DUPLICATE,
        "1 offset 2 (plan 2)",
    ),
    "doubled entry": (
        lambda lake: append_copy(lake.quarantine_uri, 0, 4),
        Kind.DUPLICATE,
        "0 offset 4 (plan 1)",
    ),
    "row and entry": (
        lambda lake: append_copy(lake.quarantine_uri, 0, 4, offset=3),
        Kind.IN_BOTH,
        "0 offset 3 (plan 1)",
    ),
    "row without bronze row": (
        lambda lake: append_copy(lake.typed_uri, 0, 3, offset=17),
        Kind.UNEXPECTED,
        "0 offset 17",
    ),
    "entry without bronze row": (
        lambda lake: append_copy(lake.quarantine_uri, 0, 4, offset=17),
        Kind.UNEXPECTED,
        "0 offset 17",
    ),
    "row of another topic": (
        lambda lake: append_copy(lake.typed_uri, 0, 3, topic_id="id-9"),
        Kind.UNEXPECTED,
        "0 offset 3",
    ),
}


@pytest.mark.parametrize("tampering", TAMPERING)
def test_a_difference_is_found_with_its_place(lake: TypedLake, tampering: str) -> None:
    """The message names the columns, and contains no value."""
    tamper, kind, place = TAMPERING[tampering]
    tamper(lake)
    found = lake.verifier.verify()
    assert found.differences == {kind: 1}
    with pytest.raises(TableDiffers) as refused:
        found.check()
    assert f"First: {kind} topic events partition {place}." in str(refused.value)
    assert "other" not in str(refused.value)
    assert found.as_record()["equal"] is False


def test_several_differences_of_one_column_are_counted(lake: TypedLake) -> None:
    """The first ones are listed."""
    update("value", "'other'", "true")(lake)
    found = lake.verifier.verify()
    assert found.differences == {Kind.ALTERED: 11}
    assert [(each.partition, each.offset) for each in found.first] == [
        *((0, offset) for offset in (0, 1, 2, 3, 5)),
        *((1, offset) for offset in range(6)),
    ]


def test_only_the_given_range_is_compared(lake: TypedLake) -> None:
    """Differences elsewhere are not found."""
    update("value", "'other'")(lake)
    append_copy(lake.typed_uri, 0, 3, offset=17)
    lake.verifier.verify(partition=1).check()
    lake.verifier.verify(start=2, end=17).check()
    assert lake.verifier.verify(partition=0, end=2).differences == {Kind.ALTERED: 1}
    assert lake.verifier.verify(partition=0, start=6).differences == {Kind.UNEXPECTED: 1}


def test_chunks_are_compared_one_by_one_with_progress(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that memory is bounded."""
    monkeypatch.setattr("tidemark.ops.report.verify_typed._CHUNK_OFFSETS", 4)
    update("value", "'other'")(lake)
    lines, done = list[str](), list[tuple[int, int]]()
    found = lake.verifier.verify(print_line=lines.append, show_done=lambda *each: done.append(each))
    assert found.differences == {Kind.ALTERED: 1}
    assert counts(found) == [(0, 6, 5, 1), (1, 6, 6, 0)]
    assert done == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert lines[0] == "typed rows of partition 0: [0, 4) compared, 1 difference"
    assert lines[1] == "typed rows of partition 0: [4, 6) compared, 0 differences"
    assert lines[4:] == ["typed rows of partition 0: [0, 4) compared again, 1 difference"]


def test_undecoded_rows_are_counted(lake: TypedLake) -> None:
    """A decode follows later."""
    lake.land_values([b"a", b"b"])
    found = lake.verifier.verify()
    found.check()
    assert [v.undecoded for v in found.partitions] == [2, 0]
    assert counts(found) == [(0, 8, 5, 1), (1, 6, 6, 0)]


def test_rows_before_the_first_decode_are_undecoded(tmp_path: Path) -> None:
    """The typed table does not exist yet."""
    lake = TypedLake(tmp_path)
    lake.land_values([b"a", b"b"])
    found = lake.verifier.verify()
    found.check()
    assert [(v.rows, v.undecoded) for v in found.partitions] == [(2, 2)]


def test_hidden_rows_are_counted(lake: TypedLake) -> None:
    """Decoded ones leave the typed table with the next decode."""
    lake.land_values([b"a", b"b", b"c"])
    lake.run()
    lake.land_values([b"d", b"e"])
    lake.publish = PublishRule.CHECKED
    for plan in (1, 2, 3, 4):
        check(lake.bronze, plan, passed=plan < 3)
    found = lake.verifier.verify()
    found.check()
    assert [(v.hidden, v.undecoded, v.withdrawn) for v in found.partitions] == [
        (2, 0, 3),
        (0, 0, 0),
    ]
    update("value", "'other'", 'partition = 0 AND "offset" = 7')(lake)
    assert lake.verifier.verify().differences == {Kind.ALTERED: 1}


def test_typed_rows_of_an_undone_plan_are_counted(lake: TypedLake) -> None:
    """The next decode removes them."""
    plan = lake.land_values([b"a", b"b"])
    lake.run()
    lake.bronze.undo.undo(plan.sequence, "ops", "a test")
    found = lake.verifier.verify()
    found.check()
    assert [v.withdrawn for v in found.partitions] == [2, 0]
    lake.run()
    assert [v.withdrawn for v in lake.verifier.verify().partitions] == [0, 0]


def test_bronze_rows_that_another_program_deleted_are_counted(lake: TypedLake) -> None:
    """Their typed rows and records in quarantine stay."""
    DeltaTable(lake.bronze.uri).delete('partition = 0 AND "offset" >= 3')
    found = lake.verifier.verify()
    found.check()
    assert [(v.rows, v.deleted) for v in found.partitions] == [(3, 3), (6, 0)]


def test_rows_that_landed_again_with_another_value_are_counted(lake: TypedLake) -> None:
    """The next decode replaces their typed rows, also those with equal values."""
    lake.bronze.payloads[0, 2] = Payload(b"k", b"new")
    lake.bronze.land_again((0, 1, 3))
    found = lake.verifier.verify()
    found.check()
    assert [v.stale for v in found.partitions] == [2, 0]
    lake.run()
    assert [v.stale for v in lake.verifier.verify().partitions] == [0, 0]


def test_rows_of_an_earlier_topic_of_the_same_name_are_compared(lake: TypedLake) -> None:
    """The bronze table has their records, which Kafka no longer has."""
    lake.bronze.kafka.create("events", 2, "id-2")
    lake.bronze.decisions.accept_recreation("ops", "on purpose")
    lake.broken = ()
    lake.land_values([b"a", b"b"])
    lake.run()
    lake.verifier.verify().check()
    update("value", "'other'", "topic_id = 'id-1' AND partition = 1 AND \"offset\" = 2")(lake)
    found = lake.verifier.verify()
    assert counts(found) == [(0, 8, 7, 1), (1, 6, 6, 0)]
    assert [str(each) for each in found.first] == [
        "altered topic events partition 1 offset 2 value (plan 2)"
    ]


def test_rows_of_an_unrecorded_replacement_are_counted(lake: TypedLake) -> None:
    """Its driver was killed, or is still running."""
    lake.bronze.payloads[0, 2] = Payload(b"k", b"new")
    lake.bronze.commit_again((0, 1, 3))
    found = lake.verifier.verify()
    found.check()
    assert [v.stale for v in found.partitions] == [2, 0]


@dataclass
class ChangingBronze:
    """A bronze table that another process changes once, right after the typed rows were read."""

    table: DeltaDataTable
    change: Callable[[], object] | None

    def size(self) -> TableSize:
        return self.table.size()

    def values_at(self, topic_id: str, partition: int, span: Span) -> list[dict[str, Any]]:
        if self.change:
            # This thread keeps its opened tables.
            other = Thread(target=self.change)
            other.start()
            other.join()
            self.change = None
            reopen_tables()
        return self.table.values_at(topic_id, partition, span)


def test_a_concurrent_replacement_is_no_difference(lake: TypedLake) -> None:
    """Offsets with differences are compared again with the newest tables."""

    def replace_rows() -> None:
        lake.bronze.land_again((0, 1, 3))
        lake.run()

    lake.bronze.payloads[0, 2] = Payload(b"k", b"new")
    bronze = ChangingBronze(lake.bronze.table, replace_rows)
    replace(lake.verifier, bronze=bronze).verify().check()
    assert bronze.change is None


def test_rows_of_earlier_rules_are_counted(tmp_path: Path) -> None:
    """They keep their values until a decode from scratch. Equal values are not counted."""
    lake = TypedLake(tmp_path, decode=json_lake(a="long"))
    lake.land_values([b'{"a": 1}', b'{"a": 2, "b": 3}'])
    lake.run()
    lake.decode = json_lake(a="long", b="long")
    lake.land_values([b'{"a": 3, "b": 4}'])
    lake.run()
    found = lake.verifier.verify()
    found.check()
    assert [(v.typed, v.earlier_rules) for v in found.partitions] == [(3, 1)]
    assert found.unproven == 1


def test_a_changed_row_is_a_difference_also_after_further_decodes(lake: TypedLake) -> None:
    """Its plan was decoded with the present spec, so another spec does not explain its value."""
    update("value", "'forged'")(lake)
    for _ in range(2):
        lake.bronze.run(2)
        lake.run()
        found = lake.verifier.verify()
        with pytest.raises(TableDiffers) as differs:
            found.check()
        assert "0 offset 1 value (plan 1)" in str(differs.value)
        assert "unknown spec" not in str(differs.value)
        assert (found.differences, found.unproven) == ({Kind.ALTERED: 1}, 0)


@pytest.mark.parametrize("decodes_again", [False, True])
def test_a_row_of_an_unknown_spec_is_judged_by_the_present_one(
    tmp_path: Path, *, decodes_again: bool
) -> None:
    """A RESTORE leaves no list of the plans that the spec has decoded."""
    lake = TypedLake(tmp_path, decode=json_lake(a="long"))
    lake.land_values([b'{"a": 1}', b'{"a": 2, "b": 3}'])
    lake.run()
    version = DeltaTable(lake.typed_uri).version()
    lake.land_values([b'{"a": 3, "b": 4}'])
    lake.run()
    DeltaTable(lake.typed_uri).restore(version)
    lake.decode = json_lake(a="long", b="long")
    if decodes_again:
        for _ in range(2):
            lake.land_values([b'{"a": 5, "b": 6}'])
            lake.run()
    found = lake.verifier.verify()
    with pytest.raises(TableDiffers, match="1 row has an unknown spec"):
        found.check()
    assert [each.unknown_spec for each in found.partitions] == [1]
    assert (found.differences, found.unproven) == ({Kind.ALTERED: 1}, 0)
    lake.decodes.from_scratch("ops", "a test")
    lake.run()
    lake.check()


@pytest.mark.parametrize("column", ["plan_sequence", "topic"])
def test_no_other_spec_explains_columns_of_the_bronze_row(lake: TypedLake, column: str) -> None:
    update(column, "'7'" if column == "topic" else "7")(lake)
    update("value", "'forged'")(lake)
    lake.decode = replace(lake.decode, rules=(("new", "true"),))
    found = lake.verifier.verify()
    with pytest.raises(TableDiffers):
        found.check()
    assert found.differences == {Kind.ALTERED: 1}


def test_deeply_nested_values_are_named_as_not_compared(tmp_path: Path) -> None:
    """Spark accepts up to 1,000 levels."""
    decode = json_lake(a="long")
    lake = TypedLake(tmp_path, decode=replace(decode, value=replace(decode.value, keeps_rest=True)))
    lake.land_values([b'{"a": 1, "b": %s}' % (b'{"c":' * 400 + b"1" + b"}" * 400), b'{"a": 2}'])
    lake.run()
    found = lake.verifier.verify()
    assert not found.differences
    assert [reason for reason in found.unjudged if "nested deeper" in reason]


def json_lake(**columns: FieldType) -> DecodeSpec:
    """Return the spec of a typed table of JSON values with these fields."""
    value = PayloadSpec(format=Format.JSON, schema=Struct(tuple(columns.items())))
    return replace(DECODE, value=value)


def test_a_typed_row_of_a_malformed_payload_is_found(tmp_path: Path) -> None:
    """Such a record belongs in the quarantine."""
    lake = TypedLake(tmp_path, decode=json_lake(a="long"))
    lake.land_values([b'{"a": 1}', b'{"a": 2}'])
    lake.run()
    change_at(lake.bronze.uri, '"offset" = 1', {"value": "arrow_cast('{1', 'Binary')"})
    found = lake.verifier.verify()
    assert found.differences == {Kind.UNDECODABLE: 1}
    assert str(found.first[0]) == "undecodable topic events partition 0 offset 1 value (plan 1)"


def test_flattened_values_are_compared_column_by_column(tmp_path: Path) -> None:
    """Columns of other programs are named, and not compared."""
    decode = replace(json_lake(price="long", offset="string"), flattens=True)
    lake = TypedLake(tmp_path, decode=decode)
    lake.land_values([b'{"price": 1, "offset": "x"}', None, b'{"price": null}'])
    lake.run()
    found = lake.verifier.verify()
    found.check()
    rows = pa.table(DeltaTable(lake.typed_uri).scan())
    noted = rows.append_column("note", pa.array(["seen"] * 3))
    write_deltalake(lake.typed_uri, noted, mode="overwrite", schema_mode="overwrite")
    found = lake.verifier.verify()
    found.check()
    assert found.not_compared[-1] == "column note, which another program added"
    change_at(lake.typed_uri, '"offset" = 0', {"value_offset": "'y'"})
    change_at(lake.typed_uri, '"offset" = 1', {"tombstone": "false", "price": "7"})
    found = lake.verifier.verify()
    assert [each.columns for each in found.first] == [("value_offset",), ("tombstone", "price")]


class Registry:
    """A registry whose schemas have one field with the name `f` and the schema id."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        fields = {f"f{schema_id}": {"type": "integer"}}
        text = json.dumps({"type": "object", "properties": fields})
        return RegisteredSchema(id=schema_id, kind="JSON", text=text)


def framed(schema_id: int, value: int) -> bytes:
    content = json.dumps({f"f{schema_id}": value}).encode()
    return b"\0" + schema_id.to_bytes(4, "big") + content


@pytest.mark.parametrize("flattens", [False, True])
def test_records_are_compared_by_their_own_schemas(tmp_path: Path, flattens: bool) -> None:
    """The stored schemas suffice. A value in the column of another schema is a difference."""
    value = PayloadSpec(format=Format.JSON_SCHEMA)
    decode = replace(DECODE, value=value, flattens=flattens)
    lake = TypedLake(tmp_path, decode=decode, registry=Registry())
    lake.land_values([framed(1, 10), framed(2, 20), None])
    lake.run()
    lake.registry = None
    lake.verifier.verify().check()
    if flattens:
        change_at(lake.typed_uri, '"offset" = 0', {"f2": "5"})
        change_at(lake.typed_uri, '"offset" = 1', {"value_schema_id": "1"})
        found = lake.verifier.verify()
        assert {(each.offset, each.columns) for each in found.first} == {
            (0, ("f2",)),
            (1, ("value_schema_id",)),
        }


def test_values_whose_schema_is_not_stored_are_named_as_not_compared(tmp_path: Path) -> None:
    """They are neither equal nor different."""
    decode = replace(DECODE, value=PayloadSpec(format=Format.JSON_SCHEMA))
    lake = TypedLake(tmp_path, decode=decode, registry=Registry())
    lake.land_values([framed(1, 10), framed(2, 20)])
    lake.run()
    DeltaTable(lake.root / "control" / "schemas").delete("schema_id = 2")
    found = lake.verifier.verify()
    found.check()
    assert found.unjudged == {"value: schema 2 is not stored": 1}
