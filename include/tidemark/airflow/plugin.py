"""The console as a plugin of Airflow: pages below /tidemark, guarded by Airflow's rights.

The entry point `airflow.plugins` of the package loads this module in every process of Airflow, so
it imports the console only for the first request. Airflow mounts applications of plugins without
authentication (apache/airflow#72655); `AirflowGuard` checks every request itself.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from tidemark.app import App
from tidemark.connections import connection_variable

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tidemark.console.guard import Viewer
    from tidemark.spec.model import PipelineSpec

PREFIX = "/tidemark"
"""Path of the console below Airflow's base URL."""
_BASE = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
"""Path of Airflow's base URL."""


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
            return refusal(refused.status_code, "Log in to Airflow, then open this page again.")
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
        """Whether the user may read the pipeline's DAG."""
        return self._may("dag", spec.dag_id)

    def may_see_all(self) -> bool:
        """Whether the user may read every DAG."""
        from airflow.api_fastapi.app import get_auth_manager

        return bool(get_auth_manager().is_authorized_dag(method="GET", user=self.user))

    def may_read_payloads(self, spec: PipelineSpec) -> bool:
        """Whether the user may read the Kafka connection, with which the console reads records."""
        return self._may("connection", spec.connection)

    def may_see_cluster(self, connection: str) -> bool:
        """Whether the user may read the Kafka connection."""
        return self._may("connection", connection)

    def _may(self, kind: str, name: str) -> bool:
        known = self._answers.get((kind, name))
        if known is None:
            known = self._answers[kind, name] = self._ask(kind, name)
        return known

    def _ask(self, kind: str, name: str) -> bool:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import (
            ConnectionDetails,
            DagDetails,
        )
        from airflow.models import Connection
        from airflow.models.dag import DagModel

        manager = get_auth_manager()
        if kind == "dag":
            dag = DagDetails(id=name, team_name=DagModel.get_team_name(name))
            return manager.is_authorized_dag(method="GET", details=dag, user=self.user)
        details = ConnectionDetails(conn_id=name, team_name=Connection.get_team_name(name))
        return manager.is_authorized_connection(method="GET", details=details, user=self.user)


def load_app() -> App:
    """Return the app with the Kafka connections of all pipelines, from Airflow's backends."""
    from airflow.models import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    from tidemark.console.observer import KAFKA_TIMEOUT_S

    found = {}
    for conn_id in sorted({spec.connection for spec in App.from_environment().specs.values()}):
        try:
            connection = Connection.get_connection_from_secrets(conn_id)
        except AirflowNotFoundException:
            # The page of its pipelines shows the error.
            continue
        except Exception:
            log.exception("a connection could not be read connection=%s", conn_id)
            continue
        found[connection_variable(conn_id)] = connection.as_json()
    return App(environ={**os.environ, **found}, kafka_timeout_s=KAFKA_TIMEOUT_S)


class TidemarkPlugin(AirflowPlugin):
    """Adds the console to Airflow's navigation, and a tab to each DAG."""

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
    ]
