"""Whole processes over one small topic: Tidemark's commands and its peers' spark-submits."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.clock import Stopwatch, run_process
from bench.context import Context, write_spec
from bench.kafka import fill_topic, make_topic
from bench.tables import verified
from bench.worker import plain_settings
from tidemark.core.watermarks import IsolationLevel
from tidemark.spark.submit import conf_arguments

PARTITIONS = 3
_PROGRAMS = Path(sys.executable).parent
SEARCH_PATH = f"{_PROGRAMS}:/usr/bin:/bin"
"""A PATH whose first `python` has the PySpark that spark-submit uses."""
_JOBS = Path(__file__).parent / "jobs"


class WholeRuns:
    """One topic, one pipeline over it, and a table for each side.

    Args:
        context: Context of the run; `records` is the number of new records per repetition.
        name: Name of topic, pipeline and folder.
    """

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._name = name
        self._home = context.home / name
        self._specs = self._home / "pipelines"
        self._fed: int | None = None
        self._total = 0
        self._before: Mapping[int, int] = {}
        self._after: Mapping[int, int] = {}
        write_spec(self._specs, name, name, context.conf)
        make_topic(context, name, PARTITIONS)
        self._app = context.app(self._home / "tidemark", self._specs)
        self._java_home, self._java_calls = counted_java(self._home)

    def feed(self, repetition: int) -> None:
        """Produce the new records of a repetition; later calls for the repetition do nothing."""
        if self._fed == repetition:
            return
        self._fed = repetition
        fill_topic(self._context, self._name, self._context.records)
        self._total += self._context.records
        watermarks = self._app.pipeline(self._name).adapters.watermarks
        found = watermarks.topic_watermarks(self._name, IsolationLevel.READ_COMMITTED)
        self._before = self._after or {partition: 0 for partition in found.partitions}
        self._after = {partition: here.end for partition, here in found.partitions.items()}

    def tidemark_ingest(self) -> dict[str, float]:
        """Measure `tidemark ingest`: plan, spark-submit jobs/ingest.py, confirm, record."""
        return self._measured(
            [program("tidemark"), "ingest", self._name, "--master", self._context.master],
            str(self._home / "tidemark" / "bronze" / self._name),
        )

    def tidemark_plan(self) -> dict[str, float]:
        """Measure `tidemark plan`."""
        return self._measured(
            [program("tidemark"), "plan", self._name],
            str(self._home / "tidemark" / "bronze" / self._name),
        )

    def plain_batch(self) -> dict[str, float]:
        """Measure spark-submit of a batch read of the new offsets, which are given."""
        path = str(self._home / "batch")
        offsets = [self._offsets(self._before), self._offsets(self._after)]
        return self._measured(
            [*self._submit("plain_batch.py"), self._context.bootstrap, self._name, path, *offsets],
            path,
        )

    def available_now(self) -> dict[str, float]:
        """Measure spark-submit of a stream with availableNow and a checkpoint."""
        path, checkpoint = str(self._home / "stream"), str(self._home / "checkpoint")
        return self._measured(
            [
                *self._submit("available_now.py"),
                *(self._context.bootstrap, self._name, path, checkpoint),
            ],
            path,
        )

    def _measured(self, command: list[str], table: str) -> dict[str, float]:
        self._java_calls.write_text("")
        watch: Stopwatch = run_process(command, self._home / "run.log", self._environ())
        started = len(self._java_calls.read_text().splitlines())
        held = verified(table, self._total)
        return {**watch.metrics(), "jvms": started, "records": held["records"]}

    def _environ(self) -> dict[str, str]:
        return {
            **self._context.environ(self._home / "tidemark", self._specs),
            "JAVA_HOME": str(self._java_home),
            "PATH": SEARCH_PATH,
        }

    def _submit(self, script: str) -> list[str]:
        conf = conf_arguments(plain_settings(self._context.master))
        return [program("spark-submit"), *conf, str(_JOBS / script)]

    def _offsets(self, by_partition: Mapping[int, int]) -> str:
        return json.dumps({self._name: {str(p): offset for p, offset in by_partition.items()}})


def program(name: str) -> str:
    """Return the path of a command of this virtual environment."""
    return str(_PROGRAMS / name)


def counted_java(home: Path) -> tuple[Path, Path]:
    """Return a JAVA_HOME whose `java` first adds a line to a file, and the path of this file."""
    real = shutil.which("java")
    calls, program = home / "java-calls", home / "java-home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$$" >> "{calls}"\nexec "{real}" "$@"\n')
    program.chmod(0o755)
    return program.parents[1], calls
