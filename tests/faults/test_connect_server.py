"""Tests that each record lands once if a Spark Connect server or its client fails."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

from tests.faults.tally import TableJudge
from tests.support.connect_page import ConnectPage
from tests.support.crashes import KILLED, ProcessEnd, Site, held_in_mid_read
from tests.support.proxy import ProxiedBroker
from tests.support.transactions import produce_values
from tests.support.waiting import wait_until
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus
from tidemark.spark import connect
from tidemark.spark.connect import connect_sessions, server_error
from tidemark.spark.engine import TOKEN_VARIABLE, Server
from tidemark.spark.errors import EngineUnavailable
from tidemark.spark.server import SparkServer
from tidemark.spark.settings import submit_settings
from tidemark.spec.layout import Layout

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults]


class SeparateServer:
    """The server of a site's home.

    Attributes:
        page: Web page that lists its sessions.
    """

    def __init__(self, layout: Layout, home: Path, **settings: str) -> None:
        self.page = ConnectPage.anywhere()
        small = {"spark.master": "local[2]", "spark.driver.memory": "1g"}
        shipped = submit_settings(layout, {**small, **self.page.settings, **settings})
        self._server = SparkServer(home / "spark", os.environ, shipped)

    def start(self) -> Server:
        self._server.start(lambda _: None)
        found = self._server.running()
        assert found is not None
        return found

    def kill(self) -> None:
        """Kill the server with SIGKILL and wait for the end of its process."""
        self.signal(signal.SIGKILL)
        wait_until(lambda: not self._server.status().running)

    def signal(self, number: signal.Signals) -> None:
        pid = self._server.status().pid
        assert pid is not None
        os.kill(pid, number)

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def server_of_test(layout: Layout, tmp_path: Path) -> Iterator[SeparateServer]:
    server = SeparateServer(layout, tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def long_read(long_read: Site) -> Site:
    """Return the site without settings of an application, which a server refuses."""
    spec = long_read.specs / "events.yaml"
    spec.write_text(spec.read_text().partition("spark:")[0])
    return long_read


def landed_once(table_judge: TableJudge, site: Site) -> None:
    """Retry the plan as an operator or Airflow does; one commit lands the whole log."""
    site.run(site.tidemark("ingest", "events"))
    table_judge.check(site.lake)
    assert site.lake.ledger.open_plans() == []
    assert DeltaTable(site.lake.uri).to_pyarrow_table().num_rows == len(site.lake.rows())


def ingest(site: Site) -> list[str]:
    return site.tidemark("ingest", "events", "--plan", "1")


def assert_fix_is_named(ended: ProcessEnd) -> None:
    assert ended.code == ExitCode.TRANSIENT, ended.printed
    assert "EngineUnavailable" in ended.printed
    assert "tidemark spark start" in ended.printed
    assert "Traceback" not in ended.printed


def test_i1_a_plan_lands_once_after_the_server_is_killed_during_the_read(
    table_judge: TableJudge, long_read: Site, proxied: ProxiedBroker, server_of_test: SeparateServer
) -> None:
    """The same command lands the plan on a new server."""
    long_read.lake.plan("a run")
    with held_in_mid_read(long_read, proxied, ingest(long_read)) as (running, gate):
        server_of_test.kill()
        start = time.monotonic()
        ended = running.wait()
        took = time.monotonic() - start
        gate.release()
    assert_fix_is_named(ended)
    assert took < 20, "PySpark's client retries for ten minutes"
    assert long_read.lake.rows() == []
    server_of_test.start()
    landed_once(table_judge, long_read)


def test_i1_a_plan_lands_once_after_the_server_restarts_during_the_read(
    table_judge: TableJudge, long_read: Site, proxied: ProxiedBroker, server_of_test: SeparateServer
) -> None:
    """The new server has no session of the client, so the client lands nothing."""
    long_read.lake.plan("a run")
    with held_in_mid_read(long_read, proxied, ingest(long_read)) as (running, gate):
        server_of_test.kill()
        gate.release()
        server_of_test.start()
        ended = running.wait()
    assert_fix_is_named(ended)
    landed_once(table_judge, long_read)


def test_i1_a_plan_lands_once_after_the_server_freezes_during_the_read(
    table_judge: TableJudge, long_read: Site, proxied: ProxiedBroker, server_of_test: SeparateServer
) -> None:
    """The machine still accepts connections; no commit contains the server's later files."""
    long_read.lake.plan("a run")
    with held_in_mid_read(long_read, proxied, ingest(long_read)) as (running, gate):
        server_of_test.signal(signal.SIGSTOP)
        start = time.monotonic()
        try:
            ended = running.wait()
            took = time.monotonic() - start
        finally:
            server_of_test.signal(signal.SIGCONT)
        gate.release()
    assert_fix_is_named(ended)
    assert took < 150, "gRPC's least interval between two pings is 300 s"
    assert long_read.lake.rows() == []
    landed_once(table_judge, long_read)


def test_a_long_operation_without_answers_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch, server_of_test: SeparateServer
) -> None:
    """Without heartbeats the client would send ten pings; a server closes at the third ping."""
    second = {"grpc.keepalive_time_ms": 3_000}
    faster = tuple((key, second.get(key, value)) for key, value in connect._CHANNEL)
    monkeypatch.setattr(connect, "_CHANNEL", faster)
    monkeypatch.setattr(connect, "_HEARTBEAT_S", 1)
    server = server_of_test.start()

    def connections() -> set[int]:
        ours = psutil.Process().net_connections("tcp")
        return {each.laddr.port for each in ours if each.raddr and each.raddr.port == server.port}

    with connect_sessions(server, {}) as sessions:
        session = sessions.shared()
        # Progress reports would count as answers.
        session.conf.set("spark.connect.progress.reportInterval", "-1")
        before = connections()
        session.sql(
            "SELECT reflect('java.lang.Thread', 'sleep', id + 30000) FROM range(1)"
        ).collect()
        assert connections() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_i1_a_plan_lands_once_after_the_client_is_killed_during_the_read(
    table_judge: TableJudge,
    long_read: Site,
    proxied: ProxiedBroker,
    server_of_test: SeparateServer,
    number: signal.Signals,
) -> None:
    """No commit contains the server's later files; after SIGTERM no session remains."""
    assert server_of_test.page.sessions() == 0
    long_read.lake.plan("a run")
    with held_in_mid_read(long_read, proxied, ingest(long_read)) as (running, gate):
        os.kill(running.process.pid, number)
        code = running.process.wait(60)
        assert code in {*KILLED, 128 + signal.SIGTERM}
        if number == signal.SIGTERM:
            wait_until(
                lambda: (server_of_test.page.sessions(), server_of_test.page.requests()) == (0, 0),
                60,
            )
        gate.release()
    assert long_read.lake.rows() == []
    landed_once(table_judge, long_read)


def test_i1_two_concurrent_clients_land_one_plan_once(
    table_judge: TableJudge, long_read: Site, proxied: ProxiedBroker, server_of_test: SeparateServer
) -> None:
    assert server_of_test
    long_read.lake.plan("a run")
    with ExitStack() as stack:
        one, gate = stack.enter_context(held_in_mid_read(long_read, proxied, ingest(long_read)))
        other = stack.enter_context(long_read.started(ingest(long_read)))
        wait_until(lambda: "engine: " in other.log.read_text())
        gate.release()
        codes = [one.wait().code, other.wait().code]
    assert ExitCode.OK in codes
    assert set(codes) <= {ExitCode.OK, ExitCode.TRANSIENT}
    landed_once(table_judge, long_read)


@pytest.mark.parametrize("reconnects", [True, False], ids=["reconnects", "stays-away"])
def test_i1_a_plan_lands_once_after_the_connection_to_the_server_is_cut(
    table_judge: TableJudge,
    long_read: Site,
    proxied: ProxiedBroker,
    server_of_test: SeparateServer,
    reconnects: bool,
) -> None:
    server = server_of_test.start()
    with TcpProxy(server.port) as wire:
        environ = {TOKEN_VARIABLE: server.token, "TIDEMARK_MASTER": f"sc://localhost:{wire.port}"}
        long_read.environ = environ
        long_read.lake.plan("a run")
        with held_in_mid_read(long_read, proxied, ingest(long_read)) as (running, gate):
            wire.cut(accept=reconnects)
            gate.release()
            ended = running.wait()
    if reconnects:
        assert ended.code == ExitCode.OK, ended.printed
    else:
        assert_fix_is_named(ended)
    long_read.environ = {}
    landed_once(table_judge, long_read)


def test_an_expired_session_is_reported_as_a_named_error(layout: Layout, tmp_path: Path) -> None:
    settings = {
        "spark.connect.session.manager.defaultSessionTimeout": "1s",
        "spark.connect.session.manager.maintenanceInterval": "100ms",
    }
    server_of_test = SeparateServer(layout, tmp_path, **settings)
    try:
        server = server_of_test.start()
        with connect_sessions(server, {}) as sessions:
            session = sessions.shared()
            errors: list[Exception] = []

            def is_gone() -> bool:
                time.sleep(2)  # Any call would keep the session alive.
                try:
                    session.range(1).count()
                except Exception as failure:  # noqa: BLE001  the test checks its type
                    errors.append(server_error(server, failure))
                return bool(errors)

            wait_until(is_gone)
        assert isinstance(errors[0], EngineUnavailable), errors
        assert "its session has ended" in errors[0].reason
    finally:
        server_of_test.stop()


def test_a_server_of_another_version_is_refused_before_a_plan_is_recorded(
    layout: Layout, long_read: Site, tmp_path: Path
) -> None:
    """The server reads the version of another Spark from its class path."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "spark-version-info.properties").write_text("version=4.0.1\n")
    jars = submit_settings(layout, {})["spark.driver.extraClassPath"]
    class_path = {"spark.driver.extraClassPath": f"{folder}{os.pathsep}{jars}"}
    server_of_test = SeparateServer(layout, folder, **class_path)
    try:
        server = server_of_test.start()
        address = f"sc://{server.host}:{server.port}"
        long_read.environ = {TOKEN_VARIABLE: server.token, "TIDEMARK_MASTER": address}
        ended = long_read.run(long_read.tidemark("ingest", "events"), code=ExitCode.REFUSED)
    finally:
        server_of_test.stop()
    assert "SetupError" in ended.printed
    assert "it runs pyspark 4.0.1" in ended.printed
    assert long_read.lake.ledger.plans == {}


def test_i1_a_plan_lands_once_after_client_and_server_are_killed_at_any_point(
    table_judge: TableJudge, broker: BrokerStatus, long_read: Site, server_of_test: SeparateServer
) -> None:
    """The fail points are in the command's own process."""
    assert server_of_test
    for at in (
        *("sink.write:before:1", "sink.write:after:1"),
        *("table.append:before:1", "table.append:after:1"),
        *("control.append:before:1", "control.append:after:1"),
    ):
        lake = long_read.lake
        lake.plan(f"a run until {at}")
        number = max(lake.ledger.plans)
        long_read.crash(long_read.tidemark("ingest", "events", "--plan", str(number)), at)
        landed_once(table_judge, long_read)
        produce_values(long_read.bootstrap, long_read.topic, 5)
    landed_once(table_judge, long_read)


class TcpProxy:
    """Proxy for a local TCP port whose connections a test can cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._accepts = True

    def __enter__(self) -> TcpProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut(accept=False)
        self._listening.close()

    def cut(self, *, accept: bool) -> None:
        self._accepts = accept
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if not self._accepts:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=_forward, args=(one, other), daemon=True).start()


def _forward(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
