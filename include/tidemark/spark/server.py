"""Starts, checks and stops the Spark Connect server of one home.

The server listens on this machine only and requires a token. Only this user can read the file of
the token. Clients of Spark's own protocols need a secret that the server creates in memory.
"""

from __future__ import annotations

import hashlib
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
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from tidemark.core.errors import SetupError
from tidemark.delta.local_files import locked, read_json, replace_text, translate_os_errors
from tidemark.spark import processes, sockets
from tidemark.spark.connect import SUBMIT_ADVICE
from tidemark.spark.engine import (
    DEFAULT_PORT,
    SECRET_VARIABLES,
    TOKEN_VARIABLE,
    Server,
    without_connect,
)
from tidemark.spark.errors import EngineUnavailable
from tidemark.spark.settings import LOCAL_ENVIRONMENT, LOCAL_SETTINGS, LOOPBACK
from tidemark.spark.stores import LOG_STORES, S3A_BUFFER_FOLDER
from tidemark.spark.submit import search_path
from tidemark.spark.workers import CODE_DIGEST

_log = logging.getLogger(__name__)

LOG_PROPERTY = "tidemark.server.log"
"""The Java property with the path of the log, for include/jvm/log4j2-server.properties."""

HOST = "localhost"
"""The only host to which PySpark's client sends a token without TLS."""

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_POLL_S = 0.1
_UI_LIMITS: Mapping[str, str] = {
    # A server runs for weeks, and its pages do not need finished work.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.connect.ui.retainedSessions": "20",
    "spark.sql.connect.ui.retainedStatements": "50",
    # Class loaders of sessions, 0.1 MB each. By default Spark keeps the last hundred.
    "spark.executor.isolatedSessionCache.size": "16",
}
"""Limits on the finished work that a server keeps in its heap; Spark's defaults fill the heap."""

_REMOVED_VARIABLES = (*SECRET_VARIABLES, "TIDEMARK_FAIL_AT", "SPARK_LOCAL_DIRS")
"""Prefixes of variables that the server's environment must not contain."""

REDACTION = r'(?s)(?<=key: "kafka\.)(?:sasl|ssl)\.[\w.]*"\s+value: "(?:\\.|[^"\\])*"'
"""Matches the security options of the Kafka source in the text of plans. The server removes them
from its log and its pages."""

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
    """Status of a server, from the recorded state and the process table.

    Attributes:
        running: Whether the server's process runs.
        pid: Process id of the server; None before the first start.
        address: Address of the server; empty before the first start.
        log: Path of the server's log.
    """

    running: bool
    pid: int | None
    address: str
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The recorded state of a server, for the next process of this home.

    Attributes:
        pid: The server's process id.
        session: The session of the operating system with the server and its Python workers.
        port: The server's port.
        code: Digest of the server's parts; empty until the checks have passed.
    """

    pid: int
    session: int
    port: int
    code: str = ""


class SparkServer:
    """The server of one home.

    Args:
        home: Folder of the server's token, settings and log.
        environ: Base environment of the server, which gets none of its connections.
        settings: Spark's settings, without secrets; the server reads them from a file.
        port: Port of the server; 0 selects the last port if it is free, else any free port.
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
        # The few lines that the JVM prints outside of its log.
        self._output = home / "server.out"

    def status(self) -> ServerStatus:
        """Return the status of the recorded process, without a call to the server."""
        state = self._load()
        return ServerStatus(
            running=state is not None and _is_running(state),
            pid=state.pid if state else None,
            address=f"sc://{HOST}:{state.port}" if state else "",
            log=self._log_file,
        )

    def running(self) -> Server | None:
        """Return the server if it runs and has passed its checks, else None.

        Raises:
            SetupError: Another version of this package started the server.
        """
        state = self._load()
        if state is None or not state.code or not _is_running(state):
            return None
        if state.code != self._code():
            raise SetupError.of_engine(
                engine="The Spark Connect server of this machine",
                mismatch="it was started by another version of tidemark, or with other jars",
                needed="a server of this version, with the jars of this checkout",
                advice="Restart it: `tidemark spark stop`, then `tidemark spark start`.",
            )
        try:
            token = self._token()
        except PermissionError:
            raise SetupError.of_engine(
                engine="The Spark Connect server of this machine",
                mismatch="another user started it, and only that user can read its token",
                needed="a server of your own",
                advice=f"Run {SUBMIT_ADVICE}; or set TIDEMARK_HOME to a folder of your own.",
            ) from None
        return Server(host=HOST, port=state.port, token=token)

    def _code(self) -> str:
        """Return a digest of the parts of a server that an upgrade or `make setup` can change."""
        options = self._settings.get("spark.driver.extraJavaOptions", "").split()
        parts = (
            CODE_DIGEST,
            *map(version, ("pyspark", "delta-spark")),
            REDACTION,
            *(f"{key}={value}" for key, value in LOCAL_SETTINGS.items()),
            *(key for key in sorted(self._settings) if key in LOG_STORES),
            # Options of the JVM depend on the size of jobs; checkouts that share a home have
            # different paths.
            *sorted(each for each in options if each.startswith("-D") and "/" not in each),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def start(self, check: Callable[[Server], None], *, timeout_s: float = 120.0) -> ServerStatus:
        """Start the server, unless it runs, and return when it has passed the checks.

        Args:
            check: Raises a named error for a server that cannot be used.
            timeout_s: Longest wait until the server listens.

        Raises:
            SetupError: A port is taken, or the server ended during its start.
            EngineUnavailable, SetupError: The server does not listen in time, or fails a
                check; this call stops it again.
            StorageFailure: The folder of the server cannot be written.
        """
        with (
            translate_os_errors(self._home, "starting the Spark Connect server"),
            locked(self._home / "server.lock"),
        ):
            state = self._load()
            if state is not None and state.code == self._code() and _is_running(state):
                return self.status()
            self.stop()
            state = self._spawn()
            try:
                self._wait_until_it_listens(state, timeout_s)
                check(Server(host=HOST, port=state.port, token=self._token()))
            except BaseException:
                self.stop()
                raise
            self._save(replace(state, code=self._code()))
            return self.status()

    def stop(self, *, timeout_s: float = 20.0) -> ServerStatus:
        """End the server and its workers, and return when all of them have ended."""
        state = self._load()
        running = (lambda: processes.session_members(state.session)) if state else (lambda: ())
        processes.stop("The Spark Connect server", running, timeout_s=timeout_s)
        # Another server may use the port by now, and with it the folder.
        if state and sockets.wait_until_free(LOOPBACK, state.port):
            shutil.rmtree(self._scratch(state.port), ignore_errors=True)
        return self.status()

    def serve(self) -> NoReturn:
        """Replace this process by the server, which keeps the process id.

        For containers and service managers. A token in the environment overrides the home's token.
        """
        port = self._port or DEFAULT_PORT
        with (
            translate_os_errors(self._home, "starting the Spark Connect server"),
            locked(self._home / "server.lock"),
        ):
            command, environ = self._prepare(port)
        given = self._environ.get(TOKEN_VARIABLE)
        os.execve(command[0], command, {**environ, TOKEN_VARIABLE: given or self._token()})

    def _spawn(self) -> _State:
        last = self._load()
        (spare,) = sockets.free_ports(LOOPBACK, 1)
        port = sockets.choose_port(LOOPBACK, self._port, last.port if last else None, spare)
        command, environ = self._prepare(port)
        process = processes.spawn_detached(command, self._output, env=environ, cwd=self._home)
        state = _State(pid=process.pid, session=process.session, port=port)
        self._save(state)
        _log.info("spark connect server started pid=%d port=%d", state.pid, port)
        return state

    def _scratch(self, port: int) -> Path:
        """Return the folder for temporary files of the server at a port."""
        return self._home / f"scratch-{port}"

    def _prepare(self, port: int) -> tuple[list[str], dict[str, str]]:
        """Write the files of a server, and return its command and environment."""
        choice = "`tidemark spark start --port N`"
        sockets.require_free(LOOPBACK, [port], "the Spark Connect server", choice)
        self._home.mkdir(parents=True, exist_ok=True)
        # Killed servers leave their folders behind.
        for old in self._home.glob("scratch-*"):
            if not sockets.is_listening(LOOPBACK, int(old.name.partition("-")[2])):
                shutil.rmtree(old, ignore_errors=True)
        scratch = self._scratch(port)
        # Spark spills records into it.
        scratch.mkdir(mode=0o700, exist_ok=True)
        self._write_token()
        pools = self._home / "pools.xml"
        replace_text(pools, _ALLOCATION)
        properties = self._home / "server.properties"
        settings = {
            # A killed client leaves a session behind, which uses memory.
            "spark.connect.session.manager.defaultSessionTimeout": "10m",
            **_UI_LIMITS,
            **self._settings,
            "spark.app.name": "tidemark-spark",
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(port),
            "spark.scheduler.allocation.file": f"file:{pools}",
            "spark.redaction.string.regex": REDACTION,
            "spark.sql.redaction.string.regex": REDACTION,
            **LOCAL_SETTINGS,
            "spark.local.dir": str(scratch),
            S3A_BUFFER_FOLDER: str(scratch),
            "spark.driver.extraJavaOptions": " ".join(
                (
                    self._settings.get("spark.driver.extraJavaOptions", ""),
                    f'"-Djava.io.tmpdir={scratch}"',
                    f'"-D{LOG_PROPERTY}={self._log_file}"',
                )
            ),
        }
        replace_text(properties, "".join(_property(*pair) for pair in settings.items()))
        kept = {k: v for k, v in self._environ.items() if not k.startswith(_REMOVED_VARIABLES)}
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
            **LOCAL_ENVIRONMENT,
        }
        return command, environ

    def _wait_until_it_listens(self, state: _State, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not sockets.is_listening(LOOPBACK, state.port):
            if not _is_running(state):
                raise SetupError(
                    finding="The Spark Connect server ended during its start.",
                    needed=f"a server that keeps running; its output is in {self._output}",
                    seen=processes.last_lines(self._output),
                    advice="Fix the cause that the output shows. The server needs Java 17 and "
                    "`make setup`.",
                )
            if time.monotonic() > deadline:
                raise EngineUnavailable(
                    engine="The Spark Connect server",
                    reason=f"no open port after {timeout_s:.0f} s; its log is {self._log_file}",
                )
            time.sleep(_POLL_S)

    def _write_token(self) -> None:
        """Create the token unless it exists: connections of Airflow may contain it."""
        if not self._token():
            # A full disk must not leave an empty token: with an empty one a server requires none.
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
        # Another version may have written more fields.
        return raw and _State(**{key: value for key, value in raw.items() if key in known})

    def _save(self, state: _State) -> None:
        replace_text(self._file, json.dumps(asdict(state), indent=2) + "\n")


def _property(key: str, value: str) -> str:
    """Return a line of a Java properties file."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return f"{key} {escaped}\n"


def _is_running(state: _State) -> bool:
    return processes.runs_in_session(state.pid, state.session)
