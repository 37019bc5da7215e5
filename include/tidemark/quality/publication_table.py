"""The verdict table: what checks and people said of every landed range, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import assert_never

from arro3.core import DataType, Field, Schema

from tidemark.core.accounting import Landing
from tidemark.core.offsets import Span, SpanSet, united
from tidemark.core.plan import Plan
from tidemark.lake.failures import named_failures, names_failures
from tidemark.lake.rows import TIMESTAMP, from_rows, opened, query
from tidemark.lake.shared_tables import append_shared
from tidemark.quality.publication import Standing, Word

COLUMNS = Schema(
    [
        Field("pipeline", DataType.utf8(), nullable=False),
        Field("plan_sequence", DataType.int64(), nullable=False),
        Field("standing", DataType.utf8(), nullable=False),
        Field("said_at", TIMESTAMP, nullable=False),
        Field("said_by", DataType.utf8(), nullable=True),
        Field("reason", DataType.utf8(), nullable=True),
        Field("topic", DataType.utf8(), nullable=False),
        Field("topic_id", DataType.utf8(), nullable=False),
        Field("partition", DataType.int32(), nullable=False),
        Field("start_offset", DataType.int64(), nullable=False),
        Field("end_offset", DataType.int64(), nullable=False),
        Field("records", DataType.int64(), nullable=False),
        Field("table_id", DataType.utf8(), nullable=False),
    ]
)
"""The verdict table's columns; docs/quality.md explains each."""


@names_failures
class DeltaVerdictTable:
    """What was said of the ranges in one data table; rows are only ever added.

    A word is of one table, told by its Delta id: one that is made anew in its place begins without.

    Args:
        uri: The verdict table, which pipelines share.
        data_table: The data table.
    """

    def __init__(self, uri: str, data_table: str) -> None:
        self._uri = uri
        self._data_table = data_table

    def say(self, plan: Plan, landing: Landing, word: Word) -> None:
        """Add a word on a plan: a row for each of its landed ranges, in one commit.

        Raises:
            UnsafeStorage: The storage can lose a concurrent decision; nothing was recorded.
            StorageRefused, StorageUnavailable: Nothing was recorded.
            EngineFailed: Nothing was recorded, or the answer was lost: record it again.
        """
        table_id = _id_of(self._data_table)
        rows = [
            {
                "table_id": table_id,
                "pipeline": plan.pipeline,
                "plan_sequence": plan.sequence,
                "standing": str(word.standing),
                "said_at": word.said_at,
                "said_by": word.said_by,
                "reason": word.reason,
                "topic": plan.topic,
                "topic_id": plan.topic_id,
                "partition": count.partition,
                "start_offset": count.start,
                "end_offset": count.end,
                "records": count.records,
            }
            for count in landing.counts
        ]
        append_shared(self._uri, from_rows(rows, COLUMNS), COLUMNS)

    def words(self, pipeline: str, plan: int | None = None) -> list[Word]:
        """Return every decision about a pipeline's plans, or about one plan, in any order."""
        table = opened(self._uri)
        if table is None:
            return []
        found = query(
            table,
            "SELECT plan_sequence, standing, said_at, said_by, reason, "
            "partition, start_offset, end_offset "
            f"FROM t WHERE pipeline = '{pipeline}' AND table_id = '{_id_of(self._data_table)}'"
            f"{'' if plan is None else f' AND plan_sequence = {plan}'}",
        )
        said: dict[Word, list[Mapping[int, SpanSet]]] = {}
        for row in found:
            word = Word(
                sequence=row["plan_sequence"],
                standing=Standing(row["standing"]),
                said_at=row["said_at"],
                said_by=row["said_by"],
                reason=row["reason"],
            )
            span = SpanSet.of([Span(row["start_offset"], row["end_offset"])])
            said.setdefault(word, []).append({row["partition"]: span})
        return [replace(word, spans=united(spans)) for word, spans in said.items()]

    def decided(self, pipeline: str) -> Sequence[int]:
        """Return the plans of a pipeline with a decision by a check or an operator."""
        table = opened(self._uri)
        if table is None:
            return []
        found = query(
            table,
            "SELECT DISTINCT plan_sequence FROM t "
            f"WHERE pipeline = '{pipeline}' AND table_id = '{_id_of(self._data_table)}'",
        )
        return [row["plan_sequence"] for row in found]

    def blocked(self, pipeline: str) -> Sequence[int]:
        """Return the plans whose effective publication status is `blocked`, sorted.

        The same as `counting` over `words`, without a Python object for each row.
        """
        table = opened(self._uri)
        if table is None:
            return []
        effective = _EFFECTIVE.format(
            verdicts="t",
            pipeline=pipeline,
            table_id=_id_of(self._data_table),
            visible=_VISIBLE,
        )
        found = query(
            table,
            f"SELECT DISTINCT plan_sequence FROM ({effective}) "
            f"WHERE place = 1 AND standing = '{Standing.BLOCKED}' ORDER BY plan_sequence",
        )
        return [row["plan_sequence"] for row in found]


def _id_of(data_table: str) -> str:
    """A table's Delta id; empty if there is no table, of which nothing can have been said."""
    with named_failures(data_table, "reading the table"):
        table = opened(data_table)
        return "" if table is None else str(table.metadata().id)


class Engine(StrEnum):
    """Who is to read the published view, by the way in which they name a table by its place."""

    SPARK = "spark"
    DUCKDB = "duckdb"


def _named(uri: str, engine: Engine) -> str:
    match engine:
        case Engine.SPARK:
            return "delta.`{}`".format(uri.replace("`", "``"))
        case Engine.DUCKDB:
            return "delta_scan('{}')".format(uri.replace("'", "''"))
        case _:
            assert_never(engine)


_VISIBLE = ", ".join(f"'{standing}'" for standing in Standing if standing.is_visible)

_EFFECTIVE = """\
    SELECT
      *,
      rank() OVER (
        PARTITION BY plan_sequence
        -- A person's word counts more than a check's, and the newest most.
        ORDER BY
          CASE WHEN said_by IS NULL THEN 1 ELSE 0 END,
          said_at DESC,
          CASE WHEN standing IN ({visible}) THEN 1 ELSE 0 END
      ) AS place
    FROM {verdicts}
    WHERE pipeline = '{pipeline}' AND table_id = '{table_id}'"""
"""Every decision; `place` is 1 for the effective one."""

_PUBLISHED = """\
SELECT *
FROM {rows} AS landed
WHERE EXISTS (
  SELECT 1
  FROM (
{effective}
  ) AS words
  WHERE place = 1 AND standing IN ({visible})
    AND words.plan_sequence = landed.plan_sequence
    AND words.topic_id = landed.topic_id
    AND words.partition = landed.partition
    -- As far as it was said: what a RESTORE has brought back since waits for a word of its own.
    AND words.start_offset <= landed.offset AND landed.offset < words.end_offset
)"""


def published_view(pipeline: str, data_table: str, verdict_table: str, engine: Engine) -> str:
    """A query for what of a pipeline's table is published, as of whenever it is asked."""
    effective = _EFFECTIVE.format(
        verdicts=_named(verdict_table, engine),
        pipeline=pipeline,
        table_id=_id_of(data_table),
        visible=_VISIBLE,
    )
    return _PUBLISHED.format(rows=_named(data_table, engine), effective=effective, visible=_VISIBLE)
