"""One pipeline whose steps are real processes, which a test kills and runs again."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.support import PROJECT
from tests.support.lake import Lake
from tests.support.proxy import Gate, ProxiedBroker
from tests.support.waiting import wait_until
from tidemark.app import steps
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.core.plan import PlanRef
from tidemark.local.failpoints import PORTS, VARIABLE, kill_message
from tidemark.spark.settings import local_settings
from tidemark.spark.submit import conf_arguments, job_arguments, search_path
from tidemark.spec.ref import DecodeRef, MergeRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = """
name: {name}
topic: {topic}
schedule: '@yearly'
start: {start}
retries: 0
limits:
  records_per_task: 1000
spark:
  spark.driver.memory: 1g
  spark.driver.bindAddress: 127.0.0.1
  spark.driver.host: 127.0.0.1
"""

KILLED = {-signal.SIGKILL, 128 + signal.SIGKILL}
"""The exit codes of a process that SIGKILL ended, and of a spark-submit whose Python it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """The end of a process.

    Attributes:
        code: Exit code; negative for the signal that ended it.
        printed: Standard output and error.
    """

    code: int
    printed: str


def reads_from(pid: int, port: int) -> bool:
    """Return whether a process has a connection to a port."""
    with suppress(psutil.NoSuchProcess):
        connections = psutil.Process(pid).net_connections("tcp")
        return any(each.raddr and each.raddr.port == port for each in connections)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process with a process session of its own.

    Attributes:
        process: The leader of the session.
        log: Output of the process and its children.
    """

    process: subprocess.Popen[bytes]
    log: Path

    def members(self) -> list[int]:
        """Return the living processes of the session, its leader first."""
        return session_members(self.process.pid)

    def find(self, argument: str) -> list[int]:
        """Return the living processes of the session with this text in their command line."""
        return [pid for pid in self.members() if argument in command_line(pid)]

    def reads_from(self, port: int) -> bool:
        """Return whether the JVM has a connection to a port."""
        return any(reads_from(pid, port) for pid in self.find("org.apache.spark.deploy"))

    def kill(self) -> ProcessEnd:
        """Kill the whole session, as a machine that stops; no process sees another one end."""
        while members := self.members():
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in members:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            self.process.poll()
        return self._ended()

    def wait(self, timeout_s: float = 420.0) -> ProcessEnd:
        """Wait for the end of the process, and kill its children."""
        try:
            self.process.wait(timeout_s)
        finally:
            ended = self.kill()
        return ended

    def _ended(self) -> ProcessEnd:
        code = self.process.wait(30)
        return ProcessEnd(code=code, printed=self.log.read_text(errors="replace"))


@dataclass(kw_only=True)
class Site:
    """One pipeline, `events`, with a home of its own.

    Attributes:
        home: TIDEMARK_HOME of its processes.
        bootstrap: Address of Kafka for the processes.
        topic: The pipeline's topic.
        session: Spark session for steps in this process.
        start: Start policy.
        environ: Further variables of every process.
        more: Further lines of its spec, such as a section `decode`.
    """

    home: Path
    bootstrap: str
    topic: str
    session: SparkSession
    start: str = "earliest"
    environ: Mapping[str, str] = field(default_factory=dict)
    more: str = ""

    def __post_init__(self) -> None:
        self.specs.mkdir(parents=True, exist_ok=True)
        spec = SPEC.format(name="events", topic=self.topic, start=self.start)
        (self.specs / "events.yaml").write_text(spec + self.more)

    @property
    def specs(self) -> Path:
        """Folder of the pipeline's spec."""
        return self.home / "pipelines"

    @property
    def variables(self) -> dict[str, str]:
        """Environment of its processes, without the developer's settings."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK"))}
        return {
            **kept,
            "TIDEMARK_HOME": str(self.home),
            "TIDEMARK_PIPELINES": str(self.specs),
            "PATH": search_path(kept),
            "NO_COLOR": "1",
            connection_variable("kafka_default"): kafka_connection(self.bootstrap),
            **self.environ,
        }

    @property
    def app(self) -> App:
        """The application object of the processes."""
        return App(environ=self.variables)

    @property
    def lake(self) -> Lake:
        """The same pipeline in this process."""
        return Lake(
            session=self.session,
            root=Path(self.app.layout.lakehouse),
            connection={"bootstrap.servers": self.bootstrap},
            spec=self.app.spec("events"),
        )

    def files(self) -> list[Path]:
        """Return complete Parquet files of the data table's folder, committed or not."""
        return [file for file in self.lake.uri.rglob("*.parquet") if _is_complete(file)]

    # -- processes -------------------------------------------------------------------------------

    def tidemark(self, *arguments: str) -> list[str]:
        """Return a command line of `tidemark`."""
        return [str(Path(sys.executable).parent / "tidemark"), *arguments]

    def driver(
        self, job: str, plan: int | MergeRef | DecodeRef, master: str = "local[2]"
    ) -> list[str]:
        """Return the command line of a job's driver, as Airflow's operator runs it.

        Args:
            job: One of `JOBS`.
            plan: The number of a plan, or a merge or a decode.
            master: Spark master URL.
        """
        ref = PlanRef(pipeline="events", sequence=plan) if isinstance(plan, int) else plan
        settings = self.app.engines.submit_settings(
            self.app.spec("events"), steps.offsets_of(self.app, [ref])
        )
        return [
            "spark-submit",
            *("--master", master),
            *conf_arguments({**settings, **local_settings(master)}),
            *(str(PROJECT / "jobs" / f"{job}.py"), *job_arguments([ref])),
        ]

    @contextmanager
    def started(self, command: list[str], *, fail_at: str | None = None) -> Iterator[Running]:
        """Run a process during the block, and kill its session at the end."""
        fail_point = {} if fail_at is None else {VARIABLE: fail_at}
        log = self.home / f"process-{time.monotonic_ns()}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**self.variables, **fail_point},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                start_new_session=True,
            )
        running = Running(process=process, log=log)
        try:
            yield running
        finally:
            running.kill()

    def run(self, command: list[str], *, code: int = 0) -> ProcessEnd:
        """Run a process, which must end with this exit code."""
        with self.started(command) as running:
            ended = running.wait()
        assert ended.code == code, ended.printed
        return ended

    def crash(self, command: list[str], at: str) -> ProcessEnd:
        """Run a process that kills itself at a fail point."""
        with self.started(command, fail_at=at) as running:
            ended = running.wait()
        assert kill_message(at) in ended.printed, ended.printed
        assert ended.code in KILLED, ended
        return ended


A_PART = 2_200_000
"""Bytes of a long read (`long_read`) that pass before the proxy holds the rest. Two tasks read at a
time, and each partition is one fetch. At least one task has its whole partition then, and at least
two partitions are unread."""


@contextmanager
def held_in_mid_read(
    site: Site, proxied: ProxiedBroker, command: list[str]
) -> Iterator[tuple[Running, Gate]]:
    """Start a driver, and run the block when it has written some files and waits for records."""
    gate = proxied.proxy.hold(after=A_PART)
    with site.started(command) as running:
        gate.wait_held()
        wait_until(site.files)
        assert site.lake.table.find_landing(site.lake.ledger.plans[1].plan) is None
        yield running, gate


class Trace:
    """The calls of a service to its ports, with the names of their fail points.

    Attributes:
        steps: `port.method:n` of each call, in order.
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._counts: Counter[str] = Counter()

    def on(self, service: Any) -> Any:
        """Return the service with traced ports."""
        changes: dict[str, Any] = {}
        for each in dataclasses.fields(service):
            part = getattr(service, each.name)
            if port := _port(each.name):
                changes[each.name] = _Traced(part, port, self)
            elif each.name in _PARTS_WITH_PORTS:
                changes[each.name] = self.on(part)
        return dataclasses.replace(service, **changes)

    def note(self, step: str) -> None:
        """Record a call."""
        self._counts[step] += 1
        self.steps.append(f"{step}:{self._counts[step]}")


_PARTS_WITH_PORTS = ("planner", "ports", "source")
"""Fields of a service whose values also have ports."""


def _port(field: str) -> str | None:
    """Return the port that a field contains, or opens on its first call; None for other fields."""
    name = field.removeprefix("open_")
    return name if name in PORTS else None


class _Traced:
    def __init__(self, adapter: Any, port: str, trace: Trace) -> None:
        self._adapter = adapter
        self._port = port
        self._trace = trace

    def __call__(self) -> _Traced:
        """Open a port that the service opens on its first call."""
        return _Traced(self._adapter(), self._port, self._trace)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._adapter, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            self._trace.note(f"{self._port}.{name}")
            return method(*arguments, **named)

        return noted


def session_members(session: int) -> list[int]:
    """Return the living processes of a session without zombies, its leader first."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            dead = process.info["status"] in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            if os.getsid(process.pid) == session and not dead:
                found.append(process.pid)
    return sorted(found)


def command_line(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def _is_complete(file: Path) -> bool:
    """Return whether a Parquet file has its footer, which ends with four known bytes."""
    return file.read_bytes()[-4:] == b"PAR1"
