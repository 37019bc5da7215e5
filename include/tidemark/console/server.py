"""The web application of the console: routes, and the parts that all routes share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from http import HTTPStatus
from inspect import Signature, signature
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tidemark.app.adapters import utc_now
from tidemark.app.app import App
from tidemark.console import backfills, kafka, pipelines, quality, records, runs
from tidemark.console.context import Page, PageContext
from tidemark.console.guard import Guard, GuardMiddleware
from tidemark.console.headers import DATA_DOCS_POLICY, SecurityHeaders
from tidemark.console.home import Home
from tidemark.console.rendering import STATIC, render
from tidemark.core.errors import ExitCode, TidemarkError, Unforeseen
from tidemark.ops.report.errors import PageTimeout
from tidemark.ops.report.metrics import CONTENT_TYPE
from tidemark.quality.html_templates import TEMPLATES
from tidemark.spec.errors import UnknownPipeline

log = logging.getLogger(__name__)

WORKERS = 4
"""Pages that are built at once. They have threads of their own, so the pages of Airflow in the same
process never wait for Kafka."""
WORKERS_IN_AIRFLOW = 2
"""Pages that are built at once inside Airflow. Its requests share the interpreter lock with them
(bench/RESULTS.md)."""
PROGRAM_WORKERS = 2
"""Requests of `/health` and `/metrics` that are answered at once. They read no Kafka, and so do not
wait for pages that do."""
PAGE_S = 30
"""Longest time of a page, in seconds. Its thread continues until its read ends."""
MOST_THREADS = 20
"""Maximum number of threads of pages, including abandoned ones. Further pages are refused."""
MOST_PROGRAM_THREADS = 10
"""Maximum number of threads of `/health` and `/metrics`, including abandoned ones."""
_STYLES = {"tidemark.css": TEMPLATES / "tidemark.css"}
"""Files of other folders that pages share."""

_DETAILS = {
    404: "This page does not exist, or you may not see it.",
    405: "The console answers GET requests only.",
}
"""Texts of errors that Starlette raises, by status code."""
_STATUS = {ExitCode.TRANSIENT: 503, ExitCode.CRASH: 500}
"""Status codes of named errors by their exit code; 422 for the others."""

T = TypeVar("T")


def build_app(
    load_app: Callable[[], App],
    guard: Guard,
    *,
    allowed_hosts: Sequence[str] = ("*",),
    airflow: str | None = None,
    prefix: str = "",
) -> FastAPI:
    """Return the console, an ASGI application for any path prefix.

    Args:
        load_app: Loads the specs and connections of the home again.
        guard: Decides who may send requests.
        allowed_hosts: Host names that requests may have; prevents DNS rebinding.
        airflow: Path prefix of the Airflow around the console, which may be empty; None without
            Airflow.
        prefix: Path prefix that a proxy keeps, such as `/tidemark`; a mount has its own.
    """
    workers = WORKERS if airflow is None else WORKERS_IN_AIRFLOW
    console = _Console(Home(load_app), airflow, workers)
    web = FastAPI(
        title="Tidemark",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        root_path=prefix,
        # The outermost first.
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts)),
            Middleware(GuardMiddleware, guard=guard),
        ],
    )
    web.add_exception_handler(TidemarkError, console.named_error)
    web.add_exception_handler(HTTPException, console.http_error)
    web.add_exception_handler(RequestValidationError, console.invalid_request)
    for path, endpoint in console.routes().items():
        web.add_api_route(path, endpoint, methods=["GET"], response_class=HTMLResponse)
    return web


class _Threads:
    """The threads of one kind of request.

    Args:
        at_once: Maximum number of requests that are answered at the same time.
        most: Maximum number of threads, including abandoned ones. Further requests are refused.
    """

    def __init__(self, at_once: int, most: int) -> None:
        self._at_once = at_once
        self._most = most
        self._count = 0
        self._lock = Lock()

    # A limiter belongs to an event loop, so the first request creates it.

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(self._at_once)

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread. Abandon it after `PAGE_S`, so that other requests get its place.

        Raises:
            PageTimeout: `work` was abandoned, or there are too many threads.
            Unforeseen: `work` raised an unexpected error.
        """
        if self._count >= self._most:
            raise PageTimeout(seconds=PAGE_S)
        try:
            with anyio.move_on_after(PAGE_S):
                return await anyio.to_thread.run_sync(
                    self._counted(work), abandon_on_cancel=True, limiter=self._limiter
                )
            raise PageTimeout(seconds=PAGE_S)
        except (TidemarkError, HTTPException):
            raise
        except Exception as error:
            # Starlette answers other errors outside the middleware, without security headers.
            log.exception("a page of the console failed")
            # The text can contain values of records or storage addresses, so only the log has it.
            raise Unforeseen(kind=type(error).__name__) from error

    def _counted(self, work: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            with self._lock:
                self._count += 1
            try:
                return work()
            finally:
                with self._lock:
                    self._count -= 1

        return run


class _Console:
    """The endpoints. Each builds its page in a worker thread."""

    def __init__(self, home: Home, airflow: str | None, workers: int) -> None:
        self._home = home
        self._airflow = airflow
        self._pages = _Threads(workers, MOST_THREADS)
        self._programs = _Threads(PROGRAM_WORKERS, MOST_PROGRAM_THREADS)

    def routes(self) -> Mapping[str, Callable[..., Any]]:
        """Return the endpoints by path."""
        page = self._page
        return {
            "/": page(pipelines.overview),
            "/pipelines/{name}": page(pipelines.pipeline),
            "/pipelines/{name}/plans": page(pipelines.plans),
            "/pipelines/{name}/plans/{sequence}": page(pipelines.plan),
            "/pipelines/{name}/records": page(records.page),
            "/pipelines/{name}/quality": page(quality.checks),
            "/pipelines/{name}/quality/report": page(quality.report),
            "/pipelines/{name}/quality/docs/{path:path}": self.docs,
            "/pipelines/{name}/quarantine": page(quality.quarantine),
            "/pipelines/{name}/backfill": page(backfills.preview),
            "/pipelines/{name}/backfills": page(backfills.progress),
            "/cluster": page(kafka.cluster),
            "/cluster/{connection}/topics/{topic}": page(kafka.topic),
            "/dags/{dag_id}": page(pipelines.dag),
            # A proxy may decode a slash of the run's id.
            "/dags/{dag_id}/runs/{run_id:path}": page(runs.page),
            "/health": self.health,
            "/metrics": self.metrics,
            "/static/{file}": self.static,
        }

    # -- endpoints ---------------------------------------------------------------------------------

    def _page(self, build: Callable[..., Page]) -> Callable[..., Awaitable[Response]]:
        """Return the endpoint of a page, with the parameters of `build` after the context."""

        async def endpoint(request: Request, **values: Any) -> Response:
            def rendered() -> Response:
                return self._rendered(request, build(self._context(request), **values))

            return await self._pages.run(rendered)

        _, *parameters = signature(build, eval_str=True).parameters.values()
        request = signature(endpoint, eval_str=True).parameters["request"]
        endpoint.__signature__ = Signature([request, *parameters])  # type: ignore[attr-defined]  # read by FastAPI
        return endpoint

    async def docs(self, request: Request, name: str, path: str) -> Response:
        """A page of the pipeline's Data Docs, whose styles are inline."""
        file = await self._pages.run(lambda: quality.data_docs(self._context(request), name, path))
        if file is None:
            raise HTTPException(404)
        return FileResponse(file, headers={"content-security-policy": DATA_DOCS_POLICY})

    async def health(self) -> Response:
        """The number of invalid specs, without their names, and the age of an overdue load."""
        broken = await self._programs.run(lambda: self._home.app.spec_folder.broken)
        overdue_s = self._home.overdue_load_s
        is_stale = overdue_s is not None
        return JSONResponse(
            {
                "status": "stale" if is_stale else "ok",
                "invalid_specs": len(broken),
                "stale_seconds": overdue_s and round(overdue_s),
            },
            status_code=503 if is_stale else 200,
        )

    async def metrics(self, request: Request) -> Response:
        """The status table as OpenMetrics; pipelines that the viewer may not see are left out."""
        text = await self._programs.run(lambda: pipelines.metrics(self._context(request)))
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def static(self, file: str) -> Response:
        """A style sheet or a script."""
        path = _static_files().get(file)
        if path is None:
            raise HTTPException(404)
        return FileResponse(path, headers={"cache-control": "private, max-age=3600"})

    # -- shared ------------------------------------------------------------------------------------

    def _context(self, request: Request) -> PageContext:
        """Return the context of a request. Call this in a thread, because it can load the app."""
        return PageContext(
            home=self._home,
            app=self._home.app,
            viewer=request.state.viewer,
            root=request.scope.get("root_path", ""),
            airflow=self._airflow,
        )

    # -- errors ------------------------------------------------------------------------------------

    async def named_error(self, request: Request, error: Exception) -> Response:
        """Show a named error with its fix. A pipeline that the viewer may not see is unknown."""
        if not isinstance(error, TidemarkError):
            raise error
        if isinstance(error, UnknownPipeline):
            text = "There is no such pipeline, or you may not see it."
            return self._error_page(request, 404, text)
        return self._error_page(request, _STATUS.get(error.exit_code, 422), "", error)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """Show an error such as an unknown path."""
        status, detail = 500, ""
        if isinstance(error, HTTPException):
            status, detail = error.status_code, error.detail
        if detail == HTTPStatus(status).phrase:
            detail = _DETAILS.get(status, "")
        return self._error_page(request, status, detail)

    async def invalid_request(self, request: Request, error: Exception) -> Response:
        """Show which value of the address is invalid."""
        problems = error.errors() if isinstance(error, RequestValidationError) else []
        names = ", ".join(str(each["loc"][-1]) for each in problems)
        return self._error_page(request, 400, f"A value in the address is invalid: {names}.")

    def _error_page(
        self, request: Request, status: int, text: str, error: TidemarkError | None = None
    ) -> Response:
        values = {"status": status, "text": text, "error": error}
        return self._rendered(request, Page(template="error.html", values=values), status)

    def _rendered(self, request: Request, page: Page, status: int = 200) -> Response:
        overdue_s = self._home.overdue_load_s
        stale_since = None if overdue_s is None else utc_now() - timedelta(seconds=overdue_s)
        values = {**_frame(request), "stale_since": stale_since, **page.values}
        return HTMLResponse(render(page.template, values), status_code=status)


def _frame(request: Request) -> dict[str, Any]:
    """Return the values that every page needs."""
    query = dict(request.query_params)
    is_paused = query.pop("refresh", None) == "0"
    other = query if is_paused else {**query, "refresh": "0"}
    # A browser reads a backslash as a slash, so a decoded path could lead out of the console.
    path = quote(request.scope["path"], safe="/")
    return {
        "root": request.scope.get("root_path", ""),
        "here": f"{path}?{request.url.query}",
        "refreshes": not is_paused,
        "toggle": f"{path}?{urlencode(other)}",
    }


def _static_files() -> Mapping[str, Path]:
    """Return the files that pages load, by name. Only these names are served."""
    return {path.name: path for path in STATIC.iterdir()} | _STYLES
