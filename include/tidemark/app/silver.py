"""The typed table of a pipeline with its quarantine, and the upsert table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from tidemark.app.repair import RepairPart
from tidemark.app.tables import BronzePart, PlannedTable
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.protocols import PlanSource, Sink
from tidemark.core.offsets import intersection_by_partition, size_of
from tidemark.core.plan import Plan
from tidemark.core.publication import PublishRule
from tidemark.core.record import LogRecord
from tidemark.silver.typed.clearing import ClearedTable, TypedClearing
from tidemark.silver.typed.decoder import DecodePlanner, HiddenOffsets
from tidemark.silver.typed.decoding import DecodeReport, Decoding, ReplayedOffsets
from tidemark.silver.typed.quarantine_record import QuarantinedRecord, with_bronze_rows
from tidemark.silver.typed.schemas import (
    DraftSchemas,
    SchemaRegistry,
    SchemaResolver,
    SchemaStore,
)
from tidemark.silver.typed.source import PublishedSource
from tidemark.silver.typed.state import DecodeBacklog, TypedState
from tidemark.silver.upsert.service import Upserts
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.ref import Replay
from tidemark.spec.upsert import MergePlan

if TYPE_CHECKING:
    from tidemark.delta.data_table import DeltaDataTable
    from tidemark.ops.report.verify_typed import TypedVerifier
    from tidemark.silver.typed.quarantine import DeltaQuarantine, TypedTablePair
    from tidemark.silver.typed.replay_preview import ReplayPreview
    from tidemark.silver.typed.spark_decoder import SparkDecoder
    from tidemark.silver.typed.tables import TypedTables
    from tidemark.silver.typed.unnamed import UnnamedFields


@dataclass(frozen=True)
class TypedPart(PlannedTable):
    """The typed table of a pipeline, whose source is the bronze table."""

    def prepare_decode(self, replay: Replay | None = None) -> bool:
        """Take the steps of a decode that need no Spark; return whether records are left for Spark.

        Args:
            replay: Records in quarantine to decode again first; None for no replay.

        Raises:
            SchemaConflict, RegistryUnavailable and so on: The decode would raise the error.
        """
        return self._decoding.prepare(self._offsets(replay))

    def decode(self, replay: Replay | None = None) -> DecodeReport:
        """Decode with Spark until no records are left. Finishes an interrupted decode first.

        Args:
            replay: As for `prepare_decode`.
        """
        return DecodeReport.total(self.decode_rounds(replay))

    def decode_rounds(self, replay: Replay | None = None) -> Iterator[DecodeReport]:
        """Decode as `decode`, and yield a report about each plan that has landed."""
        return self._decoding.run(self._offsets(replay))

    def preview_replay(self, replay: Replay) -> ReplayPreview:
        """Decode open records in quarantine with the current spec and Spark. Writes nothing."""
        from tidemark.silver.typed.replay_preview import preview

        schemas = DraftSchemas(self._schema_store())
        return preview(self.replayed(replay), self._planner(schemas), self._spark_decoder(schemas))

    def replayed(self, replay: Replay) -> list[QuarantinedRecord]:
        """Return the open records of a replay."""
        from tidemark.silver.typed.replay_preview import chosen

        return chosen(self.quarantine.records(), replay.partition, replay.reason)

    def clear(self, requested_by: str, reason: str, *, dry_run: bool = False) -> ClearedTable:
        """Empty the table, so that the next decode starts again from the bronze table.

        The table gets the columns of the current spec. See `TypedClearing.clear`.
        """
        from tidemark.silver.typed.columns import typed_schema, typed_table_of_any_columns

        table = typed_table_of_any_columns(self._uri)
        return TypedClearing(
            planner=replace(self.planner, table=self.pair(table)),
            replace_columns=lambda: table.replace_columns(self.name, typed_schema(self._decode)),
        ).clear(requested_by, reason, dry_run=dry_run)

    def backlog(self) -> DecodeBacklog:
        """Return what the next decodes would do. See `DecodePlanner.backlog`."""
        return self.planner.backlog()

    def state(self) -> TypedState:
        """Return the state of the table and of its quarantine. See `DecodePlanner.state`."""
        return self.planner.state(self._check_next, self.quarantine.count_open)

    def _check_next(self) -> None:
        """Raise the error that would refuse the next decode. Requests no schema."""
        if self.spec.registry:
            self.adapters.connections.extra(self.spec.registry, "url")
        self.planner.check_tables()

    def quarantined(self, sequence: int) -> int:
        """Return the number of quarantined records of a plan."""
        return size_of(self.quarantine.spans(sequence))

    def with_bronze_rows(
        self, records: Iterable[QuarantinedRecord]
    ) -> Iterator[tuple[QuarantinedRecord, Sequence[tuple[int, LogRecord]]]]:
        """Yield quarantined records with their bronze rows. See `with_bronze_rows`."""
        return with_bronze_rows(records, self._bronze)

    def decoded_offsets(self, plan: Plan) -> int:
        """Return how many offsets of a bronze plan the table or its quarantine has."""
        typed = self.adapters.control.summary(self.name)
        return size_of(intersection_by_partition(plan.spans(), typed.landed_of(plan.topic_id)))

    def unnamed_fields(self, plans: tuple[int, int] | None = None) -> UnnamedFields | None:
        """Return the fields that the schema does not name.

        Args:
            plans: The first and the last plan; None for the newest plans.

        Returns:
            None unless the spec keeps these fields. Without names if the suite masks values.
        """
        if not self._decode.value.keeps_rest:
            return None
        from tidemark.quality.suite import masked_payloads
        from tidemark.silver.typed.unnamed import newest_plans, read_unnamed_fields

        if plans is None:
            ledger = self.adapters.control.ledger(self.name)
            plans = newest_plans(ledger, self.tables.typed().size())
        found = plans and read_unnamed_fields(self._uri, *plans)
        is_masked = Part.VALUE in masked_payloads(self.adapters.masked_columns())
        return found.without_names() if found and is_masked else found

    # -- services and tables -----------------------------------------------------------------------

    @property
    def _decoding(self) -> Decoding:
        return Decoding(
            new_planner=lambda: self.planner, execute=self.execute, quarantined=self.quarantined
        )

    def _offsets(self, replay: Replay | None) -> ReplayedOffsets:
        from tidemark.silver.typed.replay_preview import offsets_by_topic_id

        return offsets_by_topic_id(self.replayed(replay)) if replay else {}

    @property
    def planner(self) -> DecodePlanner:
        """Plans the records to decode. Needs neither a JVM nor Kafka."""
        return self._planner(self._schema_store())

    @property
    def ports(self) -> Ports:
        """The ports of the table. Its source is the bronze table."""
        planner, wrap = self.planner, self.adapters.wrap
        return replace(
            planner.ports,
            open_watermarks=cache(lambda: wrap("watermarks", planner.bronze_log)),
            open_log_reader=cache(lambda: wrap("log_reader", planner.bronze_log)),
        )

    @property
    def repair(self) -> RepairPart:
        """The repairs of the table."""
        # An undo must not remove the only copy of records.
        return RepairPart(self.spec, self.ports, self._uri, lambda: self.planner.check_bronze())

    @property
    def verifier(self) -> TypedVerifier:
        """Decodes bronze rows again, and compares them with the table and its quarantine."""
        from tidemark.ops.report.verify_typed import TypedVerifier
        from tidemark.silver.typed.columns import typed_table_of_any_columns

        return TypedVerifier(
            spec=self.spec,
            decode=self._decode,
            bronze=self._bronze,
            typed=typed_table_of_any_columns(self._uri),
            entries=lambda: self.quarantine.open_entries(),
            progress=lambda: self.planner.progress(),
            schemas=self._schema_store(),
        )

    @property
    def quarantine(self) -> DeltaQuarantine:
        """The quarantine of the table, without Spark."""
        return self.tables.quarantine()

    @property
    def tables(self) -> TypedTables:
        """Opens the table and its quarantine."""
        from tidemark.silver.typed.tables import TypedTables

        return TypedTables(
            typed_uri=self._uri,
            quarantine_uri=self.adapters.uri(self._decode.quarantine_target),
            decode=self._decode,
            pipeline=self.name,
            control=self.adapters.control,
            now=self.adapters.now,
        )

    def pair(self, typed: DeltaDataTable | None = None) -> TypedTablePair:
        """Return the table and its quarantine as one table. See `TypedTables.pair`."""
        return self.adapters.wrap("table", self.tables.pair(typed))

    @property
    def _decode(self) -> DecodeSpec:
        return self.spec.decoding()

    @property
    def _uri(self) -> str:
        return self.adapters.uri(self.spec.target)

    @property
    def _bronze(self) -> DeltaDataTable:
        """The bronze table, which may be one in which plans cannot land."""
        from tidemark.delta.data_table import DeltaDataTable

        return DeltaDataTable(self.adapters.uri(self.adapters.spec.target), reads_only=True)

    def _planner(self, store: SchemaStore) -> DecodePlanner:
        from tidemark.silver.typed.framed_table import FramedBronzeTable

        adapters = self.adapters
        framed = FramedBronzeTable(adapters.uri(adapters.spec.target), reads_only=True)
        bronze, table = adapters.wrap("bronze", framed), self.pair()
        return DecodePlanner(
            spec=self.spec,
            decode=self._decode,
            control=adapters.control,
            bronze=bronze,
            table=table,
            schemas=SchemaResolver(
                decode=self._decode,
                pipeline=self.name,
                # One for all plans of a run: it caches the answers.
                open_registry=cache(self._registry),
                store=store,
                bronze=bronze,
                table=table,
            ),
            now=adapters.now,
            hidden=self._hidden_offsets(),
        )

    def _hidden_offsets(self) -> Callable[[], HiddenOffsets]:
        """Return the function that reads the landed offsets that are not decoded."""
        if self._decode.publish is PublishRule.ALWAYS:
            return HiddenOffsets
        return BronzePart(self.adapters.spec, self.adapters).publication.hidden

    def _sink(self) -> Sink:
        return self._spark_decoder(self._schema_store())

    def _source(self) -> PlanSource:
        return PublishedSource(ports=self.ports, decoder=self.planner)

    def _spark_decoder(self, store: SchemaStore) -> SparkDecoder:
        from tidemark.silver.typed.spark_decoder import SparkDecoder

        sessions, decode = self.adapters.sessions, self._decode
        return SparkDecoder(
            open_session=sessions.shared,
            bronze=self.adapters.uri(self.adapters.spec.target),
            typed=self._uri,
            quarantine=self.adapters.uri(decode.quarantine_target),
            spec=decode,
            schemas=store,
            write_options=sessions.write_options,
        )

    def _registry(self) -> SchemaRegistry:
        from tidemark.silver.typed.registry import ConfluentRegistry

        connection = self._decode.registry
        extra = self.adapters.connections.extra(connection, "url")
        return self.adapters.wrap("registry", ConfluentRegistry(connection, extra))

    def _schema_store(self) -> SchemaStore:
        return self.adapters.wrap("schemas", self.adapters.schema_store())


@dataclass(frozen=True)
class UpsertPart:
    """The upsert table of a pipeline. Merges derive its rows from the typed table.

    Attributes:
        typed: The typed table.
    """

    typed: TypedPart

    def merge(self) -> MergePlan | None:
        """Bring the table up to date with Spark; None if it was up to date."""
        from tidemark.silver.upsert.spark import SparkMerger

        planner, adapters = self.planner, self.typed.adapters
        merger = SparkMerger(
            open_session=adapters.sessions.own,
            typed=adapters.uri(planner.spec.target),
            upsert=adapters.uri(planner.upsert.target),
            spec=planner.upsert,
        )
        return planner.execute(adapters.wrap("merger", merger))

    @property
    def planner(self) -> Upserts:
        """Plans and executes merges. Needs no JVM."""
        from tidemark.silver.upsert.table import DeltaUpsertTable

        adapters, upsert = self.typed.adapters, self.typed.spec.upsert()
        table = DeltaUpsertTable(adapters.uri(upsert.target), upsert)
        return Upserts(
            spec=self.typed.spec,
            upsert=upsert,
            control=adapters.control,
            typed=adapters.wrap("typed", self.typed.pair()),
            table=adapters.wrap("upsert_table", table),
        )
