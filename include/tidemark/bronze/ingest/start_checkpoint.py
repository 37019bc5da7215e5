"""The position of a Structured Streaming query, from the files of its checkpoint.

Spark writes `offsets/<batch>` before it processes a batch, and `commits/<batch>` after it. An
offsets file has a line with the version, a line of metadata, and a line for each source. The line
of a Kafka source is a JSON object of topics, partitions and the next offset to read. The line of a
source without offsets is `-`. Spark writes version `v1` up to 4.1 (OffsetSeqLog and CommitLog in
org.apache.spark.sql.execution.streaming, KafkaSourceOffset in org.apache.spark.sql.kafka010).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tidemark.bronze.ingest.errors import InvalidStart
from tidemark.bronze.ingest.start_rules import SourceOffsets
from tidemark.core.texts import listed


def checkpoint_position(path: str, topic: str) -> SourceOffsets:
    """Return the end of the newest committed batch of a query.

    Args:
        path: The checkpoint folder, a local path, which may be relative.
        topic: Topic name.

    Raises:
        InvalidStart: There is no checkpoint or no committed batch, or the query does not read this
            topic exactly once.
    """
    if re.match(r"[a-z][a-z0-9+.-]*:", path):
        raise _unusable(path, "a local path; copy the folders offsets and commits", "a URI")
    path = str(Path(path).resolve())
    begun, committed = _batches(path, "offsets"), _batches(path, "commits")
    if not committed:
        raise _unusable(
            path,
            "a committed batch (commits/0 or later)",
            f"batch {max(begun)} started, none committed" if begun else "no batch",
        )
    newest = max(committed)
    if newest not in begun:
        raise _unusable(path, f"the file offsets/{newest} of the committed batch", "none")
    notes: tuple[str, ...] = ()
    if (later := max(begun)) > newest:
        notes = (
            f"batch {later} was started and not committed; its records may be in the stream's "
            "own table already, and are read again",
        )
    return SourceOffsets(
        source=f"{_name(path)}, batch {newest}",
        offsets=_offsets_of_topic(path, topic, _lines(path, newest)),
        notes=notes,
    )


def _batches(path: str, folder: str) -> set[int]:
    """Return the batch numbers of a folder; other files are checksums and unfinished files."""
    try:
        names = [file.name for file in (Path(path) / folder).iterdir()]
    except OSError as failed:
        raise _unusable(
            path, "a folder with the folders offsets and commits", str(failed.strerror)
        ) from failed
    return {int(name) for name in names if name.isdecimal()}


def _lines(path: str, batch: int) -> list[str]:
    """Return the lines of the sources."""
    file = Path(path) / "offsets" / str(batch)
    try:
        version, _, *sources = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as failed:
        raise _unusable(path, f"offsets/{batch} as Spark writes it", str(failed)) from failed
    if version.strip() != "v1":
        raise _unusable(path, "version v1 of offsets files", repr(version))
    return sources


def _offsets_of_topic(path: str, topic: str, lines: list[str]) -> Mapping[int, int]:
    found = [places for line in lines for places in _kafka_offsets(line).items()]
    topics = [name for name, _ in found]
    wanted = [offsets for name, offsets in found if name == topic]
    if len(wanted) != 1:
        raise _unusable(
            path,
            f"a query with one source that reads topic {topic!r}",
            f"{listed('topic', [repr(each) for each in topics])}" if topics else "no Kafka offsets",
        )
    return wanted[0]


def _name(path: str) -> str:
    return f"Structured Streaming checkpoint {path}"


def _unusable(path: str, rule: str, seen: str) -> InvalidStart:
    return InvalidStart(source=_name(path), rule=rule, seen=seen)


def _kafka_offsets(line: str) -> Mapping[str, Mapping[int, int]]:
    """Return offsets by topic and partition; empty for another source, or without offsets."""
    try:
        return {
            topic: {int(partition): int(offset) for partition, offset in places.items()}
            for topic, places in json.loads(line).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
