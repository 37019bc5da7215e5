"""Tests that a compaction and an `OPTIMIZE` of Spark from the same version do not both commit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.delta.test_compaction import ROWS, control_of, overtake
from tests.delta.test_control_repair import copy_to_name_with_space
from tests.support.file_lake import WEEK, FileLake
from tests.support.plans import append_events, make_plan
from tests.support.spark_optimize import optimize, stale_optimize
from tidemark.core.errors import SetupError
from tidemark.core.events import Planned
from tidemark.delta.compaction import Compaction
from tidemark.delta.control_repair import _refuse_left_out
from tidemark.delta.errors import TableConflict
from tidemark.delta.live_files import live_files, unsupported_files
from tidemark.ops.maintenance.rules import MaintenanceOutcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return a pipeline with four plans of three records each."""
    lake = FileLake(tmp_path)
    for _ in range(4):
        lake.run(3)
    return lake


def test_i1_a_compaction_is_refused_after_an_optimize_of_spark(
    lake: FileLake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPTIMIZE commits after the compaction's read, or between its check and its commit."""
    compaction = Compaction(str(lake.uri))
    rewrites = compaction.rewrite()
    assert optimize(spark, lake.uri)
    version = DeltaTable(lake.uri).version()
    with pytest.raises(TableConflict):
        compaction.commit(rewrites)
    assert (lake.rows(), DeltaTable(lake.uri).version()) == (ROWS, version)
    lake.run(3)
    overtake(monkeypatch, lambda: optimize(spark, lake.uri))
    with pytest.raises(TableConflict):
        Compaction(str(lake.uri)).run()
    assert lake.verified() == [(15, 15)]
    assert len(DeltaTable(lake.uri).file_uris()) == 1


def test_i1_spark_refuses_its_optimize_after_a_compaction(
    lake: FileLake, spark: SparkSession
) -> None:
    """OPTIMIZE loaded the previous version; a repetition succeeds."""
    stale = stale_optimize(spark, lake.uri)
    assert lake.maintenance().maintain(WEEK).outcome is MaintenanceOutcome.MAINTAINED
    assert not stale()
    assert lake.rows() == ROWS
    lake.run(3)
    assert stale_optimize(spark, lake.uri)()
    assert lake.verified() == [(15, 15)]
    assert len(DeltaTable(lake.uri).file_uris()) == 1


def test_the_advised_optimize_makes_a_table_repairable(lake: FileLake, spark: SparkSession) -> None:
    """A plain OPTIMIZE does not rewrite a partition of one file."""
    uri = str(lake.control_uri)
    append_events(lake.control, "single", Planned(plan=make_plan((0, 0, 1), pipeline="single")))
    copy_to_name_with_space(uri, "single", into="odd")
    rows = DeltaTable(uri).count()
    with pytest.raises(SetupError) as refused:
        _refuse_left_out(DeltaTable(uri), live_files(DeltaTable(uri)), ["odd"])
    (statement,) = re.findall(r"OPTIMIZE .* ZORDER BY \(\w+\)", refused.value.advice)
    spark.sql(statement.partition("ZORDER")[0])
    assert len(unsupported_files(DeltaTable(uri), live_files(DeltaTable(uri)))) == 1
    spark.sql(statement)
    assert unsupported_files(DeltaTable(uri), live_files(DeltaTable(uri))) == []
    assert DeltaTable(uri).count() == rows
    assert lake.control.ledger("odd").event_number == 1


@pytest.mark.faults
def test_i2_optimize_and_compaction_keep_each_event_of_the_control_table_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    control, uri = control_of(tmp_path)
    ledgers = [control.ledger(each) for each in ("events", "prices")]
    stale = stale_optimize(spark, uri)
    assert Compaction(uri).run({"pipeline": "events"}) == 3
    assert not stale()
    rewrites = Compaction(uri).rewrite()
    assert stale_optimize(spark, uri)()
    with pytest.raises(TableConflict):
        Compaction(uri).commit(rewrites)
    assert [control.ledger(each) for each in ("events", "prices")] == ledgers
    plan = make_plan((0, 4, 5), sequence=4, pipeline="events")
    append_events(control, "events", Planned(plan=plan))
    assert set(control.ledger("events").plans) == {1, 2, 3, 4}
