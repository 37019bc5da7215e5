"""The console as a plugin of Airflow: pages below /tidemark, guarded by Airflow's rights.

The entry point `airflow.plugins` of the package loads this module in every process of Airflow, so
it imports the console only for the first request. Airflow mounts applications of plugins without
authentication (apache/airflow#72655); `AirflowGuard` checks every request itself.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink

from tidemark.app.app import App
from tidemark.app.connections import connection_variable

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tidemark.console.guard import AirflowRun, LastDagRun, Viewer
    from tidemark.spec.model import PipelineSpec

PREFIX = "/tidemark"
"""Path of the console below Airflow's base URL."""
_BASE = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
"""Path of Airflow's base URL."""
_RUN_TAB = "tidemark_run"
"""Name of the tab of a DAG run in its address."""
_OF_NO_INTEREST = ("success", "skipped", "removed", "upstream_failed")
"""States of instances of mapped tasks that the page of a run does not show."""


class LazyConsole:
    """An ASGI application that builds the console at the first request."""

    @cached_property
    def _app(self) -> ASGIApp:
        from tidemark.console.server import build_app

        return build_app(load_app, AirflowGuard(), airflow=_BASE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        await self._app(scope, receive, send)


class AirflowGuard:
    """Admits users who are logged in to Airflow, by cookie or bearer token."""

    async def admit(self, request: Request) -> Viewer | Response:
        """Return the user's rights, or the refusal."""
        from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
        from fastapi import HTTPException

        from tidemark.console.guard import refusal

        try:
            user = await get_user(request, None, await bearer_scheme(request))
        except HTTPException as refused:
            reason = "Log in to Airflow, then open this page again."
            return refusal(refused.status_code, reason, f"{_BASE}/api/v2/auth/login")
        return AirflowViewer(user=user)


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowViewer:
    """A user of Airflow during one request.

    Attributes:
        user: The user, of the auth manager.
    """

    user: Any
    _answers: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False)

    def may_see(self, spec: PipelineSpec) -> bool:
        """Whether the user may read the pipeline's DAG.

        The team of a DAG that Airflow lacks is unknown: only members of every team may read it.
        """
        return self._may("dag", spec.dag_id)

    def visible(self, specs: Collection[PipelineSpec]) -> Collection[PipelineSpec]:
        """Return the pipelines whose DAGs the user may read, by one decision for each team."""
        from airflow.api_fastapi.app import get_auth_manager

        dag_ids = {spec.dag_id for spec in specs}
        team_of = _teams_of(dag_ids)
        if not (dag_ids <= team_of.keys() or self._is_in_every_team()):
            dag_ids &= team_of.keys()
        readable: set[str] = set()
        for team in {team_of.get(dag_id) for dag_id in dag_ids}:
            readable |= get_auth_manager().filter_authorized_dag_ids(
                dag_ids={dag_id for dag_id in dag_ids if team_of.get(dag_id) == team},
                team_name=team,
                user=self.user,
            )
        return [spec for spec in specs if spec.dag_id in readable]

    def may_see_invalid_specs(self) -> bool:
        """Whether the user may read Airflow's configuration and belongs to every team.

        The right to read DAGs does not suffice: without a DAG id, it can mean to list some DAGs.
        """
        from airflow.api_fastapi.app import get_auth_manager

        may_read = get_auth_manager().is_authorized_configuration(method="GET", user=self.user)
        return may_read and self._is_in_every_team()

    def may_read_payloads(self, spec: PipelineSpec) -> bool:
        """Whether the user may read the Kafka connection, with which the console reads records."""
        return self._may("connection", spec.connection)

    def may_see_cluster(self, connection: str) -> bool:
        """Whether the user may read the Kafka connection."""
        return self._may("connection", connection)

    def airflow_run(self, dag_id: str, run_id: str) -> AirflowRun | None:
        """Return a DAG run if the user may read the tasks of the DAG."""
        from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
        from airflow.models import DagRun, TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import or_, select

        from tidemark.console.guard import AirflowRun

        if not self._may_read_dag(dag_id, DagAccessEntity.TASK_INSTANCE):
            return None
        states = select(TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state).where(
            TaskInstance.dag_id == dag_id,
            TaskInstance.run_id == run_id,
            or_(TaskInstance.map_index == -1, TaskInstance.state.not_in(_OF_NO_INTEREST)),
        )
        conf = select(DagRun.conf).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        with create_session(scoped=False) as session:
            found = session.execute(conf).first()
            instances = {(task, index): state for task, index, state in session.execute(states)}
        if found is None:
            return None
        tasks = {task: state for (task, index), state in instances.items() if index == -1}
        mapped = {each: state for each, state in instances.items() if each[1] != -1 and state}
        return AirflowRun(conf=found[0] or {}, tasks=tasks, mapped=mapped)

    def paused_dags(self, dag_ids: Collection[str]) -> Collection[str]:
        """Return the paused ones of these DAGs, by one query. The user may read all of them."""
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        paused = select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids), DagModel.is_paused)
        with create_session(scoped=False) as session:
            return set(session.scalars(paused))

    def last_dag_run(self, dag_id: str) -> LastDagRun | None:
        """Return the newest run of a DAG if the user may read runs of the DAG."""
        from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
        from airflow.models import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import func, select

        from tidemark.console.guard import LastDagRun

        if not self._may_read_dag(dag_id, DagAccessEntity.RUN):
            return None
        # A cleared run has no start until its first task starts again.
        changed_at = func.coalesce(DagRun.end_date, DagRun.start_date, DagRun.run_after)
        runs = select(DagRun.run_id, DagRun.state, changed_at).where(DagRun.dag_id == dag_id)
        with create_session(scoped=False) as session:
            found = session.execute(runs.order_by(DagRun.id.desc()).limit(1)).first()
        if found is None:
            return None
        return LastDagRun(run_id=found[0], state=str(found[1]), changed_at=found[2])

    def _may_read_dag(self, dag_id: str, part: DagAccessEntity | None = None) -> bool:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails

        team_of = _teams_of([dag_id])
        if dag_id not in team_of and not self._is_in_every_team():
            return False
        return bool(
            get_auth_manager().is_authorized_dag(
                method="GET",
                access_entity=part,
                details=DagDetails(id=dag_id, team_name=team_of.get(dag_id)),
                user=self.user,
            )
        )

    def _is_in_every_team(self) -> bool:
        """Whether the user may read the objects of an unknown team; True without teams."""
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.models.team import Team

        if not _has_teams():
            return True
        return Team.get_all_team_names() <= get_auth_manager().get_authorized_teams(user=self.user)

    def _may(self, kind: str, name: str) -> bool:
        known = self._answers.get((kind, name))
        if known is None:
            known = self._answers[kind, name] = self._ask(kind, name)
        return known

    def _ask(self, kind: str, name: str) -> bool:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails
        from airflow.models import Connection

        if kind == "dag":
            return self._may_read_dag(name)
        details = ConnectionDetails(conn_id=name, team_name=Connection.get_team_name(name))
        return bool(
            get_auth_manager().is_authorized_connection(
                method="GET", details=details, user=self.user
            )
        )


def _has_teams() -> bool:
    """Whether Airflow separates teams. If not, it ignores the teams in its database."""
    return conf.getboolean("core", "multi_team")


def _teams_of(dag_ids: Collection[str]) -> dict[str, str | None]:
    """Return the team of each DAG; omits DAGs that Airflow lacks.

    The team is None for a DAG without a team, and for every DAG without multi-team mode.

    Airflow's own functions return None for such DAGs, too: before the first parse, after
    `airflow dags delete`, and if the bundle was removed from the configuration.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team
    from airflow.utils.session import create_session
    from sqlalchemy import select

    found = (
        select(DagModel.dag_id, Team.name)
        .join(DagBundleModel, DagModel.bundle_name == DagBundleModel.name)
        .outerjoin(DagBundleModel.teams)
        .where(DagModel.dag_id.in_(dag_ids), DagBundleModel.active.is_(True))
    )
    has_teams = _has_teams()
    with create_session(scoped=False) as session:
        return {dag_id: team if has_teams else None for dag_id, team in session.execute(found)}


def load_app() -> App:
    """Return the app with the connections of all pipelines, from Airflow's backends.

    They are connections to Kafka and to schema registries, whose absence a status reports.

    A connection is read as the tasks of its pipelines read it: for the team of their DAGs. If teams
    share a connection id, all must get the same definition. Otherwise, it counts as undefined.
    """
    from tidemark.console.observer import KAFKA_TIMEOUT_S

    environ = dict(os.environ)
    app = App(environ=environ, kafka_timeout_s=KAFKA_TIMEOUT_S)
    specs = app.specs.values()
    team_of = _teams_of({spec.dag_id for spec in specs})
    users: defaultdict[str, set[str]] = defaultdict(set)
    for spec in specs:
        for conn_id in filter(None, (spec.connection, spec.registry)):
            users[conn_id].add(spec.dag_id)
    for conn_id, dag_ids in sorted(users.items()):
        teams = {team_of[dag_id] for dag_id in dag_ids & team_of.keys()} or {None}
        definitions = {_definition(conn_id, team) for team in teams}
        if len(definitions) > 1:
            log.warning("teams have different definitions of a connection connection=%s", conn_id)
            environ.pop(connection_variable(conn_id), None)
        elif definition := definitions.pop():
            environ[connection_variable(conn_id)] = definition
    return app


def _definition(conn_id: str, team: str | None) -> str | None:
    """Return a connection as JSON; None without one, which the page of its pipelines shows."""
    from airflow.models import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return Connection.get_connection_from_secrets(conn_id, team_name=team).as_json()
    except AirflowNotFoundException:
        return None
    except Exception:
        log.exception("a connection could not be read connection=%s", conn_id)
        return None


class RunLink(BaseOperatorLink):
    """A button of the tasks of a run, which opens the run's tab of the console.

    The plugin registers it, so the button needs no XCom and appears before the task ends.
    """

    name = "Tidemark"

    @property
    def operators(self) -> list[type[BaseOperator]]:  # type: ignore[override]  # a class variable
        """The operators of the tasks. Only processes that show links import them."""
        from tidemark.airflow.operators import JobOperator, PlanOperator, RunOperator

        return [JobOperator, PlanOperator, RunOperator]

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """Return the address of the tab."""
        dag_id, run_id = (quote(each, safe="") for each in (ti_key.dag_id, ti_key.run_id))
        return f"{_BASE}/dags/{dag_id}/runs/{run_id}/plugin/{_RUN_TAB}"


class TidemarkPlugin(AirflowPlugin):
    """Adds the console to Airflow's navigation, a tab to each DAG and run, and links of tasks."""

    name = "tidemark"
    fastapi_apps = [{"app": LazyConsole(), "url_prefix": PREFIX, "name": "Tidemark console"}]  # noqa: RUF012  Airflow's form
    external_views = [  # noqa: RUF012  Airflow's form
        {
            "name": "Tidemark",
            "href": f"{_BASE}{PREFIX}/",
            "url_route": "tidemark",
            "destination": "nav",
            "category": "browse",
        },
        {
            "name": "Tidemark",
            "href": f"{_BASE}{PREFIX}/dags/{{DAG_ID}}",
            "url_route": "tidemark_dag",
            "destination": "dag",
        },
        {
            "name": "Tidemark",
            "href": f"{_BASE}{PREFIX}/dags/{{DAG_ID}}/runs/{{RUN_ID}}",
            "url_route": _RUN_TAB,
            "destination": "dag_run",
        },
    ]
    operator_extra_links = [RunLink()]  # noqa: RUF012  Airflow's form
