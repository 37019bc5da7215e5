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
from deltalake import DeltaTable

from tests.support import PROJECT
from tests.support.file_lake import FileLake, Headers
from tests.support.services import PortAdapters
from tidemark.app.silver import TypedPart
from tidemark.core.datafile import DataFile, plan_folder
from tidemark.core.decode_work import Decoded, DecodeRequest
from tidemark.core.following import Batch, places_of
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.core.publication import PublishRule
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.storage import folder_of
from tidemark.ops.report.verify_typed import TypedVerifier
from tidemark.silver.typed.columns import INDEX_SCHEMA
from tidemark.silver.typed.followed_tables import Decoder, FollowPorts
from tidemark.silver.typed.following import Decodes
from tidemark.silver.typed.quarantine_index import QuarantineIndex
from tidemark.silver.typed.replay_preview import DecodeResult, offsets_of
from tidemark.silver.typed.schemas import SchemaRegistry, SchemaResolver, SchemaStore
from tidemark.silver.typed.state import FollowState, TypedState
from tidemark.silver.typed.tables import TypedTables
from tidemark.spark import parquet
from tidemark.spark.sessions import ApplicationSessions
from tidemark.spec.decode import REST, DecodeSpec, Format, Part, PayloadSpec, QuarantineReason
from tidemark.spec.fields import FieldType
from tidemark.spec.flattening import TOMBSTONE, column_name
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec

Patch: TypeAlias = Callable[[type, str, Callable[..., Any]], None]


@dataclass
class FileDecoder:
    """Decodes bronze rows into new folders of the typed table and the quarantine."""

    lake: TypedLake

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
        return self._files(here) if here else []

    def _files(self, rows: Sequence[dict[str, Any]]) -> Sequence[DataFile]:
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
        kept = self._written(quarantine, folder, bad, pa.schema(INDEX_SCHEMA.to_arrow()))
        return [*made, *(replace(file, quarantined=True) for file in kept)]

    def count(
        self,
        request: DecodeRequest,
        columns: Mapping[Part, FieldType],  # noqa: ARG002
    ) -> Counter[DecodeResult]:
        """Return the number of records that can or cannot be decoded. Writes nothing."""
        lake, results = self.lake, Counter[DecodeResult]()
        for _, partition, offset in places_of(request.offsets):
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


@dataclass(frozen=True)
class LakeTyped(TypedPart):
    """The product's typed table, with the decoder and the registry of a lake."""

    lake: TypedLake

    def _spark_decoder(self, store: SchemaStore) -> Any:  # noqa: ARG002
        return self.lake.decoder

    def _registry(self) -> SchemaRegistry:
        assert self.lake.registry is not None
        return self.lake.registry


DECODE = DecodeSpec(
    key=PayloadSpec(),
    value=PayloadSpec(format=Format.STRING),
    target="silver/events",
)


@dataclass
class TypedLake:
    """A bronze pipeline over two partitions, and its typed table.

    Attributes:
        root: Folder of the lakehouse.
        broken: Offsets of values that cannot be decoded.
        broken_in: Partitions of these values.
        rules: Broken rules, by offset of partition 0.
        decode: Spec of the typed table.
        publish: Which landed offsets are decoded.
        most: Maximum number of offsets of a round.
        registry: The schema registry, if the format needs one.
    """

    root: Path
    broken: Collection[int] = ()
    broken_in: Collection[int] = (0,)
    rules: Mapping[int, str] = field(default_factory=dict)
    decode: DecodeSpec = DECODE
    publish: PublishRule = PublishRule.ALWAYS
    most: int = 10_000
    registry: SchemaRegistry | None = None
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
    def pipeline_spec(self) -> PipelineSpec:
        """The pipeline."""
        decode = replace(self.decode, publish=self.publish)
        return replace(self.bronze.spec, decode=decode, records_per_chunk=self.most)

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline of the typed table."""
        return self.pipeline_spec.typed_spec()

    @property
    def control(self) -> DeltaControlTable:
        """The control table."""
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
    def part(self) -> LakeTyped:
        """The product's typed table over these tables."""
        layout = Layout(project=PROJECT, home=self.root, lakehouse_root=str(self.root))
        adapters = replace(PortAdapters.over(self), spec=self.pipeline_spec, layout=layout)
        return LakeTyped(self.spec, adapters, self)

    @property
    def tables(self) -> TypedTables:
        """Opens the typed table and its quarantine."""
        return self.part.tables

    @property
    def table(self) -> DeltaDataTable:
        """The bronze table."""
        return self.bronze.table

    @property
    def quarantine(self) -> QuarantineIndex:
        """The quarantine table."""
        return self.part.quarantine

    @property
    def typed(self) -> DeltaDataTable:
        """The typed table."""
        return self.tables.typed()

    @property
    def ports(self) -> FollowPorts:
        """The ports of the decodes."""
        return self.part.decodes.ports

    @property
    def decoder(self) -> Decoder:
        """Decodes rows of the bronze table."""
        return FileDecoder(self)

    @property
    def decodes(self) -> Decodes:
        """Decodes the bronze table."""
        return Decodes(spec=self.spec, ports=self.ports)

    def state(self) -> TypedState:
        """Return the state of the typed table and of its quarantine."""
        return self.part.state()

    @property
    def schemas(self) -> SchemaResolver:
        """Finds the schemas of records."""
        schemas = self.part.decodes.ports.schemas
        assert isinstance(schemas, SchemaResolver)
        return schemas

    @property
    def verifier(self) -> TypedVerifier:
        """Compares the typed table and its quarantine with the bronze table."""
        return self.part.verifier

    def run(self) -> list[int]:
        """Decode all missing records, and return the numbers of the decoded plans."""
        return sum(self.decodes.run(), Decoded()).plans.numbers()

    def land_and_run(self, count: int, *broken: int) -> list[int]:
        """Land records in partition 0, and decode them; the ones at these offsets fail."""
        self.bronze.run(count)
        self.broken = set(broken)
        return self.run()

    def replay(self, *spans: Span) -> Decoded:
        """Decode quarantined offsets of partition 0 again."""
        found = [
            each
            for each in self.quarantine.records()
            if each.partition == 0 and each.offset in SpanSet.of(spans)
        ]
        return sum(self.decodes.run(offsets_of(found)), Decoded())

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
        """Return partition and offset of every record in quarantine."""
        return [(each.partition, each.offset) for each in self.quarantine.records()]

    def check_rows(self, when: str = "") -> None:
        """Check that each bronze row is decoded once or quarantined once."""
        decoded = [place[:2] for place in self.decoded()]
        assert sorted([*decoded, *self.quarantined()]) == self.bronze.rows(), when

    def check(self) -> None:
        """Check that each bronze row is in one of both tables once, and that nothing is left."""
        self.check_rows()
        self.verifier.verify().check()
        assert self.decodes.next() is None
        assert self.decodes.state() == FollowState()


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
    patch(TypedPart, "_spark_decoder", lambda _part, _store: FileDecoder(lake))
    patch(ApplicationSessions, "plans_at_once", lambda _: 1)
