"""Tests of use cases of several pipelines, with landed rows and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.file_lake import home_lake
from tests.support.memory_consoles import memory_app
from tidemark.app.pipelines import Pipelines
from tidemark.app.run import identity
from tidemark.app.steps import Ref, Result
from tidemark.bronze.backfill.selection import select
from tidemark.core.errors import ExitCode
from tidemark.core.plan import PlanRef
from tidemark.spark.engine import JobRun


def test_a_chunk_without_offsets_still_returns_the_landing_of_another_chunk(tmp_path: Path) -> None:
    """Another backfill has landed the offsets of chunk 1; chunk 2 is open."""
    lake = home_lake(tmp_path)
    lake.produce(4, 1)
    app = memory_app(tmp_path, lake)()
    backfills = app.pipeline("events").backfills
    seen = backfills.preview(select(offsets=["1:0-4"]), 2, readable_only=False)
    for requester in ("ann", "bob"):
        backfills.request(seen, requester, approved=False)
    first = backfills.plan_chunk("bob", 1).plan
    assert first is not None
    lake.ingest.execute(first.sequence)
    opened = backfills.plan_chunk("ann", 2).plan
    assert opened is not None

    def run(_: str, refs: Sequence[Ref]) -> JobRun:
        results: list[Result] = []
        for ref in refs:
            assert isinstance(ref, PlanRef)
            results.append({**identity(ref), "wrote": lake.ingest.execute(ref.sequence).wrote})
        return JobRun(exit_code=ExitCode.OK, results=results)

    one = Pipelines(app=app, names=["events"], run=run, progress=print)
    landed, _ = one.land_chunk("ann", 1, lambda *_: None)
    assert [(each["plan"], each["wrote"]) for each in landed.records] == [(opened.sequence, True)]
    again, _ = one.land_chunk("ann", 1, lambda *_: None)
    assert again.records == []
