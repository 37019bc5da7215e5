"""The position of a Structured Streaming query, from the files of its checkpoint.

Spark writes `offsets/<batch>` before it processes a batch, and `commits/<batch>` after it. An
offsets file has a line with the version, a line of metadata, and a line for each source. The line
of a Kafka source is a JSON object of topics, partitions and the next offset to read; the line of a
source without offsets is `-`. Spark writes version `v1` up to 4.1 (OffsetSeqLog and CommitLog in
org.apache.spark.sql.execution.streaming, KafkaSourceOffset in org.apache.spark.sql.kafka010).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tidemark.ingest.errors import InvalidStart
from tidemark.ingest.start_rules import SourceOffsets


class StreamCheckpoint:
    """Reads the checkpoint folder of one query.

    Args:
        path: A local path.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._source = f"Structured Streaming checkpoint {path}"

    def read(self, topic: str, partitions: int) -> SourceOffsets:  # noqa: ARG002  the protocol's
        """Implement `OffsetSource.read`: return the end of the newest committed batch.

        Raises:
            InvalidStart: There is no checkpoint or no committed batch, or the query does not read
                this topic exactly once.
        """
        if re.match(r"[a-z][a-z0-9+.-]*:", self._path):
            raise self._unusable("a local path; copy the folders offsets and commits", "a URI")
        begun, committed = self._batches("offsets"), self._batches("commits")
        if not committed:
            raise self._unusable(
                "a committed batch (commits/0 or later)",
                f"batch {max(begun)} started, none committed" if begun else "no batch",
            )
        newest = max(committed)
        if newest not in begun:
            raise self._unusable(f"the file offsets/{newest} of the committed batch", "none")
        notes: tuple[str, ...] = ()
        if (later := max(begun)) > newest:
            notes = (
                f"batch {later} was started and not committed; its records may be in the stream's "
                "own table already, and are read again",
            )
        return SourceOffsets(
            source=f"{self._source}, batch {newest}",
            offsets=self._of_topic(topic, self._lines(newest)),
            notes=notes,
        )

    def _batches(self, folder: str) -> set[int]:
        """Return the batch numbers of a folder; other files are checksums and unfinished files."""
        try:
            names = [file.name for file in (Path(self._path) / folder).iterdir()]
        except OSError as failed:
            raise self._unusable(
                "a folder with the folders offsets and commits", str(failed.strerror)
            ) from failed
        return {int(name) for name in names if name.isdecimal()}

    def _lines(self, batch: int) -> list[str]:
        """Return the lines of the sources."""
        file = Path(self._path) / "offsets" / str(batch)
        try:
            version, _, *sources = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as failed:
            raise self._unusable(f"offsets/{batch} as Spark writes it", str(failed)) from failed
        if version.strip() != "v1":
            raise self._unusable("version v1 of offsets files", repr(version))
        return sources

    def _of_topic(self, topic: str, lines: list[str]) -> Mapping[int, int]:
        found = [places for line in lines for places in _kafka_offsets(line).items()]
        topics = [name for name, _ in found]
        wanted = [offsets for name, offsets in found if name == topic]
        if len(wanted) != 1:
            raise self._unusable(
                f"a query with one source that reads topic {topic!r}",
                f"topic(s) {', '.join(map(repr, topics))}" if topics else "no Kafka offsets",
            )
        return wanted[0]

    def _unusable(self, rule: str, seen: str) -> InvalidStart:
        return InvalidStart(source=self._source, rule=rule, seen=seen)


def _kafka_offsets(line: str) -> Mapping[str, Mapping[int, int]]:
    """Return offsets by topic and partition; empty for another source, or without offsets."""
    try:
        return {
            topic: {int(partition): int(offset) for partition, offset in places.items()}
            for topic, places in json.loads(line).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
