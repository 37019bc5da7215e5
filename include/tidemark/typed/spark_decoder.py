"""Decoding with Spark: a plan's rows of the bronze table, into files beside two tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.types import StructType

from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.plan import Plan
from tidemark.lake.storage import folder_of
from tidemark.spark import parquet
from tidemark.spark.conditions import at_offsets
from tidemark.spark.failures import session_settings, spark_error
from tidemark.spark.sessions import use_scheduler_pool
from tidemark.spec.decode import DecodedFrom, DecodeSpec, Part, Reason
from tidemark.typed.errors import DecoderChanged, InvalidRule, TooManyQuarantined
from tidemark.typed.formats.payloads import (
    FORMS_AT_ONCE,
    SETTINGS,
    WriterSchemas,
    detail,
    in_passes,
    raw,
    reason,
    with_decoded,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from tidemark.typed.schemas import SchemaStore

_BESIDE = (
    *("headers", "topic", "partition", "offset"),
    *("timestamp", "timestamp_out_of_range_ms", "timestamp_type"),
    *("topic_id", "plan_sequence", "ingested_at"),
)
"""Columns that a row has beside its key and value: its bronze row's, but for the plan."""
_REASON, _PART, _DETAIL, _SCHEMA_ID = "__reason", "__part", "__detail", "__schema_id"
_SHOWN_REASONS, _MOST_REASONS = 5, 1_000

_Schemas: TypeAlias = Mapping[Part, WriterSchemas]


class SparkDecoder:
    """Decodes plans into files in the folders of a typed table and its quarantine.

    Args:
        session: Spark.
        bronze: The table that is decoded.
        typed: The typed table, which is there already.
        quarantine: Its quarantine table, which is there already.
        spec: How records are decoded.
        schemas: What records are written with, where they say so.
        forms_at_once: The most forms of schemas that are decoded in one pass over a plan's rows.
        write_options: Options for writing Parquet files, beside the settings of the session.
    """

    def __init__(
        self,
        session: SparkSession,
        bronze: str,
        typed: str,
        quarantine: str,
        spec: DecodeSpec,
        schemas: SchemaStore,
        forms_at_once: int = FORMS_AT_ONCE,
        write_options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._session = session
        self._bronze = bronze
        self._typed = typed
        self._quarantine = quarantine
        self._spec = spec
        self._schemas = schemas
        self._forms_at_once = forms_at_once
        self._write_options = write_options

    def write(self, plan: Plan, records_per_task: int) -> list[DataFile]:  # noqa: ARG002
        """Decode the rows of the bronze table at the plan's offsets.

        Writes one file for each file that it reads, because landing has chosen their size. Rows of
        many forms of schemas take several passes, each with separate files.

        Args:
            plan: A plan of the typed table's pipeline.
            records_per_task: Limit for landing.

        Raises:
            DecoderChanged: The plan was made for another decoder.
            InvalidRule: A row rule is no condition over the decoded columns.
            TooManyQuarantined: More cannot be decoded than the spec allows; nothing was committed.
            SetupError, StorageRefused, StorageUnavailable, EngineFailed: As in `spark_error`.
        """
        source = self._checked(plan)
        operation = f"decoding plan {plan.sequence} of pipeline {plan.pipeline!r}"
        folder = plan_folder(plan.sequence, uuid4())
        use_scheduler_pool(self._session, plan.pipeline)
        for key, value in SETTINGS.items():
            self._session.conf.set(key, value)
        with ExitStack() as undo:
            try:
                made = self._written(plan, self._passes(source), folder, undo)
            except (PySparkException, Py4JError, DeltaError, OSError, ValueError) as failure:
                raise spark_error(
                    failure,
                    operation,
                    location=self._typed,
                    settings=session_settings(self._session),
                    may_have_values=True,
                ) from None
            undo.pop_all()
            return made

    def _checked(self, plan: Plan) -> DecodedFrom:
        source = DecodedFrom.parse(plan.requested_by)
        if source is None or source.fingerprint != self._spec.fingerprint:
            raise DecoderChanged(
                pipeline=plan.pipeline,
                sequence=plan.sequence,
                planned=source.fingerprint if source else plan.requested_by,
                current=self._spec.fingerprint,
            )
        return source

    def _slice(self, plan: Plan) -> DataFrame:
        """The plan's bronze rows, of one version: they may be looked at twice."""
        # delta-rs tells it in milliseconds, Spark by a job.
        newest = DeltaTable(self._bronze).version()
        table = self._session.read.format("delta").option("versionAsOf", newest).load(self._bronze)
        return table.where(at_offsets(plan.topic_id, plan.spans()))

    def _written_with(self, source: DecodedFrom) -> _Schemas:
        """The schemas of a plan's records; raises ValueError if one is not kept, or no column."""
        if not self._spec.framed:
            return {}
        # A table's schema is written in its log as Spark writes one.
        columns = StructType.fromJson(json.loads(DeltaTable(self._typed).schema().to_json()))
        kept = self._schemas.kept({each for ids in source.schemas.values() for each in ids})
        found = {}
        for part in self._spec.framed:
            ids = source.schemas.get(part, ())
            missing = [each for each in ids if each not in kept]
            if missing or (ids and part not in columns.names):
                raise ValueError(f"schema {missing or ids} of the {part} is not known any more")
            found[part] = WriterSchemas(
                schemas=[kept[each] for each in ids],
                refused=self._spec.refused_schemas,
                widens=self._spec.widens,
                column=columns[part].dataType if part in columns.names else None,
            )
        return found

    def _passes(self, source: DecodedFrom) -> Sequence[_Schemas]:
        """The schemas of each pass; each row of the plan is in one pass."""
        choices = [
            [
                (part, some)
                for some in in_passes(self._spec.parts[part].format, written, self._forms_at_once)
            ]
            for part, written in self._written_with(source).items()
        ]
        return [dict(chosen) for chosen in product(*choices)]

    def _with_faults(
        self, rows: DataFrame, plan: Plan, written: _Schemas, *, names_faults: bool = False
    ) -> DataFrame:
        """Decoded rows, those that cannot be with a reason, and the bytes of all."""
        made = rows.withColumn("plan_sequence", F.lit(plan.sequence).cast("bigint")).select(
            *_BESIDE,
            *(F.col(part.value).alias(raw(part)) for part in Part),
        )
        for part, spec in self._spec.parts.items():
            made = with_decoded(made, part, spec, written.get(part), names_faults=names_faults)
        faults = {part: F.col(reason(part)) for part in Part}
        nothing = F.lit(None).cast("bigint")
        framed = self._spec.framed
        ids = {part: F.col(part.schema_id) if part in framed else nothing for part in Part}
        details = {part: F.col(detail(part)) for part in Part}

        def of_fault(each: Mapping[Part, Column]) -> Column:
            # Where nothing is at fault it is the value's.
            return F.when(faults[Part.KEY].isNotNull(), each[Part.KEY]).otherwise(each[Part.VALUE])

        decoded = made.withColumns(
            {
                _REASON: F.coalesce(*faults.values()),
                _PART: F.coalesce(
                    *(F.when(why.isNotNull(), part.value) for part, why in faults.items())
                ),
                _DETAIL: of_fault(details),
                _SCHEMA_ID: of_fault(ids),
            }
        )
        without_column = [part for part, some in written.items() if some.column is None]
        return self._with_rules(decoded.drop(*without_column), plan, without_column)

    def _with_rules(self, rows: DataFrame, plan: Plan, missing: Sequence[Part]) -> DataFrame:
        """Rows with the rules that they break; `missing` are halves that have no column yet."""
        broken = []
        for name, sql in self._spec.rules:
            try:
                (field,) = rows.select(F.expr(sql).alias(name)).schema.fields
                seen = field.dataType.simpleString()
            except AnalysisException as unknown:
                if missing:
                    # Over what no record has.
                    continue
                seen = str(unknown).strip().splitlines()[0]
            if seen != "boolean":
                raise InvalidRule(pipeline=plan.pipeline, rule=name, sql=sql, seen=seen)
            broken.append(F.when(~F.expr(sql), name))
        if not broken:
            return rows
        rule = F.when(F.col(_REASON).isNull(), F.coalesce(*broken))
        return rows.withColumn("__rule", rule).withColumns(
            {
                _REASON: F.coalesce(
                    _REASON, F.when(F.col("__rule").isNotNull(), Reason.RULE_BROKEN.value)
                ),
                _DETAIL: F.coalesce(_DETAIL, "__rule"),
            }
        )

    def _written(
        self, plan: Plan, passes: Sequence[_Schemas], folder: str, undo: ExitStack
    ) -> list[DataFile]:
        """The files of a plan's rows, typed and quarantined."""
        here = self._slice(plan)
        typed = self._place(self._typed, folder, undo)
        # A query of many schemas is large: each is made when it runs.
        counts = [
            self._write_typed(self._with_faults(here, plan, written), typed) for written in passes
        ]
        records, quarantined, surprises = map(sum, zip(*counts, strict=True))
        made = self._found(self._typed, folder)
        if quarantined:
            faulty = [
                self._faulty(self._with_faults(here, plan, written, names_faults=True))
                for written, (_, some, _) in zip(passes, counts, strict=True)
                if some
            ]
            self._refuse_many(plan, faulty, surprises, records - (quarantined - surprises))
            place = self._place(self._quarantine, folder, undo)
            for rows in faulty:
                self._save(_in_quarantine(rows), place)
            made += [_quarantined(file) for file in self._found(self._quarantine, folder)]
        _check_count(records, made)
        return made

    def _write_typed(self, rows: DataFrame, place: str) -> tuple[int, int, int]:
        """Write the rows that are decoded; how many there are, with faults, and as surprises."""
        seen = Observation()
        counted = rows.observe(
            seen,
            F.count(F.lit(1)).alias("records"),
            F.count(_REASON).alias("quarantined"),
            F.count_if(_is_surprise()).alias("surprises"),
        )
        decoded = [part for part in Part if part in rows.columns]
        ids = [part.schema_id for part in self._spec.framed]
        self._save(counted.where(F.col(_REASON).isNull()).select(*decoded, *_BESIDE, *ids), place)
        return _counts(seen, rows)

    def _save(self, rows: DataFrame, place: str) -> None:
        # Appends to the files of other passes.
        rows.write.mode("append").options(**self._write_options).parquet(place)

    def _faulty(self, rows: DataFrame) -> DataFrame:
        """The rows that are not decoded."""
        # Counted once more: a filter below this would be computed apart, with a parser of its own.
        again = Observation()
        counted = rows.observe(again, F.count(F.lit(1)).alias("records"))
        return counted.where(F.col(_REASON).isNotNull())

    def _place(self, table: str, folder: str, undo: ExitStack) -> str:
        """A folder of a table, which `undo` removes."""
        files, place = folder_of(table)
        # No commit will refer to its files; if that fails too, maintenance takes them.
        undo.callback(_remove, files, f"{place}/{folder}")
        return f"{table}/{folder}"

    def _found(self, table: str, folder: str) -> list[DataFile]:
        files, place = folder_of(table)
        return parquet.data_files(files, place, folder)

    def _quarantined_before(self, plan: Plan) -> int:
        """How many of a plan's offsets the quarantine has a record of that nobody has closed."""
        kept = self._session.read.format("delta").load(self._quarantine)
        here = at_offsets(plan.topic_id, plan.spans())
        open_here = kept.where(here & F.col("closed_by").isNull())
        return int(open_here.select("partition", "offset").distinct().count())

    def _refuse_many(
        self, plan: Plan, faulty: Sequence[DataFrame], quarantined: int, records: int
    ) -> None:
        allowed = self._spec.allowed(records)
        if quarantined > allowed and plan.replaces:
            # What was there before and fails again is none more.
            quarantined -= self._quarantined_before(plan)
        if quarantined <= allowed:  # fence: quarantine-has-a-limit
            return
        raise TooManyQuarantined(
            pipeline=plan.pipeline,
            sequence=plan.sequence,
            quarantined=quarantined,
            records=records,
            allowed=allowed,
            reasons=tuple(f"{count:,} {why}" for why, count in _most_frequent(faulty)),
        )


def _most_frequent(faulty: Sequence[DataFrame]) -> list[tuple[str, int]]:
    """The reasons of most rows, and how many rows each has."""
    found: Counter[str] = Counter()
    for rows in faulty:
        grouped = rows.where(_is_surprise()).groupBy(_REASON, _PART, _DETAIL).count()
        for row in grouped.orderBy(F.desc("count")).limit(_MOST_REASONS).collect():
            found[" ".join(filter(None, row[:3]))] += row["count"]
    return found.most_common(_SHOWN_REASONS)


def _in_quarantine(rows: DataFrame) -> DataFrame:
    """Rows as the quarantine has them."""
    return rows.select(
        *(F.col(raw(part)).alias(part.value) for part in Part),
        *_BESIDE,
        F.col(_REASON).alias("reason"),
        F.col(_PART).alias("part"),
        F.col(_DETAIL).alias("detail"),
        F.col(_SCHEMA_ID).alias("schema_id"),
    )


def _is_surprise() -> Column:
    """Whether a row is in quarantine for what nobody has asked for, however much that is."""
    return F.col(_REASON) != Reason.REFUSED_SCHEMA.value


def _counts(seen: Observation, rows: DataFrame) -> tuple[int, int, int]:
    counts: Mapping[str, int] = {}
    # Without a count an application raises, and a server returns no counts.
    with suppress(AssertionError):
        counts = seen.get
    if not counts:
        # Spark has found that nothing can come out, and has left the counting out as well.
        faulty = rows.where(F.col(_REASON).isNotNull())
        return rows.count(), faulty.count(), faulty.where(_is_surprise()).count()
    return counts["records"], counts["quarantined"], counts["surprises"]


def _check_count(records: int, made: Sequence[DataFile]) -> None:
    written = sum(file.records for file in made)
    if written != records:
        raise ValueError(f"{records} record(s) were read, and {written} written")


def _quarantined(file: DataFile) -> DataFile:
    return replace(file, quarantined=True)


def _remove(files: FileSystem, folder: str) -> None:
    with suppress(OSError):
        files.delete_dir(folder)
