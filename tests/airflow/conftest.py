"""Fixtures that run Airflow in a separate process with a separate home."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import PROJECT

TASK_MODULES = (
    *(f"tidemark.airflow.{name}" for name in ("chunks", "maintenance", "operators", "tasks")),
    *("airflow.sdk.execution_time.supervisor", "deltalake", "tidemark.app.pipeline"),
    *(f"tidemark.delta.{name}" for name in ("control_table", "data_table", "published_view")),
    *("tidemark.kafka.watermarks", "tidemark.spark.settings", "tidemark.spec.loading"),
)
"""Modules that every task loads. Otherwise each fork would load them again."""

# This program records its arguments and environment. It prints OUTPUT; if OUTPUT is empty and the
# exit code is 0, it prints a result of each plan.
SPARK_SUBMIT = """\
#!/bin/sh
printf '%s\\n' "$@" > "$SEEN/argv"
env > "$SEEN/environ"
results=
while [ $# -gt 0 ]; do
    if [ "$1" = --plan ]; then
        plan='"pipeline": "'"${2%=*}"'", "plan": '"${2#*=}"
        results="$results${results:+, }{$plan, \\"wrote\\": true}"
    fi
    shift
done
[ "$CODE$OUTPUT" != 0 ] || OUTPUT="TIDEMARK_RESULT [$results]"
echo "$OUTPUT"
[ "$CODE" -ge 0 ] || kill "$CODE" $$
exit "$CODE"
"""


class Answer(NamedTuple):
    """The value that a call in the probe returned, and what the call printed."""

    value: Any
    printed: str


class Probe:
    """Client of the process `tests/airflow/probe.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, name: str, **arguments: Any) -> Answer:
        """Call a function of the probe in a new fork."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps({'name': name, 'arguments': arguments})}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the probe has ended"
        reply = json.loads(line)
        assert "crash" not in reply, f"{reply['crash']}\n{reply['printed']}"
        return Answer(reply["value"], reply["printed"])


def airflow_environment(home: Path) -> dict[str, str]:
    """The environment of an Airflow without a scheduler, and without connections."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK"))}
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "GX_ANALYTICS_ENABLED": "False",
        "NO_COLOR": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    """A process with the modules of the DAG processor, for all tests of the run."""
    with _probe(tmp_path_factory.mktemp("airflow")) as answering:
        yield answering


@pytest.fixture(scope="session")
def task_probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    """A process with the modules of tasks, for all tests of the run.

    It answers faster than `probe`, also about DAG files.
    """
    with _probe(tmp_path_factory.mktemp("airflow-tasks"), *TASK_MODULES) as answering:
        yield answering


@contextmanager
def _probe(home: Path, *modules: str) -> Iterator[Probe]:
    with (home / "probe.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(PROJECT / "tests" / "airflow" / "probe.py"), *modules],
            env=airflow_environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        with process:
            yield Probe(process)
            assert process.stdin is not None
            process.stdin.close()


SPARK: dict[str, Any] = {
    "conn_type": "spark",
    "host": "local[2]",
    "extra": {"deploy-mode": "cluster", "spark-binary": "spark9-submit"},
}
"""A Spark connection with the program of the fixture."""


def submit_environ(program: Path, spark: Mapping[str, Any] = SPARK) -> dict[str, str]:
    """Return variables with which a process calls the program instead of spark-submit."""
    return {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        "PATH": os.pathsep.join([str(program.parent), os.environ["PATH"]]),
    }


@pytest.fixture
def spark_submit(tmp_path: Path) -> Path:
    """A program that records its calls; connection and PATH must name it (`submit_environ`)."""
    program = tmp_path / SPARK["extra"]["spark-binary"]
    program.write_text(SPARK_SUBMIT)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program
