"""Decoding with Spark: bronze rows become files for the typed table and the quarantine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast
from uuid import uuid4

from deltalake import Schema
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use
from pyspark.sql.types import DataType, StructField, StructType

from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.decode_work import DecodeRequest
from tidemark.core.following import BatchOffsets
from tidemark.core.offsets import SpanSet, union_by_partition
from tidemark.delta.storage import folder_of
from tidemark.delta.table_io import newest_table
from tidemark.silver.typed.columns import typed_schema
from tidemark.silver.typed.errors import TooManyQuarantined
from tidemark.silver.typed.formats.spark_payloads import (
    FORMS_AT_ONCE,
    SETTINGS,
    WriterSchemas,
    detail,
    in_passes,
    raw,
    reason,
    with_decoded,
)
from tidemark.silver.typed.replay_preview import DecodeResult
from tidemark.silver.typed.spark_frames import inner_names
from tidemark.spark import parquet
from tidemark.spark.conditions import any_of, at_offsets
from tidemark.spark.failures import session_settings, spark_error
from tidemark.spark.sessions import use_scheduler_pool
from tidemark.spec.decode import DecodeSpec, Part, QuarantineReason
from tidemark.spec.errors import Problem, SpecError
from tidemark.spec.fields import FieldType
from tidemark.spec.flattening import TOMBSTONE, column_name, field_name
from tidemark.spec.ref import PipelineRef
from tidemark.spec.rule_check import at_time, rule_problem

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from tidemark.bronze.ingest.protocols import Clock
    from tidemark.silver.typed.schemas import SchemaStore

_BESIDE = (
    *("headers", "topic", "partition", "offset"),
    *("timestamp", "timestamp_out_of_range_ms", "timestamp_type"),
    *("topic_id", "plan_sequence", "ingested_at"),
)
"""Columns of a typed row except key and value."""
_REASON, _PART, _DETAIL, _SCHEMA_ID = "__reason", "__part", "__detail", "__schema_id"
_SHOWN_REASONS, _MOST_REASONS = 5, 1_000

_Schemas: TypeAlias = Mapping[Part, WriterSchemas]


class _Rows(NamedTuple):
    """Bronze rows to decode, and the request for them.

    Attributes:
        request: The request.
        frame: The rows.
        now: The current time of row rules, the same in all queries.
    """

    request: DecodeRequest
    frame: DataFrame
    now: datetime

    @property
    def sequence(self) -> int:
        """Number of the oldest plan, for errors and names of files."""
        return min(batch.sequence for batch in self.request.offsets)


class SparkDecoder:
    """Decodes bronze rows into files in the folders of a typed table and its quarantine.

    Args:
        open_session: Returns the Spark session. The first decode calls it.
        bronze: URI of the bronze table.
        typed: URI of the typed table, which exists.
        quarantine: URI of the quarantine table, which exists.
        spec: How records are decoded.
        schemas: The stored schemas.
        now: The clock for the current time in row rules.
        forms_at_once: Maximum number of forms of schemas in one pass over the rows of a request.
        write_options: Options for writing Parquet files, in addition to the session's settings.
    """

    def __init__(
        self,
        open_session: Callable[[], SparkSession],
        bronze: str,
        typed: str,
        quarantine: str,
        spec: DecodeSpec,
        schemas: SchemaStore,
        now: Clock,
        forms_at_once: int = FORMS_AT_ONCE,
        write_options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._open_session = open_session
        self._bronze = bronze
        self._typed = typed
        self._quarantine = quarantine
        self._spec = spec
        self._schemas = schemas
        self._now = now
        self._forms_at_once = forms_at_once
        self._write_options = write_options

    @cached_property
    def _session(self) -> SparkSession:
        return self._open_session()

    def decode(self, request: DecodeRequest) -> list[DataFile]:
        """Decode rows of the bronze table. The files of the quarantine have no payload.

        Writes one file for each file that it reads, because the ingest has chosen their size. Rows
        of many forms of schemas take several passes, each with separate files.

        Raises:
            SpecError: A row rule is not a condition over the decoded columns.
            TooManyQuarantined: More records fail than the spec allows. Nothing was committed.
            SetupError, StorageFailure, EngineFailed: As in `spark_error`.
        """
        operation = f"decoding rows of pipeline {request.pipeline!r}"
        with ExitStack() as undo:
            with self._session_for(request.pipeline, operation):
                made = self._write_passes(self._rows_of(request), undo)
            undo.pop_all()
            return made

    def count(
        self, request: DecodeRequest, columns: Mapping[Part, FieldType]
    ) -> Counter[DecodeResult]:
        """Decode rows of the bronze table, and write nothing.

        Args:
            request: The rows.
            columns: Types of the typed table's columns for formats with schema ids.

        Returns:
            The number of records with each result.

        Raises:
            SpecError, SetupError, StorageFailure, EngineFailed: As for `decode`.
        """
        found: Counter[DecodeResult] = Counter()
        operation = f"decoding records of pipeline {request.pipeline!r}"
        with self._session_for(request.pipeline, operation):
            here = self._rows_of(request)
            for written in self._passes(here, typed_schema(self._spec, columns)):
                rows = self._decoded(here, written)
                for *why, count in rows.groupBy(_REASON, _PART, _DETAIL).count().collect():
                    found[DecodeResult.of(*why)] += count
        return found

    @contextmanager
    def _session_for(self, pipeline: str, operation: str) -> Iterator[None]:
        """Prepare the session for decoding, and convert its errors."""
        use_scheduler_pool(self._session, pipeline)
        for key, value in SETTINGS.items():
            self._session.conf.set(key, value)
        try:
            yield
        except (PySparkException, Py4JError, DeltaError, OSError, ValueError) as failure:
            raise spark_error(
                failure,
                operation,
                location=self._typed,
                settings=session_settings(self._session),
                may_have_values=True,
            ) from None

    def _rows_of(self, request: DecodeRequest) -> _Rows:
        """Return bronze rows of one version, because several queries read them."""
        bronze = self._session.read.format("delta").option("versionAsOf", request.version)
        frame = bronze.load(self._bronze).where(_of_batches(request.offsets))
        return _Rows(request, frame, self._now())

    def _writer_schemas(self, rows: _Rows, table: Schema) -> _Schemas:
        """Return the schemas of some records.

        Args:
            rows: The records.
            table: The columns of the typed table.

        Raises:
            ValueError: A schema is not stored, or the typed table lacks the column.
        """
        if not self._spec.framed_parts:
            return {}
        # The Delta log has the schema in Spark's JSON form.
        columns = StructType.fromJson(json.loads(table.to_json()))
        present = self._part_types(columns)
        schemas, oversized = rows.request.schemas, rows.request.oversized
        kept = self._schemas.stored({each for ids in schemas.values() for each in ids})
        found = {}
        for part in self._spec.framed_parts:
            ids = schemas.get(part, ())
            missing = [each for each in ids if each not in kept]
            if missing or (ids and part not in present):
                raise ValueError(f"schemas {missing or ids} of the {part} are no longer stored")
            found[part] = WriterSchemas(
                schemas=[kept[each] for each in ids],
                refused=self._spec.refused_schemas,
                oversized=oversized.get(part, ()),
                widens=self._spec.widens,
                column=present.get(part),
            )
        return found

    def _part_types(self, columns: StructType) -> Mapping[str, DataType]:
        """Return the types of keys and values in the typed table."""
        present = {each.name: each.dataType for each in columns if each.name in list(Part)}
        fields = [
            StructField(name, each.dataType) for each in columns if (name := field_name(each.name))
        ]
        if self._spec.flattens and fields:
            present[Part.VALUE] = StructType(fields)
        return present

    def _passes(self, rows: _Rows, table: Schema) -> Sequence[_Schemas]:
        """Return the schemas of each pass. Each row is in one pass."""
        choices = [
            [
                (part, some)
                for some in in_passes(self._spec.parts[part].format, written, self._forms_at_once)
            ]
            for part, written in self._writer_schemas(rows, table).items()
        ]
        return [dict(chosen) for chosen in product(*choices)]

    def _decoded(self, rows: _Rows, written: _Schemas) -> DataFrame:
        """Return decoded rows with the bytes of the record; a failed row has a reason."""
        made = rows.frame.select(
            *_BESIDE,
            *(F.col(part.value).alias(raw(part)) for part in Part),
        )
        for part, spec in self._spec.parts.items():
            made = with_decoded(made, part, spec, written.get(part))
        faults = {part: F.col(reason(part)) for part in Part}
        nothing = F.lit(None).cast("bigint")
        framed_parts = self._spec.framed_parts
        ids = {part: F.col(part.schema_id) if part in framed_parts else nothing for part in Part}
        details = {part: F.col(detail(part)) for part in Part}

        def of_fault(each: Mapping[Part, Column]) -> Column:
            # For a row without a fault, the value's.
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
        decoded = self._with_operations(decoded.drop(*without_column))
        return self._with_rules(decoded, rows, without_column)

    def _with_operations(self, rows: DataFrame) -> DataFrame:
        """Return rows with a reason for values that have no operation of the envelope."""
        envelope = self._spec.envelope
        if envelope.operation is None or Part.VALUE not in rows.columns:
            return rows
        lacks = F.col(_REASON).isNull() & F.col(Part.VALUE).isNotNull()
        path = envelope.path_in(inner_names(rows.schema[Part.VALUE].dataType))
        if path is not None:
            operation = F.col(Part.VALUE)
            for name in (*path, envelope.operation):
                operation = operation[name]
            lacks = lacks & operation.isNull()
        return rows.withColumns(
            {
                _REASON: F.when(lacks, QuarantineReason.NO_OPERATION.value).otherwise(
                    F.col(_REASON)
                ),
                _PART: F.when(lacks, Part.VALUE.value).otherwise(F.col(_PART)),
            }
        )

    def _with_rules(self, decoded: DataFrame, rows: _Rows, missing: Sequence[Part]) -> DataFrame:
        """Return rows with the first row rule that each row breaks.

        Args:
            decoded: Decoded rows.
            rows: The rows that they are decoded from.
            missing: Parts of records without a column. Rules over them are skipped.
        """
        broken = []
        for name, sql in self._spec.rules:
            # Typed rows and quarantined records come from two queries.
            condition = at_time(sql, rows.now)
            try:
                # As a part of a column, like below: there, Spark refuses aggregates and generators.
                inner = decoded.withColumn("__rule", F.struct(F.expr(condition).alias("__rule")))
                kind = cast("StructType", inner.schema["__rule"].dataType)
                seen = kind["__rule"].dataType.simpleString()
            except AnalysisException as unknown:
                if missing:
                    # The rule may refer to the missing column.
                    continue
                first_line = str(unknown).strip().splitlines()[0]
                seen = rule_problem(sql, self._spec) or first_line
            if seen != "boolean":
                problem = Problem(
                    file=f"{PipelineRef.parse(rows.request.pipeline).name}.yaml",
                    key=f"decode.rules.{name}",
                    expected="a condition in Spark SQL over the decoded columns, such as "
                    "value.price > 0",
                    found=f"{sql}: {seen}",
                )
                raise SpecError(problems=(problem,))
            broken.append(F.when(~F.expr(condition), name))
        if not broken:
            return decoded
        rule = F.when(F.col(_REASON).isNull(), F.coalesce(*broken))
        return decoded.withColumn("__rule", rule).withColumns(
            {
                _REASON: F.coalesce(
                    _REASON, F.when(F.col("__rule").isNotNull(), QuarantineReason.RULE_BROKEN.value)
                ),
                _DETAIL: F.coalesce(_DETAIL, "__rule"),
            }
        )

    def _write_passes(self, rows: _Rows, undo: ExitStack) -> list[DataFile]:
        """Write decoded and failed rows, and return the files of both tables."""
        passes = self._passes(rows, newest_table(self._typed).schema())
        folder = plan_folder(rows.sequence, uuid4())
        typed = self._new_folder(self._typed, folder, undo)
        # A query of many schemas is large, so each one is built when it runs.
        counts = [self._write_typed(self._decoded(rows, written), typed) for written in passes]
        records, quarantined, counted = map(sum, zip(*counts, strict=True))
        made = self._new_files(self._typed, folder)
        if quarantined:
            failed = [
                self._failed_rows(self._decoded(rows, written))
                for written, (_, some, _) in zip(passes, counts, strict=True)
                if some
            ]
            self._check_limit(rows, failed, counted, records - (quarantined - counted))
            place = self._new_folder(self._quarantine, folder, undo)
            for each in failed:
                self._save(_index_columns(each), place)
            made += [_as_quarantined(file) for file in self._new_files(self._quarantine, folder)]
        _check_count(records, made)
        return made

    def _write_typed(self, rows: DataFrame, place: str) -> tuple[int, int, int]:
        """Write the decoded rows.

        Returns:
            The number of all rows, of failed rows, and of failed rows that count for the limit.
        """
        seen = Observation()
        observed = rows.observe(
            seen,
            F.count(F.lit(1)).alias("records"),
            F.count(_REASON).alias("quarantined"),
            F.count_if(_counts_for_limit()).alias("counted"),
        )
        ids = [part.schema_id for part in self._spec.framed_parts]
        decoded = observed.where(F.col(_REASON).isNull())
        self._save(decoded.select(*self._decoded_columns(rows), *_BESIDE, *ids), place)
        return _counts(seen, rows)

    def _decoded_columns(self, rows: DataFrame) -> list[Column]:
        """Return the columns of the typed table for the decoded keys and values of rows."""
        present = [part.value for part in Part if part in rows.columns]
        if not self._spec.flattens:
            return [F.col(name) for name in present]
        has_value = Part.VALUE in present
        value = rows.schema[Part.VALUE].dataType if has_value else StructType()
        fields = value.names if isinstance(value, StructType) else []
        return [
            *(F.col(name) for name in present if name != Part.VALUE),
            *(F.col(Part.VALUE)[name].alias(column_name(name)) for name in fields),
            (F.col(Part.VALUE).isNull() if has_value else F.lit(True)).alias(TOMBSTONE),
        ]

    def _save(self, rows: DataFrame, place: str) -> None:
        # Appends to the files of other passes.
        rows.write.mode("append").options(**self._write_options).parquet(place)

    def _failed_rows(self, rows: DataFrame) -> DataFrame:
        """Return the rows that failed to decode."""
        # The second count keeps the filter above it: Spark would parse again for a filter below.
        again = Observation()
        observed = rows.observe(again, F.count(F.lit(1)).alias("records"))
        return observed.where(F.col(_REASON).isNotNull())

    def _new_folder(self, table: str, folder: str, undo: ExitStack) -> str:
        """Return a new folder of a table, which `undo` removes."""
        files, place = folder_of(table)
        # No commit refers to its files. If the removal fails too, maintenance removes them.
        undo.callback(_remove, files, f"{place}/{folder}")
        return f"{table}/{folder}"

    def _new_files(self, table: str, folder: str) -> list[DataFile]:
        files, place = folder_of(table)
        return parquet.data_files(files, place, folder)

    def _check_limit(
        self, rows: _Rows, failed: Sequence[DataFrame], quarantined: int, records: int
    ) -> None:
        limit = self._spec.quarantine_limit(records)
        if quarantined > limit:
            # Records that were in quarantine before do not count again.
            quarantined -= rows.request.quarantined
        if quarantined <= limit:  # fence: quarantine-has-a-limit
            return
        raise TooManyQuarantined(
            pipeline=PipelineRef.parse(rows.request.pipeline).name,
            sequence=rows.sequence,
            quarantined=quarantined,
            records=records,
            allowed=limit,
            reasons=tuple(f"{count:,} {why}" for why, count in _most_frequent(failed)),
        )


def _most_frequent(failed: Sequence[DataFrame]) -> list[tuple[str, int]]:
    """Return the most frequent reasons, each with its number of rows."""
    found: Counter[str] = Counter()
    for rows in failed:
        grouped = rows.where(_counts_for_limit()).groupBy(_REASON, _PART, _DETAIL).count()
        for row in grouped.orderBy(F.desc("count")).limit(_MOST_REASONS).collect():
            found[" ".join(filter(None, row[:3]))] += row["count"]
    return found.most_common(_SHOWN_REASONS)


def _of_batches(offsets: BatchOffsets) -> Column:
    """Return the condition of the rows of batches without common offsets.

    Plan numbers and offsets are separate conditions, so that adjacent spans of plans become one.
    """
    topics: dict[str, list[tuple[int, Mapping[int, SpanSet]]]] = {}
    for batch, spans in offsets.items():
        topics.setdefault(batch.topic_id, []).append((batch.sequence, spans))
    return any_of(
        [
            any_of(
                [
                    F.col("plan_sequence").between(run.start, run.end - 1)
                    for run in SpanSet.of_numbers(number for number, _ in some)
                ]
            )
            & at_offsets(topic_id, union_by_partition(spans for _, spans in some))
            for topic_id, some in topics.items()
        ]
    )


def _index_columns(rows: DataFrame) -> DataFrame:
    """Return rows with the columns of the quarantine."""
    names = {"reason": _REASON, "part": _PART, "detail": _DETAIL, "schema_id": _SCHEMA_ID}
    faults = [F.col(found).alias(name) for name, found in names.items()]
    return rows.select("topic_id", "partition", "offset", "plan_sequence", *faults)


_NOT_COUNTED = (QuarantineReason.REFUSED_SCHEMA.value, QuarantineReason.SCHEMA_TOO_LARGE.value)
"""Reasons without a limit. An operator refused the schema, or any producer may have registered it
to stop the pipeline."""


def _counts_for_limit() -> Column:
    """Return whether a failed row counts for the limit of the quarantine."""
    return ~F.col(_REASON).isin(*_NOT_COUNTED)


def _counts(seen: Observation, rows: DataFrame) -> tuple[int, int, int]:
    counts: Mapping[str, int] = {}
    # Without a result, a local session raises, and a Spark Connect server returns no counts.
    with suppress(AssertionError):
        counts = seen.get
    if not counts:
        # Spark found that the query has no rows, and removed the count with it.
        failed = rows.where(F.col(_REASON).isNotNull())
        return rows.count(), failed.count(), failed.where(_counts_for_limit()).count()
    return counts["records"], counts["quarantined"], counts["counted"]


def _check_count(records: int, made: Sequence[DataFile]) -> None:
    written = sum(file.records for file in made)
    if written != records:
        raise ValueError(f"Spark read {records} records and wrote {written}")


def _as_quarantined(file: DataFile) -> DataFile:
    return replace(file, quarantined=True)


def _remove(files: FileSystem, folder: str) -> None:
    with suppress(OSError):
        files.delete_dir(folder)
