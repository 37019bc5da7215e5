"""A small run with every step, in whole processes: on both engines, and by a user's stream."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.clock import cpu_of_tree, run_process
from bench.context import Context
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.quotes import PARTITIONS, PIPELINE, QuoteTopic
from bench.tables import verified
from bench.whole_runs import SEARCH_PATH, program
from bench.worker import plain_settings
from tidemark.app.app import App
from tidemark.spark.engine import TOKEN_VARIABLE, Server
from tidemark.spark.submit import conf_arguments

_TUNED = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}
_PEER = Path(__file__).parents[1] / "jobs" / "validated_stream.py"
_IMPORT = re.compile(r"^import time: +(\d+) \|", re.MULTILINE)
_Environ = Mapping[str, str]


class _Runs:
    """One topic, and tables for each side.

    Args:
        context: Context of the run; `records` is the number of new records per repetition.
        app: An app with a running Spark Connect server.
        server: The server of the app.
    """

    def __init__(self, context: Context, app: App, server: Server) -> None:
        self._context = context
        self._home = context.home / "run"
        self._specs = self._home / "pipelines"
        self._app, self._server = app, server
        self._fed: int | None = None
        self._topic = QuoteTopic(context)
        self._topic.write_spec(self._specs)

    def feed(self, repetition: int) -> None:
        """Produce the new records of a repetition; later calls for the repetition do nothing."""
        if self._fed != repetition:
            self._fed = repetition
            self._topic.feed()

    def whole(self, lakehouse: str, *, on_server: bool) -> Metrics:
        """Measure `tidemark run`."""
        metrics = self._command(lakehouse, "run", on_server=on_server)
        held = self._topic.check_lakehouse(self._home / lakehouse)
        return {**metrics, **held}

    def steps(self, lakehouse: str, *, on_server: bool) -> Metrics:
        """Measure `tidemark ingest`, then `tidemark check`, as separate processes."""
        metrics: dict[str, float] = {}
        for step in ("ingest", "check"):
            took = self._command(lakehouse, step, on_server=on_server)
            metrics |= {f"{step}_{name}": value for name, value in took.items()}
        verified(str(self._home / lakehouse / "bronze" / PIPELINE), self._topic.total)
        return metrics

    def peer(self, folder: str, settings: Mapping[str, str], *, on_server: bool) -> Metrics:
        """Measure the stream, by spark-submit or on the server."""
        home = self._home / folder
        home.mkdir(exist_ok=True)
        places = [str(home / name) for name in ("appended", "merged", "checkpoint")]
        words = [str(_PEER), self._context.bootstrap, PIPELINE, *places]
        if on_server:
            command = [sys.executable, *words, *(f"{k}={v}" for k, v in settings.items())]
            environ = {
                "SPARK_REMOTE": f"sc://{self._server.host}:{self._server.port}",
                TOKEN_VARIABLE: self._server.token,
            }
        else:
            conf = conf_arguments({**plain_settings(self._context.master), **settings})
            command, environ = [program("spark-submit"), *conf, *words], {}
        metrics = self._timed(command, environ, on_server=on_server)
        return {**metrics, **self._topic.check_tables(home / "appended", home / "merged")}

    def _command(self, lakehouse: str, step: str, *, on_server: bool) -> dict[str, float]:
        engine = (
            f"sc://{self._server.host}:{self._server.port}" if on_server else self._context.master
        )
        environ = {
            **self._context.environ(self._home / lakehouse, self._specs),
            TOKEN_VARIABLE: self._server.token if on_server else "",
            # The process prints what each import takes, which costs it a few percent.
            **({"PYTHONPROFILEIMPORTTIME": "1"} if on_server else {}),
        }
        command = [program("tidemark"), step, PIPELINE, "--master", engine]
        metrics = self._timed(command, environ, on_server=on_server)
        if not on_server:
            return metrics
        return {**metrics, "import_seconds": import_seconds(self._home / "run.log")}

    def _timed(self, command: list[str], environ: _Environ, *, on_server: bool) -> dict[str, float]:
        pid = self._app.engines.server().status().pid
        before = cpu_of_tree(pid) if on_server and pid else 0.0
        watch = run_process(
            command, self._home / "run.log", {**environ, "PATH": SEARCH_PATH}, cwd=self._home
        )
        of_server = cpu_of_tree(pid) - before if on_server and pid else 0.0
        return {
            "seconds": watch.seconds,
            "cpu_seconds": watch.cpu_seconds + of_server,
            "process_cpu_seconds": watch.cpu_seconds,
        }


def import_seconds(log: Path) -> float:
    """Return the seconds that the imports of a process took, from its log.

    Source: CPython's `-X importtime`: the first number of a line is the module's own time, in
    microseconds.
    """
    return sum(map(int, _IMPORT.findall(log.read_text()))) / 1_000_000


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    app = App.from_environment(context.environ(context.home / "tables", context.home / "none"))
    server = app.engines.server()
    context.progress("starting a Spark Connect server")
    try:
        server.start(app.engines.check_requirements)
        running = server.running()
        if running is None:
            raise RuntimeError("the server ended")
        runs = _Runs(context, app, running)

        def side(name: str, what: str, run: Callable[[], Metrics]) -> Side:
            def run_repetition(repetition: int) -> Metrics:
                runs.feed(repetition)
                return run()

            return Side(name=name, what=what, run=run_repetition)

        yield Setup(
            sides=[
                side(
                    "run_server",
                    "tidemark run on a running Spark Connect server",
                    partial(runs.whole, "server", on_server=True),
                ),
                side(
                    "run_submit",
                    "tidemark run by spark-submit",
                    partial(runs.whole, "submit", on_server=False),
                ),
                side(
                    "peer",
                    "spark-submit of a stream that appends, validates and merges; tuned",
                    partial(runs.peer, "peer", _TUNED, on_server=False),
                ),
                side(
                    "peer_defaults",
                    "the same with the defaults of Spark and Delta",
                    partial(runs.peer, "peer_defaults", {}, on_server=False),
                ),
                side(
                    "peer_server",
                    "the same, tuned, on the Spark Connect server",
                    partial(runs.peer, "peer_server", _TUNED, on_server=True),
                ),
                side(
                    "steps_server",
                    "tidemark ingest, then tidemark check, on the server",
                    partial(runs.steps, "steps_server", on_server=True),
                ),
                side(
                    "steps_submit",
                    "the same, each by spark-submit",
                    partial(runs.steps, "steps_submit", on_server=False),
                ),
            ],
            data={
                "new_records_each_repetition": context.records,
                "values": "JSON of about 200 B with a key; all of them pass every rule",
                "partitions": PARTITIONS,
                "rules": 5,
                "content": "appended to existing tables; one warm-up run is not measured",
                "peer_settings": json.dumps(_TUNED),
                "cores": os.cpu_count(),
            },
            warm_ups=1,
        )
    finally:
        server.stop()


BENCHMARKS = [
    Benchmark(
        name="run",
        title="A small run with every step, whole processes",
        ratios=[
            Ratio(over="run_server", under="peer", metric="seconds", at_most=0.35),
            Ratio(over="run_submit", under="peer", metric="seconds", at_most=0.6),
            Ratio(over="run_server", under="peer", metric="cpu_seconds"),
            Ratio(over="run_submit", under="peer", metric="cpu_seconds"),
            Ratio(over="run_server", under="peer_server", metric="seconds"),
            Ratio(over="run_submit", under="peer_defaults", metric="seconds"),
            Ratio(over="steps_server", under="steps_submit", metric="ingest_seconds", at_most=0.35),
            Ratio(over="steps_server", under="steps_submit", metric="check_seconds", at_most=0.25),
        ],
        open=_open,
        records=1_000,
        full_records=1_000,
    ),
]
