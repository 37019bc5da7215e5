"""Finds damage of the control table, and repairs missing files and duplicate events."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.core.errors import ControlTableDamaged, SetupError
from tidemark.delta.compaction import Compaction
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.delta_errors import is_delta_error
from tidemark.delta.errors import UnreadableFile
from tidemark.delta.live_files import (
    LiveFile,
    live_files,
    subset_statistics,
    table_filesystem,
    unsupported_files,
)
from tidemark.delta.rewriting import NewFile, Rewrite, new_path
from tidemark.delta.table_io import open_if_exists, query_rows, query_table
from tidemark.delta.unreadable_files import (
    check_readable,
    raise_if_unreadable,
    translate_read_errors,
)

log = logging.getLogger(__name__)

# Rows of one event differ in one of these columns.
_PLACES = (
    "event_number",
    "event",
    "plan_sequence",
    "superseded_by",
    "chunk",
    "partition",
    "start_offset",
)
DUPLICATE_EVENTS_SQL = f"""
SELECT DISTINCT event_number FROM {{source}} GROUP BY {", ".join(_PLACES)}
HAVING count(*) > 1 ORDER BY event_number
"""
"""Numbers of a pipeline's events that `source` contains more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDamage:
    """Damage of the control table.

    Attributes:
        missing_files: Files that its log refers to and that do not exist.
        duplicate_events: Numbers of the duplicate events, by pipeline.
    """

    missing_files: tuple[str, ...]
    duplicate_events: Mapping[str, tuple[int, ...]]


@contextmanager
def translate_control_damage(uri: str) -> Iterator[None]:
    """Raise ControlTableDamaged if such files caused the error of a read."""
    with _damaged_file_named(uri):
        try:
            yield
        except Exception as failed:
            # delta-rs raises a plain Exception for reads through Arrow's C interface.
            missing = missing_files(uri)
            if missing:
                raise ControlTableDamaged.by_missing_files(table=uri, files=missing) from failed
            if is_delta_error(failed):
                raise_if_unreadable(DeltaTable(uri), failed)
            raise


@contextmanager
def _damaged_file_named(uri: str) -> Iterator[None]:
    try:
        yield
    except UnreadableFile as failed:
        raise ControlTableDamaged.by_unreadable_file(
            table=uri, file=failed.file, reason=failed.reason
        ) from failed


def missing_files(uri: str) -> tuple[str, ...]:
    """Files that the newest version refers to and that are not in the storage; none on failure."""
    try:
        return tuple(sorted(DeltaTable(uri).repair(dry_run=True)["files_removed"]))
    except (DeltaError, OSError):
        return ()


class DeltaControlRepair:
    """Repairs the control table.

    Args:
        uri: The control table.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def repair(self, *, dry_run: bool = False) -> ControlDamage:
        """Remove missing files from the log, and write each duplicate event once.

        Events of missing files are lost; `control rebuild` records them again. Writers can
        continue: the commit that replaces duplicate rows fails if one of their files has left the
        table, and concurrently appended events stay.

        Changes nothing if a file is damaged, or if duplicate events are in files that cannot be
        replaced. Exception: duplicate events cannot be found while files are missing, so missing
        files are removed from the log first, with a warning that lists them.

        Args:
            dry_run: Only report the damage.

        Raises:
            ControlTableDamaged: A file cannot be read.
            SetupError: Duplicate events are in files that cannot be replaced; they remain.
            TableConflict: Concurrent compactions prevented every try.
        """
        with (
            _damaged_file_named(self._uri),
            translate_read_errors(self._uri, "repairing the control table"),
        ):
            missing = () if open_if_exists(self._uri) is None else missing_files(self._uri)
            if dry_run and missing:
                # The rest can be read once the log does not refer to these files.
                return ControlDamage(missing_files=missing, duplicate_events={})
            if missing:
                self._remove_missing(missing)
            duplicates = self._duplicates()
            if not dry_run:
                self._write_all_once(duplicates)
        return ControlDamage(missing_files=missing, duplicate_events=duplicates)

    def _remove_missing(self, missing: Sequence[str]) -> None:
        table = DeltaTable(self._uri)
        existing = [file for file in live_files(table) if unquote(file.path) not in missing]
        check_readable(self._uri, existing)
        removed = table.repair(dry_run=False)["files_removed"]
        log.warning(
            "missing files removed from the log of the control table uri=%s files=%s",
            self._uri,
            ",".join(removed),
        )

    def _duplicates(self) -> Mapping[str, tuple[int, ...]]:
        table = open_if_exists(self._uri)
        if table is None:
            return {}
        found = {}
        for row in query_rows(table, "SELECT DISTINCT pipeline FROM t ORDER BY pipeline"):
            own = f"(SELECT * FROM t WHERE pipeline = '{row['pipeline']}')"
            events = query_rows(table, DUPLICATE_EVENTS_SQL.format(source=own))
            found[row["pipeline"]] = tuple(each["event_number"] for each in events)
        return {pipeline: numbers for pipeline, numbers in found.items() if numbers}

    def _write_all_once(self, pipelines: Collection[str]) -> None:
        if pipelines:
            table = DeltaTable(self._uri)
            _refuse_left_out(table, live_files(table), pipelines)
        for pipeline in pipelines:
            retry_on_conflict(partial(self._write_once, pipeline))

    def _write_once(self, pipeline: str) -> None:
        Compaction(self._uri).commit([self._distinct(pipeline)])

    def _distinct(self, pipeline: str) -> Rewrite:
        """Write the pipeline's distinct rows to a file that no version refers to yet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = DeltaTable(self._uri)
        live = live_files(table)
        _refuse_left_out(table, live, [pipeline])
        replaced = [file for file in live if file.partition["pipeline"] == pipeline]
        rows = pa.table(
            query_table(table, f"SELECT DISTINCT * FROM t WHERE pipeline = '{pipeline}'")
        )
        schema = pa.schema(table.schema().to_arrow())
        columns = schema.remove(schema.get_field_index("pipeline"))
        rows = rows.select(columns.names).cast(columns).sort_by("event_number")
        path, files = new_path(), table_filesystem(self._uri)
        pq.write_table(rows, path, filesystem=files, store_schema=False)
        bounds = subset_statistics(replaced)
        added = NewFile(
            path=path,
            size=files.get_file_info(path).size,
            records=rows.num_rows,
            statistics=json.dumps({"numRecords": rows.num_rows, **bounds}),
        )
        return Rewrite(replaced=tuple(replaced), added=(added,))


def _refuse_left_out(
    table: DeltaTable, live: Sequence[LiveFile], pipelines: Collection[str]
) -> None:
    """Refuse files that a repair cannot replace: their events would remain duplicate."""
    unsupported = [
        (path, partition["pipeline"])
        for path, partition in unsupported_files(table, live)
        if partition["pipeline"] in pipelines
    ]
    if unsupported:  # fence: control-repair-replaces-all-rows
        names = ", ".join(f"'{name}'" for name in sorted({name for _, name in unsupported}))
        raise SetupError(
            finding="The control table has files that `tidemark control repair` cannot replace.",
            needed="files without deletion vectors, with plain names",
            seen=", ".join(path for path, _ in unsupported[:3])
            + (f" and {len(unsupported) - 3} more" if unsupported[3:] else ""),
            advice=f"Rewrite them in Spark with OPTIMIZE delta.`{table.table_uri}` WHERE pipeline "
            f"IN ({names}) ZORDER BY (event_number); then repeat `tidemark control repair "
            "--apply`.",
        )
