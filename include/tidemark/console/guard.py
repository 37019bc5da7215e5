"""Admission to the console: every request needs a viewer, at any path.

A guard is a middleware and not a dependency of routes, so no route, mount, static file or unknown
path can be reached without it. An unexpected error of a guard refuses the request.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.console.rendering import render
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)

COOKIE = "tidemark_console"
"""Cookie of a login to `tidemark console`."""
FOR_PROGRAMS = ("/metrics", "/health")
"""Paths that the bearer token of `tidemark console` opens."""
_BEARER = "bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowRun:
    """A DAG run in Airflow.

    Attributes:
        conf: Its parameters.
        tasks: State of each task by its id; None before the task is scheduled. Mapped tasks are
            absent.
        mapped: State of each instance of mapped tasks, by task id and map index. Instances without
            a state, and those in the states `success`, `skipped`, `removed` and `upstream_failed`,
            are absent.
    """

    conf: Mapping[str, Any]
    tasks: Mapping[str, str | None]
    mapped: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDagRun:
    """The newest run of a DAG in Airflow.

    Attributes:
        run_id: Its id.
        state: Its state, such as `failed`.
        changed_at: Time of its end; while it runs, of its start; before its start, its `run_after`.
    """

    run_id: str
    state: str
    changed_at: datetime


class Viewer(Protocol):
    """A logged-in user and the user's rights."""

    def may_see(self, spec: PipelineSpec) -> bool:
        """Whether the user may see a pipeline: lag, plans, offsets, check results."""

    def visible(self, specs: Collection[PipelineSpec]) -> Collection[PipelineSpec]:
        """Return the pipelines of a list that the user may see, by one decision about all."""

    def may_see_invalid_specs(self) -> bool:
        """Whether the user may see names and errors of invalid specs, whose DAGs are unknown."""

    def may_read_payloads(self, spec: PipelineSpec) -> bool:
        """Whether the user may read keys, values and headers of a pipeline's records."""

    def may_see_cluster(self, connection: str) -> bool:
        """Whether the user may see the topics and brokers of a Kafka connection."""

    def airflow_run(self, dag_id: str, run_id: str) -> AirflowRun | None:
        """Return a DAG run; None if there is none, or if the user may not read its tasks."""

    def paused_dags(self, dag_ids: Collection[str]) -> Collection[str]:
        """Return the paused ones of these DAGs, by one query. The user may read all of them."""

    def last_dag_run(self, dag_id: str) -> LastDagRun | None:
        """Return the newest run of a DAG; None without one, or if the user may not read runs."""


class Guard(Protocol):
    """Decides who may use the console."""

    async def admit(self, request: Request) -> Viewer | Response:
        """Return the viewer of a request, or the response that refuses or redirects it."""


class GuardMiddleware:
    """Passes a request to the application only with a viewer, in `request.state.viewer`.

    Args:
        app: The application.
        guard: Decides about each request.
    """

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, redirect or pass on a request; close any WebSocket."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        try:
            admitted = await self._guard.admit(request)
        except Exception:
            log.exception("the guard of the console failed path=%s", request.url.path)
            admitted = refusal(403, "The console could not check your login.")
        if isinstance(admitted, Response):
            await admitted(scope, receive, send)
            return
        scope.setdefault("state", {})["viewer"] = admitted
        await self._app(scope, receive, send)


def refusal(status: int, reason: str, login: str | None = None) -> Response:
    """Return the response to a request without the necessary rights: a page without styles.

    Args:
        status: Status code.
        reason: What is missing, with commands in backquotes.
        login: Address of a login; None without one.
    """
    title = "Not logged in" if status == HTTPStatus.UNAUTHORIZED else "Not permitted"
    values = {"title": title, "reason": reason, "login": login}
    return HTMLResponse(render("refused.html", values), status_code=status)


@dataclass(frozen=True, slots=True)
class LocalViewer:
    """The user of `tidemark console`, who reads with the same rights as other commands."""

    def may_see(self, spec: PipelineSpec) -> bool:  # noqa: ARG002
        """Return True: the user can run `tidemark status`."""
        return True

    def visible(self, specs: Collection[PipelineSpec]) -> Collection[PipelineSpec]:
        """Return all."""
        return specs

    def may_see_invalid_specs(self) -> bool:
        """Return True: the user can run `tidemark pipeline check`."""
        return True

    def may_read_payloads(self, spec: PipelineSpec) -> bool:  # noqa: ARG002
        """Return True: the user can run `tidemark records`."""
        return True

    def may_see_cluster(self, connection: str) -> bool:  # noqa: ARG002
        """Return True: the user can run `tidemark topics`."""
        return True

    def airflow_run(self, dag_id: str, run_id: str) -> AirflowRun | None:  # noqa: ARG002
        """Return None: the command does not read Airflow's database."""
        return None

    def paused_dags(self, dag_ids: Collection[str]) -> Collection[str]:  # noqa: ARG002
        """Return none: the command does not read Airflow's database."""
        return ()

    def last_dag_run(self, dag_id: str) -> LastDagRun | None:  # noqa: ARG002
        """Return None: the command does not read Airflow's database."""
        return None


@dataclass
class LinkGuard:
    """Admits the browser that first opens the printed link, and programs to `FOR_PROGRAMS`.

    The link contains a random token that works once. Opening the link sets a cookie with another
    random value, which is valid until the process ends.

    Attributes:
        bearer: Token of programs, such as Prometheus; None to admit browsers only.
        cookie: Name of the cookie. A browser sends the cookies of a host to all its ports, so each
            console of a machine needs a name of its own.
        link_token: Token of the link; empty after its use.
    """

    bearer: str | None = None
    cookie: str = COOKIE
    link_token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    async def admit(self, request: Request) -> Viewer | Response:
        """Admit a session's cookie or the bearer token; exchange the link's token for a cookie."""
        if _path(request) == "/login":
            return self._login(request)
        if _equal(request.cookies.get(self.cookie), self._session):
            return LocalViewer()
        given = request.headers.get("authorization", "")
        if given.lower().startswith(_BEARER) and _equal(given[len(_BEARER) :], self.bearer):
            if _path(request) in FOR_PROGRAMS:
                return LocalViewer()
            return refusal(403, f"The bearer token opens {' and '.join(FOR_PROGRAMS)} only.")
        return refusal(401, "Open the link that `tidemark console` printed.")

    def _login(self, request: Request) -> Response:
        # A program that checks links sends HEAD; only a page view may use up the link.
        is_view = request.method == "GET"
        if not (is_view and _equal(request.query_params.get("token"), self.link_token)):
            return refusal(
                403, "This link is wrong or was used before. Start `tidemark console` again."
            )
        self.link_token = ""
        root = request.scope.get("root_path", "")
        response = RedirectResponse(f"{root}/", status_code=303)
        response.set_cookie(
            self.cookie, self._session, httponly=True, samesite="strict", path=root or "/"
        )
        return response


def _path(request: Request) -> str:
    """Return the path below the prefix of the console."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def _equal(given: str | None, expected: str | None) -> bool:
    """Compare two secrets in constant time. Nothing equals an absent or empty secret."""
    if not given or not expected:
        return False
    return hmac.compare_digest(given.encode(), expected.encode())
