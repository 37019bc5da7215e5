"""A process that has loaded Airflow and runs each call in a separate fork.

The import of Airflow changes logging, the database and warnings, which would affect every other
test of the run. Airflow's own DAG processor also parses each file in a fork.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

DAGS = Path(__file__).resolve().parents[2] / "dags"
TASK_INSTANCE = {"dag_id": "d", "task_id": "t", "run_id": "r"}
"""The task of an alarm."""

# -- calls -----------------------------------------------------------------------------------------


def parse(file: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the DAGs of one file, its import errors, and the cost of parsing."""
    from airflow.dag_processing.dagbag import BundleDagBag

    os.environ.update(environ)
    before = set(sys.modules)
    cpu_s = time.process_time()
    bag = BundleDagBag(dag_folder=str(DAGS / file), bundle_path=DAGS, bundle_name="dags")
    cpu_s = time.process_time() - cpu_s
    return {
        "cpu_s": cpu_s,
        "modules": sorted({name.partition(".")[0] for name in set(sys.modules) - before}),
        "import_errors": bag.import_errors,
        "dags": {dag_id: _described(dag) for dag_id, dag in bag.dags.items()},
    }


def import_seconds(module: str) -> float:
    """Return the processor seconds of import_seconds a module."""
    cpu_s = time.process_time()
    importlib.import_module(module)
    return time.process_time() - cpu_s


def dag_files() -> list[str]:
    """Return the files that Airflow recognises as DAG files."""
    from airflow.dag_processing.importers.python_importer import PythonDagImporter

    found = PythonDagImporter().list_dag_files(DAGS)
    return sorted(str(Path(path).relative_to(DAGS)) for path in found)


def serialized(file: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the serialised DAGs of a file, as stored in Airflow's database."""
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.serialization.serialized_objects import DagSerialization

    os.environ.update(environ or {})
    bag = BundleDagBag(dag_folder=str(DAGS / file), bundle_path=DAGS, bundle_name="dags")
    return json.dumps([DagSerialization.to_dict(dag) for dag in bag.dags.values()], default=str)


def links(file: str, environ: Mapping[str, str], run_id: str) -> dict[str, dict[str, Any]]:
    """Return the links of the tasks of a file's DAGs, as Airflow's server reads the DAGs."""
    from airflow.models.taskinstancekey import TaskInstanceKey
    from airflow.serialization.serialized_objects import DagSerialization

    found: dict[str, dict[str, Any]] = {}
    for stored in json.loads(serialized(file, environ)):
        dag = DagSerialization.from_dict(stored)
        for task in dag.tasks:
            key = TaskInstanceKey(dag_id=dag.dag_id, task_id=task.task_id, run_id=run_id)
            instance: Any = SimpleNamespace(key=key)
            for name in task.extra_links:
                link = task.get_extra_links(instance, name)
                found.setdefault(dag.dag_id, {})[task.task_id] = link
    return found


def console_pages(
    environ: Mapping[str, str],
    teams: Mapping[str, str | None],
    users: list[Mapping[str, Any]],
    paths: list[str],
    closed: Sequence[str] = (),
    paused: Sequence[str] = (),
    runs: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, dict[str, Any]]]:
    """Request pages of the console inside Airflow as users of the simple auth manager.

    Args:
        environ: Variables of the process, with an empty database of Airflow.
        teams: Team of each DAG that Airflow has; None for a DAG without a team.
        users: Name, role and teams of each user.
        paths: Paths of the pages.
        closed: Teams whose bundle was removed from the configuration.
        paused: Paused DAGs.
        runs: Fields of DAG runs, in the order of their creation; times in ISO 8601.

    Returns:
        For each user, status and text of each page, and the number of decisions about DAGs.
    """
    os.environ.update(environ)
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from starlette.testclient import TestClient

    from tidemark.airflow.plugin import LazyConsole

    _fill_database(teams, closed=closed, paused=paused, runs=runs)
    decide, asked = SimpleAuthManager.is_authorized_dag, []

    def counted(self: Any, **arguments: Any) -> bool:
        asked.append(arguments)
        return decide(self, **arguments)

    manager, console, found = create_auth_manager(), LazyConsole(), []
    with patch.object(SimpleAuthManager, "is_authorized_dag", counted):
        for user in users:
            login = f"Bearer {manager.generate_jwt(SimpleAuthManagerUser(**user))}"
            client = TestClient(console, headers={"Authorization": login})
            pages: dict[str, dict[str, Any]] = {}
            for path in paths:
                asked.clear()
                page = client.get(path)
                pages[path] = {"status": page.status_code, "text": page.text, "asked": len(asked)}
            found.append(pages)
    return found


def console_connections(
    environ: Mapping[str, str],
    teams: Mapping[str, str | None],
    connections: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the addresses of the Kafka connections that the console has loaded, or the error.

    Args:
        environ: Variables of the process, with an empty database of Airflow.
        teams: As for `console_pages`.
        connections: Fields of each connection in the database.
    """
    os.environ.update(environ)
    from tidemark.airflow.plugin import load_app
    from tidemark.core.errors import TidemarkError

    _fill_database(teams, connections)
    app = load_app()
    found: dict[str, Any] = {}
    for conn_id in sorted({spec.connection for spec in app.specs.values()}):
        try:
            found[conn_id] = app.connections.bootstrap_servers(conn_id)
        except TidemarkError as error:
            found[conn_id] = type(error).__name__
    return found


def _create_tables() -> Any:
    """Create Airflow's tables, and return the module of its models."""
    from airflow.models.base import Base

    # Their functions have no types.
    settings: Any = importlib.import_module("airflow.settings")
    models: Any = importlib.import_module("airflow.models")
    settings.configure_vars()
    settings.configure_orm()
    models.import_all_models()
    Base.metadata.create_all(settings.engine)
    return models


def _fill_database(
    teams: Mapping[str, str | None],
    connections: Mapping[str, Mapping[str, Any]] | None = None,
    closed: Sequence[str] = (),
    paused: Sequence[str] = (),
    runs: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Create Airflow's tables, with a bundle for each team."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    models = _create_tables()
    with create_session() as session:
        bundles = {team: DagBundleModel(name=f"dags-of-{team}") for team in teams.values()}
        for team, bundle in bundles.items():
            if team:
                bundle.teams.append(Team(name=team))
        session.add_all(bundles.values())
        session.flush()
        for team in closed:
            # As Airflow's DAG processor removes a bundle.
            bundles[team].active, bundles[team].teams = False, []
        for dag_id, team in teams.items():
            dag = models.DagModel(dag_id=dag_id, bundle_name=bundles[team].name, fileloc="x.py")
            dag.is_paused = dag_id in paused
            session.add(dag)
        for conn_id, fields in (connections or {}).items():
            session.add(models.Connection(conn_id=conn_id, conn_type="kafka", **fields))
        for run in runs:
            row = models.DagRun(run_type="manual")
            for name, value in run.items():
                is_time = name.endswith(("_date", "_after"))
                setattr(row, name, datetime.fromisoformat(value) if is_time else value)
            session.add(row)
            session.flush()


def run_job(task: str, environ: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
    """Run the operator that calls a function with jobs; return its error and side effects."""
    return _run_operator(task, environ, arguments)[1]


def _run_operator(
    task: str, environ: Mapping[str, str], arguments: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    from airflow.sdk.exceptions import AirflowFailException

    from tidemark.airflow import chunks, tasks
    from tidemark.airflow.operators import JobOperator

    os.environ.update(environ)
    before = dict(os.environ)
    (module,) = (each for each in (tasks, chunks) if defines(each, task))
    job = JobOperator(task_id="job", python_callable=getattr(module, task), op_kwargs=arguments)
    failure: Exception | None = None
    try:
        job.execute({})
    except Exception as error:  # noqa: BLE001  its type is the answer
        failure = error
    rendered = {name: str(getattr(job, name)) for name in job.template_fields}
    return job, {
        "error": str(failure) if failure else None,
        "kind": type(failure).__name__,
        "fails_now": isinstance(failure, AirflowFailException),
        "rendered": rendered,
        "environment_restored": dict(os.environ) == before,
    }


def emitted(
    task: str,
    environ: Mapping[str, str],
    *,
    emits: bool = True,
    without_provider: bool = False,
    **arguments: Any,
) -> dict[str, Any]:
    """Run a job as `run_job`, and emit its lineage as Airflow's OpenLineage listener does.

    The listener extracts and emits in a fork of the process that ran the task. The answer `loaded`
    is whether the task has loaded OpenLineage's client.
    """
    if without_provider:
        sys.modules["airflow.providers.openlineage"] = None  # type: ignore[assignment]
    job, answer = _run_operator(task, environ, arguments)
    answer["loaded"] = "openlineage.client" in sys.modules
    if not emits:
        return answer
    from airflow.providers.openlineage.plugins.listener import get_openlineage_listener
    from airflow.utils.state import TaskInstanceState

    listener = get_openlineage_listener()
    state = TaskInstanceState.FAILED if answer["error"] else TaskInstanceState.SUCCESS

    def emit() -> None:
        found = listener.extractor_manager.extract_metadata(
            SimpleNamespace(run_id="r"), job, state, SimpleNamespace(**TASK_INSTANCE)
        )
        event: dict[str, Any] = {"run_id": str(UUID(int=1)), "job_name": "d.job", "task": found}
        event |= {"end_time": datetime.now(UTC).isoformat(), "job_description": "text"}
        event |= dict.fromkeys(("nominal_start_time", "nominal_end_time", "owners", "tags"))
        if answer["error"]:
            listener.adapter.fail_task(**event, error=answer["error"])
        else:
            listener.adapter.complete_task(**event)

    listener._execute(emit, "on_success", use_fork=True)
    return answer


def lineage_reads(
    environ: Mapping[str, str], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Collect the lineage of a task with these results; count the reads of each table's log.

    The answer `searched` is the number of values that the provider searches for secrets.
    """
    import deltalake
    from airflow.providers.openlineage.utils.utils import OpenLineageRedactor

    from tidemark.airflow.lineage.datasets import lineage_of
    from tidemark.app.app import App
    from tidemark.app.pipelines import Outcomes

    os.environ.update(environ)
    opened, histories, searched = Counter[str](), Counter[str](), Counter[str]()
    redact = OpenLineageRedactor._redact
    open_table, history = deltalake.DeltaTable.__init__, deltalake.DeltaTable.history

    def counted_open(self: Any, uri: Any, *arguments: Any, **options: Any) -> None:
        opened[str(uri)] += 1
        open_table(self, uri, *arguments, **options)

    def counted_history(self: Any, *arguments: Any, **options: Any) -> Any:
        histories[self.table_uri] += 1
        return history(self, *arguments, **options)

    def counted_redact(self: Any, item: Any, *arguments: Any, **options: Any) -> Any:
        searched[type(item).__name__] += 1
        return redact(self, item, *arguments, **options)

    with (
        patch.object(deltalake.DeltaTable, "__init__", counted_open),
        patch.object(deltalake.DeltaTable, "history", counted_history),
    ):
        found = lineage_of(App.from_environment(), Outcomes(records=[*records]))
    plans = {each.name: each.inputFacets["tidemark_offsets"].plans for each in found.inputs}
    ranges = {name: [r for plan in some for r in plan["ranges"]] for name, some in plans.items()}
    with patch.object(OpenLineageRedactor, "_redact", counted_redact):
        OpenLineageRedactor().redact([*found.inputs, *found.outputs], max_depth=20)
    return {
        "opened": opened,
        "histories": list(histories.values()),
        "plans_of_inputs": {name: len(some) for name, some in plans.items()},
        "ranges_of_inputs": {
            name: [[r["partition"], r["start"], r["end"]] for r in some]
            for name, some in ranges.items()
        },
        "datasets": len(found.inputs) + len(found.outputs),
        "searched": searched.total(),
    }


def measured(environ: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
    """Run a job as `run_job`, and send its metrics as a task of Airflow does."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
    from opentelemetry import metrics

    os.environ.update(environ)
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
    try:
        return run_job(environ=environ, **arguments)
    finally:
        metrics.get_meter_provider().force_flush()  # type: ignore[attr-defined]  # the SDK's


def logged(environ: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
    """Run a job as `run_job`, and log as JSON as a task of Airflow does."""
    from airflow.sdk.log import configure_logging

    configure_logging(json_output=True, output=sys.stdout.buffer)
    return run_job(environ=environ, **arguments)


def call_task(task: str, environ: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
    """Call a task callable, and return its result or error."""
    from airflow.sdk.exceptions import AirflowFailException

    os.environ.update(environ)
    result, error = _called(task, arguments)
    if error is None:
        return {"error": None, "result": result}
    fails_now = isinstance(error, AirflowFailException)
    return {"error": f"{type(error).__name__}: {error}", "fails_now": fails_now}


def apps_built(call: str, **arguments: Any) -> dict[str, Any]:
    """Answer another question about a task, and add the number of apps that this process built."""
    from tidemark.app.app import App

    with patch.object(App, "__init__", autospec=True, side_effect=App.__init__) as built:
        answer: dict[str, Any] = QUESTIONS[call](**arguments)
    return {**answer, "apps": built.call_count}


def published(task: str, environ: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
    """Call a task callable, and return its result or error, its asset events and its reads.

    `plans_read` has pipeline and number of each plan that it read from the control table.
    """
    from airflow.sdk.execution_time.context import OutletEventAccessors

    from tidemark.delta.control_table import DeltaControlTable

    accessors, read = OutletEventAccessors(), DeltaControlTable.plan_record
    with patch.object(DeltaControlTable, "plan_record", autospec=True, side_effect=read) as reads:
        ended = call_task(task, environ, outlet_events=accessors, **arguments)
    events = [event for alias in accessors.values() for event in alias.asset_alias_events]
    keys = [{"asset": each.dest_asset_key.name, "uri": each.dest_asset_key.uri} for each in events]
    return {
        **ended,
        "events": [{**key, **e.extra} for key, e in zip(keys, events, strict=True)],
        "plans_read": sorted(each.args[1:] for each in reads.call_args_list),
    }


def asset(table: str) -> list[str]:
    """Return name and URI of the asset of a table."""
    from tidemark.airflow.tasks import table_asset

    found = table_asset(table)
    return [found.name, found.uri]


def run_states(
    dag_id: str, environ: Mapping[str, str], ends: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """Return how Airflow ends runs of a DAG, and the states of their tasks.

    Airflow's scheduling decides which tasks start. No task runs: it ends in its state of `ends`.

    Args:
        dag_id: The DAG.
        environ: Variables.
        ends: States of the tasks that start, for each run; other tasks succeed. The state
            `no work` is a success that skips all tasks after it.
    """
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import synchronize_log_template
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    os.environ.update(environ)
    _create_tables()
    file = str(DAGS / "pipelines.py")
    bag = BundleDagBag(dag_folder=file, bundle_path=DAGS, bundle_name="states")
    found = []
    with create_session() as session:
        synchronize_log_template(session=session)
        session.merge(DagBundleModel(name="states"))
        session.flush()
        sync_bag_to_db(bag, "states", None, session=session)
        dag: Any = DBDagBag().get_latest_version_of_dag(dag_id, session=session)
        for number, states in enumerate(ends):
            when = datetime(2026, 3, 1, hour=number, tzinfo=UTC)
            run = dag.create_dagrun(
                run_id=f"manual__{number}",
                logical_date=when,
                data_interval=(when, when),
                run_after=when,
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                session=session,
            )
            run.dag = dag
            while run.state == DagRunState.RUNNING:
                startable, _ = run.update_state(session=session, execute_callbacks=False)
                for instance in startable:
                    _end(instance, states.get(instance.task_id, "success"), run, session)
                session.flush()
            tasks = {each.task_id: str(each.state) for each in run.get_task_instances()}
            found.append({"run": str(run.state), "tasks": tasks})
        session.rollback()
    return found


def _end(instance: Any, state: str, run: Any, session: Any) -> None:
    if state == "no work":
        for each in run.get_task_instances(session=session):
            each.state = "skipped"
        state = "success"
    instance.state = state


def alarm_of(task: str, environ: Mapping[str, str], **arguments: Any) -> None:
    """Call a task callable, which must fail, and send the alarm about it."""
    os.environ.update(environ)
    _, error = _called(task, arguments)
    if error is None:
        raise AssertionError(f"{task} has not failed")
    alarm(environ, {"task_instance": TASK_INSTANCE, "exception": error})


def _called(task: str, arguments: dict[str, Any]) -> tuple[Any, Exception | None]:
    from tidemark.airflow import alarms, chunks, maintenance, tasks

    if task == "plan_run":
        arguments["dag_run"] = _dag_run(**arguments.get("dag_run", {"run_type": "scheduled"}))
    if task in ("plan_run", "publish_run", "complete_run"):
        names = ("versions", "earlier", "planned", "unreported", "try_number")
        given = {name: arguments.pop(name) for name in names if name in arguments}
        arguments["ti"] = TaskInstance(**given)
    (module,) = (each for each in (tasks, chunks, maintenance, alarms) if defines(each, task))
    try:
        return getattr(module, task)(**arguments), None
    except Exception as error:  # noqa: BLE001  its type is the answer
        return None, error


class TaskInstance:
    """An attempt at a task that has one retry, with the XCom of the tasks before it."""

    dag_id, task_id, run_id = TASK_INSTANCE.values()
    max_tries = 1

    def __init__(
        self,
        versions: dict[str, int] | None = None,
        earlier: dict[str, list[int]] | None = None,
        planned: dict[str, int] | None = None,
        unreported: str | None = None,
        try_number: int = 1,
    ) -> None:
        self._xcom = {
            "versions": versions,
            "earlier": earlier,
            "planned": planned,
            "unreported": unreported,
        }
        self.try_number = try_number

    def xcom_push(self, key: str, value: Any) -> None:
        """Print the value."""
        print(f"xcom {key}={json.dumps(value)}")

    def xcom_pull(self, task_ids: str, key: str) -> Any:  # noqa: ARG002
        """Return the value."""
        return self._xcom[key]


def _dag_run(run_type: str, start: str | None = None, end: str | None = None) -> SimpleNamespace:
    """Return a run with its type and data interval."""
    return SimpleNamespace(
        run_type=run_type,
        data_interval_start=datetime.fromisoformat(start) if start else None,
        data_interval_end=datetime.fromisoformat(end) if end else None,
    )


def requester(dag_id: str, run_id: str, run_type: str) -> str:
    """Return the requester of the plans of a run."""
    from airflow.sdk import DAG

    from tidemark.airflow.chain import REQUESTED_BY

    dag = DAG(dag_id=dag_id, schedule=None)
    context = {"dag": dag, "run_id": run_id, "dag_run": _dag_run(run_type)}
    return str(dag.get_template_env().from_string(REQUESTED_BY).render(context))


def rendered_earlier_plans(earlier: dict[str, list[int]] | None) -> str:
    """Return the argument of the task `check` with the earlier plans."""
    from airflow.sdk import DAG

    from tidemark.airflow.tasks import EARLIER_PLANS

    env = DAG(dag_id="d", schedule=None).get_template_env()
    return str(env.from_string(EARLIER_PLANS).render({"ti": TaskInstance(earlier=earlier)}))


def alarm(environ: Mapping[str, str], context: Mapping[str, Any]) -> None:
    """Send the alarm about a failed task."""
    from tidemark.airflow.alarms import alarm_on_failure

    os.environ.update(environ)
    alarm_on_failure({**context, "task_instance": SimpleNamespace(**context["task_instance"])})


def defines(module: Any, name: str) -> bool:
    """Return whether a module defines a callable itself."""
    return getattr(getattr(module, name, None), "__module__", None) == module.__name__


def _described(dag: Any) -> dict[str, Any]:
    return {
        "tasks": {
            task.task_id: {
                "downstream": sorted(task.downstream_task_ids),
                "retries": task.retries,
                "backoff": task.retry_exponential_backoff,
                "owner": task.owner,
                "on_failure": ", ".join(each.__name__ for each in task.on_failure_callback),
                "timeout_s": task.execution_timeout.total_seconds(),
                "template_fields": list(task.template_fields),
                "outlets": [getattr(outlet, "uri", outlet.name) for outlet in task.outlets],
                "inlets": [inlet.uri for inlet in task.inlets],
                "trigger_rule": task.trigger_rule.value,
                "at_once": task.max_active_tis_per_dagrun,
                "mapped_over": _mapped_over(task),
            }
            for task in dag.tasks
        },
        "schedule": getattr(dag.schedule, "expression", None) or str(dag.schedule),
        "start_date": dag.start_date.isoformat(),
        "catchup": dag.catchup,
        "starts_paused": dag.is_paused_upon_creation,
        "max_active_runs": dag.max_active_runs,
        "tags": sorted(dag.tags),
        "doc_md": dag.doc_md,
        "params": {
            name: {
                "schema": dag.params.get_param(name).schema,
                "description": dag.params.get_param(name).description,
                "value": dag.params.get_param(name).resolve(suppress_exception=True),
            }
            for name in dag.params
        },
    }


def _mapped_over(task: Any) -> Any:
    """Return the values of a mapped operator, one for each task; None for other operators.

    For values that are known only when the DAG runs, return the id of the task that returns them.
    """
    if not task.is_mapped:
        return None
    over = task.expand_input.value["op_kwargs"]
    return over if isinstance(over, list) else over.operator.task_id


# -- the process ---------------------------------------------------------------------------------

QUESTIONS: dict[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        *(parse, import_seconds, dag_files, serialized, links, run_states),
        *(
            run_job,
            emitted,
            lineage_reads,
            measured,
            logged,
            call_task,
            apps_built,
            published,
            asset,
            requester,
            rendered_earlier_plans,
            alarm,
            alarm_of,
            console_pages,
            console_connections,
        ),
    )
}


def main() -> None:
    """Run one call per line of standard input; arguments name modules to load first."""
    import airflow.dag_processing.dagbag  # noqa: F401  the DAG processor has loaded it

    sys.path.append(str(DAGS))
    for module in sys.argv[1:]:
        importlib.import_module(module)
    # A garbage collection in a fork would traverse Airflow's objects, and so copy their memory.
    gc.freeze()
    answers = sys.stdout
    for line in sys.stdin:
        question = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            answer, printed = Path(folder, "answer"), Path(folder, "printed")
            child = os.fork()
            if child == 0:
                _answer(question, answer, printed)
            os.waitpid(child, 0)
            reply = json.loads(answer.read_text()) if answer.exists() else {"crash": "no answer"}
            reply["printed"] = printed.read_text(errors="replace")
        answers.write(f"{json.dumps(reply)}\n")
        answers.flush()


def _answer(question: dict[str, Any], answer: Path, printed: Path) -> None:
    output = os.open(printed, os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        value = QUESTIONS[question["name"]](**question["arguments"])
        answer.write_text(json.dumps({"value": value}))
    except BaseException:  # noqa: BLE001  handed to the test, which raises it
        answer.write_text(json.dumps({"crash": traceback.format_exc()}))
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
