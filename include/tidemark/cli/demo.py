"""`tidemark demo`: all of Tidemark once, on real parts, with a check of every step."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.app.pipelines import for_each
from tidemark.app.statuses import record_status
from tidemark.cli.arguments import Seed
from tidemark.cli.errors import DemoFailed
from tidemark.cli.local import start_spark, stop_all
from tidemark.cli.output import note, out, print_table, step
from tidemark.core.errors import SetupError
from tidemark.core.ledger import Ledger
from tidemark.core.texts import counted
from tidemark.local.broker import home_broker

if TYPE_CHECKING:
    from tidemark.local.airflow_api import AirflowApi, DagRun
    from tidemark.local.airflow_standalone import AirflowStatus

_FIRST = {"streams-intro": 5, "prices": 2_000, "orders": 500}
_SECOND = {"streams-intro": 5, "prices": 1_000, "orders": 300}
_BACKFILLED = "prices_strategy"
_MARKER = "tidemark-demo"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Run all parts once, and check the results.")(demo)


def demo(
    home: Annotated[
        Path | None,
        typer.Option(help="Folder of the demo's state, emptied first; by default .tidemark/demo."),
    ] = None,
    seed: Seed = 1,
) -> None:
    """Run the broker, Airflow and Spark; check runs with and without new records, and a backfill.

    The demo starts its own broker, Spark server and Airflow on free ports, and stops them at the
    end. In a terminal it first prints the address of the console, and waits for the Enter key. The
    tables and the Data Docs stay in the demo's folder. The last line of the results begins with
    `tidemark-demo` and contains counts. The exit code is 0 only if every check passed.
    """
    here = App.from_environment()
    folder = (home or here.layout.home / "demo").resolve()
    app = App.from_environment({"TIDEMARK_HOME": str(folder)})
    _empty(app)
    try:
        _Demo(app=app, seed=seed).run()
        if sys.stdin.isatty() and sys.stdout.isatty():
            _wait_for_key(app.airflow().status())
    finally:
        stop_all(app)


def _wait_for_key(airflow: AirflowStatus) -> None:
    """Keep all parts running until a person has seen the console."""
    out.print(f"console        {airflow.console}")
    out.print(f"login          {airflow.username}, password {airflow.password}")
    with suppress(EOFError):
        input("Press Enter to stop. ")


def _empty(app: App) -> None:
    """Empty the demo's folder; refuse a folder that the demo did not create."""
    folder = app.layout.home
    marker = folder / _MARKER
    if folder.exists() and any(folder.iterdir()):
        if not marker.exists():
            raise SetupError(
                finding=f"The folder {folder} is not the demo's.",
                needed="a folder that does not exist, is empty, or was created by the demo",
                seen=f"files without {_MARKER}",
                advice="Choose another folder with --home.",
            )
        stop_all(app)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()


@dataclass
class _Demo:
    """One run of the demo.

    Attributes:
        app: Tidemark in the demo's folder.
        seed: Seed of the sample records.
        produced: Number of produced records, by topic.
        failures: Failed checks.
        counts: Counts of the last line.
    """

    app: App
    seed: int
    produced: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        begun = time.monotonic()
        self._start_kafka()
        self._produce("1/6 records for the sample topics", _FIRST)
        start_spark(self.app, records=sum(_FIRST.values()))
        self._start_airflow()
        self._round("2/6 scheduled runs: all records", None, self._check_first)
        self._produce("3/6 more records", _SECOND)
        self._round("4/6 second runs: new records only", "second", self._check_second)
        self._round("5/6 third runs: no new records, no Spark job", "third", self._check_third)
        self._backfill()
        self._show()
        self._finish(time.monotonic() - begun)

    # -- parts -----------------------------------------------------------------------------------

    def _start_kafka(self) -> None:
        step("starting Kafka")
        kafka = home_broker(self.app.layout).start()
        note(f"Kafka at {kafka.bootstrap}, data in {kafka.home}")
        self.app = App.from_environment(
            {
                "TIDEMARK_HOME": str(self.app.layout.home),
                "TIDEMARK_PIPELINES": str(self._daily_specs()),
                connection_variable("kafka_default"): kafka_connection(kafka.bootstrap),
            }
        )

    def _daily_specs(self) -> Path:
        """Return a folder with the shipped specs, each with a daily DAG of its own.

        When a DAG is switched on, Airflow runs its last interval at once. No further scheduled run
        starts during the demo.
        """
        folder = self.app.layout.home / "pipelines"
        folder.mkdir()
        for spec in self.app.layout.specs.glob("*.yaml"):
            text = re.sub(r"(?m)^schedule: .*$", 'schedule: "@daily"', spec.read_text("utf-8"))
            text = re.sub(r"(?m)^group: .*$", "", text)
            (folder / spec.name).write_text(text, "utf-8")
        return folder

    def _produce(self, title: str, counts: Mapping[str, int]) -> None:
        from tidemark.local.producer import produce

        step(title)
        config = self.app.connections.kafka_config("kafka_default")
        topics = {spec.topic for spec in self.app.specs.values()}
        for name, records in counts.items():
            if name not in topics:
                continue
            written = sum(produce(config, name, records=records, seed=self.seed).values())
            self.produced[name] += written
            note(f"{counted(written, 'record')} to topic {name}")
        self._record_status()

    def _record_status(self) -> None:
        """Record the lag of each pipeline, for the charts of the console."""
        found = for_each(self.app, list(self.app.specs), lambda each: each.report.status())
        record_status(self.app, found)

    def _start_airflow(self) -> None:
        step("starting Airflow (half a minute)")
        airflow = self.app.airflow()
        running = airflow.start(progress=note)
        note(f"Airflow at {running.url}, login {running.username} / {running.password}")
        self.api: AirflowApi = airflow.api()
        dag_ids = [*(spec.dag_id for spec in self.app.specs.values()), "tidemark_backfill"]
        self.api.wait_for_dags(dag_ids)
        for dag_id in dag_ids:
            self.api.set_paused(dag_id, False)
        note(f"{len(dag_ids)} DAGs switched on")

    def _round(
        self, title: str, name: str | None, check: Callable[[str, DagRun, Ledger], None]
    ) -> None:
        """Wait for one run of every pipeline's DAG: triggered as `name`, or the scheduled one."""
        step(title)
        dag_ids = {pipeline: spec.dag_id for pipeline, spec in self.app.specs.items()}
        run_ids = {
            dag_id: self.api.trigger(dag_id, run_id=f"demo_{name}")
            if name
            else self.api.wait_for_run(dag_id)
            for dag_id in dag_ids.values()
        }
        for pipeline, dag_id in dag_ids.items():
            check(pipeline, self._wait(dag_id, run_ids[dag_id]), self._ledger(pipeline))
        self._record_status()

    def _wait(self, dag_id: str, run_id: str) -> DagRun:
        run = self.api.wait(dag_id, run_id, timeout_s=1_200)
        tasks = ", ".join(f"{task} {state}" for task, state in run.tasks.items())
        note(f"{dag_id}: {run.state} ({tasks})")
        self._expect(run.state == "success", f"{dag_id} {run_id} ended in state {run.state}")
        for task in run.failed_tasks:
            note(self.api.log_tail(dag_id, run_id, task))
        return run

    # -- checks ----------------------------------------------------------------------------------

    def _check_first(self, pipeline: str, run: DagRun, ledger: Ledger) -> None:
        """Check that pipelines that start at the earliest offset land all records, others none."""
        starts_late = pipeline == _BACKFILLED
        expected = 0 if starts_late else self.produced[self.app.spec(pipeline).topic]
        self._expect_landed(pipeline, ledger, expected)
        if starts_late:
            self._expect(_skipped_spark(run), f"{pipeline}: Spark ran with nothing to read")

    def _check_second(self, pipeline: str, run: DagRun, ledger: Ledger) -> None:
        """Check that the second run's plan contains exactly the new records."""
        newest = ledger.plans[max(ledger.plans)]
        new = _SECOND[self.app.spec(pipeline).topic]
        self._expect(newest.plan.size == new, f"{pipeline}: planned {newest.plan.size}, not {new}")
        self._expect(run.tasks.get("ingest") == "success", f"{pipeline}: nothing was ingested")

    def _check_third(self, pipeline: str, run: DagRun, ledger: Ledger) -> None:
        """Check that a run without new records starts no Spark."""
        del ledger
        self._expect(_skipped_spark(run), f"{pipeline}: Spark ran with nothing to read")
        self.counts["runs_without_spark"] += 1

    def _backfill(self) -> None:
        """Backfill a partition of a pipeline with `start: latest`, from offset 0, twice."""
        pipeline = _BACKFILLED
        ledger = self._ledger(pipeline)
        start = min(ledger.starts, key=lambda partition: -ledger.starts[partition])
        missing, end = ledger.starts[start], ledger.committed_offset(start)
        step(
            f"6/6 backfill of {pipeline}, partition {start}, offsets [0, {end}): "
            f"[{missing}, {end}) has landed"
        )
        conf = {"pipeline": pipeline, "offsets": f"{start}:0-{end}"}
        for attempt in ("once", "again"):
            run_id = f"demo_backfill_{attempt}"
            self.api.trigger("tidemark_backfill", conf=conf, run_id=run_id)
            run = self._wait("tidemark_backfill", run_id)
            if attempt == "again":
                self._expect(_skipped_spark(run), "the repeated backfill read records")
        self._expect_landed(pipeline, self._ledger(pipeline), _SECOND["prices"] + missing)
        self.counts["backfilled"] = missing

    def _expect_landed(self, pipeline: str, ledger: Ledger, records: int) -> None:
        landed = sum(r.held_now.records for r in ledger.plans.values() if r.held_now)
        self._expect(landed == records, f"{pipeline}: landed {landed} records, not {records}")

    def _expect(self, held: bool, otherwise: str) -> None:
        if not held:
            self.failures.append(otherwise)
            note(f"CHECK FAILED: {otherwise}")

    # -- results ---------------------------------------------------------------------------------

    def _show(self) -> None:
        from tidemark.kafka.groups import consumer_group_ids

        rows = []
        for pipeline, spec in self.app.specs.items():
            count, distinct = count_rows(self.app.layout.data_table(spec.target))
            status = self.app.pipeline(pipeline).report.status()
            rows.append((pipeline, count, distinct, status.last_landed, status.lag))
            self.counts.update(rows=count, duplicates=count - distinct, lag=status.lag or 0)
            self._expect(status.records == count, f"{pipeline}: row count and control table differ")
            verified = self.app.pipeline(pipeline).bronze.verifier.verify()
            self.counts.update(verified=sum(each.records for each in verified.partitions))
            self._expect(not verified.differences, f"{pipeline}: the table differs from Kafka")
        print_table("Tables", ("pipeline", "rows", "distinct records", "last plan", "lag"), rows)
        checked = [
            (pipeline, each.plan.sequence, each.decision.status)
            for pipeline in self.app.specs
            for each in self.app.pipeline(pipeline).publication.plans()
            if each.decision
        ]
        print_table("Quality", ("pipeline", "plan", "status"), checked)
        plans = sum(len(self._ledger(pipeline).plans) for pipeline in self.app.specs)
        failed = sum(1 for *_, status in checked if not status.is_visible)
        groups = consumer_group_ids(self.app.connections.kafka_config("kafka_default"))
        self.counts.update(
            plans=plans, checked_plans=len(checked), blocked_plans=failed, groups=len(groups)
        )
        wanted = self.produced.total() + _SECOND["prices"] + self.counts["backfilled"]
        self._expect(self.counts["rows"] == wanted, f"{self.counts['rows']} rows, not {wanted}")
        self._expect(self.counts["verified"] == wanted, "not every record was verified")
        self._expect(self.counts["duplicates"] == 0, "there are duplicates")
        self._expect(self.counts["lag"] == 0, "there is lag")
        self._expect(len(checked) == plans, f"{len(checked)} of {plans} plans are checked")
        self._expect(failed == 0, "a quality suite failed")
        self._expect(not groups, f"consumer groups exist: {', '.join(groups)}")

    def _finish(self, seconds: float) -> None:
        layout = self.app.layout
        out.print(f"tables         {layout.lakehouse}")
        out.print(f"control table  {layout.control_table}")
        out.print(f"Data Docs      {layout.data_docs}")
        result = "failed" if self.failures else "ok"
        counted = {"produced": self.produced.total(), **self.counts}
        counts = " ".join(f"{key}={value}" for key, value in counted.items())
        out.print(f"tidemark-demo result={result} {counts} seconds={seconds:.0f}")
        if self.failures:
            raise DemoFailed(failures=tuple(self.failures))

    def _ledger(self, pipeline: str) -> Ledger:
        return self.app.control.ledger(pipeline)


def _skipped_spark(run: DagRun) -> bool:
    jobs = [state for task, state in run.tasks.items() if "ingest" in task or "check" in task]
    return bool(jobs) and set(jobs) == {"skipped"}


def count_rows(uri: str) -> tuple[int, int]:
    """Return the number of rows of a bronze table, and of distinct records among them (S5)."""
    from tidemark.delta.table_io import open_if_exists, query_rows

    table = open_if_exists(uri)
    if table is None:
        return 0, 0
    records = 'SELECT count(*) AS count FROM (SELECT DISTINCT topic_id, partition, "offset" FROM t)'
    return table.count(), query_rows(table, records)[0]["count"]
