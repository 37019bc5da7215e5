"""A lake whose typed table and quarantine follow the ledger, as decision 28 describes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.services import NOW
from tests.support.typed_lake import TypedLake
from tidemark.core.decode_work import DecodeRequest
from tidemark.core.following import Batch, BatchOffsets
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.publication import PublishRule
from tidemark.silver.typed.errors import SchemaConflict
from tidemark.silver.typed.following import Decodes
from tidemark.silver.typed.quarantine_index import OpenedIndex, QuarantineIndex
from tidemark.silver.typed.schemas import ResolvedSchemas
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType


@dataclass
class Follower:
    """Decodes one pipeline. Other actors may act between its steps.

    Attributes:
        lake: The bronze table, the ledger, and the decoder.
        decoder: Decodes with or without Spark.
        publish: Which landed offsets are decoded.
        most: Maximum number of offsets of a round.
        unreadable: Offsets of records whose schemas do not fit the typed table.
        pause: Called with the name of each step. `ledger` and `plans` are before reads of the
            control table. `decoded` is after the decoder. `commit` and `clear` are before a commit
            to the typed table, `index` is after it. `entries` is before a commit to the quarantine.
        compared: Number of comparisons of all typed rows.
        now: The clock.
        requests: The requests to the decoder.
    """

    lake: TypedLake
    decoder: Any
    publish: PublishRule = PublishRule.ALWAYS
    most: int = 1_000
    unreadable: Collection[int] = ()
    pause: Callable[[str], None] = lambda _: None
    compared: int = 0
    now: datetime = NOW
    requests: list[DecodeRequest] = field(default_factory=list)

    @property
    def typed_uri(self) -> str:
        """The URI of the typed table."""
        return str(self.lake.typed_uri)

    @property
    def index_uri(self) -> str:
        """The URI of the quarantine."""
        return str(self.lake.quarantine_uri)

    @property
    def service(self) -> Decodes:
        """The service under test."""
        lake, decode = self.lake, replace(self.lake.decode, publish=self.publish)
        spec = replace(lake.pipeline_spec, decode=decode, records_per_chunk=self.most)
        return Decodes(
            spec=spec.typed_spec(),
            ports=replace(
                lake.ports,
                control=_hooked(
                    lake.control,
                    summary=self._before("ledger"),
                    rows_since=self._before("plans"),
                ),
                bronze_rows=_hooked(lake.ports.bronze_rows, open=self._before("bronze")),
                typed=_hooked(lake.ports.typed, open=self._typed_version),
                index=_PausedIndex(self),
                prepare=self.prepare,
                schemas=_Resolver(self),
                open_decoder=lambda: _hooked(self.decoder, decode=self._decoded),
                now=lambda: self.now,
            ),
        )

    def prepare(self, columns: Mapping[Part, FieldType] | None = None) -> None:
        """Create both tables, and add columns."""
        self.lake.tables.prepare(columns or {})

    def decode(self, replayed: BatchOffsets | None = None) -> int:
        """Decode until nothing is left; return the number of rounds."""
        rounds = list(islice(self.service.run(replayed), 200))
        assert len(rounds) < 200, "a decode does not end"
        return len(rounds)

    def round(self) -> None:
        """Make one round, again after conflicts."""
        work = self.service.next()
        assert work is not None
        self.service.decode(work, most_rounds=1)

    def clear(self) -> None:
        """Remove all typed rows; the next decode decodes all plans."""
        self.service.from_scratch("ops", "a test")

    # -- steps -----------------------------------------------------------------------------------

    def _before(self, step: str) -> Callable[..., Any]:
        def call(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
            self.pause(step)
            return method(*args, **options)

        return call

    def _decoded(self, method: Callable[..., Any], request: DecodeRequest) -> Any:
        self.requests.append(request)
        files = method(request)
        self.pause("decoded")
        return files

    def _typed_version(self, method: Callable[..., Any]) -> Any:
        def commit(method: Callable[..., Any], *args: Any) -> None:
            self.pause("commit")
            method(*args)
            self.pause("index")

        def totals(method: Callable[..., Any]) -> Any:
            found = method()
            self.compared += bool(found)
            return found

        version = method()
        hooks = {"commit": commit, "clear": self._before("clear"), "totals": totals}
        return version and _hooked(version, **hooks)

    # -- what the tables have --------------------------------------------------------------------

    def typed_rows(self) -> list[tuple[int, int, int]]:
        """Return bronze plan, partition and offset of each typed row."""
        return self._places(self.typed_uri)

    def entries(self) -> list[tuple[int, int, int]]:
        """Return bronze plan, partition and offset of each entry."""
        return self._places(self.index_uri)

    @staticmethod
    def _places(uri: str) -> list[tuple[int, int, int]]:
        if not DeltaTable.is_deltatable(uri):
            return []
        rows = pa.table(DeltaTable(uri).scan()).to_pylist()
        return sorted((row["plan_sequence"], row["partition"], row["offset"]) for row in rows)


class _Hooked:
    """An object with hooks, which are called with its methods and their arguments."""

    def __init__(self, target: Any, **hooks: Callable[..., Any]) -> None:
        self._target = target
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if hook := self._hooks.get(name):
            return lambda *args, **options: hook(found, *args, **options)
        return found


def _hooked(target: Any, **hooks: Callable[..., Any]) -> Any:
    return _Hooked(target, **hooks)


class _PausedIndex(QuarantineIndex):
    def __init__(self, follower: Follower) -> None:
        super().__init__(follower.index_uri)
        self._follower = follower

    def open(self) -> OpenedIndex | None:
        found, before = super().open(), self._follower._before("entries")
        return found and OpenedIndex(_hooked(found.version, commit=before))


class _Resolver:
    """Resolves the schemas of the lake. Schemas of unreadable records do not fit."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def fetch(self, offsets: BatchOffsets) -> None:
        self._follower.lake.schemas.fetch(offsets)

    def resolve_plans(
        self, offsets: BatchOffsets
    ) -> tuple[ResolvedSchemas, Mapping[int, SchemaConflict]]:
        found, waiting = self._follower.lake.schemas.resolve_plans(offsets)
        unreadable = {
            batch.sequence: SchemaConflict(
                pipeline="events",
                part="value",
                schema_id=9,
                partition=partition,
                offset=offset,
                differences=("another type",),
            )
            for offset in self._follower.unreadable
            for batch, spans in offsets.items()
            for partition, some in spans.items()
            if offset in some
        }
        return found, {**waiting, **unreadable}


def at(
    plan: int, *spans: tuple[int, int], partition: int = 0
) -> dict[Batch, Mapping[int, SpanSet]]:
    """Return some offsets of a plan of topic `id-1`."""
    return {Batch(plan, "id-1"): {partition: SpanSet.of([Span(*span) for span in spans])}}
