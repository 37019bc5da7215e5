"""A client of the part of Airflow's public REST API (v2) that `make up` and the demo use.

Source: Airflow 3.3, "Airflow public API reference"; tokens as in "Public API authentication".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx2

from tidemark.core.errors import SetupError
from tidemark.core.texts import listed
from tidemark.local.errors import AirflowUnavailable

_POLL_S = 0.5
"""Pause between two requests for a state, in seconds."""

_READ_ATTEMPTS = 3
"""Attempts of a GET that times out. A busy server usually answers the next request."""

Progress: TypeAlias = Callable[[str], None]
"""Called with a line about each change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    """One run of a DAG.

    Attributes:
        dag_id: DAG id.
        run_id: Run id.
        state: queued, running, success or failed.
        tasks: State by task id; a mapped task has the id `task[0]`. None for a waiting task.
        seconds: Duration of the run, in seconds; None while it runs.
    """

    dag_id: str
    run_id: str
    state: str
    tasks: Mapping[str, str | None]
    seconds: float | None

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.state in ("success", "failed")

    @property
    def failed_tasks(self) -> tuple[str, ...]:
        """Ids of the tasks that failed, without the tasks that depend on them."""
        return tuple(task for task, state in self.tasks.items() if state == "failed")


class AirflowApi:
    """A client of one Airflow API server.

    Methods raise AirflowUnavailable if the server does not answer or a timeout has passed, and
    SetupError if it refuses a request.

    Args:
        url: Address, without a path.
        username: User name.
        password: Password of the user.
        timeout_s: Longest wait for one answer, in seconds.
    """

    def __init__(self, url: str, username: str, password: str, *, timeout_s: float = 120.0) -> None:
        self._login = {"username": username, "password": password}
        self._token: str | None = None
        self._client = httpx2.Client(
            base_url=url,
            timeout=timeout_s,
            follow_redirects=True,
            # Airflow is on this machine, so requests must not use a proxy of the environment.
            trust_env=False,
            # Close each connection after its answer, because no method closes the client.
            limits=httpx2.Limits(max_keepalive_connections=0),
        )
        # httpx2 logs each request at level INFO.
        logging.getLogger("httpx2").setLevel(logging.WARNING)

    def health(self) -> dict[str, str | None]:
        """Return the status of each component: metadatabase, scheduler, triggerer, dag_processor.

        The request needs no login.
        """
        answer = self._send("GET", "/api/v2/monitor/health")
        return {name: (info or {}).get("status") for name, info in answer.items()}

    # -- DAGs ------------------------------------------------------------------------------------

    def dags(self) -> dict[str, bool]:
        """Return all DAGs: whether a DAG is paused, by DAG id."""
        found = self.call("GET", "/dags", query={"limit": 1000})["dags"]
        return {dag["dag_id"]: bool(dag["is_paused"]) for dag in found}

    def import_errors(self) -> dict[str, str]:
        """Return the stack traces of import errors, by DAG file."""
        found = self.call("GET", "/importErrors", query={"limit": 100})["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in found}

    def wait_for_dags(self, dag_ids: Sequence[str], *, timeout_s: float = 120.0) -> None:
        """Wait until Airflow has parsed all of these DAGs.

        Raises SetupError if a DAG is missing and a DAG file has an import error.
        """
        deadline = time.monotonic() + timeout_s
        while missing := sorted(set(dag_ids) - set(self.dags())):
            operation = f"load {listed('DAG', missing)}"
            errors = self.import_errors()
            if errors:
                text = "\n".join(f"{name}: {trace}" for name, trace in errors.items())
                raise refused(operation, text)
            _wait(deadline, operation, f"still missing after {timeout_s:.0f} s")

    def set_paused(self, dag_id: str, paused: bool) -> None:
        """Pause or resume the schedule of a DAG."""
        self.call("PATCH", f"/dags/{quote(dag_id)}", {"is_paused": paused})

    def unpause_first(self, dag_ids: Sequence[str]) -> bool:
        """Unpause DAGs if none of them has a run, as after the first start of Airflow.

        Later, a paused DAG was paused by a user, or its spec is new and may be incomplete.

        Returns:
            Whether this call unpaused them.
        """
        if any(self.run_ids(dag_id) for dag_id in dag_ids):
            return False
        for dag_id in dag_ids:
            self.set_paused(dag_id, False)
        return True

    # -- runs ------------------------------------------------------------------------------------

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None
    ) -> str:
        """Start a run, and return its id.

        Args:
            dag_id: DAG id. A paused DAG accepts the run and does not start it.
            conf: Values of the DAG's params.
            run_id: Id of the new run; None lets Airflow choose it.
        """
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        created = self.call("POST", f"/dags/{quote(dag_id)}/dagRuns", body)
        return str(created["dag_run_id"])

    def run_ids(self, dag_id: str) -> list[str]:
        """Return the ids of all runs of a DAG, oldest first."""
        query = {"limit": 1000, "order_by": "run_after"}
        found = self.call("GET", f"/dags/{quote(dag_id)}/dagRuns", query=query)
        return [run["dag_run_id"] for run in found["dag_runs"]]

    def wait_for_run(self, dag_id: str, *, timeout_s: float = 120.0) -> str:
        """Wait for the first run of a DAG that Airflow's schedule creates, and return its id."""
        deadline = time.monotonic() + timeout_s
        while not (runs := self.run_ids(dag_id)):
            _wait(deadline, f"schedule {dag_id}", f"no run after {timeout_s:.0f} s")
        return runs[0]

    def run(self, dag_id: str, run_id: str) -> DagRun:
        """Return a run with the states of its tasks."""
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
        """Wait until a run has succeeded or failed, and return it.

        Args:
            dag_id: DAG id.
            run_id: Run id.
            timeout_s: Longest wait, in seconds.
            progress: Called with a line for each new state of a task.
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
                f"finish run {run_id} of {dag_id}",
                f"{run.state} after {timeout_s:.0f} s ({states})",
            )

    def log_tail(self, dag_id: str, run_id: str, task_id: str, *, lines: int = 40) -> str:
        """Return the last lines of the log of a task's last attempt."""
        name, _, index = task_id.removesuffix("]").partition("[")
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(name)}"
        mapped = f"{path}/{index}" if index else path
        attempt = self.call("GET", mapped)["try_number"]
        query = {"full_content": "true", "map_index": index or "-1"}
        content = self.call("GET", f"{path}/logs/{attempt}", query=query)["content"]
        return "\n".join(_log_line(entry) for entry in content[-lines:])

    # -- HTTP ------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a request to Airflow's REST API and return the JSON of the answer.

        A login or a GET that times out is repeated, because it changes nothing.
        """
        if self._token is None:
            answer = self._send_repeatedly("POST", "/auth/token", body=self._login)
            self._token = str(answer["access_token"])
        send = self._send_repeatedly if method == "GET" else self._send
        return send(method, f"/api/v2{path}", body=body, query=query)

    def _send_repeatedly(
        self, method: str, target: str, **content: Mapping[str, Any] | None
    ) -> Any:
        for _ in range(_READ_ATTEMPTS - 1):
            try:
                return self._send(method, target, **content)
            except AirflowUnavailable as error:
                if not isinstance(error.__cause__, httpx2.TimeoutException):
                    raise
        return self._send(method, target, **content)

    def _send(
        self,
        method: str,
        target: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        operation = f"answer {method} {target}"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            answer = self._client.request(method, target, json=body, params=query, headers=headers)
        except httpx2.HTTPError as error:
            raise AirflowUnavailable(operation=operation, reason=str(error)) from error
        if answer.is_error:
            reason = f"HTTP {answer.status_code}: {answer.text[:500]}"
            if answer.is_server_error:
                raise AirflowUnavailable(operation=operation, reason=reason)
            raise refused(operation, reason)
        try:
            return answer.json()
        except ValueError as error:
            raise AirflowUnavailable(operation=operation, reason=f"no JSON: {error}") from error


def refused(operation: str, reason: str) -> SetupError:
    """Return the error of a request that Airflow refused, or of a DAG file with an import error.

    Args:
        operation: The operation, as a verb phrase such as "answer GET /api/v2/dags".
        reason: The answer of the API.
    """
    return SetupError(
        finding=f"Airflow refused to {operation}: {reason}.",
        advice=(
            "Correct a DAG file with an import error. Otherwise run `make down`, then the command "
            "again."
        ),
    )


def _task_name(task: Mapping[str, Any]) -> str:
    mapped = task["map_index"] >= 0
    return f"{task['task_id']}[{task['map_index']}]" if mapped else str(task["task_id"])


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _wait(deadline: float, operation: str, reason: str) -> None:
    if time.monotonic() > deadline:
        raise AirflowUnavailable(operation=operation, reason=reason)
    time.sleep(_POLL_S)


def _log_line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    parts = [str(entry.get("event", ""))]
    for failure in entry.get("error_detail") or ():
        parts.append(f"{failure.get('exc_type')}: {failure.get('exc_value')}")
    return "\n".join(parts)
