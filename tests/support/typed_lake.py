"""A pipeline and its typed table on real tables without Spark. Values are text or JSON."""

from __future__ import annotations

import copy
import json
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from tests.support import services
from tests.support.file_lake import FileLake, Headers
from tests.support.services import NOW, PortAdapters, PortTyped, Services
from tidemark.app.silver import TypedPart
from tidemark.bronze.ingest.landed_log import LandedLog
from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.decode_work import DecodeRequest
from tidemark.core.following import Batch
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.storage import folder_of
from tidemark.ops.report.verify_typed import TypedVerifier
from tidemark.silver.typed.columns import (
    INDEX_SCHEMA,
    QUARANTINE_SCHEMA,
    typed_table_of_any_columns,
)
from tidemark.silver.typed.decoder import DecodePlanner, HiddenOffsets
from tidemark.silver.typed.framed_table import FramedBronzeTable
from tidemark.silver.typed.quarantine import DeltaQuarantine, TypedTablePair
from tidemark.silver.typed.replay_preview import DecodeResult
from tidemark.silver.typed.schema_table import DeltaSchemaStore
from tidemark.silver.typed.schemas import SchemaRegistry, SchemaResolver
from tidemark.silver.typed.state import TypedState
from tidemark.silver.typed.tables import TypedTables
from tidemark.spark import parquet
from tidemark.spark.sessions import ApplicationSessions
from tidemark.spec.decode import REST, DecodeSpec, Format, Part, PayloadSpec, QuarantineReason
from tidemark.spec.fields import FieldType
from tidemark.spec.flattening import TOMBSTONE, column_name
from tidemark.spec.model import PipelineSpec

Patch: TypeAlias = Callable[[type, str, Callable[..., Any]], None]


@dataclass
class FileDecoder:
    """Decodes bronze rows of a plan into new folders of the typed table and the quarantine."""

    lake: TypedLake

    def write(self, plan: Plan, records_per_task: int) -> Sequence[DataFile]:  # noqa: ARG002
        own = {"plan_sequence": plan.sequence}
        rows = pa.table(DeltaTable(self.lake.bronze.uri).scan()).to_pylist()
        here = [
            {**row, **own}
            for row in rows
            if row["topic_id"] == plan.topic_id
            and row["offset"] in plan.spans().get(row["partition"], SpanSet())
        ]
        return self._decode(here, QUARANTINE_SCHEMA)

    def decode(self, request: DecodeRequest) -> Sequence[DataFile]:
        """Decode as `SparkDecoder.decode`."""
        bronze = DeltaTable(self.lake.bronze.uri, version=request.version)
        here = [
            row
            for row in pa.table(bronze.scan()).to_pylist()
            if row["offset"]
            in request.offsets.get(Batch(row["plan_sequence"], row["topic_id"]), {}).get(
                row["partition"], SpanSet()
            )
        ]
        return self._decode(here, INDEX_SCHEMA) if here else []

    def _decode(self, rows: Sequence[dict[str, Any]], kept_columns: Schema) -> Sequence[DataFile]:
        lake, good, bad = self.lake, [], []
        for row in rows:
            if row["partition"] in lake.broken_in and row["offset"] in lake.broken:
                bad.append({**row, "reason": QuarantineReason.MALFORMED.value, "part": "value"})
            elif row["partition"] == 0 and row["offset"] in lake.rules:
                rule = lake.rules[row["offset"]]
                bad.append({**row, "reason": QuarantineReason.RULE_BROKEN.value, "detail": rule})
            else:
                good.append({**row, **self._columns(self._decoded(row["value"]))})
        # As with Spark, fields without a column are dropped.
        schema = pa.schema(DeltaTable(lake.typed_uri).schema().to_arrow())
        folder = plan_folder(min((row["plan_sequence"] for row in rows), default=0), uuid4())
        made = self._written(lake.typed_uri, folder, good, schema)
        quarantine = lake.root / lake.decode.quarantine_target
        kept = self._written(quarantine, folder, bad, pa.schema(kept_columns.to_arrow()))
        return [*made, *(replace(file, quarantined=True) for file in kept)]

    def count(self, plan: Plan, columns: Mapping[Part, FieldType]) -> Counter[DecodeResult]:  # noqa: ARG002
        """Return the number of a plan's records that can or cannot be decoded. Writes nothing."""
        lake, results = self.lake, Counter[DecodeResult]()
        for partition, spans in plan.spans().items():
            for offset in (each for span in spans for each in range(span.start, span.end)):
                is_broken = partition in lake.broken_in and offset in lake.broken
                results[DecodeResult.of("malformed" if is_broken else None, "value", None)] += 1
        return results

    def _decoded(self, payload: bytes | None) -> dict[str, Any]:
        expected = self.lake.decode.value.format
        if payload is None:
            return {"value": None}
        if expected is Format.JSON:
            return {"value": self._with_rest(json.loads(payload))}
        if expected is Format.JSON_SCHEMA:
            schema_id = int.from_bytes(payload[1:5], "big")
            return {"value": json.loads(payload[5:]), Part.VALUE.schema_id: schema_id}
        return {"value": payload.decode()}

    def _with_rest(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a value with the fields that the schema does not name as text."""
        spec = self.lake.decode.value
        if not spec.keeps_rest or spec.schema is None:
            return value
        named = {name for name, _ in spec.schema.fields}
        rest = {name: each for name, each in value.items() if name not in named}
        own = {name: each for name, each in value.items() if name in named}
        return {**own, REST: json.dumps(rest) if rest else None}

    def _columns(self, decoded: dict[str, Any]) -> dict[str, Any]:
        if not self.lake.decode.flattens:
            return decoded
        value = decoded.pop("value")
        fields = {column_name(name): each for name, each in (value or {}).items()}
        return {**decoded, **fields, TOMBSTONE: value is None}

    @staticmethod
    def _written(
        table: Path, folder: str, rows: Sequence[dict[str, object]], schema: pa.Schema
    ) -> list[DataFile]:
        if not rows:
            return []
        (table / folder).mkdir()
        # One file has rows of several partitions, as small files of Spark.
        file = table / folder / f"part-00000-{uuid4()}-c000.snappy.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), file)
        return parquet.data_files(*folder_of(str(table)), folder)


DECODE = DecodeSpec(
    key=PayloadSpec(),
    value=PayloadSpec(format=Format.STRING),
    target="silver/events",
)


@dataclass
class TypedLake(Services):
    """A bronze pipeline over two partitions, and the pipeline of its typed table.

    Attributes:
        root: Folder of the lakehouse.
        broken: Offsets of values that cannot be decoded.
        broken_in: Partitions of these values.
        rules: Broken rules, by offset of partition 0.
        decode: Spec of the typed table.
        registry: The schema registry, if the format needs one.
        hidden: Returns the landed offsets that are not decoded.
    """

    root: Path
    broken: Collection[int] = ()
    broken_in: Collection[int] = (0,)
    rules: Mapping[int, str] = field(default_factory=dict)
    decode: DecodeSpec = DECODE
    registry: SchemaRegistry | None = None
    hidden: Callable[[], HiddenOffsets] = HiddenOffsets
    bronze: FileLake = field(init=False)

    def __post_init__(self) -> None:
        self.bronze = FileLake(root=self.root)

    def copied(self, root: Path) -> Self:
        """Return a copy in another folder."""
        shutil.copytree(self.root, root)
        other = copy.copy(self)
        other.root = root
        other.bronze = copy.copy(self.bronze)
        other.bronze.root = root
        other.bronze.kafka = copy.deepcopy(self.bronze.kafka)
        other.bronze.payloads = dict(self.bronze.payloads)
        other.broken = set(self.broken)
        return other

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline of the typed table."""
        return replace(self.bronze.spec, decode=self.decode).typed_spec()

    @property
    def control(self) -> DeltaControlTable:
        """The control table of both pipelines."""
        return self.bronze.control

    @property
    def typed_uri(self) -> Path:
        """The typed table."""
        return self.root / self.decode.target

    @property
    def quarantine_uri(self) -> Path:
        """The location of the quarantine table."""
        return self.root / self.decode.quarantine_target

    @property
    def tables(self) -> TypedTables:
        """Opens the typed table and its quarantine."""
        return TypedTables(
            typed_uri=str(self.typed_uri),
            quarantine_uri=str(self.quarantine_uri),
            decode=self.decode,
            pipeline=self.spec.name,
            control=self.control,
            now=lambda: services.NOW,
        )

    @property
    def quarantine(self) -> DeltaQuarantine:
        """The quarantine table."""
        return self.tables.quarantine(self.typed)

    @property
    def typed(self) -> DeltaDataTable:
        """The typed table without its quarantine."""
        return self.tables.typed()

    @property
    def table(self) -> TypedTablePair:
        """The typed table with its quarantine."""
        return self.tables.pair(self.typed)

    def grown(self, columns: Mapping[Part, FieldType]) -> DeltaDataTable:
        """Return the typed table with further columns."""
        return self.tables.typed(columns)

    @property
    def decoding(self) -> DecodePlanner:
        """Plans the decoding."""
        return DecodePlanner(
            spec=self.spec,
            decode=self.decode,
            control=self.control,
            bronze=self.bronze.table,
            table=self.table,
            schemas=self.schemas,
            now=lambda: services.NOW,
            hidden=self.hidden,
        )

    def state(self) -> TypedState:
        """Return the state of the typed table and of its quarantine."""
        return PortTyped(self.spec, PortAdapters.over(self)).state()

    @property
    def schemas(self) -> SchemaResolver:
        """Finds the schemas of records."""
        return SchemaResolver(
            decode=self.decode,
            pipeline=self.spec.name,
            open_registry=self._registry,
            store=DeltaSchemaStore(str(self.root / "schemas"), self.decode.registry, lambda: NOW),
            bronze=FramedBronzeTable(str(self.bronze.uri)),
            table=self.table,
        )

    def _registry(self) -> SchemaRegistry:
        assert self.registry is not None
        return self.registry

    @property
    def watermarks(self) -> LandedLog:
        """Reads watermarks of the bronze table."""
        return self.decoding.bronze_log

    @property
    def log_reader(self) -> LandedLog:
        """Reads rows of the bronze table."""
        return self.decoding.bronze_log

    @property
    def sink(self) -> FileDecoder:
        """Decodes without Spark."""
        return FileDecoder(self)

    @property
    def verifier(self) -> TypedVerifier:
        """Compares the typed table and its quarantine with the bronze table."""
        return TypedVerifier(
            spec=self.spec,
            decode=self.decode,
            bronze=self.bronze.table,
            typed=typed_table_of_any_columns(str(self.typed_uri)),
            entries=lambda: self.quarantine.open_entries(),
            progress=lambda: self.decoding.progress(),
            schemas=self.schemas.store,
        )

    def run(self) -> list[int]:
        """Decode all missing records, and return the plan numbers."""
        done = []
        while (plan := self.decoding.plan().plan) is not None:
            self.ingest.execute(plan.sequence)
            done.append(plan.sequence)
        return done

    def land_and_run(self, count: int, *broken: int) -> list[int]:
        """Land records in partition 0, and decode them; the ones at these offsets fail."""
        self.bronze.run(count)
        self.broken = set(broken)
        return self.run()

    def replay(self, *spans: Span) -> Plan:
        """Decode quarantined offsets of partition 0 again."""
        plan = self.decoding.replay("id-1", {0: SpanSet.of(spans)}).plan
        assert plan is not None
        self.ingest.execute(plan.sequence)
        return plan

    def land_values(
        self,
        values: Sequence[bytes | None],
        partition: int = 0,
        key: bytes | None = b"k",
        headers: Headers = (),
    ) -> Plan:
        """Land records with these values as one plan."""
        return self.bronze.land_payloads([(key, value) for value in values], partition, headers)

    def bronze_rows(self) -> list[dict[str, Any]]:
        """Return all rows of the bronze table."""
        return self.bronze.bronze_rows()

    def decoded(self) -> list[tuple[int, int, str]]:
        """Return partition, offset and value of every typed row; flattened values are None."""
        rows = pa.table(DeltaTable(self.typed_uri).scan()).to_pylist()
        return sorted((row["partition"], row["offset"], row.get("value")) for row in rows)

    def quarantined(self) -> list[tuple[int, int]]:
        """Return partition and offset of every open record of the quarantine."""
        return [(each.partition, each.offset) for each in self.quarantine.records()]

    def in_quarantine_table(self) -> list[tuple[int, int]]:
        """Return partition and offset of all open rows of the quarantine, landed or not."""
        rows = pa.table(DeltaTable(self.quarantine_uri).scan()).to_pylist()
        return sorted((row["partition"], row["offset"]) for row in rows if row["closed_by"] is None)

    def check_rows(self, when: str = "") -> None:
        """Check that each bronze row is decoded once or quarantined once."""
        decoded = [place[:2] for place in self.decoded()]
        assert sorted([*decoded, *self.quarantined()]) == self.bronze.rows(), when

    def check(self) -> None:
        """Check that each bronze row is in one of both tables once, and in the ledger."""
        self.check_rows()
        self.verifier.verify().check()
        bronze = self.control.summary("events")
        ledger = self.control.summary(self.spec.name)
        assert ledger.landed == bronze.landed
        assert ledger.records == bronze.records
        assert ledger.open_plans() == []
        assert self.quarantine.count_open() == len(self.quarantined())


def home_typed_lake(home: Path, decode: str = "value: {format: string}") -> TypedLake:
    """Return pipeline `events` with this section `decode`; nothing has landed."""
    (home / "pipelines").mkdir()
    spec = "name: events\ntopic: events\nschedule: '@daily'\nstart: earliest\n"
    (home / "pipelines" / "events.yaml").write_text(
        f"{spec}decode: {{publish: always, {decode}}}\n"
    )
    return TypedLake(home / "lakehouse")


def decode_with_files(lake: TypedLake, patch: Patch = setattr) -> None:
    """Let the decodes of this process write files as `lake` does, without Spark."""
    patch(TypedPart, "_sink", lambda _: lake.sink)
    patch(ApplicationSessions, "plans_at_once", lambda _: 1)
