"""The operator that submits Spark jobs, with a real process instead of spark-submit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import SPARK, Answer, Probe, submit_environ
from tests.support.plans import append_events, make_plan
from tidemark.core.errors import ExitCode
from tidemark.core.events import Planned
from tidemark.core.origins import RunOrigin
from tidemark.delta.control_table import DeltaControlTable
from tidemark.kafka.errors import TopicMissing

RUN = "airflow:tidemark_prices:manual__1"
SECRET = "correct-horse-battery"
KAFKA = {
    "conn_type": "kafka",
    "extra": {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": SECRET,
    },
}


def environment(
    program: Path,
    code: int,
    printed: str = "",
    spark: dict[str, Any] | None = SPARK,
    kafka: dict[str, Any] | None = KAFKA,
) -> dict[str, str]:
    """Record plan 7 of `prices` for a run; return the variables of the run's ingest task."""
    environ = {"SEEN": str(program.parent), "CODE": str(code), "OUTPUT": printed}
    program.parent.mkdir(exist_ok=True)
    lakehouse = program.parent / "lakehouse"
    environ["TIDEMARK_LAKEHOUSE"] = str(lakehouse)
    control = DeltaControlTable(str(lakehouse / "control" / "offset_ranges"))
    if control.plan_record("prices", 7) is None:
        plan = make_plan((0, 0, 5), pipeline="prices", sequence=7, origin=RunOrigin(RUN))
        append_events(control, "prices", Planned(plan=plan))
    environ |= {} if spark is None else submit_environ(program, spark)
    environ |= {} if kafka is None else {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka)}
    return environ


def ingest() -> dict[str, Any]:
    """Return the arguments of the ingest task of that run."""
    return {"task": "ingest_run", "pipelines": ["prices"], "requested_by": RUN}


def run(
    task_probe: Probe,
    program: Path,
    code: int,
    printed: str = "",
    spark: dict[str, Any] | None = SPARK,
    kafka: dict[str, Any] | None = KAFKA,
) -> Answer:
    """Run the ingest task of a run with plan 7 of `prices`."""
    environ = environment(program, code, printed, spark, kafka)
    return task_probe.ask("run_job", environ=environ, **ingest())


@pytest.mark.parametrize(
    ("code", "fails_now"),
    [
        (ExitCode.CRASH, False),
        (ExitCode.USAGE, True),
        (ExitCode.REFUSED, True),
        (ExitCode.QUALITY_FAILED, True),
        (ExitCode.TRANSIENT, False),
        (ExitCode.UNKNOWN_OUTCOME, False),
        (137, False),
        (127, True),
    ],
)
def test_the_exit_code_alone_decides_between_retry_and_failure(
    task_probe: Probe, spark_submit: Path, code: int, fails_now: bool
) -> None:
    """The output of the job changes neither a retry nor a failure."""
    answer = run(task_probe, spark_submit, code, printed="retryable: AirflowFailException 3 75")
    assert answer.value["error"] is not None
    assert answer.value["fails_now"] is fails_now


def test_a_job_that_ends_well_without_a_result_is_retried(
    task_probe: Probe, spark_submit: Path
) -> None:
    """A wrapper around spark-submit may end with exit code 0 although no job ran."""
    other = 'TIDEMARK_RESULT [{"pipeline": "orders", "plan": 7, "wrote": true}]'
    for printed in ("submitted", other):
        answer = run(task_probe, spark_submit, ExitCode.OK, printed=printed)
        first = answer.value["error"].splitlines()[0]
        ended = "The Spark process ended with exit code 0 before it reported a result"
        assert first.startswith(f"prices: EngineStopped: {ended}")
        assert answer.value["fails_now"] is False


def test_a_job_that_fails_after_good_results_fails_its_task(
    task_probe: Probe, spark_submit: Path
) -> None:
    """No error is named, for example if the JVM fails while it ends."""
    results = [{"pipeline": "prices", "plan": 7, "wrote": True}]
    printed = f"TIDEMARK_RESULT {json.dumps(results)}\njava.io.IOException: No space left"
    answer = run(task_probe, spark_submit, ExitCode.CRASH, printed=printed)
    assert "exit code 1" in answer.value["error"]
    assert "java.io.IOException: No space left" in answer.printed


def test_the_jobs_named_error_is_the_tasks_error(task_probe: Probe, spark_submit: Path) -> None:
    """The message does not contain the command line."""
    named = TopicMissing(topic="prices")
    landed = {"pipeline": "orders", "plan": 3, "wrote": True}
    results = [landed, {"pipeline": "prices", "plan": 7, **named.as_record()}]
    printed = f"TIDEMARK_RESULT {json.dumps(results)}"
    answer = run(task_probe, spark_submit, ExitCode.REFUSED, printed=printed)
    assert answer.value["error"] == f"prices: TopicMissing: {named}"


def test_only_the_log_has_the_output_of_a_crashed_job(
    task_probe: Probe, spark_submit: Path
) -> None:
    """An alarm sends the error to others, and the output may contain values of records."""
    answer = run(task_probe, spark_submit, ExitCode.CRASH, printed=f"ValueError: card {SECRET}")
    assert "exit code 1 of spark-submit" in answer.value["error"]
    assert SECRET not in answer.value["error"]
    assert f"ValueError: card {SECRET}" in answer.printed


def test_the_command_line_names_pipeline_and_plan(task_probe: Probe, spark_submit: Path) -> None:
    """It has client mode, the connection's master and the spec's Spark settings."""
    assert run(task_probe, spark_submit, 0).value["error"] is None
    argv = (spark_submit.parent / "argv").read_text().splitlines()
    assert argv[argv.index("--master") + 1] == "local[2]"
    assert argv[argv.index("--deploy-mode") + 1] == "client"
    assert argv[argv.index("--name") + 1] == "tidemark-ingest-prices"
    assert argv[-2:] == ["--plan", "prices=7"]
    assert argv[-3].endswith("/jobs/ingest.py")
    assert any(value.startswith("spark.driver.extraClassPath=") for value in argv)


def test_credentials_reach_the_job_by_its_environment_alone(
    task_probe: Probe, spark_submit: Path
) -> None:
    """No log, no command line, no rendered field in Airflow's database contains them."""
    answer = run(task_probe, spark_submit, ExitCode.CRASH, spark={**SPARK, "host": "yarn"})
    environ = (spark_submit.parent / "environ").read_text()
    assert "AIRFLOW_CONN_KAFKA_DEFAULT=" in environ
    assert SECRET in environ
    assert "PYSPARK_PYTHON=" in environ
    assert SECRET not in (spark_submit.parent / "argv").read_text()
    assert "plans=prices=7" in answer.printed
    assert SECRET not in answer.printed + json.dumps(answer.value)
    assert list(answer.value["rendered"]) == ["op_kwargs"]
    assert answer.value["environment_restored"] is True


def test_a_missing_spark_connection_is_refused(task_probe: Probe, spark_submit: Path) -> None:
    """Airflow's hook would submit to YARN instead."""
    answer = run(task_probe, spark_submit, 0, spark=None)
    assert answer.value["error"].startswith("InvalidConnection: Connection 'spark_default'")
    assert answer.value["fails_now"] is True
    assert not (spark_submit.parent / "argv").exists()


def test_a_missing_kafka_connection_is_refused(task_probe: Probe, spark_submit: Path) -> None:
    """The refusal comes before Spark is started."""
    answer = run(task_probe, spark_submit, 0, kafka=None)
    assert answer.value["error"].startswith("InvalidConnection: Connection 'kafka_default'")
    assert answer.value["fails_now"] is True
    assert not (spark_submit.parent / "argv").exists()


def test_a_missing_spark_submit_is_named(task_probe: Probe, tmp_path: Path) -> None:
    """The error is one clear line, and no FileNotFoundError."""
    answer = run(task_probe, tmp_path / "nowhere", 0)
    assert answer.value["error"].startswith(
        "SetupError: The program spark9-submit cannot be started"
    )
    assert answer.value["fails_now"] is True
