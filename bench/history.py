"""Writes a history of recorded and landed plans for a pipeline, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from arro3.core import DataType, Field, Schema
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tidemark.app.adapters import utc_now
from tidemark.app.app import App
from tidemark.core import plan_rules
from tidemark.core.accounting import Landing
from tidemark.core.event_rows import Row, encode
from tidemark.core.events import ControlEvent, Landed, Planned, PublicationDecided, Started
from tidemark.core.ledger import CheckedLedger, Ledger
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.publication import PublicationStatus
from tidemark.core.watermarks import TopicWatermarks
from tidemark.delta.compaction import Compaction
from tidemark.delta.control_table import COLUMNS as CONTROL_COLUMNS
from tidemark.delta.control_table import COMPACT_EVERY
from tidemark.delta.shared_tables import append_shared
from tidemark.delta.table_io import TIMESTAMP, arrow_table
from tidemark.quality.check_results_table import SCHEMA as RESULTS

UNCOMPACTED = 10
"""Number of plans after the last compaction."""
TOGETHER = 100
"""Number of plans in one commit before the last compaction."""
_EVENTS_OF_PLAN = 3
"""Number of events of a plan: planned, landed and published."""


def about(plans: int) -> int:
    """Return a number near `plans` that leaves as many plans uncompacted as `UNCOMPACTED` plans."""
    between = COMPACT_EVERY
    return plans - plans % between + UNCOMPACTED % between


_COLUMNS = Schema(
    [
        Field("topic", DataType.utf8()),
        Field("partition", DataType.int32()),
        Field("offset", DataType.int64()),
        Field("value", DataType.binary()),
        Field("timestamp", TIMESTAMP),
        Field("timestamp_type", DataType.int32()),
        Field("topic_id", DataType.utf8()),
        Field("plan_sequence", DataType.int64()),
        Field("ingested_at", TIMESTAMP),
    ]
)


@dataclass(frozen=True, slots=True)
class _History:
    """The tables of a new pipeline, to which a history is written.

    Attributes:
        app: The app with the tables.
        pipeline: Name of the pipeline.
        watermarks: Watermarks of its topic.
        table: Its data table.
        produced_at: The timestamp of every record.
    """

    app: App
    pipeline: str
    watermarks: TopicWatermarks
    table: DeltaTable
    produced_at: datetime

    @classmethod
    def begin(cls, app: App, pipeline: str, produced_at: datetime) -> _History:
        spec = app.spec(pipeline)
        app.pipeline(spec.ref).adapters.bronze().prepare(pipeline)
        watermarks = app.pipeline(spec.ref).adapters.watermarks.topic_watermarks(
            spec.topic, spec.isolation_level
        )
        table = DeltaTable(app.layout.data_table(spec.target))
        return cls(app, pipeline, watermarks, table, produced_at)

    def append(self, sequence: int) -> None:
        """Write a plan in three commits of the control table and one of the data table."""
        # Only the fields that `append` and `build_plan` use: reading all events would take hours.
        ledger = self._ledger(sequence)
        plan = _plan(ledger, self.watermarks)
        _land(self.table, [plan], self.produced_at)
        for events in self._events(plan, self.table.version()):
            self.app.control.append(CheckedLedger(ledger), events, utc_now())
            ledger = replace(ledger, event_number=ledger.event_number + 1)

    def append_together(self, sequences: Sequence[int]) -> list[Plan]:
        """Write landed plans in one commit of each table; the control table exists."""
        plans = [_plan(self._ledger(sequence), self.watermarks) for sequence in sequences]
        _land(self.table, plans, self.produced_at)
        version = self.table.version()
        rows: list[Row] = []
        for plan in plans:
            first = self._ledger(plan.sequence).event_number + 1
            for number, events in enumerate(self._events(plan, version), start=first):
                rows += encode(self.pipeline, number, utc_now(), events)
        newest = Transaction(self.pipeline, _EVENTS_OF_PLAN * sequences[-1])
        write_deltalake(
            self.app.layout.control_table,
            arrow_table(rows, CONTROL_COLUMNS),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[newest]),
        )
        return plans

    def _ledger(self, sequence: int) -> Ledger:
        return Ledger(
            pipeline=self.pipeline,
            event_number=_EVENTS_OF_PLAN * (sequence - 1),
            last_sequence=sequence - 1,
        )

    def _events(self, plan: Plan, version: int) -> Sequence[Sequence[ControlEvent]]:
        """Return the events of a landed and published plan, by commit."""
        begun = [_started(self.watermarks)] if plan.sequence == 1 else []
        landed = _landed(plan, version)
        published = PublicationDecided(
            sequence=plan.sequence,
            status=PublicationStatus.PUBLISHED,
            topic_id=plan.topic_id,
            spans=landed.landing.spans(),
        )
        return [*begun, Planned(plan=plan)], [landed], [published]


def write_history(app: App, pipeline: str, plans: int, produced_at: datetime) -> None:
    """Write landed plans of a new pipeline, with one offset of every partition in each plan.

    Each plan has a published check. The files are those after a compaction: only the last
    `UNCOMPACTED` plans have commits and files of their own. The logs are shorter than after real
    runs, because the plans before them are in commits of `TOGETHER` plans. The rows equal Kafka's
    records, which are one byte `x` with the timestamp `produced_at`; a status compares them.

    Args:
        app: The app with the tables of the pipeline.
        pipeline: Name of the pipeline. Each partition of its topic has at least `plans` records,
            all of them visible.
        plans: Number of plans.
        produced_at: The timestamp of every record.
    """
    history = _History.begin(app, pipeline, produced_at)
    history.append(1)
    compacted = plans - UNCOMPACTED
    for first in range(2, compacted + 1, TOGETHER):
        history.append_together(range(first, min(first + TOGETHER, compacted + 1)))
    Compaction(app.layout.control_table).run({"pipeline": pipeline})
    history.table.optimize.compact()
    for sequence in range(compacted + 1, plans + 1):
        history.append(sequence)
    _write_results(app, pipeline, plans)


def _write_results(app: App, pipeline: str, plans: int) -> None:
    """Write five passed results of each plan, in one commit."""
    results = []
    for plan in range(1, plans + 1):
        shared = {"pipeline": pipeline, "plan_sequence": plan}
        results += [
            {
                **shared,
                "table_version": plan,
                "run_at": utc_now(),
                "outcome": "passed",
                "position": number,
                "check": f"rule_{number}",
                "severity": "critical",
                "passed": True,
                "observed": "0",
                "expectation": f"rule {number} holds for every record",
                "value": 0.0,
                "kind": "live",
            }
            for number in range(5)
        ]
    append_shared(
        app.layout.quality_results,
        pa.Table.from_pylist(results, schema=RESULTS),
        RESULTS,
        partition_by=["pipeline"],
    )


def _started(watermarks: TopicWatermarks) -> Started:
    """Return the event of a pipeline that starts at offset 0 of every partition."""
    return Started.at(watermarks, dict.fromkeys(watermarks.partitions, 0), "bench:1")


def _plan(ledger: Ledger, watermarks: TopicWatermarks) -> Plan:
    offset = ledger.last_sequence
    ranges = tuple(
        PlannedRange(
            partition=partition,
            start=offset,
            end=offset + 1,
            low_watermark=here.low,
            log_end_offset=here.end,
            leader_epoch=here.leader_epoch,
        )
        for partition, here in sorted(watermarks.partitions.items())
    )
    requested_by = f"bench:{ledger.next_sequence}"
    topic = plan_rules.ComparedTopic(ledger=ledger, watermarks=watermarks)
    return plan_rules.build_plan(topic, PlanKind.LIVE, RunOrigin(requested_by), ranges)


def _landed(plan: Plan, version: int) -> Landed:
    landing = Landing.of(plan, version, dict.fromkeys(range(len(plan.ranges)), 1))
    committed = {planned.partition: planned.end for planned in plan.ranges}
    return Landed(plan=plan, landing=landing, committed=committed)


def _land(table: DeltaTable, plans: Sequence[Plan], produced_at: datetime) -> None:
    """Append one row for each offset of the plans, in a commit like that of the newest landing."""
    rows = [
        {
            "topic": plan.topic,
            "partition": planned.partition,
            "offset": planned.start,
            "value": b"x",
            "timestamp": produced_at,
            "timestamp_type": 0,
            "topic_id": plan.topic_id,
            "plan_sequence": plan.sequence,
            "ingested_at": utc_now(),
        }
        for plan in plans
        for planned in plan.ranges
    ]
    newest = plans[-1]
    write_deltalake(
        table,
        arrow_table(rows, _COLUMNS),
        mode="append",
        # Key and headers are null.
        schema_mode="merge",
        commit_properties=CommitProperties(
            app_transactions=[Transaction(newest.app_id, newest.sequence)],
            custom_metadata={"userMetadata": newest.commit_metadata()},
        ),
    )
