"""Debezium's forms of changes, from a drafted spec to the upsert table, with real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.draft.test_spec import draft, layout_of, sample, written
from tests.support.plans import no_owner
from tests.support.services import NOW
from tests.support.upsert_lake import UpsertLake
from tidemark.silver.typed.errors import TooManyQuarantined
from tidemark.silver.typed.followed_tables import FollowPorts
from tidemark.silver.typed.spark_decoder import SparkDecoder
from tidemark.spec.decode import QuarantineReason
from tidemark.spec.loading import load_specs
from tidemark.spec.upsert import Envelope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_Row = dict[str, Any]
_Change = tuple[str, _Row | None, _Row | None]
_CONNECT_SCHEMA = {"type": "struct", "optional": False, "fields": [{"type": "int32", "field": "n"}]}


def _change(op: str, before: _Row | None, after: _Row | None) -> _Row:
    return {"before": before, "after": after, "op": op, "source": {"db": "shop"}, "ts_ms": 5}


def _unwrapped(op: str, before: _Row | None, after: _Row | None) -> _Row:
    is_deletion = op == "d"
    row = before if is_deletion else after
    return {**(row or {}), "__deleted": "true" if is_deletion else "false"}


def _with_schema(form: Callable[..., _Row]) -> Callable[..., _Row]:
    return lambda *change: {"schema": _CONNECT_SCHEMA, "payload": form(*change)}


_FORMS: dict[str, Callable[..., _Row]] = {
    "plain": _change,
    "with-schemas": _with_schema(_change),
    "unwrapped": _unwrapped,
    "unwrapped-with-schemas": _with_schema(_unwrapped),
}


@dataclass
class _Lake(UpsertLake):
    """Decodes with Spark."""

    @property
    def ports(self) -> FollowPorts:
        session = self.spark
        assert session is not None
        decoder = SparkDecoder(
            lambda: session,
            bronze=str(self.bronze.uri),
            typed=str(self.typed_uri),
            quarantine=str(self.quarantine_uri),
            spec=self.decode,
            schemas=self.schemas.store,
            now=lambda: NOW,
        )
        return replace(super().ports, open_decoder=lambda: decoder)


def _log() -> tuple[list[tuple[str, _Change]], dict[str, _Row]]:
    """Return changes of a database, each with its key, and the rows after them."""
    changes: list[tuple[str, _Change]] = []
    rows: dict[str, _Row] = {}
    for number in range(60):
        key, row = str(number % 9), {"id": number % 9, "n": number}
        before = rows.get(key)
        if before and number % 4 == 0:
            changes.append((key, ("d", rows.pop(key), None)))
        else:
            changes.append((key, ("u" if before else "c", before, row)))
            rows[key] = row
    return changes, rows


@pytest.mark.parametrize("flattens", [False, pytest.param(True, marks=pytest.mark.faults)])
@pytest.mark.parametrize("form", _FORMS)
def test_the_drafted_spec_of_each_form_leads_to_the_rows_of_the_database(
    tmp_path: Path, spark: SparkSession, form: str, *, flattens: bool
) -> None:
    """A dictionary that applies the log is the judge. Tombstones follow the deletions."""
    changes, rows = _log()
    records: list[tuple[bytes, bytes | None]] = []
    for key, change in changes:
        records.append((key.encode(), json.dumps(_FORMS[form](*change)).encode()))
        if change[0] == "d":
            records.append((key.encode(), None))
    found = draft(sample(*records))
    written(found, tmp_path / "specs", tmp_path)
    spec = (
        load_specs(tmp_path / "specs", layout_of(tmp_path), list, no_owner).specs["events"].decode
    )
    assert spec is not None
    assert spec.upsert is not None
    lake = _Lake(root=tmp_path, spark=spark, envelope=spec.upsert.envelope, flattens=flattens)
    upsert = replace(spec.upsert, flattens=flattens)
    lake.decode = replace(spec, target=lake.decode.target, flattens=flattens, upsert=upsert)
    lake.bronze.land_payloads(records)
    lake.merge()
    read = pa.table(DeltaTable(lake.upsert_uri).scan()).to_pylist()
    contents = {row["key"]: row if flattens else row["value"] for row in read if not row["deleted"]}
    assert {
        key: {name: content[name] for name in ("id", "n")} for key, content in contents.items()
    } == rows
    assert {row["key"] for row in read if row["deleted"]} == {
        key for key, _ in changes if key not in rows
    }


@pytest.mark.parametrize("form", ["plain", "with-schemas"])
def test_a_value_without_an_operation_is_quarantined(
    tmp_path: Path, spark: SparkSession, form: str
) -> None:
    """It is neither content nor a deletion, and it must not disappear."""
    make = _FORMS[form]
    good = make("c", None, {"id": 1, "n": 1})
    nothing = make(None, None, None)
    records = [(b"a", good), (b"b", nothing), (b"c", {"other": 1})]
    payloads: list[tuple[bytes, bytes | None]] = [
        (key, json.dumps(each).encode()) for key, each in records
    ]
    payloads.append((b"d", None))
    drafted = draft(sample(*[(b"a", json.dumps(good).encode())] * 30))
    written(drafted, tmp_path / "specs", tmp_path)
    spec = (
        load_specs(tmp_path / "specs", layout_of(tmp_path), list, no_owner).specs["events"].decode
    )
    assert spec is not None
    lake = _Lake(root=tmp_path, spark=spark, envelope=Envelope.DEBEZIUM)
    lake.decode = replace(spec, target=lake.decode.target)
    lake.bronze.land_payloads(payloads)
    lake.run()
    reasons = {each.offset: each.reason for each in lake.quarantine.records()}
    assert reasons == dict.fromkeys((1, 2), QuarantineReason.NO_OPERATION)
    lake.bronze.land_payloads([(b"e", json.dumps(nothing).encode())] * 200)
    with pytest.raises(TooManyQuarantined, match="200 no_operation value"):
        lake.run()
