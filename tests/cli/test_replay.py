"""`tidemark quarantine replay` on real tables, with files that are written without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.commands import Command
from tests.support.typed_lake import TypedLake, home_typed_lake
from tidemark.app import App
from tidemark.cli import engine as cli_engine
from tidemark.core.errors import ExitCode
from tidemark.core.plan import PlanRef
from tidemark.spark.engine import Engine, JobRun

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TypedLake:
    """A lake whose jobs run in this process."""
    lake = home_typed_lake(tmp_path)

    def run(
        app: App,
        engine: Engine,
        job: str,
        plans: Sequence[PlanRef],
        print_line: Callable[[str], None],
    ) -> JobRun:
        (plan,) = plans
        assert plan.sequence < 10, "endless replay"
        landing = lake.ingest.execute(plan.sequence).landing
        result = {
            "pipeline": plan.pipeline,
            "plan": plan.sequence,
            "wrote": True,
            "records": landing.records,
            "quarantined": app.pipeline(plan.pipeline).quarantined(plan.sequence),
        }
        return JobRun(exit_code=ExitCode.OK, results=[result])

    monkeypatch.setattr(cli_engine, "run", run)
    return lake


def test_one_partition_is_replayed_and_the_others_stay_open(
    lake: TypedLake, offline: Command
) -> None:
    """The dry run shows the same number of records."""
    for partition in (0, 1):
        lake.land_values([b"a", b"b", b"c"], partition)
    lake.broken, lake.broken_in = {1}, (0, 1)
    assert offline("decode", "events").code == ExitCode.OK
    assert lake.quarantined() == [(0, 1), (1, 1)]
    lake.broken = ()
    only = ("quarantine", "replay", "events", "--partition", "1")
    assert "1 record(s) would be decoded again" in offline(*only, "--dry-run").out
    done, nothing = offline(*only, "--json").json
    assert (done["records"], done["quarantined"]) == (1, 0)
    assert nothing["outcome"] == "nothing to do"
    assert lake.quarantined() == [(0, 1)]
    lake.check()


def test_a_large_replay_is_split_into_several_plans(
    lake: TypedLake, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is replayed once, even if it fails again."""
    monkeypatch.setattr("tidemark.typed.decoder._MAX_REPLAYED", 2)
    lake.land_values([b"%d" % n for n in range(8)])
    lake.broken = {0, 2, 4, 6, 7}
    offline("decode", "events")
    lake.broken = {2}
    *plans, nothing = offline("quarantine", "replay", "events", "--json").json
    assert [(each["records"], each["quarantined"]) for each in plans] == [(2, 1), (2, 0), (1, 0)]
    assert nothing["outcome"] == "nothing to do"
    assert lake.quarantined() == [(0, 2)]
    lake.check()
