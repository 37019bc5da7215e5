"""Decodes beside other commands, and with lost tables: no wrong row, and no endless loop."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.file_lake import Payload
from tests.support.follow_lake import Follower, at
from tests.support.publication import record_decision
from tests.support.registered_lake import MemoryRegistry, RegisteredLake
from tests.support.registry import framed
from tests.support.typed_lake import DECODE, FileDecoder, TypedLake
from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.decode_work import Decoded, DecodeRequest
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.publication import PublicationStatus, PublishRule
from tidemark.delta.errors import ControlConflict
from tidemark.delta.storage import folder_of
from tidemark.silver.typed.columns import typed_schema
from tidemark.silver.typed.errors import (
    RegistryUnavailable,
    SchemaConflict,
    SpecOutdated,
    TooManyQuarantined,
)
from tidemark.silver.typed.state import FollowState
from tidemark.spark import parquet
from tidemark.spark.errors import EngineUnavailable
from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec, RegisteredSchema
from tidemark.spec.fields import Struct

pytestmark = pytest.mark.slow


class UnknownIds(FileDecoder):
    """Quarantines records whose schema ids are not in the request, as Spark does."""

    def decode(self, request: DecodeRequest) -> Sequence[DataFile]:
        known = request.schemas.get("value", ())
        self.lake.broken = {
            row["offset"]
            for row in self.lake.bronze_rows()
            if int.from_bytes(row["value"][1:5], "big") not in known
        }
        return super().decode(request)


class SpecColumns(FileDecoder):
    """Writes files with the columns of the spec, as Spark does."""

    def _files(self, rows: Sequence[dict[str, Any]]) -> Sequence[DataFile]:
        lake, schema = self.lake, pa.schema(typed_schema(self.lake.decode).to_arrow())
        folder = plan_folder(1, uuid4())
        (lake.typed_uri / folder).mkdir()
        good = [{**row, "value": json.loads(row["value"])} for row in rows]
        file = lake.typed_uri / folder / f"part-00000-{uuid4()}-c000.snappy.parquet"
        pq.write_table(pa.Table.from_pylist(good, schema), file)
        return parquet.data_files(*folder_of(str(lake.typed_uri)), folder)


def once(step: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Return a `pause` that acts at the first of these steps."""
    left = [act]

    def pause(name: str) -> None:
        if name == step and left:
            left.pop()()

    return pause


def fields(*names: str) -> DecodeSpec:
    """Return a spec with these fields of values."""
    columns = Struct(tuple((name, "long") for name in names))
    return replace(DECODE, value=PayloadSpec(format=Format.JSON, schema=columns))


def test_a_decode_ends_if_only_some_lacking_entries_have_a_fitting_schema(tmp_path: Path) -> None:
    """The quarantine is lost, and the registry knows one of its schemas by now: it does not fit.

    The records failed before, so they go back to the quarantine, as do later failures.
    """
    registry = MemoryRegistry({1: {"id": "integer"}})
    lake = RegisteredLake(tmp_path, registry=registry)
    for schema_id in (1, 7, 8):
        lake.land_objects(schema_id, {"id": 1})
    follower = Follower(lake, UnknownIds(lake))
    follower.decode()
    shutil.rmtree(lake.quarantine_uri)
    registry.fields[7] = {"id": "string"}
    lake.land_objects(9, {"id": 2})
    follower.decode()
    assert lake.quarantined() == [(0, 1), (0, 2), (0, 3)]


def test_rows_are_removed_without_a_quarantine_and_without_published_plans(tmp_path: Path) -> None:
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    shutil.rmtree(lake.quarantine_uri)
    lake.bronze.undo.undo(1, "test", "a mistake")
    lake.run()
    assert lake.decoded() == []
    lake.check()


def two_specs(tmp_path: Path) -> tuple[Follower, Follower]:
    """Return decoders of one record with an earlier and a newer spec."""
    lake = TypedLake(tmp_path, decode=fields("id", "amt"))
    record = {"id": 1, "amt": 2, "amount": 2}
    lake.land_values([json.dumps(record).encode()])
    new = copy.copy(lake)
    new.decode = fields("id", "amount")
    return Follower(lake, SpecColumns(lake)), Follower(new, SpecColumns(new))


def values_of(follower: Follower) -> list[Any]:
    found: list[Any] = follower.lake.decoded()
    return [value for _, _, value in found]


def test_a_decode_by_an_earlier_spec_commits_nothing_after_a_decode_from_scratch(
    tmp_path: Path,
) -> None:
    """Its files lack the new column. The job reads the new spec when Airflow retries it."""
    follower, other = two_specs(tmp_path)
    follower.pause = once("decoded", other.clear)
    with pytest.raises(ControlConflict):
        follower.decode()
    other.decode()
    assert values_of(other) == [{"id": 1, "amount": 2}]
    other.lake.check()


def test_a_decode_by_a_replaced_spec_begins_nothing(tmp_path: Path) -> None:
    """It would add its own column again. Another decode from scratch returns to its spec."""
    follower, other = two_specs(tmp_path)
    follower.decode()
    other.clear()
    for use in (follower.decode, follower.service.check, lambda: follower.service.draft(at(1))):
        with pytest.raises(SpecOutdated) as refused:
            use()
        # A retry has the same spec, so Airflow must not spend its retries on it.
        assert refused.value.exit_code is ExitCode.REFUSED
    other.decode()
    assert values_of(other) == [{"id": 1, "amount": 2}]
    follower.clear()
    follower.decode()
    assert values_of(follower) == [{"id": 1, "amt": 2}]
    with pytest.raises(SpecOutdated):
        other.decode()


@pytest.mark.parametrize("decodes_again", [False, True])
def test_a_replaced_spec_stays_refused_after_another_program_changed_the_table(
    tmp_path: Path, *, decodes_again: bool
) -> None:
    """The bookmark is unknown then, and the next one has the list of replaced specs again."""
    follower, other = two_specs(tmp_path)
    follower.decode()
    other.clear()
    other.decode()
    DeltaTable(other.typed_uri).update({"timestamp_type": "timestamp_type"})
    if decodes_again:
        other.decode()
    with pytest.raises(SpecOutdated):
        follower.decode()
    DeltaTable(other.typed_uri).update({"timestamp_type": "timestamp_type"})
    follower.clear()
    with pytest.raises(SpecOutdated):
        other.decode()


def test_a_replay_beside_a_decode_from_scratch_quarantines_no_other_records(tmp_path: Path) -> None:
    """The replay knows only the schemas of its own records, not of the rest of their plan."""
    registry = MemoryRegistry({1: {"id": "integer"}})
    lake = RegisteredLake(tmp_path, registry=registry)
    payloads = [(None, framed(schema_id, b'{"id": 1}')) for schema_id in (1, 1, 3)]
    lake.bronze.land_payloads(payloads, 0)
    follower, other = Follower(lake, UnknownIds(lake)), Follower(lake, UnknownIds(lake))
    follower.decode()
    assert lake.quarantined() == [(0, 2)]
    registry.fields[3] = {"id": "integer"}

    def from_scratch() -> None:
        other.clear()
        other.service.next()

    follower.pause = once("decoded", from_scratch)
    follower.decode(at(1, (2, 3)))
    assert lake.quarantined() == []
    lake.check()


class UnavailableRegistry:
    """A registry that does not answer."""

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        raise RegistryUnavailable(connection="registry", schema_id=schema_id, reason="down")


REFUSED = TooManyQuarantined(
    pipeline="events", sequence=2, quarantined=3, records=3, allowed=0, reasons=()
)
LOST = EngineUnavailable(engine="The Spark Connect server", reason="it has ended")


@dataclass
class Failing(FileDecoder):
    """Decodes no record.

    Attributes:
        error: Its error.
    """

    error: TidemarkError = REFUSED

    def decode(self, request: DecodeRequest) -> Sequence[DataFile]:  # noqa: ARG002
        raise self.error


def test_replaced_rows_stay_although_their_new_rows_cannot_be_decoded(tmp_path: Path) -> None:
    """Without both, the published offsets would be missing in the typed table."""
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    lake.bronze.land_again((0, 0, 2))
    with pytest.raises(TooManyQuarantined):
        Follower(lake, Failing(lake)).decode()
    assert len(lake.decoded()) == 3
    lake.run()
    lake.check()


def test_replaced_rows_stay_while_the_schema_of_their_new_rows_does_not_fit(
    tmp_path: Path,
) -> None:
    """Other plans are decoded. A decode of the new rows removes the replaced ones."""
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    lake.bronze.land_again((0, 0, 2))
    lake.bronze.run(1)
    follower = Follower(lake, lake.decoder, unreadable=[0])
    for _ in range(2):
        with pytest.raises(SchemaConflict):
            follower.decode()
        assert follower.typed_rows() == [(1, 0, 0), (1, 0, 1), (1, 0, 2), (3, 0, 3)]
        assert follower.service.state() == FollowState(
            undecoded=at(2, (0, 2)), to_withdraw=at(1, (0, 2))
        )
        lake.verifier.verify().check()
    lake.bronze.land_again((0, 1, 2))
    with pytest.raises(SchemaConflict):
        follower.decode()
    assert follower.typed_rows() == [(1, 0, 0), (1, 0, 2), (3, 0, 3), (4, 0, 1)]
    lake.run()
    lake.check()


def test_replaced_rows_stay_while_the_registry_is_unavailable(tmp_path: Path) -> None:
    lake = RegisteredLake(tmp_path, registry=MemoryRegistry({1: {"id": "integer"}}))
    lake.land_objects(1, {"id": 1}, {"id": 2}, {"id": 3})
    follower = Follower(lake, FileDecoder(lake))
    follower.decode()
    lake.bronze.payloads[0, 0] = Payload(None, framed(2, b'{"id": 1}'), ())
    lake.bronze.land_again((0, 0, 2))
    lake.registry = UnavailableRegistry()
    with pytest.raises(RegistryUnavailable):
        follower.decode()
    assert follower.typed_rows() == [(1, 0, 0), (1, 0, 1), (1, 0, 2)]
    lake.registry = MemoryRegistry({2: {"id": "integer"}})
    follower.decode()
    lake.check()


def test_a_typed_table_is_not_cleared_while_the_registry_is_unavailable(tmp_path: Path) -> None:
    """Only the registry has the schema of the newest record."""
    registry = MemoryRegistry({1: {"id": "integer"}, 2: {"id": "integer"}})
    lake = RegisteredLake(tmp_path, registry=registry)
    lake.land_objects(1, {"id": 1}, {"id": 2})
    lake.run()
    lake.land_objects(2, {"id": 3})
    lake.registry = UnavailableRegistry()
    with pytest.raises(RegistryUnavailable):
        lake.decodes.from_scratch("ops", "a test")
    assert len(lake.decoded()) == 2
    lake.registry = registry
    lake.decodes.from_scratch("ops", "a test")
    lake.run()
    lake.check()


@pytest.mark.parametrize("action", ["undo", "reject"])
def test_replaced_rows_of_a_withdrawn_replacement_are_removed(tmp_path: Path, action: str) -> None:
    """A pending plan no longer has their offsets."""
    lake = TypedLake(tmp_path, publish=PublishRule.CHECKED)
    lake.bronze.run(3)
    record_decision(lake.control, "events", 1)
    lake.run()
    lake.bronze.land_again((0, 0, 2))
    record_decision(lake.control, "events", 2)
    follower = Follower(lake, lake.decoder, unreadable=[0], publish=PublishRule.CHECKED)
    with pytest.raises(SchemaConflict):
        follower.decode()
    assert len(follower.typed_rows()) == 3
    if action == "undo":
        lake.bronze.undo.undo(2, "test", "a mistake")
    else:
        record_decision(
            lake.control, "events", 2, PublicationStatus.REJECTED, decided_by="ops", reason="wrong"
        )
    follower.decode()
    assert follower.typed_rows() == [(1, 0, 2)]
    lake.verifier.verify().check()
    assert follower.service.state() == FollowState()


@pytest.mark.parametrize("error", [REFUSED, LOST], ids=["refused", "lost"])
def test_rejected_rows_are_withdrawn_beside_a_replacement_that_cannot_be_decoded(
    tmp_path: Path, error: TidemarkError
) -> None:
    lake = TypedLake(tmp_path, publish=PublishRule.CHECKED)
    for plan in (1, 2):
        lake.bronze.run(3)
        record_decision(lake.control, "events", plan)
    lake.run()
    record_decision(
        lake.control, "events", 1, PublicationStatus.REJECTED, decided_by="ops", reason="names"
    )
    # The replacement of a rejected row does not show it either.
    lake.bronze.land_again((0, 2, 5))
    record_decision(lake.control, "events", 3)
    follower = Follower(lake, Failing(lake, error), publish=PublishRule.CHECKED)
    with pytest.raises(type(error)):
        follower.decode()
    assert follower.typed_rows() == [(2, 0, 3), (2, 0, 4), (2, 0, 5)]
    lake.run()
    assert follower.typed_rows() == [(2, 0, 5), (3, 0, 2), (3, 0, 3), (3, 0, 4)]
    lake.verifier.verify().check()


@pytest.mark.parametrize("error", [REFUSED, LOST], ids=["refused", "lost"])
def test_rows_are_withdrawn_although_other_plans_cannot_be_decoded(
    tmp_path: Path, error: TidemarkError
) -> None:
    lake = TypedLake(tmp_path)
    lake.land_and_run(3)
    lake.bronze.run(3)
    lake.bronze.undo.undo(1, "test", "a mistake")
    follower = Follower(lake, Failing(lake, error))
    with pytest.raises(type(error)):
        follower.decode()
    assert lake.decoded() == []
    lake.run()
    lake.check()


def test_offsets_that_were_never_decoded_are_not_to_be_removed(tmp_path: Path) -> None:
    """A decode between a landing and its check raises no alarm."""
    lake = TypedLake(tmp_path, publish=PublishRule.CHECKED)
    for plan in (1, 2):
        lake.bronze.run(3)
        status = PublicationStatus.BLOCKED if plan == 2 else PublicationStatus.PUBLISHED
        lake.run()
        record_decision(lake.control, "events", plan, status)
    lake.run()
    lake.bronze.run(3)
    lake.run()
    record_decision(lake.control, "events", 3, PublicationStatus.BLOCKED)
    assert lake.state().backlog.surplus == 0
    assert sum(lake.decodes.run(), Decoded()).removed == 0
