"""`airflow standalone` for `make up` and the demo: started, watched, stopped.

One session of the operating system holds all of its processes. Airflow gives each task a process
group of its own, so the session is what finds Spark drivers as well.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemark.adapters.airflow.api import AirflowApi, Progress
from tidemark.adapters.airflow.settings import (
    HOST,
    AirflowPorts,
    environment,
    password_file,
    url,
)
from tidemark.core.layout import Layout
from tidemark.errors import AirflowUnavailable, SetupError

_log = logging.getLogger(__name__)

USERNAME = "admin"
"""The one user that `airflow standalone` has."""

_POLL_S = 0.2
_NEEDED = ("metadatabase", "scheduler", "dag_processor")
# The shell in between leaves at once: standalone then belongs to init, and nobody has to wait for
# it. `$$` is the shell's process id, which names the session.
_DETACH = 'log=$1; shift; "$@" </dev/null >"$log" 2>&1 & echo $$ $!'


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
        environ: Environment to build on, with AIRFLOW_CONN_ variables for Kafka; a local Spark is
            added unless it has AIRFLOW_CONN_SPARK_DEFAULT.
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
        self._environ = environ
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
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in _members(state):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if _wait_until_gone(state, timeout_s):
                return self.status()
        raise SetupError(
            subject="Airflow does not stop",
            needed="no process after SIGTERM and SIGKILL",
            seen=f"process(es) {', '.join(map(str, _members(state)))}",
            advice="look at them with ps: a process in state D waits for the disk",
        )

    # -- start -----------------------------------------------------------------------------------

    def _chosen_ports(self, last: _State | None) -> AirflowPorts:
        api, worker_log, trigger_log = _free_ports(3)
        if self._port:
            if not _is_free(self._port):
                raise SetupError(
                    subject=f"port {self._port} is taken",
                    needed=f"a free port {self._port} for Airflow's pages",
                    seen="another process that listens on it",
                    advice="stop that process, or choose another port (0 takes a free one)",
                )
            api = self._port
        elif last and _is_free(last.ports.api):
            api = last.ports.api
        return AirflowPorts(api=api, worker_log=worker_log, trigger_log=trigger_log)

    def _spawn(self, ports: AirflowPorts) -> _State:
        self._home.mkdir(parents=True, exist_ok=True)
        self._ensure_password()
        if self._log_file.exists():
            self._log_file.replace(self._log_file.with_suffix(".log.1"))
        spawned = subprocess.run(
            ["/bin/sh", "-c", _DETACH, "sh", str(self._log_file), "airflow", "standalone"],
            env=environment(self._layout, self._environ, ports, self._parallelism),
            cwd=self._home,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            start_new_session=True,
        )
        session, pid = map(int, spawned.stdout.split())
        state = _State(session=session, pid=pid, started=_started(pid), ports=ports)
        self._save(state)
        _log.info("airflow started pid=%d url=%s home=%s", pid, url(ports.api), self._home)
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
                    seen=_last_words(self._log_file),
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
        try:
            raw = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return _State(**{**raw, "ports": AirflowPorts(**raw["ports"])})

    def _save(self, state: _State) -> None:
        draft = self._file.with_suffix(".json.new")
        draft.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        draft.replace(self._file)


def _healthy(api: AirflowApi) -> set[str]:
    try:
        return {part for part, status in api.health().items() if status == "healthy"}
    except AirflowUnavailable:
        return set()


# -- processes -----------------------------------------------------------------------------------


def _is_alive(state: _State) -> bool:
    # A process that ended at once has no start time on record either.
    return bool(state.started) and _started(state.pid) == state.started


def _members(state: _State | None) -> tuple[int, ...]:
    """Living processes of the session.

    Its leader was the shell, which is gone; a living leader leads a later session of the same id.
    """
    if state is None or _started(state.session):
        return ()
    return tuple(pid for pid in _pids() if _session(pid) == state.session and _started(pid))


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def _wait_until_gone(state: _State | None, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _members(state):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _pids() -> Sequence[int]:
    proc = Path("/proc")
    if (proc / "self").exists():
        return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    return [int(line) for line in _ps("-A", "-o", "pid=").split()]


def _started(pid: int) -> str:
    """When a process started, which tells it from a later one of the same id; "" if it is dead."""
    if Path("/proc/self").exists():
        with suppress(OSError):
            # The name in parentheses may hold spaces; state is the first field after it, the
            # start time in clock ticks the twentieth (proc_pid_stat(5)).
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return "" if fields[0] in {"Z", "X"} else fields[19]
        return ""
    state, _, started = _ps("-o", "stat=,lstart=", "-p", str(pid)).strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _last_words(log: Path, *, lines: int = 12) -> str:
    if not log.exists():
        return "no log"
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(text[-lines:]) or "an empty log"
