"""Finds and repairs missing files and doubled events of the control table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.adapters.delta.compaction import Compaction
from tidemark.adapters.delta.live_files import (
    bounds_of_some_rows,
    left_out,
    live_files,
    storage_of,
)
from tidemark.adapters.delta.plan_files import named_read_failures
from tidemark.adapters.delta.rewriting import NewFile, Rewrite, new_path
from tidemark.adapters.delta.rows import opened, query, read
from tidemark.errors import CompactionConflict, ControlFileMissing, SetupError

_TRIED = 5

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
DOUBLED = f"""
SELECT DISTINCT event_number FROM {{source}} GROUP BY {", ".join(_PLACES)}
HAVING count(*) > 1 ORDER BY event_number
"""
"""Numbers of a pipeline's events that `source` contains more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDamage:
    """Damage of the control table.

    Attributes:
        missing: Files that its log refers to and that do not exist.
        doubled: Numbers of the doubled events, by pipeline.
    """

    missing: tuple[str, ...]
    doubled: Mapping[str, tuple[int, ...]]

    def as_record(self) -> dict[str, Any]:
        """The damage as plain values, for `--json`."""
        return {
            "missing_files": list(self.missing),
            "doubled_events": {name: list(numbers) for name, numbers in self.doubled.items()},
        }


@contextmanager
def missing_files_named(uri: str) -> Iterator[None]:
    """Raise ControlFileMissing if missing files caused the error of a read."""
    try:
        yield
    except Exception as failed:
        # delta-rs raises a plain Exception for reads through Arrow's C interface.
        missing = missing_files(uri)
        if missing:
            raise ControlFileMissing(table=uri, files=missing) from failed
        raise


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
        """Remove missing files from the log, and write each doubled event once.

        Events of missing files are lost; `control rebuild` records them again. Writers can
        continue: the commit that replaces doubled rows fails if one of their files has left the
        table, and concurrently appended events stay.

        Args:
            dry_run: Only report the damage.

        Raises:
            SetupError: The table has files that cannot be replaced; doubled events remain.
            EngineFailed: The repair failed, or its answer was lost.
            CompactionConflict: Concurrent compactions prevented every try.
        """
        with named_read_failures(self._uri, "repairing the control table"):
            missing = () if opened(self._uri) is None else missing_files(self._uri)
            if dry_run and missing:
                # The rest can be read once the log does not refer to these files.
                return ControlDamage(missing=missing, doubled={})
            if missing:
                DeltaTable(self._uri).repair(dry_run=False)
            doubled = self._doubled()
            for pipeline in () if dry_run else doubled:
                self._write_once(pipeline)
        return ControlDamage(missing=missing, doubled=doubled)

    def _doubled(self) -> Mapping[str, tuple[int, ...]]:
        table = opened(self._uri)
        if table is None:
            return {}
        found = {}
        for row in query(table, "SELECT DISTINCT pipeline FROM t ORDER BY pipeline"):
            own = f"(SELECT * FROM t WHERE pipeline = '{row['pipeline']}')"
            events = query(table, DOUBLED.format(source=own))
            found[row["pipeline"]] = tuple(each["event_number"] for each in events)
        return {pipeline: numbers for pipeline, numbers in found.items() if numbers}

    def _write_once(self, pipeline: str) -> None:
        for attempt in range(_TRIED):
            try:
                Compaction(self._uri).commit([self._distinct(pipeline)])
            except CompactionConflict:
                if attempt + 1 == _TRIED:
                    raise
            else:
                return

    def _distinct(self, pipeline: str) -> Rewrite:
        """Write the pipeline's distinct rows to a file that no version refers to yet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = DeltaTable(self._uri)
        _refuse_left_out(table)
        replaced = [file for file in live_files(table) if file.partition["pipeline"] == pipeline]
        rows = pa.table(read(table, f"SELECT DISTINCT * FROM t WHERE pipeline = '{pipeline}'"))
        schema = pa.schema(table.schema().to_arrow())
        columns = schema.remove(schema.get_field_index("pipeline"))
        rows = rows.select(columns.names).cast(columns).sort_by("event_number")
        path, files = new_path(), storage_of(self._uri)
        pq.write_table(rows, path, filesystem=files, store_schema=False)
        bounds = bounds_of_some_rows(replaced)
        added = NewFile(
            path=path,
            size=files.get_file_info(path).size,
            records=rows.num_rows,
            statistics=json.dumps({"numRecords": rows.num_rows, **bounds}),
        )
        return Rewrite(replaced=tuple(replaced), added=(added,))


def _refuse_left_out(table: DeltaTable) -> None:
    """Refuse a table with files that a repair cannot replace: events in them would stay doubled."""
    paths = left_out(table)
    if paths:  # fence: control-repair-replaces-all-rows
        raise SetupError(
            subject="the control table has files that `tidemark control repair` cannot replace",
            needed="files without deletion vectors, with plain names",
            seen=", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if paths[3:] else ""),
            advice="rewrite them in Spark with `OPTIMIZE` (with deletion vectors: `REORG TABLE ... "
            "APPLY (PURGE)`), then run `tidemark control repair` again",
        )
