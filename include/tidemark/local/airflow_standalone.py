"""Starts, watches and stops `airflow standalone`, for `make up` and the demo.

One session of the operating system contains all of its processes. Airflow starts each task in a
new process group, so only the session leads to the Spark drivers.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tidemark.core.errors import SetupError
from tidemark.core.plain import record_of
from tidemark.delta import local_files
from tidemark.local.airflow_api import AirflowApi, Progress
from tidemark.local.airflow_settings import HOST, AirflowPorts, environment, password_file, url
from tidemark.local.errors import AirflowUnavailable
from tidemark.spark import processes, sockets
from tidemark.spec.layout import Layout

_log = logging.getLogger(__name__)

USERNAME = "admin"
"""The only user of `airflow standalone`."""

DEFAULT_PORT = 8080
"""Port of the first start by `tidemark up`."""

_POLL_S = 0.2
_REQUIRED_COMPONENTS = ("metadatabase", "scheduler", "dag_processor")


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowStatus:
    """Status of an Airflow, from the recorded state and the process table.

    Attributes:
        running: Whether the main process runs.
        url: Address of the web UI; empty before the first start.
        username: User name.
        password: Password of the user; empty before the first start.
        home: AIRFLOW_HOME.
        log: File with the output of all processes.
        processes: Ids of the running processes, including Spark drivers of tasks.
    """

    running: bool
    url: str
    username: str
    password: str
    home: Path
    log: Path
    processes: tuple[int, ...]

    @property
    def console(self) -> str:
        """Address of Tidemark's console in the web UI, which requires the login."""
        return f"{self.url}/plugin/tidemark" if self.url else ""

    def as_record(self) -> dict[str, Any]:
        """Return the status for `--json`, without the password."""
        return record_of(self, without={"password"}, console=self.console)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The recorded state of an Airflow, for the next process of this home."""

    session: int
    pid: int
    ports: AirflowPorts


_STATE = TypeAdapter(_State)


class AirflowStandalone:
    """The Airflow of one home folder.

    Args:
        layout: Folders of Airflow and of the DAGs.
        environ: Base environment, with AIRFLOW_CONN_ variables for Kafka and Spark. Without
            AIRFLOW_CONN_SPARK_DEFAULT, Airflow gets a connection to a local Spark.
        port: Port of web UI and API; 0 selects the last port if it is free, else any free port.
    """

    def __init__(self, layout: Layout, environ: Mapping[str, str], *, port: int = 0) -> None:
        self._layout = layout
        self.environ = environ
        self._port = port
        self._home = layout.airflow
        self._file = layout.airflow / "standalone.json"
        self._log_file = layout.airflow / "standalone.log"

    def status(self) -> AirflowStatus:
        """Return the status of the recorded processes, without a request to Airflow."""
        state = self._load()
        return AirflowStatus(
            running=state is not None and _is_running(state),
            url=url(state.ports.api) if state else "",
            username=USERNAME,
            password=self._password(),
            home=self._home,
            log=self._log_file,
            processes=_members(state),
        )

    def last_port(self) -> int | None:
        """Return the port of the last start; None before the first."""
        state = self._load()
        return None if state is None else state.ports.api

    def check_port(self) -> None:
        """Raise SetupError if Airflow does not run and its port is taken; `start` checks it too."""
        if self._port and not self.status().running:
            _require_free(self._port)

    def api(self) -> AirflowApi:
        """Return a client of the REST API."""
        status = self.status()
        return AirflowApi(status.url, status.username, status.password)

    def environment(self) -> dict[str, str]:
        """Return the environment of the last start, with the connections of the caller.

        Raises:
            SetupError: There was no start in this home.
        """
        state = self._load()
        if state is None:
            raise SetupError(
                finding=f"No Airflow was started in {self._home}.",
                advice="Start it: `tidemark up`.",
            )
        return environment(self._layout, self.environ, state.ports)

    def start(self, *, timeout_s: float = 240.0, progress: Progress | None = None) -> AirflowStatus:
        """Start Airflow unless it runs, and return when it is healthy.

        Args:
            timeout_s: Longest wait, in seconds.
            progress: Called with a line for each component that has become healthy.

        Raises:
            SetupError: A port is in use, or Airflow ended during its start.
            AirflowUnavailable: Airflow is not healthy in time; this call stops it again.
        """
        state = self._load()
        if state is not None and _is_running(state):
            self._wait_until_healthy(state, timeout_s, progress)
            return self.status()
        self.stop()
        state = self._spawn(self._choose_ports(state))
        if progress:
            progress(f"Airflow's log is {self._log_file}")
        try:
            self._wait_until_healthy(state, timeout_s, progress)
        except BaseException:
            self.stop()
            raise
        return self.status()

    def stop(self, *, timeout_s: float = 20.0) -> AirflowStatus:
        """End Airflow and all its descendants, and return when all of them have ended.

        Args:
            timeout_s: Seconds from the first signal to SIGKILL. A process that survives SIGKILL
                raises SetupError.
        """
        state = self._load()
        processes.stop("Airflow", lambda: _members(state), timeout_s=timeout_s)
        return self.status()

    # -- start -----------------------------------------------------------------------------------

    def _choose_ports(self, last: _State | None) -> AirflowPorts:
        spare, worker_log, trigger_log = sockets.free_ports(HOST, 3)
        api = sockets.choose_port(HOST, self._port, last.ports.api if last else None, spare)
        _require_free(api)
        return AirflowPorts(api=api, worker_log=worker_log, trigger_log=trigger_log)

    def _spawn(self, ports: AirflowPorts) -> _State:
        self._home.mkdir(parents=True, exist_ok=True)
        self._ensure_password()
        process = processes.spawn_detached(
            ["airflow", "standalone"],
            self._log_file,
            env=environment(self._layout, self.environ, ports),
            cwd=self._home,
        )
        state = _State(session=process.session, pid=process.pid, ports=ports)
        local_files.replace_text(self._file, _STATE.dump_json(state, indent=2).decode() + "\n")
        _log.info("airflow started pid=%d url=%s home=%s", state.pid, url(ports.api), self._home)
        return state

    def _wait_until_healthy(
        self, state: _State, timeout_s: float, progress: Progress | None
    ) -> None:
        api = AirflowApi(url(state.ports.api), USERNAME, self._password(), timeout_s=5)
        start = time.monotonic()
        healthy: set[str] = set()
        while not healthy.issuperset(_REQUIRED_COMPONENTS):
            if not _is_running(state):
                raise SetupError(
                    finding="Airflow ended during its start.",
                    needed=f"an Airflow that keeps running; its log is {self._log_file}",
                    seen=processes.last_lines(self._log_file),
                    advice="Fix the cause that the log shows, then run the command again.",
                )
            seconds = time.monotonic() - start
            if seconds > timeout_s:
                raise AirflowUnavailable(
                    operation="start",
                    reason=f"after {timeout_s:.0f} s only these components are healthy: "
                    f"{', '.join(sorted(healthy)) or 'none'}",
                )
            for part in sorted(_healthy_components(api) - healthy):
                healthy.add(part)
                if progress:
                    progress(f"airflow {part.replace('_', ' ')} healthy after {seconds:.0f} s")
            time.sleep(_POLL_S)

    # -- files -----------------------------------------------------------------------------------

    def _ensure_password(self) -> None:
        """Choose the password, because Airflow would print a password of its own into its log."""
        path = password_file(self._home)
        if path.exists():
            return
        with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            json.dump({USERNAME: secrets.token_urlsafe(12)}, file)

    def _password(self) -> str:
        with suppress(FileNotFoundError):
            return str(json.loads(password_file(self._home).read_text(encoding="utf-8"))[USERNAME])
        return ""

    def _load(self) -> _State | None:
        raw = local_files.read_json(self._file)
        return None if raw is None else _STATE.validate_python(raw)


def _require_free(port: int) -> None:
    choice = "`tidemark up --port N` or `make up PORT=N`"
    sockets.require_free(HOST, [port], "Airflow's web UI", choice)


def _healthy_components(api: AirflowApi) -> set[str]:
    try:
        return {part for part, status in api.health().items() if status == "healthy"}
    except AirflowUnavailable:
        return set()


def _is_running(state: _State) -> bool:
    return processes.runs_in_session(state.pid, state.session)


def _members(state: _State | None) -> tuple[int, ...]:
    return processes.session_members(state.session) if state else ()
