"""Another user of the machine gets no secret and no record from a Spark that Tidemark starts."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import PROJECT
from tests.support import other_user
from tests.support.crashes import Running, session_members
from tests.support.proxy import Gate, ProxiedBroker, proxied_broker
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records
from tests.support.waiting import wait_until
from tidemark.app.connections import connection_variable
from tidemark.spark.connect import connect_sessions
from tidemark.spark.server import SparkServer
from tidemark.spark.settings import server_settings
from tidemark.spec.layout import Layout

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

NOBODY = 65534
ENGINES = ("server", "submit")
"""Names of the pipelines, by the engine that reads their topics."""

PASSWORD = f"password-{secrets.token_hex(8)}"
RECORD = f"record-{secrets.token_hex(8)}"

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SMALL = {"spark.driver.memory": "1g"}


@dataclass(frozen=True, kw_only=True)
class View:
    """The findings of another user while both engines read Kafka.

    Attributes:
        listeners: The addresses of each engine, by port.
        answers: The report on each port (tests/support/other_user.py).
        files: The report on files.
        block_folders: Folders for shuffles and spills, each with whether other users may enter it.
    """

    listeners: Mapping[str, Mapping[int, str]]
    answers: Mapping[int, Mapping[str, Any]]
    files: Mapping[str, Any]
    block_folders: Mapping[Path, bool]

    def of(self, engine: str) -> list[Mapping[str, Any]]:
        """Return the reports on the ports of an engine."""
        return [self.answers[port] for port in self.listeners[engine] if port in self.answers]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A home that other users may enter, as one in a checkout.

    Attributes:
        home: The home.
        layout: Folders of the checkout.
    """

    home: Path
    layout: Layout

    @property
    def tmp(self) -> Path:
        """Folder for temporary files, in which every user may create files."""
        return self.home / "tmp"

    @property
    def shown(self) -> Mapping[str, str]:
        """Settings with which Spark writes an event log and serves pages."""
        return {
            "spark.ui.enabled": "true",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (self.home / "events").as_uri(),
        }

    def create(self) -> None:
        """Create the folders."""
        for name in ("tmp", "pipelines", "events", "broker"):
            (self.home / name).mkdir()
        self.home.chmod(0o755)
        self.tmp.chmod(0o1777)
        # The folder of Kafka itself has records.
        (self.home / "broker").chmod(0o700)

    def server(self) -> SparkServer:
        """Return the Spark Connect server of the home."""
        settings = {**_SMALL, **self.shown, "spark.master": "local[2]"}
        return SparkServer(self.home / "spark", os.environ, server_settings(self.layout, settings))

    @contextmanager
    def broker(self) -> Iterator[ProxiedBroker]:
        """Run Kafka with a password, and a topic and a spec for each engine."""
        listener = "listener.name.proxied."
        properties = {
            f"{listener}sasl.enabled.mechanisms": "PLAIN",
            f"{listener}plain.sasl.jaas.config": f'{_LOGIN} user_reader="{PASSWORD}";',
        }
        with proxied_broker(
            self.home / "broker",
            self.layout.kafka_jars,
            protocol="SASL_PLAINTEXT",
            properties=properties,
        ) as broker:
            admin = AdminClient({"bootstrap.servers": broker.direct, "log_level": 0})
            for name in ENGINES:
                make_topic(admin, broker.direct, name)
                produce_records(broker.direct, name, [Record(value=RECORD.encode())] * 3)
                # A session of a server accepts no settings of an application.
                settings = {**_SMALL, **self.shown} if name == "submit" else {}
                spec = {"name": name, "topic": name, "schedule": "@yearly", "start": "earliest"}
                text = json.dumps({**spec, "spark": settings})
                (self.home / "pipelines" / f"{name}.yaml").write_text(text)
            yield broker

    def ingest(self, broker: ProxiedBroker, name: str, *arguments: str) -> Running:
        """Start the ingest of a pipeline."""
        connection = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
            "sasl.password": PASSWORD,
        }
        environ = {
            **os.environ,
            "TIDEMARK_HOME": str(self.home),
            "TIDEMARK_PIPELINES": str(self.home / "pipelines"),
            "TMPDIR": str(self.tmp),
            "SPARK_LOCAL_DIRS": str(self.tmp),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self.tmp}",
            connection_variable("kafka_default"): json.dumps(
                {"conn_type": "kafka", "extra": connection}
            ),
        }
        log = self.home / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "tidemark"), "ingest", name, *arguments],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                start_new_session=True,
            )
        return Running(process=process, log=log)

    def seen_by_nobody(self, listeners: Mapping[str, Mapping[int, str]]) -> View:
        """Examine the ports and the files as another user; as this user if it is not root."""
        request = {
            "uid": NOBODY,
            "ports": [
                (_reachable(address), port)
                for ports in listeners.values()
                for port, address in ports.items()
            ],
            "folders": [str(self.home)],
            "canaries": [PASSWORD, RECORD],
            "tmp": str(self.tmp),
        }
        ended = subprocess.run(
            [sys.executable, "-m", other_user.__name__],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=False,
            cwd=PROJECT,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(PROJECT),
                "SPARK_HOME": str(Path(pyspark.__file__).parent),
                "PYSPARK_PYTHON": sys.executable,
            },
        )
        assert ended.returncode == 0, ended.stderr
        report = json.loads(ended.stdout.splitlines()[-1])
        answers = {int(port): answer for port, answer in report["ports"].items()}
        return View(
            listeners=listeners,
            answers=answers,
            files=report["files"],
            block_folders=self._block_folders(),
        )

    def _block_folders(self) -> Mapping[Path, bool]:
        def may_enter(folder: Path) -> bool:
            within = (each for each in folder.parents if each.is_relative_to(self.home))
            return all(each.stat().st_mode & 0o001 for each in (folder, *within))

        return {each: may_enter(each) for each in self.home.rglob("blockmgr-*")}


def _reachable(address: str) -> str:
    """Return an address at which a client reaches a listener."""
    return "127.0.0.1" if address in ("::", "0.0.0.0") else address


def _listeners(pids: Sequence[int]) -> dict[int, str]:
    """Return the ports on which processes listen, with their addresses."""
    return {
        each.laddr.port: each.laddr.ip.removeprefix("::ffff:")
        for pid in pids
        for each in psutil.Process(pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }


def _cache_records(session: Any, bootstrap: str) -> None:
    """Keep the records in blocks of the server, and start its Python workers."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

    def same(value):  # type: ignore[no-untyped-def]
        return value

    records = (
        session.read.format("kafka")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": ENGINES[0]})
        .load()
        .select(F.udf(same, "string")(F.col("value").cast("string")))
        .cache()
    )
    assert records.count() == 3


def _wait_for_reads(gate: Gate, runs: Sequence[Running]) -> None:
    """Wait until each run waits for the answer to a fetch."""

    def is_waiting() -> bool:
        for run in runs:
            assert run.process.poll() is None, run.log.read_text()
        return gate.waiting >= len(runs)

    wait_until(is_waiting, what="a held fetch of each run")


@pytest.fixture(scope="module")
def view(layout: Layout) -> Iterator[View]:
    """Hold a read of Kafka on both engines, and examine both as another user."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-other-"))
        site = Site(home=Path(folder), layout=layout)
        site.create()
        server = site.server()
        stack.callback(server.stop)
        with ThreadPoolExecutor(1) as starting:
            started = starting.submit(server.start, lambda _: None)
            broker = stack.enter_context(site.broker())
            started.result()
        found = server.running()
        assert found is not None
        sessions = stack.enter_context(connect_sessions(found, {}))
        gate = broker.proxy.hold()
        runs = []
        for name, arguments in (("submit", ("--master", "local[2]")), ("server", ())):
            runs.append(site.ingest(broker, name, *arguments))
            stack.callback(runs[-1].kill)
        _cache_records(sessions.shared(), broker.direct)
        _wait_for_reads(gate, runs)
        pid = server.status().pid
        assert pid is not None
        listeners = {
            "server": _listeners(session_members(os.getsid(pid))),
            "submit": _listeners(runs[0].members()),
        }
        yield site.seen_by_nobody(listeners)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_local_spark_listens_on_the_loopback_address_only(view: View, engine: str) -> None:
    """This includes the pages, which the test enables."""
    assert len(view.listeners[engine]) >= 5
    assert set(view.listeners[engine].values()) == {"127.0.0.1"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_port_of_a_local_spark_refuses_another_user(view: View, engine: str) -> None:
    """The refusals show that the clients of the test reach the ports of Spark."""
    answered = view.of(engine)
    assert [each for each in answered if each["accepted"]] == []
    assert len(answered) == len(view.listeners[engine]), "a port with an unknown protocol"
    assert sorted((each["protocol"], *each["refused"]) for each in answered) == sorted(
        [
            ("pages",),
            # The ports of RPC and of blocks.
            *[("spark", other_user.REFUSAL)] * 2,
            *(
                [("connect", "UNAUTHENTICATED"), ("python worker", "err")]
                if engine == "server"
                # The second port counts the accumulators of Python.
                else [("py4j", "Authentication"), ("silent", "closed")]
            ),
        ]
    )


def test_no_port_sends_a_password_or_a_record_to_another_user(view: View) -> None:
    """The pages show both plans."""
    for port, answer in view.answers.items():
        assert answer["found"] == [], port


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read files as another user")
def test_no_file_of_a_local_spark_shows_a_password_or_a_record_to_another_user(view: View) -> None:
    """The search covers logs, settings, temporary files, command lines and environments."""
    names = {Path(each).name for each in view.files["read"]}
    assert {"server.log", "server.properties", "submit.log", "cmdline"} <= names
    assert view.files["found"] == {}


def test_other_users_cannot_enter_the_folders_of_shuffles_and_spills(view: View) -> None:
    """Spark itself creates folders that they may enter. Each engine has such a folder."""
    assert set(view.block_folders.values()) == {False}
    assert len(view.block_folders) == len(ENGINES)
