"""Tests of preconditions that mypy checks: a missing check is a type error."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT
from tests.support.sources import calls

APPENDS = """
from datetime import datetime
from tidemark.core.accounting import Landing
from tidemark.core.ledger import CheckedLedger, Ledger
from tidemark.core.plan import Plan
from tidemark.bronze.ingest.protocols import ControlTable, DataLog
from tidemark.bronze.ingest.ledgers import check_ledger, read_checked_ledger

def append(
    control: ControlTable, data_log: DataLog, ledger: Ledger, checked: CheckedLedger,
    plan: Plan, landing: Landing, now: datetime,
) -> None:
    control.append(checked, [], now)
    control.append(read_checked_ledger(control, "events", data_log), [], now)
    control.append(check_ledger(control, ledger, data_log), [], now)
    control.append(ledger, [], now)  # error
    control.append(control.summary("events"), [], now)  # error
    control.append(checked.with_landing(plan, landing), [], now)  # error
"""

RANGES = """
from tidemark.core.ledger import CheckedLedger
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import PlanKind
from tidemark.core.plan_rules import build_plan, classify_offsets, live_ranges
from tidemark.core.watermarks import TopicWatermarks
from tidemark.bronze.ingest.draft import Drafter
from tidemark.bronze.ingest.log_comparison import LogComparison

def ranges(
    comparison: LogComparison, drafter: Drafter, ledger: CheckedLedger, watermarks: TopicWatermarks
) -> None:
    topic = comparison.compare(ledger, watermarks, watermarks.partitions)
    live_ranges(topic, {}, None)
    drafter.live(topic, None)
    live_ranges(watermarks, {}, None)  # error
    classify_offsets(watermarks, {}, readable_only=False)  # error
    build_plan(watermarks, PlanKind.LIVE, RunOrigin("test:1"), ())  # error
    drafter.live(watermarks, None)  # error
    comparison.check_leaders(watermarks, ())  # error
    comparison.check_records(watermarks, ())  # error
"""

READS_AND_COMMITS = """
from collections.abc import Sequence
from tidemark.core.datafile import DataFile
from tidemark.core.ledger import CheckedLedger
from tidemark.core.plan import Plan, ReadablePlan
from tidemark.core.table_state import TableState
from tidemark.bronze.ingest.protocols import DataTable, Sink
from tidemark.bronze.ingest.executor import TopicSource

def land(
    source: TopicSource, sink: Sink, table: DataTable, plan: Plan, readable: ReadablePlan,
    ledger: CheckedLedger, files: Sequence[DataFile], seen: TableState,
) -> None:
    sink.write(source.check_before_reading(plan, ledger), 1)
    sink.write(plan, 1)  # error
    table.append(source.check_before_commit(readable), files, seen)
    table.append(source.check_before_commit(readable), files)  # error
    table.append(readable, files, seen)  # error
    table.append(plan, files, seen)  # error
    table.fence(plan, seen)
    table.fence(plan)  # error
    table.remove_rows(plan, 1, seen)
    table.remove_rows(plan, 1)  # error
    source.check_before_commit(plan)  # error
"""

MAKERS = {
    "CheckedLedger": {"bronze/ingest/ledgers.py", "bronze/repair/rewind.py"},
    "CommittablePlan": {"bronze/ingest/executor.py"},
    "ComparedTopic": {"bronze/ingest/log_comparison.py"},
    "Draft": {"bronze/ingest/draft.py"},
    "ReadablePlan": {"bronze/ingest/executor.py"},
}
"""The modules that may create a value of each type, because they make the check or replace it."""


def check_errors(program: str, folder: Path) -> None:
    """Check that mypy, with the settings of the project, rejects exactly the marked lines."""
    file = folder / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(file)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not done.stderr, done.stderr
    lines = enumerate(program.splitlines(), start=1)
    expected = [number for number, line in lines if line.endswith("# error")]
    found = re.findall(r"program\.py:(\d+): error: ", done.stdout)
    assert [int(line) for line in found] == expected, done.stdout


def test_appending_after_an_unchecked_ledger_is_a_type_error(tmp_path: Path) -> None:
    check_errors(APPENDS, tmp_path)


def test_planning_ranges_of_uncompared_watermarks_is_a_type_error(tmp_path: Path) -> None:
    check_errors(RANGES, tmp_path)


def test_reading_or_committing_an_unchecked_plan_is_a_type_error(tmp_path: Path) -> None:
    check_errors(READS_AND_COMMITS, tmp_path)


def test_only_the_modules_of_a_check_create_its_type() -> None:
    """Elsewhere, a call of the type would skip the check."""
    package = PROJECT / "include" / "tidemark"
    found: dict[str, set[str]] = {name: set() for name in MAKERS}
    for file, call in calls(package.rglob("*.py"), MAKERS):
        if isinstance(call.func, ast.Name):
            found.get(call.func.id, set()).add(str(file.relative_to(package)))
    assert found == MAKERS
