"""The operator that decodes, with a real process instead of spark-submit."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.airflow.conftest import Answer, Probe, submit_environ
from tests.airflow.test_job_operator import RUN, SECRET
from tests.conftest import PROJECT
from tests.support.publication import record_decision
from tests.support.registry import connection_environ, framed, registry_answers, registry_proxy
from tests.support.typed_lake import TypedLake, home_typed_lake
from tidemark.core.errors import ExitCode

pytestmark = pytest.mark.slow

# This program records each call, and decodes like Spark.
DECODING = f"""\
#!/bin/sh
printf '%s\\n' "$@" >> "$SEEN/argv"
export PYTHONPATH="{PROJECT}:{PROJECT}/include"
exec {sys.executable} -m tests.support.typed_job "$@"
"""
_SCHEMA = {"type": "record", "name": "Trade", "fields": [{"name": "n", "type": "int"}]}


@pytest.fixture
def lake(spark_submit: Path) -> TypedLake:
    """Pipeline `events`, of which two records have landed."""
    lake = home_typed_lake(spark_submit.parent)
    lake.land_values([b"a", b"b"])
    return lake


def run(task_probe: Probe, spark_submit: Path, code: int = ExitCode.OK, **more: str) -> Answer:
    """Run the operator; there is no Kafka.

    Args:
        task_probe: The process that has loaded Airflow.
        spark_submit: The program that replaces spark-submit.
        code: Exit code of each job; the program `DECODING` ignores it.
        more: Further environment variables.
    """
    return task_probe.ask(
        "run_job",
        environ=environ_of(spark_submit, code) | more,
        task="decode_run",
        pipelines=["events"],
    )


def environ_of(spark_submit: Path, code: int) -> dict[str, Any]:
    """Return the environment of an operator without Kafka whose jobs end with this code."""
    return {
        "TIDEMARK_HOME": str(spark_submit.parent),
        "TIDEMARK_PIPELINES": str(spark_submit.parent / "pipelines"),
        **submit_environ(spark_submit),
        "SEEN": str(spark_submit.parent),
        "CODE": str(int(code)),
        "OUTPUT": "",
    }


def submitted(spark_submit: Path) -> list[str]:
    """Return the pipelines of the submitted jobs."""
    words = (spark_submit.parent / "argv").read_text().splitlines()
    return [word for option, word in pairwise(words) if option == "--pipeline"]


@pytest.mark.parametrize(
    ("code", "expected", "fails_now"),
    [
        (ExitCode.OK, "EngineStopped", False),
        (ExitCode.REFUSED, "65", True),
        (ExitCode.TRANSIENT, "75", False),
    ],
)
@pytest.mark.usefixtures("lake")
def test_a_decode_is_submitted_once(
    task_probe: Probe, spark_submit: Path, code: int, expected: str, fails_now: bool
) -> None:
    """The task needs no Kafka. A job without a result is not submitted again."""
    answer = run(task_probe, spark_submit, code)
    assert submitted(spark_submit) == ["events"]
    assert expected in answer.value["error"]
    assert answer.value["fails_now"] is fails_now


def test_one_job_decodes_all_records(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """It makes several rounds. A run without records to decode starts no Spark."""
    spark_submit.write_text(DECODING)
    lake.land_values([b"c"])
    spec = spark_submit.parent / "pipelines" / "events.yaml"
    spec.write_text(f"{spec.read_text()}limits: {{records_per_chunk: 1}}\n")
    for expected in (["events"], []):
        (spark_submit.parent / "argv").write_text("")
        answer = run(task_probe, spark_submit)
        assert answer.value["error"] is None
        assert submitted(spark_submit) == expected
    assert lake.decoded() == [(0, 0, "a"), (0, 1, "b"), (0, 2, "c")]
    lake.check()


def test_a_retry_decodes_the_records_that_a_failed_task_left(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """A task that is cleared afterwards repeats nothing."""
    failed = run(task_probe, spark_submit, ExitCode.TRANSIENT)
    assert failed.value["error"]
    lake.land_values([b"c"])
    spark_submit.write_text(DECODING)
    versions = []
    for _ in range(2):
        assert run(task_probe, spark_submit).value["error"] is None
        versions.append(DeltaTable(lake.typed_uri).version())
    assert versions[0] == versions[1]
    assert lake.decoded() == [(0, 0, "a"), (0, 1, "b"), (0, 2, "c")]
    lake.check()


def test_a_run_with_undecoded_records_is_not_followed_by_another_run(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """Its decode has failed, and the decode of another run would fail again."""
    bronze = lake.bronze
    bronze.spec = replace(bronze.spec, records_per_run=1)
    bronze.produce(2, 0)
    plan = bronze.planner.plan(RUN).plan
    assert plan is not None
    bronze.ingest.execute(plan.sequence)
    record_decision(bronze.control, "events", plan.sequence)
    for expected in (False, True):
        answer = task_probe.ask(
            "call_task",
            environ=environ_of(spark_submit, ExitCode.OK),
            task="has_left",
            pipelines=["events"],
            requested_by=RUN,
        )
        assert answer.value == {"error": None, "result": expected}
        lake.run()


def test_a_typed_table_that_changed_since_the_run_was_planned_has_an_event(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """The event has both versions. A table without changes of rows has no event."""
    environ = environ_of(spark_submit, ExitCode.OK)

    def publish(since: int | None) -> dict[str, Any]:
        answer: dict[str, Any] = task_probe.ask(
            "published", task="publish_run", environ=environ, alias="events", pipelines=["events"],
            requested_by="a run", versions={"events@typed": since} if since is not None else None,
        ).value  # fmt: skip
        return answer

    lake.run()
    version = DeltaTable(lake.typed_uri).version()
    assert publish(since=version - 1)["events"] == [
        {
            "asset": "tidemark_events_typed",
            "uri": "x-tidemark://typed/events",
            "pipeline": "events@typed",
            "table": str(lake.typed_uri),
            "table_version": version,
            "since_version": version - 1,
        }
    ]
    assert "AirflowSkipException" in publish(since=version)["error"]
    # The records of a plan were undone before they were decoded.
    lake.bronze.undo.undo(lake.land_values([b"c"]).sequence, "ops", "not meant")
    lake.run()
    DeltaTable(lake.typed_uri).optimize.compact()
    before, version = version, DeltaTable(lake.typed_uri).version()
    assert version > before
    assert "AirflowSkipException" in publish(since=before)["error"]
    # The task `plan` failed before it read the version.
    (unknown,) = publish(since=None)["events"]
    assert (unknown["table_version"], unknown["since_version"]) == (version, None)


def test_an_undefined_connection_to_the_registry_is_named(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """The task reads it from Airflow's secrets backends."""
    lake.land_values([framed(7, b"\x02")])
    spec = spark_submit.parent / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text().replace("format: string", "format: avro"))
    answer = run(task_probe, spark_submit)
    assert "Connection 'schema_registry_default' is not defined" in answer.value["error"]
    assert answer.value["fails_now"] is True
    assert not (spark_submit.parent / "argv").exists()


def test_a_job_gets_the_registrys_password_in_its_environment_only(
    task_probe: Probe, spark_submit: Path
) -> None:
    """Neither its command line nor the log of the task contains it."""
    home = spark_submit.parent
    lake = home_typed_lake(home, "registry: trades, value: {format: avro}")
    lake.land_values([framed(7, b"\x02")])
    with registry_proxy(registry_answers({7: _SCHEMA}), f"reader:{SECRET}") as proxy:
        extra = {"url": f"http://{proxy.address}", "basic.auth.user.info": f"reader:{SECRET}"}
        # The connection is in a secrets backend, because a job inherits the worker's environment.
        (defined,) = connection_environ(extra).values()
        (home / "connections.json").write_text(f'{{"trades": {defined}}}')
        backend = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
        kept = {"connections_file_path": str(home / "connections.json")}
        environ = {
            "AIRFLOW__SECRETS__BACKEND": backend,
            "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(kept),
        }
        answer = run(task_probe, spark_submit, ExitCode.CRASH, **environ)
    assert proxy.requests == ["/schemas/ids/7"]
    stored = pa.table(DeltaTable(lake.root / "control" / "schemas").scan()).to_pylist()
    assert [row["schema_id"] for row in stored] == [7]
    assert submitted(spark_submit) == ["events"]
    assert answer.value["environment_restored"] is True
    assert SECRET in (home / "environ").read_text()
    assert SECRET not in (home / "argv").read_text()
    assert "plans=events" in answer.printed
    assert "plan" not in answer.printed.partition("engine=")[0], "the engine comes first"
    assert SECRET not in answer.printed
    assert SECRET not in json.dumps(answer.value)
