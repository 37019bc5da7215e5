"""`tidemark demo`: the whole of Tidemark once, on real parts, checked at every step."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.app import App
from tidemark.cli.console import note, out, print_table, step
from tidemark.cli.errors import DemoFailed
from tidemark.cli.service import start_spark, stop_all
from tidemark.connections import connection_variable, kafka_connection
from tidemark.core.errors import SetupError
from tidemark.core.ledger import Ledger
from tidemark.dev.broker import home_broker

if TYPE_CHECKING:
    from tidemark.dev.airflow_api import AirflowApi, DagRun

_FIRST = {"streams-intro": 5, "prices": 2_000, "orders": 500}
_SECOND = {"streams-intro": 5, "prices": 1_000, "orders": 300}
_BACKFILLED = "prices_strategy"
_MARKER = "tidemark-demo"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Show it all, and check it.")(demo)


def demo(
    home: Annotated[
        Path | None,
        typer.Option(help="Folder of the demo's state, made anew; .tidemark/demo if left out."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every sample record.")] = 1,
) -> None:
    """Show it all, and check it: broker, DAGs, new records only, no Spark for nothing, a backfill.

    The demo starts its own broker, Spark server and Airflow on free ports, and stops them at the
    end. The tables and the reports stay in the demo's folder. The last line begins with
    `tidemark-demo` and contains counts. The exit code is 0 only if every check passed.
    """
    here = App.from_environment()
    folder = (home or here.layout.home / "demo").resolve()
    _make_anew(folder)
    app = App.from_environment({"TIDEMARK_HOME": str(folder)})
    try:
        _Demo(app=app, seed=seed).run()
    finally:
        step("stopping Airflow, Spark and Kafka")
        stop_all(app)


def _make_anew(folder: Path) -> None:
    """Empty the demo's folder, and no folder that the demo did not make."""
    marker = folder / _MARKER
    if folder.exists() and any(folder.iterdir()):
        if not marker.exists():
            raise SetupError(
                subject=f"the folder {folder} is not the demo's",
                needed="a folder that does not exist, is empty, or was made by the demo",
                seen=f"files and no {_MARKER} among them",
                advice="choose another folder with --home",
            )
        left = App.from_environment({"TIDEMARK_HOME": str(folder)})
        stop_all(left)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()


@dataclass
class _Demo:
    """One run of the demo.

    Attributes:
        app: Tidemark in the demo's folder.
        seed: Of the sample records.
        produced: Records by topic.
        failures: Checks that did not hold.
        counts: What the last line says.
    """

    app: App
    seed: int
    produced: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        begun = time.monotonic()
        self._start_kafka()
        self._produce("1/6 records for the sample topics", _FIRST)
        start_spark(self.app)
        self._start_airflow()
        self._round("2/6 scheduled runs: everything there is", None, self._check_first)
        self._produce("3/6 more records", _SECOND)
        self._round("4/6 second runs: only what is new", "second", self._check_second)
        self._round("5/6 third runs: nothing new, no Spark job", "third", self._check_third)
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
        """The shipped specs, once a day and in a DAG each: no tick falls between two steps.

        Airflow runs a DAG that is switched on for the interval that is due, at once.
        """
        folder = self.app.layout.home / "pipelines"
        folder.mkdir()
        for spec in self.app.layout.specs.glob("*.yaml"):
            text = re.sub(r"(?m)^schedule: .*$", 'schedule: "@daily"', spec.read_text("utf-8"))
            text = re.sub(r"(?m)^group: .*$", "", text)
            (folder / spec.name).write_text(text, "utf-8")
        return folder

    def _produce(self, title: str, counts: Mapping[str, int]) -> None:
        from tidemark.dev.producer import produce

        step(title)
        config = self.app.connections.kafka_config("kafka_default")
        topics = {spec.topic for spec in self.app.specs.values()}
        for name, records in counts.items():
            if name not in topics:
                continue
            written = sum(produce(config, name, records=records, seed=self.seed).values())
            self.produced[name] = self.produced.get(name, 0) + written
            note(f"{written:,} record(s) to topic {name}")

    def _start_airflow(self) -> None:
        step("starting Airflow (half a minute)")
        airflow = self.app.airflow()
        running = airflow.start(progress=note)
        note(f"Airflow at {running.url}, login {running.username} / {running.password}")
        self.api: AirflowApi = airflow.api()
        dag_ids = [*map(_dag_id, self.app.specs), "tidemark_backfill"]
        self.api.wait_for_dags(dag_ids)
        for dag_id in dag_ids:
            self.api.set_paused(dag_id, False)
        note(f"{len(dag_ids)} DAGs switched on")

    def _round(
        self, title: str, name: str | None, check: Callable[[str, DagRun, Ledger], None]
    ) -> None:
        """Wait for one run of every pipeline's DAG: triggered as `name`, or the scheduled one."""
        step(title)
        run_ids = {pipeline: self._run_id(pipeline, name) for pipeline in self.app.specs}
        for pipeline, run_id in run_ids.items():
            check(pipeline, self._wait(_dag_id(pipeline), run_id), self._ledger(pipeline))

    def _run_id(self, pipeline: str, name: str | None) -> str:
        dag_id = _dag_id(pipeline)
        if name:
            return self.api.trigger(dag_id, run_id=f"demo_{name}")
        return self.api.wait_for_run(dag_id)

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
        """Pipelines that start at the earliest offset take everything, the others nothing."""
        begins_late = pipeline == _BACKFILLED
        expected = 0 if begins_late else self.produced[self._topic(pipeline)]
        self._expect_landed(pipeline, ledger, expected)
        if begins_late:
            self._expect(_skipped_spark(run), f"{pipeline}: Spark ran with nothing to read")

    def _check_second(self, pipeline: str, run: DagRun, ledger: Ledger) -> None:
        """The second run's plan begins where the first ended and holds the new records only."""
        newest = ledger.plans[max(ledger.plans)]
        new = _SECOND[self._topic(pipeline)]
        self._expect(newest.plan.size == new, f"{pipeline}: planned {newest.plan.size}, not {new}")
        self._expect(run.tasks.get("ingest") == "success", f"{pipeline}: nothing was ingested")

    def _check_third(self, pipeline: str, run: DagRun, ledger: Ledger) -> None:
        """Nothing new: no plan, no Spark."""
        del ledger
        self._expect(_skipped_spark(run), f"{pipeline}: Spark ran with nothing to read")
        self.counts["runs_without_spark"] = self.counts.get("runs_without_spark", 0) + 1

    def _backfill(self) -> None:
        """Fill the busiest partition of the late pipeline from its beginning, twice."""
        pipeline = _BACKFILLED
        ledger = self._ledger(pipeline)
        start = min(ledger.starts, key=lambda partition: -ledger.starts[partition])
        missing, end = ledger.starts[start], ledger.committed_offset(start)
        step(
            f"6/6 backfill of {pipeline}, partition {start}, offsets [0, {end}): "
            f"[{missing}, {end}) is landed already"
        )
        conf = {"pipeline": pipeline, "offsets": f"{start}:0-{end}"}
        for attempt in ("once", "again"):
            run_id = f"demo_backfill_{attempt}"
            self.api.trigger("tidemark_backfill", conf=conf, run_id=run_id)
            run = self._wait("tidemark_backfill", run_id)
            if attempt == "again":
                self._expect(_skipped_spark(run), "the repeated backfill read something")
        self._expect_landed(pipeline, self._ledger(pipeline), _SECOND["prices"] + missing)
        self.counts["backfilled"] = missing

    def _expect_landed(self, pipeline: str, ledger: Ledger, records: int) -> None:
        landed = sum(r.held_now.records for r in ledger.plans.values() if r.held_now)
        self._expect(landed == records, f"{pipeline}: landed {landed} records, not {records}")

    def _expect(self, held: bool, otherwise: str) -> None:
        if not held:
            self.failures.append(otherwise)
            note(f"CHECK FAILED: {otherwise}")

    # -- what is there now -----------------------------------------------------------------------

    def _show(self) -> None:
        from tidemark.kafka.groups import consumer_group_ids

        rows = []
        for pipeline, spec in self.app.specs.items():
            count, distinct = count_rows(self.app.layout.data_table(spec.target))
            status = self.app.pipeline(pipeline).status()
            rows.append((pipeline, count, distinct, status.last_landed, status.lag))
            self._add(rows=count, duplicates=count - distinct, lag=status.lag or 0)
            self._expect(status.records == count, f"{pipeline}: table and control disagree")
            verified = self.app.pipeline(pipeline).verify()
            self._add(verified=sum(each.records for each in verified.partitions))
            self._expect(not verified.differences, f"{pipeline}: the table differs from Kafka")
        print_table("Tables", ("pipeline", "rows", "distinct records", "last plan", "lag"), rows)
        self._show_offsets()
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
        self._add(plans=plans, checked_plans=len(checked), blocked_plans=failed, groups=len(groups))
        wanted = sum(self.produced.values()) + _SECOND["prices"] + self.counts["backfilled"]
        self._expect(self.counts["rows"] == wanted, f"{self.counts['rows']} rows, not {wanted}")
        self._expect(self.counts["verified"] == wanted, "not every record was verified")
        self._expect(self.counts["duplicates"] == 0, "there are duplicates")
        self._expect(self.counts["lag"] == 0, "there is lag")
        self._expect(len(checked) == plans, f"{len(checked)} of {plans} plans are checked")
        self._expect(failed == 0, "a quality suite failed")
        self._expect(not groups, f"consumer groups exist: {', '.join(groups)}")

    def _show_offsets(self) -> None:
        rows = [
            (pipeline, p.partition, p.low_watermark, p.committed_offset, p.end, p.lag)
            for pipeline in self.app.specs
            for p in self.app.pipeline(pipeline).status().partitions
        ]
        columns = ("pipeline", "partition", "low", "committed offset", "end", "lag")
        print_table("Committed offsets", columns, rows)

    def _finish(self, seconds: float) -> None:
        layout = self.app.layout
        out.print(f"tables         {layout.lakehouse}")
        out.print(f"control table  {layout.control_table}")
        out.print(f"Data Docs      {layout.data_docs}")
        result = "failed" if self.failures else "ok"
        counted = {"produced": sum(self.produced.values()), **self.counts}
        words = " ".join(f"{key}={value}" for key, value in counted.items())
        out.print(f"tidemark-demo result={result} {words} seconds={seconds:.0f}", markup=False)
        if self.failures:
            raise DemoFailed(failures=tuple(self.failures))

    def _add(self, **numbers: int) -> None:
        for key, value in numbers.items():
            self.counts[key] = self.counts.get(key, 0) + value

    def _ledger(self, pipeline: str) -> Ledger:
        return self.app.control.ledger(pipeline)

    def _topic(self, pipeline: str) -> str:
        return self.app.spec(pipeline).topic


def _dag_id(pipeline: str) -> str:
    return f"tidemark_{pipeline}"


def _skipped_spark(run: DagRun) -> bool:
    jobs = [state for task, state in run.tasks.items() if "ingest" in task or "check" in task]
    return bool(jobs) and set(jobs) == {"skipped"}


def count_rows(uri: str) -> tuple[int, int]:
    """Return the number of rows of a bronze table, and of distinct records among them (S5)."""
    from tidemark.lake.table_io import open_if_exists, query_rows

    table = open_if_exists(uri)
    if table is None:
        return 0, 0
    records = 'SELECT count(*) AS count FROM (SELECT DISTINCT topic_id, partition, "offset" FROM t)'
    return table.count(), query_rows(table, records)[0]["count"]
