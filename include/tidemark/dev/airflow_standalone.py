"""`airflow standalone` for `make up` and the demo: started, watched, stopped.

One session of the operating system holds all of its processes. Airflow gives each task a process
group of its own, so the session is what finds Spark drivers as well.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemark.core.errors import SetupError
from tidemark.dev.airflow_api import AirflowApi, Progress
from tidemark.dev.airflow_settings import HOST, AirflowPorts, environment, password_file, url
from tidemark.dev.errors import AirflowUnavailable
from tidemark.lake import local_files
from tidemark.spark import processes, sockets
from tidemark.spec.layout import Layout

_log = logging.getLogger(__name__)

USERNAME = "admin"
"""The one user that `airflow standalone` has."""

_POLL_S = 0.2
_NEEDED = ("metadatabase", "scheduler", "dag_processor")


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowStatus:
    """What is known about an Airflow without asking it.

    Attributes:
        running: Whether its main process lives.
        url: Address of its pages; empty before the first start.
        username: Login.
        password: Its password; empty before the first start.
        home: AIRFLOW_HOME.
        log: What its processes print.
        processes: Processes that live, Spark drivers of running tasks among them.
    """

    running: bool
    url: str
    username: str
    password: str
    home: Path
    log: Path
    processes: tuple[int, ...]

    def as_record(self) -> dict[str, Any]:
        """The status as plain values, for `--json`; without the password."""
        return {
            "running": self.running,
            "url": self.url,
            "username": self.username,
            "home": str(self.home),
            "log": str(self.log),
            "processes": list(self.processes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What the next process that asks must know."""

    session: int
    pid: int
    started: str
    ports: AirflowPorts


class AirflowStandalone:
    """The Airflow of one home folder.

    Args:
        layout: Airflow's home and the DAG folder.
        environ: Base environment, with AIRFLOW_CONN_ variables for Kafka and Spark. Without
            AIRFLOW_CONN_SPARK_DEFAULT, Airflow gets a connection to a local Spark.
        port: Of pages and API; 0 takes the last one again if it is free, else any.
        parallelism: Most tasks at once.
    """

    def __init__(
        self,
        layout: Layout,
        environ: Mapping[str, str],
        *,
        port: int = 0,
        parallelism: int = 2,
    ) -> None:
        self._layout = layout
        self.environ = environ
        self._port = port
        self._parallelism = parallelism
        self._home = layout.airflow
        self._file = layout.airflow / "standalone.json"
        self._log_file = layout.airflow / "standalone.log"

    def status(self) -> AirflowStatus:
        """Look at the recorded processes; asks nothing of Airflow and changes nothing."""
        state = self._load()
        return AirflowStatus(
            running=state is not None and _is_alive(state),
            url=url(state.ports.api) if state else "",
            username=USERNAME,
            password=self._password(),
            home=self._home,
            log=self._log_file,
            processes=_members(state),
        )

    def api(self) -> AirflowApi:
        """A client of the REST API."""
        status = self.status()
        return AirflowApi(status.url, status.username, status.password)

    def start(self, *, timeout_s: float = 240.0, progress: Progress | None = None) -> AirflowStatus:
        """Start Airflow and return when it is healthy. One that runs already is left as it is.

        Args:
            timeout_s: Longest wait.
            progress: Told of each part that has become healthy.

        Raises:
            SetupError: A port is taken, or Airflow ended with an error of its own.
            AirflowUnavailable: It is not healthy in time; what this call started is stopped again.
        """
        state = self._load()
        if state is not None and _is_alive(state):
            self._wait_until_healthy(state, timeout_s, progress)
            return self.status()
        self.stop()
        state = self._spawn(self._chosen_ports(state))
        if progress:
            progress(f"airflow starts, its log is {self._log_file}")
        try:
            self._wait_until_healthy(state, timeout_s, progress)
        except BaseException:
            self.stop()
            raise
        return self.status()

    def stop(self, *, timeout_s: float = 20.0) -> AirflowStatus:
        """End Airflow and every process it started, and return when none is left.

        Args:
            timeout_s: Seconds from the first signal to SIGKILL.

        Raises:
            SetupError: A process survives SIGKILL.
        """
        state = self._load()
        processes.stop("Airflow", lambda: _members(state), timeout_s=timeout_s)
        return self.status()

    # -- start -----------------------------------------------------------------------------------

    def _chosen_ports(self, last: _State | None) -> AirflowPorts:
        spare, worker_log, trigger_log = sockets.free_ports(HOST, 3)
        api = sockets.choose_port(HOST, self._port, last.ports.api if last else None, spare)
        sockets.require_free(HOST, [api], "Airflow's pages")
        return AirflowPorts(api=api, worker_log=worker_log, trigger_log=trigger_log)

    def _spawn(self, ports: AirflowPorts) -> _State:
        self._home.mkdir(parents=True, exist_ok=True)
        self._ensure_password()
        process = processes.spawn_detached(
            ["airflow", "standalone"],
            self._log_file,
            env=environment(self._layout, self.environ, ports, self._parallelism),
            cwd=self._home,
        )
        state = _State(
            session=process.session, pid=process.pid, started=process.started, ports=ports
        )
        local_files.replace_text(self._file, json.dumps(asdict(state), indent=2) + "\n")
        _log.info("airflow started pid=%d url=%s home=%s", state.pid, url(ports.api), self._home)
        return state

    def _wait_until_healthy(
        self, state: _State, timeout_s: float, progress: Progress | None
    ) -> None:
        api = AirflowApi(url(state.ports.api), USERNAME, self._password(), timeout_s=5)
        begun = time.monotonic()
        healthy: set[str] = set()
        while not healthy.issuperset(_NEEDED):
            if not _is_alive(state):
                raise SetupError(
                    subject="Airflow ended while it started",
                    needed=f"`airflow standalone` to keep running; its log is {self._log_file}",
                    seen=processes.last_lines(self._log_file),
                    advice="mend what the log names; `make clean` removes Airflow's home",
                )
            seconds = time.monotonic() - begun
            if seconds > timeout_s:
                raise AirflowUnavailable(
                    operation="to start",
                    reason=f"healthy after {timeout_s:.0f} s: {', '.join(healthy) or 'nothing'}",
                )
            for part in sorted(_healthy(api) - healthy):
                healthy.add(part)
                if progress:
                    progress(f"airflow {part.replace('_', ' ')} healthy after {seconds:.0f} s")
            time.sleep(_POLL_S)

    # -- files -----------------------------------------------------------------------------------

    def _ensure_password(self) -> None:
        """Choose the password before Airflow does, which would print it into its log."""
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
        if raw is None:
            return None
        return _State(**{**raw, "ports": AirflowPorts(**raw["ports"])})


def _healthy(api: AirflowApi) -> set[str]:
    try:
        return {part for part, status in api.health().items() if status == "healthy"}
    except AirflowUnavailable:
        return set()


def _is_alive(state: _State) -> bool:
    return processes.is_running(state.pid, state.started)


def _members(state: _State | None) -> tuple[int, ...]:
    return processes.session_members(state.session) if state else ()
