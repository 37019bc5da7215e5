"""Writes a history of recorded and landed plans for a pipeline, without Spark."""

from __future__ import annotations

from dataclasses import replace

from arro3.core import DataType, Field, Schema
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tidemark.app import App
from tidemark.core import plan_rules
from tidemark.core.accounting import Landing
from tidemark.core.events import Landed, Planned, Started
from tidemark.core.ledger import CheckedLedger, Ledger
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.watermarks import TopicWatermarks
from tidemark.lake.control_table import COMPACT_EVERY
from tidemark.lake.table_io import TIMESTAMP, arrow_table
from tidemark.pipeline import utc_now

UNCOMPACTED = 10
"""Number of plans after the last compaction, and of all plans of the shortest history."""
DATA_COMPACTED_EVERY = 100
"""Number of plans between two compactions of the data table. The control table compacts itself."""


def about(plans: int) -> int:
    """Return a number near `plans` that leaves as many plans uncompacted as `UNCOMPACTED` plans."""
    between = COMPACT_EVERY // 2
    return plans - plans % between + UNCOMPACTED % between


_COLUMNS = Schema(
    [
        Field("topic", DataType.utf8()),
        Field("partition", DataType.int32()),
        Field("offset", DataType.int64()),
        Field("timestamp", TIMESTAMP),
        Field("timestamp_type", DataType.int32()),
        Field("topic_id", DataType.utf8()),
        Field("plan_sequence", DataType.int64()),
        Field("ingested_at", TIMESTAMP),
    ]
)


def write_history(app: App, pipeline: str, plans: int) -> None:
    """Write landed plans of a new pipeline, each with one offset of every partition.

    The control table gets two commits for each plan, as from a planner and a recorder. The data
    table gets one commit for each plan, with its rows (without key and value), transaction and
    metadata.

    Args:
        app: The app with the tables of the pipeline.
        pipeline: Name of the pipeline. Each partition of its topic has at least `plans` records,
            all of them visible.
        plans: Number of plans.
    """
    spec = app.spec(pipeline)
    control, data = app.control, app.pipeline(spec.ref).table
    data.prepare(pipeline)
    table = DeltaTable(app.layout.data_table(spec.target))
    watermarks = app.pipeline(spec.ref).watermarks.topic_watermarks(
        spec.topic, spec.isolation_level
    )
    for sequence in range(1, plans + 1):
        # Only the fields that `append` and `build_plan` use: reading all events would take hours.
        ledger = Ledger(
            pipeline=pipeline, event_number=2 * sequence - 2, last_sequence=sequence - 1
        )
        plan = _plan(ledger, watermarks)
        begun = [started(watermarks)] if sequence == 1 else []
        control.append(CheckedLedger(ledger), [*begun, Planned(plan=plan)], utc_now())
        _land(table, plan)
        landed = Landed(
            plan=plan,
            landing=Landing.of(plan, table.version(), dict.fromkeys(range(len(plan.ranges)), 1)),
            committed={planned.partition: planned.end for planned in plan.ranges},
        )
        after = CheckedLedger(replace(ledger, event_number=2 * sequence - 1))
        control.append(after, [landed], utc_now())
        left = plans - sequence
        if left >= UNCOMPACTED and (left - UNCOMPACTED) % DATA_COMPACTED_EVERY == 0:
            table.optimize.compact()


def started(watermarks: TopicWatermarks) -> Started:
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


def _land(table: DeltaTable, plan: Plan) -> None:
    """Append one row for each offset of the plan, in a commit like that of a landing."""
    rows = [
        {
            "topic": plan.topic,
            "partition": planned.partition,
            "offset": planned.start,
            "timestamp": utc_now(),
            "timestamp_type": 0,
            "topic_id": plan.topic_id,
            "plan_sequence": plan.sequence,
            "ingested_at": utc_now(),
        }
        for planned in plan.ranges
    ]
    write_deltalake(
        table,
        arrow_table(rows, _COLUMNS),
        mode="append",
        # Key, value and headers are null.
        schema_mode="merge",
        commit_properties=CommitProperties(
            app_transactions=[Transaction(plan.app_id, plan.sequence)],
            custom_metadata={"userMetadata": plan.commit_metadata()},
        ),
    )
