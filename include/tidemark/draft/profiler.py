"""Profiles and decode drafts from the landed records of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from tidemark.app.pipeline import Pipeline
from tidemark.bronze.ingest.errors import NothingLanded
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.protocols import BronzeLog, ControlReader
from tidemark.core.offsets import SpanSet
from tidemark.core.record import LogRecord
from tidemark.core.sampling import sampled_records, shares
from tidemark.draft.decode import DecodeDraft, draft_decode
from tidemark.draft.profile import Profile
from tidemark.silver.typed.registry_answers import Registry
from tidemark.spec.decode import Format
from tidemark.spec.model import PipelineSpec

DEFAULT_SAMPLE = 20_000
"""Default number of records in a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiler:
    """Profiles the landed records of one pipeline. Reads its data table, never the topic."""

    spec: PipelineSpec
    control: ControlReader
    data_log: BronzeLog
    registry: Registry

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """Return the profiler of a pipeline. It needs neither a JVM nor Kafka."""
        ports = pipeline.adapters.topic_ports(reads_only=True)
        return cls(
            spec=pipeline.spec,
            control=ports.control,
            data_log=ports.table,
            registry=pipeline.registry_answers,
        )

    def profile(self, records: int = DEFAULT_SAMPLE) -> Profile:
        """Return the profile of the newest landed records, from each partition.

        Args:
            records: Maximum number of records to read.

        Raises:
            NothingLanded: No record has landed.
            ForeignTable: The table belongs to another pipeline.
            HistoriesDiverge: The data table and the control table have different histories.
        """
        found = Profile.of_sample(lambda: self._newest(records), self.registry)
        if not found.records:
            raise NothingLanded(pipeline=self.spec.name, topic=self.spec.topic)
        return found

    def decode_draft(
        self, records: int = DEFAULT_SAMPLE, value_format: Format | None = None
    ) -> DecodeDraft:
        """Return a draft of the section `decode` from the same records.

        Args:
            records: As in `profile`, which also has the errors.
            value_format: As in `draft_decode`.
        """
        return draft_decode(self.profile(records), value_format)

    def _newest(self, records: int) -> Iterator[LogRecord]:
        ledger = read_checked_ledger(self.control, self.spec.name, self.data_log)
        topic_id = ledger.topic_id or ""

        def read(spans: Mapping[int, SpanSet]) -> Iterator[LogRecord]:
            for partition, some in spans.items():
                for span in some:
                    for _, record in self.data_log.rows_of(topic_id, partition, span):
                        yield record

        wanted = shares(ledger.landed, records)
        # One partition after the other, so that memory has the records of one.
        for partition, spans in sorted(ledger.landed.items()):
            yield from sampled_records({partition: spans}, {partition: wanted[partition]}, read)
