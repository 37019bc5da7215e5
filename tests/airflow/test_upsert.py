"""The operator that merges upsert tables, with a real process instead of spark-submit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.airflow.conftest import Answer, Probe
from tests.airflow.test_decode import DECODING, environ_of
from tests.support.typed_lake import TypedLake, home_typed_lake
from tidemark.core.errors import ExitCode

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(spark_submit: Path) -> TypedLake:
    """Pipeline `events` has an upsert table, `plain` has none; nothing has landed."""
    home = spark_submit.parent
    lake = home_typed_lake(home, "value: {format: string}, upsert: {deletes: hard}")
    text = (home / "pipelines" / "events.yaml").read_text().replace(", upsert: {deletes: hard}", "")
    (home / "pipelines" / "plain.yaml").write_text(text.replace("name: events", "name: plain"))
    return lake


def land_and_decode(lake: TypedLake, *values: bytes) -> str:
    """Land and decode records with these values; return the plan that merges them."""
    lake.land_values(values)
    lake.run()
    return f"events={DeltaTable(lake.typed_uri).version()}"


def run(
    task_probe: Probe, spark_submit: Path, *pipelines: str, code: int = ExitCode.OK
) -> tuple[Answer, list[str]]:
    """Run the operator; return its result and the plans of the submitted job."""
    seen = spark_submit.parent / "argv"
    seen.unlink(missing_ok=True)
    answer = task_probe.ask(
        "run_job",
        environ=environ_of(spark_submit, code),
        task="upsert_run",
        pipelines=pipelines,
        versions="{}",
    )
    words = seen.read_text().splitlines() if seen.exists() else []
    return answer, [plan for word, plan in pairwise(words) if word == "--plan"]


def test_missing_records_are_merged_and_an_up_to_date_table_starts_no_spark(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """The job `upsert` merges up to the typed table's version."""
    spark_submit.write_text(DECODING)
    for values in ((), (b"a",), (b"b", b"c")):
        expected = [land_and_decode(lake, *values)] if values else []
        for submitted in (expected, []):
            answer, plans = run(task_probe, spark_submit, "events")
            assert answer.value["error"] is None
            assert plans == submitted
            if plans:
                words = (spark_submit.parent / "argv").read_text().splitlines()
                assert words[-3].endswith("/jobs/upsert.py")


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.REFUSED, ExitCode.TRANSIENT])
def test_a_refused_pipeline_does_not_stop_the_others(
    task_probe: Probe, spark_submit: Path, lake: TypedLake, code: ExitCode
) -> None:
    """The task fails with its error, unless the job of the other pipelines failed."""
    behind = land_and_decode(lake, b"a")
    answer, plans = run(task_probe, spark_submit, "plain", "events", code=code)
    assert plans == [behind]
    expected = (
        "plain: InvalidReference: Pipeline 'plain' has no upsert table"
        if code == ExitCode.OK
        else str(int(code))
    )
    assert expected in answer.value["error"]
    assert answer.value["fails_now"] is not code.retryable
