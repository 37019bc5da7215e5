"""Tests of landings with a conflicting commit between their read and their commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable

from tests.support.file_lake import FileLake
from tests.support.services import with_ports
from tidemark.core.datafile import DataFile
from tidemark.core.errors import ExitCode
from tidemark.core.plan import Plan
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.errors import LandingOvertaken


class TableWithConcurrentCommit(DeltaDataTable):
    """Data table to which another process commits after this process has read it."""

    other: Callable[[], object]

    def _add_files(
        self, table: DeltaTable, plan: Plan, files: Sequence[DataFile], properties: CommitProperties
    ) -> None:
        self.other()
        super()._add_files(table, plan, files, properties)


def test_a_live_plan_overtaken_by_a_replacement_lands_on_a_retry(tmp_path: Path) -> None:
    lake = FileLake(tmp_path)
    lake.run(4)
    plan = lake.plan(3)

    table = TableWithConcurrentCommit(str(lake.uri))
    table.other = lambda: lake.land_again((0, 0, 2))
    with pytest.raises(LandingOvertaken) as raised:
        with_ports(lake.ingest, table=table).execute(plan.sequence)
    assert raised.value.exit_code is ExitCode.TRANSIENT
    assert "Plan 2 of pipeline 'events'" in raised.value.rendered("problem")
    assert lake.rows() == [(0, offset) for offset in range(4)]
    assert lake.ingest.execute(plan.sequence).wrote
    assert lake.verified() == [(7, 7)]
