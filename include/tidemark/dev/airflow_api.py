"""A small client of Airflow's public REST API (v2), for `make up` and the demo.

Source: Airflow 3.3, "Airflow public API reference"; tokens as in "Public API authentication".
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from tidemark.dev.errors import AirflowRefused, AirflowUnavailable

POLL_S = 0.5
"""Pause between two looks at a run, seconds."""

_READ_TRIES = 3
"""Tries of a GET without an answer in time. A busy server usually answers the next request."""

_FINISHED = ("success", "failed")

Progress: TypeAlias = Callable[[str], None]
"""Told in a few words what has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    """One run of a DAG.

    Attributes:
        dag_id: DAG.
        run_id: Run.
        state: queued, running, success or failed.
        tasks: State by task id, of mapped ones as `task[0]`; None while a task waits for its turn.
        seconds: From the start to the end; None while it runs.
    """

    dag_id: str
    run_id: str
    state: str
    tasks: Mapping[str, str | None]
    seconds: float | None

    @property
    def finished(self) -> bool:
        """Whether nothing more happens in it."""
        return self.state in _FINISHED

    @property
    def failed_tasks(self) -> tuple[str, ...]:
        """Tasks that failed themselves, not those that only wait for them."""
        return tuple(task for task, state in self.tasks.items() if state == "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetEvent:
    """What a `publish` task reported.

    Attributes:
        uri: The asset's URI.
        dag_id: DAG that reported.
        run_id: Its run.
        extra: Pipeline, plan, table version, records, ranges.
        timestamp: When.
    """

    uri: str
    dag_id: str
    run_id: str
    extra: Mapping[str, Any]
    timestamp: datetime


class AirflowApi:
    """Talks to one Airflow API server.

    Args:
        url: Address, without a path.
        username: Login.
        password: Its password.
        timeout_s: Longest wait for one answer.
    """

    def __init__(self, url: str, username: str, password: str, *, timeout_s: float = 30.0) -> None:
        self._url = url.rstrip("/")
        self._login = {"username": username, "password": password}
        self._timeout_s = timeout_s
        self._token: str | None = None
        # Airflow is on this machine: a proxy of the environment has no business in between.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def health(self) -> dict[str, str | None]:
        """Status by component: metadatabase, scheduler, triggerer, dag_processor. Needs no login.

        Raises:
            AirflowUnavailable
        """
        answer = self._send("GET", "/api/v2/monitor/health", None, {})
        return {name: (info or {}).get("status") for name, info in answer.items()}

    # -- DAGs ------------------------------------------------------------------------------------

    def dags(self) -> dict[str, bool]:
        """Whether it is paused, by DAG id, of every DAG that Airflow knows."""
        found = self.call("GET", "/dags", query={"limit": 1000})["dags"]
        return {dag["dag_id"]: bool(dag["is_paused"]) for dag in found}

    def import_errors(self) -> dict[str, str]:
        """Stack trace by DAG file."""
        found = self.call("GET", "/importErrors", query={"limit": 100})["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in found}

    def wait_for_dags(self, dag_ids: Sequence[str], *, timeout_s: float = 120.0) -> None:
        """Return when Airflow has parsed all of these DAGs.

        Raises:
            AirflowRefused: A DAG file has an import error.
            AirflowUnavailable: Not in time.
        """
        deadline = time.monotonic() + timeout_s
        while missing := sorted(set(dag_ids) - set(self.dags())):
            operation = f"to load the DAG(s) {', '.join(missing)}"
            errors = self.import_errors()
            if errors:
                text = "\n".join(f"{name}: {trace}" for name, trace in errors.items())
                raise AirflowRefused(operation=operation, reason=text)
            _wait(deadline, operation, f"not there after {timeout_s:.0f} s")

    def set_paused(self, dag_id: str, paused: bool) -> None:
        """Switch a DAG's schedule off or on."""
        self.call("PATCH", f"/dags/{quote(dag_id)}", {"is_paused": paused})

    # -- runs ------------------------------------------------------------------------------------

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None
    ) -> str:
        """Start a run, and return its id.

        Args:
            dag_id: DAG; a paused one accepts the run and does not start it.
            conf: Values of the DAG's params.
            run_id: Of the new run; Airflow makes one up if None.
        """
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        created = self.call("POST", f"/dags/{quote(dag_id)}/dagRuns", body)
        return str(created["dag_run_id"])

    def run_ids(self, dag_id: str) -> list[str]:
        """Every run of a DAG, oldest first."""
        query = {"limit": 1000, "order_by": "run_after"}
        found = self.call("GET", f"/dags/{quote(dag_id)}/dagRuns", query=query)
        return [run["dag_run_id"] for run in found["dag_runs"]]

    def wait_for_run(self, dag_id: str, *, timeout_s: float = 120.0) -> str:
        """The first run of a DAG, as soon as Airflow's schedule has made one.

        Raises:
            AirflowUnavailable: Not in time.
        """
        deadline = time.monotonic() + timeout_s
        while not (runs := self.run_ids(dag_id)):
            _wait(deadline, f"to schedule {dag_id}", f"no run after {timeout_s:.0f} s")
        return runs[0]

    def run(self, dag_id: str, run_id: str) -> DagRun:
        """One run with the states of its tasks."""
        path = _run_path(dag_id, run_id)
        run = self.call("GET", path)
        tasks = self.call("GET", f"{path}/taskInstances", query={"limit": 100})
        return DagRun(
            dag_id=dag_id,
            run_id=run_id,
            state=run["state"],
            tasks={_task_name(task): task["state"] for task in tasks["task_instances"]},
            seconds=run["duration"] if run["end_date"] else None,
        )

    def wait(
        self,
        dag_id: str,
        run_id: str,
        *,
        timeout_s: float = 600.0,
        progress: Progress | None = None,
    ) -> DagRun:
        """Return when a run has ended, well or not.

        Args:
            dag_id: DAG.
            run_id: Run.
            timeout_s: Longest wait.
            progress: Told of each task's new state.

        Raises:
            AirflowUnavailable: It has not ended in time.
        """
        deadline = time.monotonic() + timeout_s
        before: Mapping[str, str | None] = {}
        while True:
            run = self.run(dag_id, run_id)
            for task, state in run.tasks.items():
                if progress and state and state != before.get(task):
                    progress(f"{dag_id} {task}: {state}")
            before = run.tasks
            if run.finished:
                return run
            states = ", ".join(f"{task} {state or 'waiting'}" for task, state in run.tasks.items())
            _wait(
                deadline,
                f"to finish the run {run_id} of {dag_id}",
                f"{run.state} after {timeout_s:.0f} s ({states})",
            )

    def clear(self, dag_id: str, run_id: str, tasks: Sequence[str], *, downstream: bool) -> None:
        """Let tasks of an ended run run again, as the Clear button does.

        Args:
            dag_id: DAG.
            run_id: Run.
            tasks: Task ids.
            downstream: The tasks after them as well.
        """
        body = {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": run_id,
            "task_ids": list(tasks),
            "include_downstream": downstream,
        }
        self.call("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", body)

    def log_tail(self, dag_id: str, run_id: str, task_id: str, *, lines: int = 40) -> str:
        """The last lines of a task's last try."""
        name, _, index = task_id.removesuffix("]").partition("[")
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(name)}"
        mapped = f"{path}/{index}" if index else path
        attempt = self.call("GET", mapped)["try_number"]
        query = {"full_content": "true", "map_index": index or "-1"}
        content = self.call("GET", f"{path}/logs/{attempt}", query=query)["content"]
        return "\n".join(_log_line(entry) for entry in content[-lines:])

    def asset_events(self, dag_id: str | None = None) -> list[AssetEvent]:
        """What `publish` tasks reported, oldest first."""
        query = {"limit": 1000, "order_by": "timestamp"}
        if dag_id:
            query["source_dag_id"] = dag_id
        found = self.call("GET", "/assets/events", query=query)["asset_events"]
        return [
            AssetEvent(
                uri=event["uri"],
                dag_id=event["source_dag_id"] or "",
                run_id=event["source_run_id"] or "",
                extra=event["extra"] or {},
                timestamp=datetime.fromisoformat(event["timestamp"]),
            )
            for event in found
        ]

    # -- HTTP ------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a request to Airflow's REST API and return the answer's JSON. Repeats only a GET.

        Raises:
            AirflowUnavailable, AirflowRefused
        """
        target = f"/api/v2{path}{'?' + urlencode(query) if query else ''}"
        if self._token is None:
            self._token = self._new_token()
        headers = {"Authorization": f"Bearer {self._token}"}
        for _ in range(_READ_TRIES - 1 if method == "GET" else 0):
            try:
                return self._send(method, target, body, headers)
            except AirflowUnavailable as error:
                if not _is_timeout(error.__cause__):
                    raise
        return self._send(method, target, body, headers)

    def _new_token(self) -> str:
        return str(self._send("POST", "/auth/token", self._login, {})["access_token"])

    def _send(
        self, method: str, target: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> Any:
        request = urllib.request.Request(
            f"{self._url}{target}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={**headers, "Content-Type": "application/json", "Accept": "application/json"},
        )
        operation = f"{method} {target}"
        try:
            try:
                with self._opener.open(request, timeout=self._timeout_s) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code}: {error.read().decode(errors='replace')[:500]}"
                if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise AirflowUnavailable(operation=operation, reason=reason) from error
                raise AirflowRefused(operation=operation, reason=reason) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            # HTTPException: the answer is cut off or no HTTP. ValueError: it is no JSON.
            raise AirflowUnavailable(operation=operation, reason=str(error)) from error


def _is_timeout(cause: BaseException | None) -> bool:
    """Whether a request had no answer in time, or no connection in time."""
    return isinstance(getattr(cause, "reason", cause), TimeoutError)


def _task_name(task: Mapping[str, Any]) -> str:
    mapped = task["map_index"] >= 0
    return f"{task['task_id']}[{task['map_index']}]" if mapped else str(task["task_id"])


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _wait(deadline: float, operation: str, reason: str) -> None:
    if time.monotonic() > deadline:
        raise AirflowUnavailable(operation=operation, reason=reason)
    time.sleep(POLL_S)


def _log_line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    parts = [str(entry.get("event", ""))]
    for failure in entry.get("error_detail") or ():
        parts.append(f"{failure.get('exc_type')}: {failure.get('exc_value')}")
    return "\n".join(parts)
