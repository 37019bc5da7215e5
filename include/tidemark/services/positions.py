"""Whether the log is still the one that was read, where its leaders have changed (ADR 11)."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core import planning
from tidemark.core.ledger import Ledger
from tidemark.core.marks import TopicMarks
from tidemark.core.plan import PlanKind, PlannedRange
from tidemark.errors import LogTruncated
from tidemark.ports import TopicLogReader, TopicReader


def check_positions(
    ledger: Ledger,
    marks: TopicMarks,
    ranges: Sequence[PlannedRange],
    mark_reader: TopicReader,
    log_reader: TopicLogReader,
) -> None:
    """Ask Kafka whether what lies before some ranges is what was read there.

    Args:
        ledger: How far each chain has come.
        marks: The topic's marks.
        ranges: What is about to be planned.
        mark_reader: Reads the marks again if the log seems to be cut.
        log_reader: Asks for the history of leaders.

    Raises:
        LogTruncated: An unclean election cut the log behind what was read, and it has grown again.
        TopicRecreated, TopicChanged, ClusterChanged, PartitionsShrunk: Meanwhile it is another one.
        KafkaUnavailable, KafkaRefused, TopicMissing
    """
    for kind in PlanKind:
        known = ledger.positions(kind)
        # fence: positions-after-new-leader-epoch
        if unproven := planning.landed_under_others(known, marks, ranges):
            try:
                log_reader.check_positions(marks.topic, unproven)
            except LogTruncated:
                # A topic that was made again since its marks were read looks like a cut log.
                newest = mark_reader.topic_marks(marks.topic, marks.isolation_level)
                planning.check_identity(ledger, newest)
                raise
