"""The typed table of a pipeline with its quarantine, and the upsert table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters
from tidemark.app.tables import BronzePart
from tidemark.core.decode_work import Decoded
from tidemark.core.errors import TidemarkError
from tidemark.core.following import Batch, BatchOffsets
from tidemark.core.offsets import Span, size_of_all
from tidemark.core.parallel import result_or_error
from tidemark.core.plan import Plan
from tidemark.core.publication import PublishRule
from tidemark.core.record import LogRecord
from tidemark.delta.errors import ControlConflict
from tidemark.delta.noted_commits import NotedTable, NotedVersion
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.quality.publication_service import HiddenOffsets
from tidemark.silver.typed.followed_tables import NOTE, FollowPorts
from tidemark.silver.typed.following import ClearedTable, Decodes, Prepared
from tidemark.silver.typed.quarantine_index import QuarantineIndex
from tidemark.silver.typed.quarantine_record import QuarantinedRecord, with_bronze_rows
from tidemark.silver.typed.schemas import (
    DraftSchemas,
    SchemaRegistry,
    SchemaResolver,
    SchemaStore,
)
from tidemark.silver.typed.state import DecodeBacklog, FollowState, TypedState, decodable_since
from tidemark.silver.typed.tables import TypedTables
from tidemark.silver.upsert.service import Upserts
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import Replay
from tidemark.spec.upsert import MergePlan

if TYPE_CHECKING:
    from tidemark.delta.data_table import DeltaDataTable
    from tidemark.ops.report.verify_typed import TypedVerifier
    from tidemark.silver.typed.replay_preview import ReplayPreview
    from tidemark.silver.typed.spark_decoder import SparkDecoder
    from tidemark.silver.typed.unnamed import UnnamedFields


@dataclass(frozen=True)
class TypedPart:
    """The typed table of a pipeline, which follows the bronze table.

    Attributes:
        spec: The spec of the typed table.
        adapters: The adapters of the pipeline.
    """

    spec: PipelineSpec
    adapters: Adapters

    @property
    def name(self) -> str:
        """The name of the table, such as `prices@typed`."""
        return self.spec.name

    def prepare_decode(self, replay: Replay | None = None) -> Prepared:
        """Do the work of a decode that needs no Spark. See `Decodes.prepare`.

        Args:
            replay: Records in quarantine to decode again first; None for no replay.

        Raises:
            SchemaConflict, RegistryUnavailable and so on: See `Decodes.next`.
        """
        return self.decodes.prepare(self._offsets(replay))

    def decode(self, replay: Replay | None = None) -> Decoded:
        """Decode with Spark until no records are left.

        Args:
            replay: As for `prepare_decode`.
        """
        return sum(self.decode_rounds(replay), Decoded())

    def decode_rounds(self, replay: Replay | None = None) -> Iterator[Decoded]:
        """Decode as `decode`, and yield the changes of each round after its commits."""
        return self.decodes.run(self._offsets(replay))

    def preview_replay(self, replay: Replay) -> ReplayPreview:
        """Decode records in quarantine with the current spec and Spark. Writes nothing."""
        from tidemark.silver.typed.replay_preview import ReplayPreview, offsets_of

        schemas, records = DraftSchemas(self._schema_store()), self.replayed(replay)
        draft = self._decodes(schemas).draft(offsets_of(records))
        results = self._spark_decoder(schemas).count(*draft) if draft else Counter()
        return ReplayPreview(records=len(records), results=results)

    def replayed(self, replay: Replay) -> list[QuarantinedRecord]:
        """Return the records of a replay."""
        from tidemark.silver.typed.replay_preview import chosen

        return chosen(self.quarantine.records(), replay.partition, replay.reason)

    def clear(self, requested_by: str, reason: str, *, dry_run: bool = False) -> ClearedTable:
        """Empty the table, so that the next decode starts again from the bronze table.

        The table gets the columns of the current spec. See `Decodes.from_scratch`.
        """
        return self.decodes.from_scratch(requested_by, reason, dry_run=dry_run)

    @tables_opened_once()
    def backlog(self) -> DecodeBacklog:
        """Return what the next decodes would do. Writes nothing.

        Raises:
            ForeignTable, HistoriesDiverge, DuplicateRows and so on: See `Decodes.check`.
        """
        self.decodes.check()
        return self._backlog(self.decodes.state())

    @tables_opened_once()
    def state(self) -> TypedState:
        """Return the state of the table and of its quarantine, for reports. Writes nothing.

        The state contains errors of the tables, so that such an error hides nothing else.

        Raises:
            ControlConflict: Other processes changed a pipeline meanwhile.
        """
        pipeline = self.spec.origin
        found = result_or_error(pipeline, lambda _: self.decodes.state())
        refused = result_or_error(pipeline, lambda _: self._check_next())
        rows = result_or_error(pipeline, lambda _: self.tables.typed().row_count())
        counted = result_or_error(pipeline, lambda _: self.quarantine.count())
        removable = None
        if not isinstance(found, TidemarkError) and found.to_withdraw:
            removable = result_or_error(pipeline, lambda _: self.tables.check_removals())
        results = (refused, found, removable, rows, counted)
        errors = [each for each in results if isinstance(each, TidemarkError)]
        for each in errors:
            if isinstance(each, ControlConflict):
                raise each
        if isinstance(found, TidemarkError):
            found = FollowState(undecoded=self.decodes.required())
        return TypedState(
            backlog=self._backlog(found),
            undecoded_since=decodable_since(self.adapters.control, pipeline, found.undecoded)
            if found.undecoded
            else None,
            rows=None if isinstance(rows, TidemarkError) else rows,
            quarantined=None if isinstance(counted, TidemarkError) else counted,
            error=errors[0] if errors else None,
        )

    def _backlog(self, found: FollowState) -> DecodeBacklog:
        hidden = HiddenOffsets()
        if self._decode.publish is PublishRule.CHECKED:
            hidden = BronzePart(self.adapters.spec, self.adapters).publication.hidden()
        return DecodeBacklog(
            missing=size_of_all(found.undecoded),
            surplus=size_of_all(found.to_withdraw),
            unchecked=hidden.unchecked,
            refused=hidden.refused,
            quarantine_behind=found.quarantine_behind,
        )

    def _check_next(self) -> None:
        """Raise the error that would refuse the next decode. Requests no schema."""
        if self.spec.registry:
            self.adapters.connections.extra(self.spec.registry, "url")
        self.decodes.check()

    def with_bronze_rows(
        self, records: Iterable[QuarantinedRecord]
    ) -> Iterator[tuple[QuarantinedRecord, Sequence[tuple[int, LogRecord]]]]:
        """Yield quarantined records with their bronze rows. See `with_bronze_rows`."""
        return with_bronze_rows(records, self._bronze)

    def has_rows_of(self, plan: Plan) -> bool:
        """Return whether the table or its quarantine has rows of a bronze plan."""
        batch = {Batch(plan.sequence, plan.topic_id): plan.spans()}
        tables = NotedTable(self._uri, NOTE), NotedTable(self.tables.quarantine_uri, NOTE)
        return any(version.offsets(batch) for each in tables if (version := each.open()))

    def rows_by_plan(self, plans: Span) -> Mapping[Batch, int]:
        """Return the number of rows of some plans. Reads only files that may have their rows."""
        version = self.noted.open()
        return version.rows_by_plan(plans) if version else {}

    def unnamed_fields(self, plans: tuple[int, int] | None = None) -> UnnamedFields | None:
        """Return the fields that the schema does not name.

        Args:
            plans: The first and the last bronze plan; None for the newest plans.

        Returns:
            None unless the spec keeps these fields. Without names if the suite masks values.
        """
        if not self._decode.value.keeps_rest:
            return None
        from tidemark.quality.suite import masked_payloads
        from tidemark.silver.typed.unnamed import newest_plans, read_unnamed_fields

        if plans is None:
            ledger = self.adapters.control.ledger(self.spec.origin)
            plans = newest_plans(ledger, self.tables.typed().size())
        found = plans and read_unnamed_fields(self._uri, *plans)
        is_masked = Part.VALUE in masked_payloads(self.adapters.masked_columns())
        return found.without_names() if found and is_masked else found

    # -- services and tables -----------------------------------------------------------------------

    def _offsets(self, replay: Replay | None) -> BatchOffsets:
        from tidemark.silver.typed.replay_preview import offsets_of

        return offsets_of(self.replayed(replay)) if replay else {}

    @property
    def decodes(self) -> Decodes:
        """Decodes the bronze table."""
        return self._decodes(self._schema_store())

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
            entries=self.tables.entries(),
            progress=self.decodes.progress,
            schemas=self._schema_store(),
        )

    @property
    def quarantine(self) -> QuarantineIndex:
        """The quarantine of the table, without Spark."""

        def wrap(version: NotedVersion) -> NotedVersion:
            return self.adapters.wrap("quarantine", version)

        return QuarantineIndex(self.tables.quarantine_uri, wrap)

    @property
    def noted(self) -> NotedTable:
        """The table with the bookmarks of its commits."""

        def wrap(version: NotedVersion) -> NotedVersion:
            return self.adapters.wrap("typed", version)

        return NotedTable(self._uri, NOTE, owner=self.name, wrap=wrap)

    @property
    def tables(self) -> TypedTables:
        """Opens the table and its quarantine."""
        return TypedTables(
            typed_uri=self._uri,
            quarantine_uri=self.adapters.uri(self._decode.quarantine_target),
            decode=self._decode,
            pipeline=self.name,
        )

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

    def _decodes(self, store: SchemaStore) -> Decodes:
        from tidemark.silver.typed.framed_table import FramedBronzeTable

        adapters, uri = self.adapters, self.adapters.uri(self.adapters.spec.target)
        bronze = adapters.wrap("bronze", FramedBronzeTable(uri, reads_only=True))
        return Decodes(
            spec=self.spec,
            ports=FollowPorts(
                control=adapters.control,
                bronze=bronze,
                bronze_rows=NotedTable(uri, NOTE),
                typed=self.noted,
                index=self.quarantine,
                prepare=adapters.wrap("tables", self.tables).prepare,
                check=self.tables.check,
                schemas=SchemaResolver(
                    decode=self._decode,
                    pipeline=self.name,
                    # One for all work of a decode: it caches the answers.
                    open_registry=cache(self._registry),
                    store=store,
                    bronze=bronze,
                    table=self.tables,
                ),
                open_decoder=lambda: adapters.wrap("decoder", self._spark_decoder(store)),
                now=adapters.now,
            ),
        )

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
            now=self.adapters.now,
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
            typed=self.typed.noted,
            columns=self.typed.tables.columns,
            table=adapters.wrap("upsert_table", table),
        )
