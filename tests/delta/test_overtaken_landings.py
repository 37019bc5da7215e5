"""Tests of landings with a conflicting commit between their read and their commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable

from tests.support.file_lake import FileLake, landed_lake
from tests.support.services import with_ports
from tidemark.core.datafile import DataFile
from tidemark.core.errors import ExitCode
from tidemark.core.plan import Plan
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import TableConflict


class TableWithConcurrentCommit(DeltaDataTable):
    """Data table to which another process commits after this process has read it."""

    other: Callable[[], object]

    def _add_files(
        self, table: DeltaTable, plan: Plan, files: Sequence[DataFile], properties: CommitProperties
    ) -> None:
        self.other()
        super()._add_files(table, plan, files, properties)


def replace_rows(lake: FileLake) -> None:
    lake.land_again((0, 0, 2))


def undo(lake: FileLake) -> None:
    lake.undo.undo(1, "ops", "wrong")


@pytest.mark.parametrize("is_compacted", [False, True], ids=["own files", "one file"])
@pytest.mark.parametrize(("other", "left"), [(replace_rows, range(6)), (undo, range(3, 6))])
def test_a_landing_overtaken_by_a_replacement_or_an_undo_lands_on_a_retry(
    tmp_path: Path, other: Callable[[FileLake], None], left: range, is_compacted: bool
) -> None:
    lake = landed_lake(tmp_path, plans=2)
    if is_compacted:
        DeltaTable(lake.uri).optimize.compact()
    plan = lake.plan(3)

    table = TableWithConcurrentCommit(str(lake.uri))
    table.other = lambda: other(lake)
    with pytest.raises(TableConflict, match="did not land") as raised:
        with_ports(lake.ingest, table=table).execute(plan.sequence)
    assert raised.value.exit_code is ExitCode.TRANSIENT
    assert f"Plan {plan.sequence} of pipeline 'events'" in raised.value.rendered("problem")
    assert lake.rows() == [(0, offset) for offset in left]
    assert lake.ingest.execute(plan.sequence).wrote
    lake.run(1)
    assert lake.verified() == [(10, 10)]
