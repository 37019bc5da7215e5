"""Looking at what has landed, for somebody who has to say what must hold of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidemark.core.offsets import SpanSet
from tidemark.core.record import LogRecord
from tidemark.ingest.protocols import ControlReader, DataLog
from tidemark.ingest.recorder import checked_ledger
from tidemark.spec.model import PipelineSpec
from tidemark.typed import draft as decode_draft
from tidemark.typed.draft import DecodeDraft
from tidemark.typed.errors import NothingToProfile
from tidemark.typed.profile import Profile

USUAL_SAMPLE = 20_000
"""Records that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiling:
    """Profiles what one pipeline has landed; reads its data table, and never the topic."""

    spec: PipelineSpec
    control: ControlReader
    data_log: DataLog

    def profile(self, records: int = USUAL_SAMPLE) -> Profile:
        """Look at the newest landed records of each partition, as many of each.

        Args:
            records: How many are looked at, at most.

        Raises:
            NothingToProfile: Nothing has landed, or gaps alone.
            ForeignTable, ControlTruncated, TableBehindLedger, LedgerBehindTable, RepairUnfinished,
                TableRestored: The two tables are not of one history.
        """
        found = Profile.of(self._newest(records))
        if not found.records:
            raise NothingToProfile(pipeline=self.spec.name)
        return found

    def decode_draft(self, records: int = USUAL_SAMPLE) -> DecodeDraft:
        """How the same records could be decoded. Takes and raises what `profile` does."""
        found = decode_draft.draft(self._newest(records))
        if not found.records:
            raise NothingToProfile(pipeline=self.spec.name)
        return found

    def _newest(self, records: int) -> Iterator[LogRecord]:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        return self._newest_of(ledger.topic_id or "", ledger.landed, records)

    def _newest_of(
        self, topic_id: str, landed: Mapping[int, SpanSet], records: int
    ) -> Iterator[LogRecord]:
        share = max(1, records // max(1, len(landed)))
        for partition, spans in sorted(landed.items()):
            wanted, most = share, share
            # Where the newest offsets are gaps, ever longer ones behind them.
            while spans and wanted:
                newest = spans.last(most)
                rows = [
                    record
                    for span in newest
                    for _, record in self.data_log.rows_of(topic_id, partition, span)
                ]
                yield from rows[-wanted:]
                wanted -= min(wanted, len(rows))
                spans, most = spans.minus(newest), 10 * most
