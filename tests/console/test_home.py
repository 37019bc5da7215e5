"""The console shows a new, changed or removed spec at the next request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.consoles import app_of, console_of
from tests.support.file_lake import home_lake
from tidemark.console.home import RELOAD_S, Home
from tidemark.core.plan_history import PlanEntry
from tidemark.lake.control_table import DeltaControlTable

SPEC = "name: {name}\ntopic: {name}\nschedule: '@daily'\n"


def test_specs_are_read_again_after_a_change(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "one.yaml").write_text(SPEC.format(name="one"))
    client = console_of(tmp_path)
    assert client.get("/pipelines/two").status_code == 404
    (folder / "two.yaml").write_text(SPEC.format(name="two"))
    assert client.get("/pipelines/two").status_code == 200
    (folder / "two.yaml").write_text("name: two\n")
    assert "SpecError" in client.get("/pipelines/two").text
    (folder / "two.yaml").unlink()
    assert client.get("/pipelines/two").status_code == 404


def test_connections_are_read_again_after_a_minute(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    now = 0.0
    home = Home(app_of(tmp_path), clock=lambda: now)
    first = home.app
    now = RELOAD_S
    assert home.app is first
    now += 1
    assert home.app is not first


def test_plans_are_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages refresh every few seconds, and a long control table takes long to read."""
    lake = home_lake(tmp_path)
    home = Home(app_of(tmp_path))
    reads: list[tuple[str, int, int]] = []
    read = DeltaControlTable.plan_history

    def counted(table: DeltaControlTable, pipeline: str, first: int, end: int) -> list[PlanEntry]:
        reads.append((pipeline, first, end))
        return read(table, pipeline, first, end)

    def shown(before: int | None = None) -> list[int]:
        return [entry.record.plan.sequence for entry in home.plans("events", before, 2)]

    monkeypatch.setattr(DeltaControlTable, "plan_history", counted)
    assert [shown(), shown(), shown(2), shown(2)] == [[3, 2], [3, 2], [1], [1]]
    assert reads == [("events", 2, 4), ("events", 1, 2)]
    lake.run(1)
    assert shown() == shown() == [4, 3]
    assert len(reads) == 3
    monkeypatch.setattr("tidemark.console.home.KNOWN_PLANS", 1)
    assert [shown(2), shown()] == [[1], [4, 3]]
    assert len(reads) == 5
