"""The Spark Connect server of one home: started, checked, stopped.

It listens on this machine only and asks for a token, which is in a file that only this user reads.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from tidemark import processes, sockets
from tidemark.errors import EngineUnavailable, EngineUnsuitable, SetupError
from tidemark.files import locked, named_failures, read_json, replace_text
from tidemark.spark.engine import DEFAULT_PORT, TOKEN_VARIABLE, Server, without_connect
from tidemark.spark.submit import search_path
from tidemark.spark.workers import CODE

_log = logging.getLogger(__name__)

LOG_PROPERTY = "tidemark.server.log"
"""The Java property that names the server's log to include/jvm/log4j2-server.properties."""

HOST = "localhost"
"""With a token PySpark's client speaks to no other host without TLS."""

_ADDRESS = "127.0.0.1"
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_POLL_S = 0.1
_REMEMBERED: Mapping[str, str] = {
    # What has ended is on no page, and a server runs for weeks.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.connect.ui.retainedSessions": "20",
    "spark.sql.connect.ui.retainedStatements": "50",
    # Class loaders of sessions, 0.1 MB each; the last hundred by default, ended or not.
    "spark.executor.isolatedSessionCache.size": "16",
}
"""How much a server remembers of work that has ended: its heap is full of it otherwise."""

_LEFT_OUT = ("AIRFLOW_CONN_", "TIDEMARK_FAIL_AT", TOKEN_VARIABLE, "SPARK_LOCAL_DIRS")
"""Beginnings of variables that the server's environment does not have."""

REDACTION = r'(?s)(?<=key: "kafka\.)(?:sasl|ssl)\.[\w.]*"\s+value: "(?:\\.|[^"\\])*"'
"""What the server leaves out of the text of plans, in its log and on its pages: options of security
of the Kafka source, with their values."""

_ALLOCATION = """<?xml version="1.0"?>
<allocations>
  <!-- All sessions are in this pool: their jobs take turns. -->
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
  </pool>
</allocations>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What is known about a server without asking it.

    Attributes:
        running: Whether its process lives.
        pid: Its process id; None before the first start.
        address: Where it listens; empty before the first start.
        log: What it prints.
    """

    running: bool
    pid: int | None
    address: str
    log: Path

    def as_record(self) -> dict[str, Any]:
        """The status as plain values, for `--json`; without the token."""
        return {**asdict(self), "log": str(self.log)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What the next process that asks must know.

    Attributes:
        pid: The server's process id.
        session: The session of the operating system that holds it and its Python workers.
        started: When the process started (`processes.start_time`).
        port: Where it listens.
        code: The code of its Python workers (`workers.CODE`); empty until it has passed its checks.
    """

    pid: int
    session: int
    started: str
    port: int
    code: str = ""


class SparkServer:
    """The server of one home.

    Args:
        home: Folder of its token, settings and log.
        environ: Environment to build on; connections in it do not reach the server.
        settings: Spark's settings; they are written to a file, and carry no secret.
        port: Where it listens; 0 takes the last port again if it is free, else any.
    """

    def __init__(
        self, home: Path, environ: Mapping[str, str], settings: Mapping[str, str], port: int = 0
    ) -> None:
        self._home = home
        self._environ = environ
        self._settings = settings
        self._port = port
        self._file = home / "server.json"
        self._token_file = home / "token"
        self._log_file = home / "server.log"
        # What the JVM prints before and beside its log: little, unlike the log.
        self._output = home / "server.out"

    def status(self) -> ServerStatus:
        """Look at the recorded process; asks nothing of it and changes nothing."""
        state = self._load()
        return ServerStatus(
            running=state is not None and _is_alive(state),
            pid=state.pid if state else None,
            address=f"sc://{HOST}:{state.port}" if state else "",
            log=self._log_file,
        )

    def running(self) -> Server | None:
        """The server, if it runs and has passed its checks.

        Raises:
            EngineUnsuitable: It was started by another version of this package.
        """
        state = self._load()
        if state is None or not state.code or not _is_alive(state):
            return None
        if state.code != CODE:
            raise EngineUnsuitable(
                engine="the Spark Connect server of this machine",
                problem="it was started by another version of tidemark",
                needed="a server of this version",
                advice="restart it: `tidemark spark stop`, then `tidemark spark start`",
            )
        return Server(host=HOST, port=state.port, token=self._token())

    def start(self, check: Callable[[Server], None], *, timeout_s: float = 120.0) -> ServerStatus:
        """Start the server and return when it has passed the checks; one that runs is left.

        Args:
            check: Raises a named error for a server that cannot be used.
            timeout_s: Longest wait until it listens.

        Raises:
            SetupError: A port is taken, or the server ended while it started.
            EngineUnavailable: It does not listen in time; what this call started is stopped.
            EngineUnsuitable: It does not pass a check; what this call started is stopped.
            StorageUnavailable, StorageRefused: The folder of the server cannot be written.
        """
        with (
            named_failures(self._home, "starting the Spark Connect server"),
            locked(self._home / "server.lock"),
        ):
            state = self._load()
            if state is not None and state.code == CODE and _is_alive(state):
                return self.status()
            self.stop()
            state = self._spawn()
            try:
                self._wait_until_it_listens(state, timeout_s)
                check(Server(host=HOST, port=state.port, token=self._token()))
            except BaseException:
                self.stop()
                raise
            self._save(replace(state, code=CODE))
            return self.status()

    def stop(self, *, timeout_s: float = 20.0) -> ServerStatus:
        """End the server and its workers, and return when none is left.

        Raises:
            SetupError: A process survives SIGKILL.
        """
        state = self._load()
        living = (lambda: processes.members(state.session)) if state else (lambda: ())
        processes.stop("the Spark Connect server", living, timeout_s=timeout_s)
        # Another server may have the port by now, and with it the folder.
        if state and sockets.is_free_soon(_ADDRESS, state.port):
            shutil.rmtree(self._scratch(state.port), ignore_errors=True)
        return self.status()

    def serve(self) -> NoReturn:
        """Become the server: this process ends, and the server has its process id.

        For containers and service managers. The token is that of the environment, if there is one.

        Raises:
            SetupError: A port is taken.
            StorageUnavailable, StorageRefused: The folder of the server cannot be written.
        """
        port = self._port or DEFAULT_PORT
        with named_failures(self._home, "starting the Spark Connect server"):
            command, environ = self._prepare(port)
        given = self._environ.get(TOKEN_VARIABLE)
        os.execve(command[0], command, {**environ, TOKEN_VARIABLE: given or self._token()})

    def _spawn(self) -> _State:
        last = self._load()
        (spare,) = sockets.free_ports(_ADDRESS, 1)
        port = sockets.chosen_port(_ADDRESS, self._port, last.port if last else None, spare)
        command, environ = self._prepare(port)
        process = processes.spawn_detached(command, self._output, env=environ, cwd=self._home)
        state = _State(pid=process.pid, session=process.session, started=process.started, port=port)
        self._save(state)
        _log.info("the Spark Connect server started pid=%d port=%d", state.pid, port)
        return state

    def _scratch(self, port: int) -> Path:
        """The folder of temporary files of the server at a port."""
        return self._home / f"scratch-{port}"

    def _prepare(self, port: int) -> tuple[list[str], dict[str, str]]:
        """Write the files of a server, and return its command and environment."""
        sockets.require_free(_ADDRESS, [port], "the Spark Connect server")
        scratch = self._scratch(port)
        # Left behind by a server that was killed.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        self._write_token()
        pools = self._home / "pools.xml"
        replace_text(pools, _ALLOCATION)
        properties = self._home / "server.properties"
        settings = {
            # A client that was killed leaves a session, which holds memory.
            "spark.connect.session.manager.defaultSessionTimeout": "10m",
            **_REMEMBERED,
            **self._settings,
            "spark.app.name": "tidemark-spark",
            "spark.connect.grpc.binding.address": _ADDRESS,
            "spark.connect.grpc.binding.port": str(port),
            "spark.scheduler.allocation.file": f"file:{pools}",
            "spark.redaction.string.regex": REDACTION,
            "spark.sql.redaction.string.regex": REDACTION,
            # The driver's own ports are for this machine too.
            "spark.driver.bindAddress": _ADDRESS,
            "spark.driver.host": _ADDRESS,
            "spark.local.dir": str(scratch),
            "spark.driver.extraJavaOptions": " ".join(
                (
                    self._settings.get("spark.driver.extraJavaOptions", ""),
                    f'"-Djava.io.tmpdir={scratch}"',
                    f'"-D{LOG_PROPERTY}={self._log_file}"',
                )
            ),
        }
        replace_text(properties, "".join(_property(*pair) for pair in settings.items()))
        kept = {k: v for k, v in self._environ.items() if not k.startswith(_LEFT_OUT)}
        command = [
            *(str(Path(sys.executable).parent / "spark-submit"), "--class", _CLASS),
            *("--properties-file", str(properties), "spark-internal"),
        ]
        environ = {
            **without_connect(kept),
            "TMPDIR": str(scratch),
            TOKEN_VARIABLE: self._token(),
            "PATH": search_path(kept),
            "PYSPARK_PYTHON": sys.executable,
        }
        return command, environ

    def _wait_until_it_listens(self, state: _State, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not sockets.accepts(_ADDRESS, state.port):
            if not _is_alive(state):
                raise SetupError(
                    subject="the Spark Connect server ended while it started",
                    needed=f"a server that keeps running; it prints to {self._output}",
                    seen=processes.last_words(self._output),
                    advice="mend what the log names; Java 17 and `make setup` are needed",
                )
            if time.monotonic() > deadline:
                raise EngineUnavailable(
                    engine="the Spark Connect server",
                    reason=f"no open port after {timeout_s:.0f} s; its log is {self._log_file}",
                )
            time.sleep(_POLL_S)

    def _write_token(self) -> None:
        """Make a token, unless there is one: connections of Airflow may have it."""
        if not self._token():
            # A full disk must not leave an empty token: a server with it asks for none.
            new = self._token_file.with_name(".token")
            number = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            with os.fdopen(number, "w") as file:
                file.write(secrets.token_urlsafe(32))
            new.replace(self._token_file)
        self._token_file.chmod(0o600)

    def _token(self) -> str:
        with suppress(FileNotFoundError):
            return self._token_file.read_text(encoding="utf-8")
        return ""

    def _load(self) -> _State | None:
        raw = read_json(self._file)
        known = {each.name for each in fields(_State)}
        # Another version may have written more.
        return raw and _State(**{key: value for key, value in raw.items() if key in known})

    def _save(self, state: _State) -> None:
        replace_text(self._file, json.dumps(asdict(state), indent=2) + "\n")


def _property(key: str, value: str) -> str:
    """A line of a Java properties file."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return f"{key} {escaped}\n"


def _is_alive(state: _State) -> bool:
    return processes.lives(state.pid, state.started)
