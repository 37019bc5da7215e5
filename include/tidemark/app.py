"""The only place that reads the environment and builds adapters.

Heavy libraries are imported by the function that needs them: planning never loads Spark, and a
DAG file that asks for the specs loads nothing but the YAML parser.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.core.errors import InvalidSelection, TidemarkError
from tidemark.core.offsets import size_of
from tidemark.core.plan import Plan, PlanRef
from tidemark.core.table_state import Footprint
from tidemark.kafka.errors import InvalidConnection, UnknownConnection
from tidemark.spark.engine import TOKEN_VARIABLE, Engine, Server, Submit, engine_of
from tidemark.spark.sessions import ApplicationSessions, Sessions
from tidemark.spec.decode import DecodeSpec, Format, Part
from tidemark.spec.errors import IsTyped, NotDecoded, NotUpserted, SpecError, UnknownPipeline
from tidemark.spec.layout import LOG_FOLDER, Layout
from tidemark.spec.model import COPY_NAME, QUARANTINE, TYPED, UPSERT, PipelineSpec
from tidemark.spec.upsert import Merge, UpsertSpec

if TYPE_CHECKING:
    from tidemark.backfill.service import Backfills
    from tidemark.dev.airflow_standalone import AirflowStandalone
    from tidemark.dev.broker import Broker
    from tidemark.dev.failpoints import FailPoint
    from tidemark.ingest.executor import PlanExecutor
    from tidemark.ingest.planner import Planner
    from tidemark.ingest.protocols import (
        BronzeTable,
        ControlTable,
        DataTable,
        LogReader,
        Sink,
        TopicLogReader,
        TopicReader,
        WatermarkReader,
    )
    from tidemark.ingest.start import OffsetSource, StartService
    from tidemark.lake.control_repair import DeltaControlRepair
    from tidemark.lake.data_table import DeltaDataTable
    from tidemark.lake.deduplication import Deduplication
    from tidemark.maintenance.service import Maintenance
    from tidemark.quality.publication_service import Publication, PublicationTable
    from tidemark.quality.service import Quality, QualityPages
    from tidemark.repair.abandon import Abandon
    from tidemark.repair.decisions import Decisions
    from tidemark.repair.exports import Exports, GroupOffsets
    from tidemark.repair.repair import Repair
    from tidemark.repair.undo import Undo
    from tidemark.report.owner_report import PipelineReport
    from tidemark.report.service import Reports
    from tidemark.report.status import PipelineStatus
    from tidemark.report.unsettled import Unsettling
    from tidemark.report.verify import Verify
    from tidemark.spark.server import SparkServer
    from tidemark.spec.fields import FieldType
    from tidemark.spec.loading import SpecFolder
    from tidemark.typed.decoder import Decoding
    from tidemark.typed.profile_service import Profiling
    from tidemark.typed.quarantine import DeltaQuarantine, TypedTables
    from tidemark.typed.schemas import SchemaRegistry, SchemaStore
    from tidemark.upsert.service import Upserts

_Adapter = TypeVar("_Adapter")

LOCAL_CONNECTION = "kafka_default"
"""The connection id that means the embedded broker where nothing else is defined."""

SPARK_CONNECTION = "spark_default"
"""The connection id of Spark in Airflow."""


def utc_now() -> datetime:
    """The clock that services are given."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class App:
    """Tidemark on one machine: its folders, its connections, its services.

    Attributes:
        environ: The environment; tests and DAGs pass their own.
        sessions: Provides the Spark sessions of jobs.
    """

    environ: Mapping[str, str]
    sessions: Sessions = field(default_factory=ApplicationSessions)

    @classmethod
    def from_environment(cls, extra: Mapping[str, str] | None = None) -> App:
        """The app of this process; `extra` wins over the process's variables."""
        return cls(environ={**os.environ, **(extra or {})})

    @cached_property
    def layout(self) -> Layout:
        """Folders, by TIDEMARK_PROJECT, TIDEMARK_HOME and TIDEMARK_LAKEHOUSE."""
        project = Path(self.environ.get("TIDEMARK_PROJECT", Path(__file__).parents[2])).resolve()
        home = Path(self.environ.get("TIDEMARK_HOME", project / ".tidemark")).resolve()
        lakehouse = self.environ.get("TIDEMARK_LAKEHOUSE")
        if lakehouse and "://" not in lakehouse:
            lakehouse = str(Path(lakehouse).resolve())
        return Layout(project=project, home=home, lakehouse_root=lakehouse)

    @cached_property
    def spec_folder(self) -> SpecFolder:
        """Every pipeline spec, by TIDEMARK_PIPELINES.

        Raises:
            SpecError: There is no such folder.
        """
        from tidemark.spec.loading import load_specs

        specs = self.environ.get("TIDEMARK_PIPELINES")
        folder = Path(specs).resolve() if specs else self.layout.specs
        return load_specs(folder, self.layout)

    @property
    def specs(self) -> Mapping[str, PipelineSpec]:
        """Every valid spec, by name.

        Raises:
            SpecError: There is no folder of specs.
        """
        return self.spec_folder.specs

    def spec(self, pipeline: str) -> PipelineSpec:
        """One spec; `prices@july` is that of pipeline `prices`, into the table of copy `july`.

        Raises:
            UnknownPipeline, SpecError
            InvalidSelection: Nothing can be called like that copy.
        """
        name, into, copy = pipeline.partition("@")
        if name not in self.specs:
            if name in self.spec_folder.broken:
                raise self.spec_folder.broken[name]
            # The name may be in a file with another name.
            self.spec_folder.check()
            raise UnknownPipeline(pipeline=pipeline, known=tuple(self.specs))
        spec = self.specs[name]
        if not into:
            return spec
        if copy == TYPED:
            return spec.typed(self._decode(spec))
        if copy == UPSERT:
            return spec.upserted(self._upsert(spec))
        if not re.fullmatch(COPY_NAME, copy) or copy == QUARANTINE:
            rule = f"a copy's name like {COPY_NAME}, and none of {TYPED}, {QUARANTINE}, {UPSERT}"
            raise InvalidSelection(rule=rule, seen=repr(copy))
        if re.fullmatch(r"\w+://[^/]*/*", spec.target):
            raise InvalidSelection(
                rule="a pipeline whose table is in a folder, beside which the copy's can be",
                seen=f"target {spec.target}",
            )
        return spec.into(copy)

    def kafka_spec(self, pipeline: str) -> PipelineSpec:
        """The spec of a pipeline that reads Kafka.

        Raises:
            UnknownPipeline, SpecError, InvalidSelection
            IsTyped: It is that of a typed table.
        """
        spec = self.spec(pipeline)
        if not spec.reads_kafka:
            raise IsTyped(pipeline=spec.name, origin=spec.origin)
        return spec

    def typed_spec(self, pipeline: str) -> PipelineSpec:
        """The spec of the typed table of a pipeline, by the name of either.

        Raises:
            UnknownPipeline, SpecError
            NotDecoded: It has none.
        """
        return self.spec(f"{pipeline.removesuffix(f'@{TYPED}')}@{TYPED}")

    @staticmethod
    def _decode(spec: PipelineSpec) -> DecodeSpec:
        if spec.decode is None:
            raise NotDecoded(pipeline=spec.origin)
        return spec.decode

    @staticmethod
    def _upsert(spec: PipelineSpec) -> UpsertSpec:
        if spec.decode is None or spec.decode.upsert is None:
            raise NotUpserted(pipeline=spec.origin)
        return spec.decode.upsert

    def group(self, name: str) -> list[PipelineSpec]:
        """The pipelines of a group, by name.

        Raises:
            SpecError
        """
        return [spec for spec in self.specs.values() if spec.group == name]

    def kafka_config(self, connection: str) -> dict[str, Any]:
        """A Kafka connection as librdkafka configuration. Holds secrets: never log it.

        Raises:
            UnknownConnection, InvalidConnection
        """
        from tidemark.kafka.options import client_config

        return client_config(connection, self._connection_extra(connection, "bootstrap.servers"))

    def watermarks(self, spec: PipelineSpec) -> TopicReader:
        """Reads the watermarks of the pipeline's cluster."""
        from tidemark.kafka.watermarks import KafkaWatermarkReader

        return self._armed("watermarks", KafkaWatermarkReader(self.kafka_config(spec.connection)))

    def log_reader(self, spec: PipelineSpec) -> TopicLogReader:
        """Reads records of the pipeline's cluster, apart from Spark."""
        from tidemark.kafka.reader import KafkaLogReader

        return self._armed("log_reader", KafkaLogReader(self.kafka_config(spec.connection)))

    def group_offsets(self, spec: PipelineSpec) -> GroupOffsets:
        """Reads and sets offsets of consumer groups of the pipeline's cluster."""
        from tidemark.kafka.groups import KafkaGroupOffsets

        return self._armed("groups", KafkaGroupOffsets(self.kafka_config(spec.connection)))

    def group_source(self, pipeline: str, group: str) -> OffsetSource:
        """What a consumer group of the pipeline's cluster has committed."""
        from tidemark.ingest.start import GroupSource

        return GroupSource(groups=self.group_offsets(self.spec(pipeline)), group=group)

    def checkpoint_source(self, path: str) -> OffsetSource:
        """The checkpoint of a Structured Streaming query."""
        from tidemark.ingest.start_checkpoint import StreamCheckpoint

        return self._armed("source", StreamCheckpoint(_place(path)))

    def ingested_source(self, table: str, app_id: str) -> OffsetSource:
        """The transactions of a Delta table that kafka-delta-ingest writes."""
        from tidemark.ingest.start_ingested import IngestedTable

        return self._armed("source", IngestedTable(_place(table), app_id))

    def control(self) -> ControlTable:
        """The control table."""
        return self._control

    @cached_property
    def _control(self) -> ControlTable:
        from tidemark.lake.control_table import DeltaControlTable

        return self._armed("control", DeltaControlTable(self.layout.control_table))

    def control_repair(self) -> DeltaControlRepair:
        """Repairs the control table; needs neither a JVM nor Kafka."""
        from tidemark.lake.control_repair import DeltaControlRepair

        return DeltaControlRepair(self.layout.control_table)

    def table(self, spec: PipelineSpec) -> DataTable:
        """The pipeline's data table, without Spark."""
        return self._typed_tables(spec) if spec.is_typed else self._bronze_table(spec)

    def _bronze_table(self, spec: PipelineSpec, *, reads_only: bool = False) -> BronzeTable:
        from tidemark.lake.data_table import DeltaDataTable

        uri = self.layout.data_table(spec.target)
        return self._armed("table", DeltaDataTable(uri, reads_only=reads_only))

    def _typed_tables(self, spec: PipelineSpec) -> TypedTables:
        from tidemark.typed.quarantine import TypedTables

        pair = TypedTables(
            self._typed_table(spec),
            self.quarantine(spec),
            lambda columns: self._typed_table(spec, columns),
        )
        return self._armed("table", pair)

    def _typed_table(
        self, spec: PipelineSpec, columns: Mapping[Part, FieldType] | None = None
    ) -> DeltaDataTable:
        from tidemark.lake.columns import typed_schema
        from tidemark.lake.data_table import DeltaDataTable

        decode = self._decode(spec)
        uri = self.layout.data_table(decode.target)
        schema = typed_schema(decode, columns)
        return DeltaDataTable(uri, schema, grows=True, has_unions=decode.has_unions)

    def quarantine(self, spec: PipelineSpec) -> DeltaQuarantine:
        """The quarantine of a typed table, without Spark."""
        from tidemark.typed.quarantine import DeltaQuarantine

        return DeltaQuarantine(
            self.layout.data_table(self._decode(spec).quarantine_target),
            utc_now,
            self._typed_table(spec),
            lambda: self.control().ledger(spec.name).ever_landed(),
        )

    def quarantined(self, plan: PlanRef) -> int | None:
        """How many records of a plan are in quarantine; None if it is no typed table's."""
        spec = self.spec(plan.pipeline)
        return size_of(self.quarantine(spec).spans(plan.sequence)) if spec.is_typed else None

    def _log_of(self, spec: PipelineSpec) -> tuple[WatermarkReader, LogReader]:
        """What a pipeline lands the records of: its topic, or what another one has landed."""
        if not spec.is_typed:
            return self.watermarks(spec), self.log_reader(spec)
        landed = self.decoding(spec.name).landed
        return self._armed("watermarks", landed), self._armed("log_reader", landed)

    def footprint(self, plan: Plan) -> Footprint:
        """What a plan would add to its data table; asks nobody but the table."""
        spec = self.spec(plan.pipeline)
        size = self.table(spec).size()
        per_file = size.records_within(spec.records_per_task, spec.bytes_per_task)
        return size.footprint((planned.span for planned in plan.ranges), per_file)

    def decoding(self, pipeline: str) -> Decoding:
        """Plans what of a pipeline's table is decoded; needs neither a JVM nor Kafka."""
        from tidemark.lake.data_table import DeltaDataTable
        from tidemark.typed.decoder import Decoding
        from tidemark.typed.schemas import Schemas

        spec = self.typed_spec(pipeline)
        decode = self._decode(spec)
        target = self.spec(spec.origin).target
        bronze = self._armed(
            "bronze", DeltaDataTable(self.layout.data_table(target), reads_only=True)
        )
        table = self._typed_tables(spec)
        return Decoding(
            spec=spec,
            decode=decode,
            control=self.control(),
            bronze=bronze,
            table=table,
            schemas=Schemas(
                decode=decode,
                pipeline=spec.name,
                # One for all plans of a run: it remembers what it was told.
                open_registry=cache(lambda: self._registry(decode.registry)),
                store=self._schema_store(decode),
                bronze=bronze,
                table=table,
            ),
            now=utc_now,
        )

    def upserts(self, pipeline: str) -> Upserts:
        """Keeps the table of latest rows of a pipeline, by its name; needs no JVM to plan."""
        from tidemark.upsert.service import Upserts
        from tidemark.upsert.table import DeltaLatest

        spec = self.typed_spec(pipeline.removesuffix(f"@{UPSERT}"))
        upsert = self._upsert(spec)
        latest = DeltaLatest(self.layout.data_table(upsert.target), upsert.envelope)
        return Upserts(
            spec=spec,
            upsert=upsert,
            control=self.control(),
            typed=self._armed("typed", self._typed_tables(spec)),
            latest=self._armed("latest", latest),
        )

    def merge(self, pipeline: str) -> Merge | None:
        """Bring an upsert table up to date, with Spark."""
        from tidemark.upsert.spark import SparkMerger

        upserts = self.upserts(pipeline)
        upsert = self._upsert(upserts.spec)
        merger = SparkMerger(
            open_session=self.sessions.own,
            typed=self.layout.data_table(upserts.spec.target),
            latest=self.layout.data_table(upsert.target),
            spec=upsert,
        )
        return upserts.execute(self._armed("merger", merger))

    def _registry(self, connection: str) -> SchemaRegistry:
        """What is behind the ids of schemas."""
        from tidemark.typed.registry import ConfluentRegistry

        registry = ConfluentRegistry(connection, self._connection_extra(connection, "url"))
        return self._armed("registry", registry)

    def _schema_store(self, decode: DecodeSpec) -> SchemaStore:
        """What the registry has said."""
        from tidemark.typed.schema_table import DeltaSchemas

        store = DeltaSchemas(self.layout.schema_table, decode.registry, utc_now)
        return self._armed("schemas", store)

    def planner(self, pipeline: str) -> Planner:
        """Makes plans; needs no JVM."""
        from tidemark.ingest.planner import Planner

        spec = self.kafka_spec(pipeline)
        return Planner(
            spec=spec,
            watermarks=self.watermarks(spec),
            control=self.control(),
            data_log=self._bronze_table(spec),
            log_reader=self.log_reader(spec),
            now=utc_now,
        )

    def backfills(self, pipeline: str) -> Backfills:
        """Asks for offsets and plans them in chunks; needs no JVM."""
        from tidemark.backfill.service import Backfills

        spec = self.kafka_spec(pipeline)
        return Backfills(
            spec=spec,
            watermarks=self.watermarks(spec),
            control=self.control(),
            data_log=self._bronze_table(spec),
            log_reader=self.log_reader(spec),
            now=utc_now,
        )

    def abandon(self, pipeline: str) -> Abandon:
        """Gives plans up; needs no JVM."""
        from tidemark.repair.abandon import Abandon

        spec = self.spec(pipeline)
        watermarks, log_reader = self._log_of(spec)
        return Abandon(
            pipeline=spec.name,
            watermarks=watermarks,
            control=self.control(),
            table=self.table(spec),
            log_reader=log_reader,
            now=utc_now,
        )

    def undo(self, pipeline: str) -> Undo:
        """Takes landed plans out again; needs no JVM."""
        from tidemark.repair.undo import Undo

        spec = self.spec(pipeline)
        return Undo(pipeline=spec.name, control=self.control(), table=self.table(spec), now=utc_now)

    def decisions(self, pipeline: str) -> Decisions:
        """Records what only a person can decide; needs no JVM."""
        from tidemark.repair.decisions import Decisions

        spec = self.kafka_spec(pipeline)
        return Decisions(
            spec=spec,
            watermarks=self.watermarks(spec),
            control=self.control(),
            data_log=self.table(spec),
            now=utc_now,
        )

    def starts(self, pipeline: str) -> StartService:
        """Begins a pipeline where another reader has come to; needs no JVM."""
        from tidemark.ingest.start import StartService

        spec = self.kafka_spec(pipeline)
        return StartService(
            spec=spec,
            watermarks=self.watermarks(spec),
            control=self.control(),
            data_log=self.table(spec),
            now=utc_now,
        )

    def exports(self, pipeline: str) -> Exports:
        """Writes committed offsets to a consumer group: only for who asks, never for a run (I6)."""
        from tidemark.repair.exports import Exports

        spec = self.kafka_spec(pipeline)
        return Exports(
            spec=spec,
            watermarks=self.watermarks(spec),
            control=self.control(),
            data_log=self.table(spec),
            groups=self.group_offsets(spec),
        )

    def repair(self, pipeline: str) -> Repair:
        """Has the control table follow the data table; needs no JVM."""
        from tidemark.repair.repair import Repair

        spec = self.spec(pipeline)
        watermarks, log_reader = self._log_of(spec)
        return Repair(
            spec=spec,
            watermarks=watermarks,
            control=self.control(),
            table=self.table(spec),
            log_reader=log_reader,
            now=utc_now,
        )

    def verify(self, pipeline: str) -> Verify:
        """Compares a data table with Kafka; needs no JVM."""
        from tidemark.report.verify import Verify

        spec = self.spec(pipeline)
        watermarks, log_reader = self._log_of(spec)
        bronze = None if spec.is_typed else self._bronze_table(spec, reads_only=True)
        return Verify(
            spec=spec,
            watermarks=watermarks,
            control=self.control(),
            data_log=bronze or self.table(spec),
            log_reader=log_reader,
            labelled=bronze,
        )

    def ingest(self, pipeline: str) -> PlanExecutor:
        """Executes plans, with Spark."""
        from tidemark.ingest.executor import PlanExecutor

        spec = self.spec(pipeline)
        watermarks, log_reader = self._log_of(spec)
        return PlanExecutor(
            spec=spec,
            watermarks=watermarks,
            control=self.control(),
            table=self.table(spec),
            sink=self._armed("sink", self._sink(spec)),
            log_reader=log_reader,
            now=utc_now,
            comparison=None if spec.is_typed else self.planner(pipeline).comparison,
        )

    def _sink(self, spec: PipelineSpec) -> Sink:
        if spec.is_typed:
            from tidemark.typed.spark_decoder import SparkDecoder

            decode = self._decode(spec)
            return SparkDecoder(
                session=self.sessions.shared(),
                bronze=self.layout.data_table(self.spec(spec.origin).target),
                typed=self.layout.data_table(decode.target),
                quarantine=self.layout.data_table(decode.quarantine_target),
                spec=decode,
                schemas=self._schema_store(decode),
                write_options=self.sessions.write_options,
            )
        from tidemark.ingest.spark_sink import SparkSink
        from tidemark.kafka.options import spark_options

        return SparkSink(
            session=self.sessions.shared(),
            uri=self.layout.data_table(spec.target),
            kafka_options=spark_options(self.kafka_config(spec.connection)),
            log_reader=self.log_reader(spec),
            now=utc_now,
            write_options=self.sessions.write_options,
        )

    def quality(self, pipeline: str) -> Quality:
        """Checks landed plans, with Spark where their suites need it."""
        from tidemark.quality.check_results_table import DeltaCheckResults
        from tidemark.quality.gx.checker import GreatExpectationsQuality
        from tidemark.quality.range_figures import range_figures
        from tidemark.quality.service import Quality
        from tidemark.quality.top_key import top_key

        spec = self.kafka_spec(pipeline)
        checker = GreatExpectationsQuality(
            spark=self.sessions.shared,
            suites=self.layout.expectations,
            home=self.layout.quality_home,
            ranges=range_figures,
            top_key=top_key,
            results=self._armed("results", DeltaCheckResults(self.layout.quality_results)),
        )
        return Quality(
            spec=spec,
            data_table=self.layout.data_table(spec.target),
            data_log=self.table(spec),
            control=self.control(),
            checker=self._armed("quality", checker),
            publication=self._publication_table(spec),
            now=utc_now,
        )

    def prepare_checks(self, pipelines: Iterable[str]) -> None:
        """Start importing Great Expectations in a thread if a suite of a pipeline needs it.

        The method ignores unreadable suites; their checks fail.
        """
        from tidemark.quality.gx.checker import import_ahead
        from tidemark.quality.gx.suite import load_suite

        for suite in {self.spec(pipeline).suite for pipeline in pipelines} - {None}:
            with suppress(TidemarkError):
                if load_suite(self.layout.expectations / f"{suite}.json").expectations:
                    import_ahead()
                    return

    def publication(self, pipeline: str) -> Publication:
        """Decides what of a pipeline's table is published; needs neither a JVM nor Kafka."""
        from tidemark.quality.publication_service import Publication

        spec = self.kafka_spec(pipeline)
        return Publication(
            pipeline=spec.name,
            control=self.control(),
            publication=self._publication_table(spec),
            now=utc_now,
        )

    def _publication_table(self, spec: PipelineSpec) -> PublicationTable:
        from tidemark.quality.publication_table import DeltaPublicationTable

        table = DeltaPublicationTable(
            self.layout.publication_table, self.layout.data_table(spec.target)
        )
        return self._armed("publication", table)

    def profiling(self, pipeline: str) -> Profiling:
        """Profiles what has landed; needs neither a JVM nor Kafka."""
        from tidemark.typed.profile_service import Profiling

        spec = self.kafka_spec(pipeline)
        return Profiling(spec=spec, control=self.control(), data_log=self.table(spec))

    def data_tables(self, *pipelines: str) -> list[str]:
        """What `maintenance` can be asked for: pipelines, with their typed tables and quarantines.

        Args:
            pipelines: Only of these; of all if none is named.
        """
        tables = []
        for spec in map(self.spec, pipelines or self.specs):
            tables.append(spec.name)
            if spec.decode and spec.is_live:
                tables += [f"{spec.name}@{TYPED}", f"{spec.name}@{QUARANTINE}"]
                tables += [f"{spec.name}@{UPSERT}"] if spec.decode.upsert else []
        return tables

    def maintenance(self, pipeline: str) -> Maintenance:
        """Keeps a data table small; needs no JVM.

        Args:
            pipeline: One of `data_tables`, or a copy.
        """
        from tidemark.lake.upkeep import DeltaUpkeep
        from tidemark.maintenance.service import Maintenance, plans_over

        origin, _, which = pipeline.partition("@")
        is_quarantine = which == QUARANTINE
        spec = self.typed_spec(origin) if is_quarantine else self.spec(pipeline)
        target = self._decode(spec).quarantine_target if is_quarantine else spec.target
        upkeep = DeltaUpkeep(self.layout.data_table(target), spec.name)
        if which == UPSERT:
            # Nothing waits for its files: a merge that fails is done anew.
            return Maintenance(table=pipeline, upkeep=self._armed("upkeep", upkeep), now=utc_now)
        return Maintenance(
            table=pipeline,
            upkeep=self._armed("upkeep", upkeep),
            plans_over=lambda: plans_over(self.control(), spec.name, self.table(spec)),
            now=utc_now,
        )

    def deduplication(self, pipeline: str) -> Deduplication:
        """Removes copies of rows from a data table; needs neither a JVM nor Kafka.

        Args:
            pipeline: A pipeline, its typed table (`NAME@typed`), or a copy.
        """
        from tidemark.lake.deduplication import Deduplication

        spec = self.spec(pipeline)
        return Deduplication(self.layout.data_table(spec.target), spec.name)

    def shared_maintenance(self) -> list[Maintenance]:
        """Keeps the tables small that pipelines share: control, quality, status."""
        from tidemark.lake.upkeep import DeltaUpkeep
        from tidemark.maintenance.service import Maintenance

        shared = {
            "control table": self.layout.control_table,
            "quality results": self.layout.quality_results,
            "publication decisions": self.layout.publication_table,
            "status table": self.layout.status_table,
            "schemas table": self.layout.schema_table,
        }
        return [
            Maintenance(table=name, upkeep=self._armed("upkeep", DeltaUpkeep(uri)), now=utc_now)
            for name, uri in shared.items()
        ]

    def quality_pages(self) -> QualityPages:
        """The pages of quality checks; needs no JVM."""
        from tidemark.quality.gx.docs import DataDocs

        return self._armed("quality_pages", DataDocs(self.layout.quality_home))

    def reports(self, pipeline: str) -> Reports:
        """Tells a data owner of a pipeline; needs neither a JVM nor Kafka."""
        from tidemark.quality.check_results_table import DeltaCheckResults
        from tidemark.quality.gx.suite import load_suite
        from tidemark.report.service import Reports

        spec = self.kafka_spec(pipeline)
        suite = spec.suite and load_suite(self.layout.expectations / f"{spec.suite}.json")
        return Reports(
            spec=spec,
            control=self.control(),
            data_log=self.table(spec),
            history=self._armed("history", DeltaCheckResults(self.layout.quality_results)),
            publication=self.publication(pipeline),
            masked=suite.masked if suite else (),
            quarantine=self.quarantine(self.typed_spec(pipeline)).records if spec.decode else None,
            now=utc_now,
        )

    def write_report(self, report: PipelineReport, output: Path | None) -> Path:
        """Write a report's page; without a place beside the pipeline's Data Docs. The page."""
        from tidemark.lake.files import named_failures, replace_text
        from tidemark.quality.gx.docs import DocsFolders
        from tidemark.report.page import render

        certificate = report.certificate
        folders = DocsFolders(home=self.layout.quality_home, pipeline=certificate.pipeline)
        name = f"{certificate.since:%Y%m%d}-{certificate.until:%Y%m%d}.html"
        page = output or folders.site / "reports" / name
        with named_failures(page, "writing the page"):
            replace_text(page, render(report))
        return page.resolve()

    def status(self, pipeline: str) -> PipelineStatus:
        """How far one pipeline is behind its topic."""
        from tidemark.report.status import pipeline_status

        spec = self.kafka_spec(pipeline)
        return pipeline_status(
            spec,
            self.control(),
            self._bronze_table(spec),
            open_watermarks=lambda: self.watermarks(spec),
            open_log=lambda: self.log_reader(spec),
            unsettling=self._unsettling(spec),
            now=utc_now(),
        )

    def _unsettling(self, spec: PipelineSpec) -> Unsettling:
        from tidemark.report.unsettled import Unsettling

        return Unsettling(
            spec=spec,
            control=self.control(),
            blocked=lambda: self._publication_table(spec).blocked_plans(spec.name),
            quarantined=lambda plans: self.quarantine(spec).count_open(plans),
        )

    def record_status(self, seen: Mapping[str, PipelineStatus | TidemarkError]) -> None:
        """Keep what was seen of some pipelines in the status table, in place of what it says."""
        from tidemark.lake.status_table import write_status
        from tidemark.report.status import row_of

        rows = [row_of(name, each, utc_now()) for name, each in seen.items()]
        write_status(
            self.layout.status_table,
            rows,
            of_all=set(seen) == {*self.specs, *self.spec_folder.broken},
        )

    def spark_settings(self, spec: PipelineSpec, offsets: int | None = None) -> dict[str, str]:
        """Return the `--conf` settings of a Spark job.

        Args:
            spec: The pipeline of the job, or one of several with the same Spark settings.
            offsets: Number of offsets that the job reads at most, which decides how the JVM is set;
                None if it is unknown.
        """
        from tidemark.spark.settings import submit_settings

        return submit_settings(self.layout, spec.spark, offsets)

    def offsets_of(self, plans: Sequence[PlanRef]) -> int | None:
        """Return the number of offsets of some plans; None if one of them does not exist."""
        control = self.control()
        found = [control.plan_record(plan.pipeline, plan.sequence) for plan in plans]
        sizes = [record.plan.size for record in found if record]
        return sum(sizes) if len(sizes) == len(plans) else None

    def engine(self, master: str | None = None) -> Engine:
        """Return the engine of jobs.

        Args:
            master: A Spark master, or the address of a Spark Connect server; None for the server of
                this home while it runs, else spark-submit on this machine.

        Raises:
            SetupError: The master begins with `sc:` and is not a valid address.
        """
        if master is None:
            return self.spark_server().running() or Submit("local[*]")
        engine = engine_of(master, self.environ.get(TOKEN_VARIABLE, ""))
        return self.with_own_token(engine) if isinstance(engine, Server) else engine

    def with_own_token(self, server: Server) -> Server:
        """Return the server of this home with the token of its file, or another server unchanged.

        Raises:
            EngineUnsuitable: Another version of this package started the server of this home.
        """
        own = self.spark_server()
        if server.token or own.status().address != f"sc://{server.host}:{server.port}":
            return server
        running = own.running()
        return replace(server, token=running.token) if running else server

    def spark_server(self, *, port: int = 0, log_to_file: bool = True) -> SparkServer:
        """Return the Spark Connect server of this home; `port` 0 selects a free port."""
        from tidemark.spark.server import SparkServer
        from tidemark.spark.settings import server_settings

        settings = server_settings(self.layout, log_to_file=log_to_file)
        return SparkServer(self.layout.spark, self.environ, settings, port=port)

    def check_server(self, server: Server, pipelines: Iterable[str]) -> None:
        """Refuse a Spark Connect server that some pipelines cannot use.

        `tidemark spark start` has already checked the server of this home. This method skips
        pipelines without a valid spec: the next step refuses them and continues with the others.

        Raises:
            EngineUnavailable: The server does not answer.
            EngineUnsuitable, SetupError: The server cannot be used.
        """
        from tidemark.spark.connect import connect_sessions

        specs = []
        for each in pipelines:
            with suppress(UnknownPipeline, SpecError, InvalidSelection):
                specs.append(self.spec(each))
        for spec in specs:
            if spec.spark:
                with connect_sessions(server, spec.spark) as sessions:
                    sessions.shared()
        own = self.spark_server()
        is_own = own.status().address == f"sc://{server.host}:{server.port}"
        if not is_own or own.running() != server:
            self.check_server_requirements(server, specs)

    def check_server_requirements(self, server: Server, specs: Sequence[PipelineSpec] = ()) -> None:
        """Check all requirements of a Spark Connect server; raises the errors of `check_server`."""
        from tidemark.spark.connect import connect_sessions
        from tidemark.spark.server import REDACTION
        from tidemark.spark.server_requirements import check_requirements
        from tidemark.spark.settings import AVRO_LIMITS

        tables = [self.layout.data_table(each) for spec in specs for each in _targets(spec)]
        elsewhere = [each for each in tables if not each.startswith(f"{self.layout.lakehouse}/")]
        with connect_sessions(server, {}) as sessions:
            check_requirements(
                sessions,
                java_properties=AVRO_LIMITS,
                redaction=REDACTION,
                locations=[self.layout.lakehouse, *elsewhere],
                runs_python=any(_runs_python(spec.decode) for spec in specs),
            )

    @contextmanager
    def on_server(self, server: Server, pipeline: str) -> Iterator[tuple[App, Callable[[], None]]]:
        """Provide this app on sessions of a Spark Connect server; close them after the block.

        Args:
            server: The server.
            pipeline: A pipeline; pipelines with the same Spark settings can share the sessions.

        Yields:
            The app, and a function that interrupts its sessions.

        Raises:
            UnknownPipeline, SpecError, InvalidSelection
            EngineUnsuitable: A setting of the pipeline is not a session setting.
        """
        from tidemark.spark.connect import connect_sessions
        from tidemark.spark.settings import WRITE_OPTIONS

        with connect_sessions(
            server,
            self.spec(pipeline).spark,
            write_options=WRITE_OPTIONS,
            own_settings={LOG_FOLDER: str(self.layout.logs)},
        ) as sessions:
            yield replace(self, sessions=sessions), sessions.close

    def applications(self, plans: Iterable[PlanRef]) -> list[list[PlanRef]]:
        """The plans that can share a Spark application: their pipelines' settings are the same."""
        together: dict[frozenset[tuple[str, str]], list[PlanRef]] = {}
        for plan in plans:
            settings = frozenset(self.spec(plan.pipeline).spark.items())
            together.setdefault(settings, []).append(plan)
        return list(together.values())

    def kafka_variables(self, plans: Sequence[PlanRef]) -> dict[str, str]:
        """Return the Kafka connections of some plans as environment variables, with secrets.

        The result omits undefined connections: the job refuses the plans that need them.

        Raises:
            UnknownPipeline, SpecError, InvalidSelection
        """
        specs = [self.spec(plan.pipeline) for plan in plans]
        variables = {}
        # What has landed is decoded without Kafka.
        for connection in {spec.connection for spec in specs if spec.reads_kafka}:
            with suppress(UnknownConnection):
                variables[connection_variable(connection)] = self._connection(connection)
        return variables

    def broker(self, *, port: int = 0, nodes: int = 1) -> Broker:
        """The embedded broker of this home; `port` 0 takes a free one."""
        from tidemark.dev.broker import Broker, BrokerConfig, Listener

        return Broker(
            BrokerConfig(
                home=self.layout.broker,
                jars=self.layout.kafka_jars,
                nodes=nodes,
                listeners=(Listener(name="EXTERNAL", port=port),),
            )
        )

    def airflow(self, *, port: int = 0) -> AirflowStandalone:
        """The Airflow of this home, with the connections of this environment."""
        from tidemark.dev.airflow_standalone import AirflowStandalone

        environ = dict(self.environ)
        variable = connection_variable(LOCAL_CONNECTION)
        if variable not in environ and self.broker().status().running:
            environ[variable] = self._connection(LOCAL_CONNECTION)
        spark = self.spark_server().status()
        if spark.running:
            connection = spark_connection(Server.parse(spark.address))
            environ.setdefault(connection_variable(SPARK_CONNECTION), connection)
        return AirflowStandalone(self.layout, environ, port=port)

    @cached_property
    def _fail_point(self) -> FailPoint | None:
        """What TIDEMARK_FAIL_AT arms; None without it (dev/failpoints.py)."""
        text = self.environ.get("TIDEMARK_FAIL_AT")
        if text is None:
            return None
        from tidemark.dev.failpoints import FailPoint

        return FailPoint(text)

    def _armed(self, port: str, adapter: _Adapter) -> _Adapter:
        return self._fail_point.armed(port, adapter) if self._fail_point else adapter

    def _connection_extra(self, connection: str, key: str) -> Mapping[str, Any]:
        """What a connection has in its `extra`; `key` is one that it should have."""
        text = self._connection(connection)
        try:
            extra = json.loads(text)["extra"]
            parsed = json.loads(extra) if isinstance(extra, str) else extra
            if not isinstance(parsed, dict):
                raise TypeError("extra is no mapping")
        except (ValueError, KeyError, TypeError):
            # The original error would quote the value, which may hold a password.
            raise InvalidConnection(
                connection=connection,
                rule=f'JSON such as {{"conn_type": "generic", "extra": {{"{key}": "…"}}}}',
                seen="something else",
            ) from None
        return parsed

    def _connection(self, connection: str) -> str:
        """A connection's definition: from the environment, else the embedded broker if it runs."""
        text = self.environ.get(connection_variable(connection))
        if text is not None:
            return text
        if connection == LOCAL_CONNECTION:
            embedded = self.broker().status()
            if embedded.running:
                return kafka_connection(embedded.bootstrap)
        raise UnknownConnection(connection=connection)


def _targets(spec: PipelineSpec) -> list[str]:
    """Return the targets of all tables of a pipeline."""
    decode = spec.decode
    typed = [decode.target, decode.quarantine_target] if decode else []
    latest = [decode.upsert.target] if decode and decode.upsert else []
    return [spec.target, *typed, *latest]


def _runs_python(decode: DecodeSpec | None) -> bool:
    """Return whether Spark's Python workers decode records of a pipeline."""
    parts = decode.parts.values() if decode else ()
    return any(part.format is Format.PROTOBUF for part in parts)


def _place(path: str) -> str:
    """A path as every other process would name it; a URI as it is."""
    return path if re.match(r"[a-z][a-z0-9+.-]*:", path) else str(Path(path).resolve())


def connection_variable(connection: str) -> str:
    """The environment variable that defines a connection, as Airflow names it."""
    return f"AIRFLOW_CONN_{connection.upper()}"


def spark_connection(server: Server) -> str:
    """Return a connection to the Spark Connect server of a home, in Airflow's JSON format.

    The connection contains no token: tasks read the token file of the home.
    """
    return json.dumps({"conn_type": "spark_connect", "host": server.host, "port": server.port})


def kafka_connection(bootstrap: str) -> str:
    """A Kafka connection without security, in Airflow's JSON form."""
    return json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}})
