"""Tests of the Spark Connect server of a home, with a real server."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.shell.progress import StageInfo

from tests.support.disks import mounted
from tests.support.waiting import wait_until
from tidemark.core.errors import SetupError
from tidemark.delta.errors import StorageUnavailable
from tidemark.spark.connect import ConnectSessions, TaskCounter, connect_sessions
from tidemark.spark.engine import TOKEN_VARIABLE, Server
from tidemark.spark.errors import EngineStopped, EngineUnavailable
from tidemark.spark.server import REDACTION, SparkServer
from tidemark.spark.server_requirements import check_requirements
from tidemark.spark.settings import AVRO_LIMITS, server_settings, submit_settings
from tidemark.spec.layout import Layout

pytestmark = pytest.mark.spark

SMALL = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.sql.session.timeZone": "Europe/Berlin",
    "spark.sql.ansi.enabled": "false",
}


@pytest.fixture
def sessions(connect_server: Server) -> Iterator[ConnectSessions]:
    """Sessions on the server that tests share."""
    with connect_sessions(connect_server, {}) as opened:
        yield opened


def check(sessions: ConnectSessions, location: Path, **others: object) -> None:
    """Check a server for one table location."""
    arguments: dict[str, object] = {
        "java_properties": AVRO_LIMITS,
        "redaction": REDACTION,
        "locations": [str(location)],
        "runs_python": True,
    }
    check_requirements(sessions, **(arguments | others))  # type: ignore[arg-type]


def test_a_server_is_started_used_and_stopped(layout: Layout, tmp_path: Path) -> None:
    """Only this user can read the token; the server gets no variables with connections."""
    environ = {**os.environ, "AIRFLOW_CONN_KAFKA_DEFAULT": "canary", "TIDEMARK_FAIL_AT": "canary"}
    home = tmp_path / "spark"
    server = SparkServer(home, environ, {**submit_settings(layout, {}), **SMALL})
    assert server.running() is None
    checked: list[Server] = []
    try:
        status = server.start(checked.append)
        assert status.running
        again = server.start(checked.append)
        assert again.pid == status.pid
        assert len(checked) == 1
        found = server.running()
        assert found == checked[0]
        assert found is not None
        # The size of jobs does not matter: every command finds the server of the demo.
        short = SparkServer(home, environ, {**submit_settings(layout, {}, 1), **SMALL})
        assert short.running() == found
        token = (home / "token").read_text()
        assert stat.S_IMODE((home / "token").stat().st_mode) == 0o600
        process = Path("/proc") / str(status.pid)
        visible = (process / "cmdline").read_bytes() + (home / "server.properties").read_bytes()
        assert token.encode() not in visible
        assert b"canary" not in (process / "environ").read_bytes()
        with connect_sessions(found, {}) as sessions:
            session = sessions.shared()
            # Settings of each session override the server's settings.
            assert session.conf.get("spark.sql.session.timeZone") == "UTC"
            assert session.conf.get("spark.sql.ansi.enabled") == "true"
            assert session.range(3).count() == 3
        assert server.stop().running is False
        server.start(lambda _: None)
        # Connections of Airflow contain the token; another process may have taken the port.
        back = server.running()
        assert back is not None
        assert back.token == found.token
        wrong = Server(host=found.host, port=found.port, token="wrong")
        with (
            connect_sessions(wrong, {}) as sessions,
            pytest.raises(SetupError, match="refuses this client"),
        ):
            sessions.shared()
        state = home / "server.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), "code": "older"}))
        with pytest.raises(SetupError, match="started by another version of tidemark"):
            server.running()
    finally:
        server.stop()
    assert not server.status().running
    assert server.running() is None


def test_tasks_of_a_query_that_has_ended_stay_counted() -> None:
    shown: list[tuple[int, int]] = []
    count = TaskCounter(lambda *counts: shown.append(counts))
    first = [StageInfo(0, 4, 3, 0, False), StageInfo(1, 2, 0, 0, False)]
    for stages, query, done in ((first, "a", False), (first[1:], "b", False), ([], "a", True)):
        count(stages=stages, inflight_tasks=1, operation_id=query, done=done)
    count(stages=[StageInfo(1, 2, 2, 0, True)], inflight_tasks=0, operation_id="b", done=False)
    assert shown == [(3, 6), (3, 8), (6, 8), (8, 8)]


def test_the_token_does_not_go_to_another_listener_on_the_port(connect_server: Server) -> None:
    """The name localhost also resolves to ::1, where another user can listen."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            other.bind(("::1", connect_server.port))
        except OSError:
            pytest.skip("this machine has no IPv6")
        other.listen()
        with connect_sessions(connect_server, {}) as sessions:
            assert sessions.shared().range(3).count() == 3
        assert select.select([other], [], [], 0)[0] == []


@pytest.mark.usefixtures("connect_server")
def test_a_server_of_another_user_is_refused_by_name(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token cannot be read; the fix names spark-submit."""
    server = SparkServer(layout.spark, {}, server_settings(layout, {}))

    def denied(path: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    read_text = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, *a, **k: (denied if path.name == "token" else read_text)(path, *a, **k),
    )
    with pytest.raises(SetupError, match="another user started it"):
        server.running()


@pytest.mark.usefixtures("connect_server")
@pytest.mark.parametrize("what", ["redaction", "limits", "pyspark"])
def test_a_server_from_before_an_upgrade_is_refused(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """An upgrade can change what a server redacts, its limits, and its libraries."""
    settings = server_settings(layout, {})
    assert SparkServer(layout.spark, {}, settings).running() is not None
    if what == "redaction":
        monkeypatch.setattr("tidemark.spark.server.REDACTION", "stricter")
    elif what == "limits":
        options = settings["spark.driver.extraJavaOptions"]
        settings["spark.driver.extraJavaOptions"] = options.replace("limits", "bounds")
    else:
        monkeypatch.setattr("tidemark.spark.server.version", lambda name: f"newer {name}")
    with pytest.raises(SetupError, match="started by another version of tidemark"):
        SparkServer(layout.spark, {}, settings).running()


@pytest.mark.faults
def test_files_of_a_server_stay_in_its_folder_and_do_not_grow(
    layout: Layout, tmp_path: Path
) -> None:
    """Temporary files go with the server, even with a killed one; the server rotates its log."""
    settings = server_settings(layout, SMALL)
    options = "spark.driver.extraJavaOptions"
    settings[options] += " -Dtidemark.server.log.size=2KB"
    server = SparkServer(tmp_path, os.environ, settings)

    def scratch() -> set[str]:
        return {each.name for folder in tmp_path.glob("scratch-*") for each in folder.iterdir()}

    try:
        status = server.start(lambda _: None)
        found = server.running()
        assert found is not None
        with connect_sessions(found, {}) as sessions:
            assert sessions.shared().range(9).repartition(3).count() == 9
            for _ in range(30):
                with pytest.raises(PySparkException):
                    sessions.shared().sql("SELECT raise_error('canary')").collect()
        logs = sorted(tmp_path.glob("server.log*"))
        assert [log.name for log in logs] == ["server.log", "server.log.1", "server.log.2"]
        assert max(log.stat().st_size for log in logs) < 8 * 1024
        assert "USER_RAISED_EXCEPTION" in logs[1].read_text()
        assert "USER_RAISED_EXCEPTION" not in (tmp_path / "server.out").read_text()
        left = scratch()
        assert {name.partition("-")[0] for name in left} >= {"blockmgr", "artifacts", "spark"}
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        wait_until(lambda: not server.status().running)
        assert scratch() == left
        server.start(lambda _: None)
        assert scratch().isdisjoint(left)
    finally:
        server.stop()
    assert list(tmp_path.glob("scratch-*")) == []


def test_a_full_disk_is_reported_and_leaves_no_empty_token(layout: Layout, tmp_path: Path) -> None:
    """With an empty token a server would require none."""
    with mounted(tmp_path / "disk", "size=64k") as disk:
        (disk / "full").write_bytes(b"x" * 64 * 1024)
        server = SparkServer(disk / "spark", os.environ, server_settings(layout, SMALL))
        with pytest.raises(StorageUnavailable, match="No space left on device"):
            server.start(lambda _: None)
        assert not (disk / "spark" / "token").exists()
        assert not server.status().running


def test_a_server_that_fails_a_check_is_stopped(layout: Layout, tmp_path: Path) -> None:
    """No later command can find the server and use it."""
    server = SparkServer(tmp_path, os.environ, {**submit_settings(layout, {}), **SMALL})

    def refuse(_: Server) -> None:
        raise SetupError.of_engine(engine="it", mismatch="a test", needed="another", advice="none")

    try:
        with pytest.raises(SetupError, match="a test"):
            server.start(refuse)
        assert not server.status().running
    finally:
        server.stop()


def test_the_error_for_a_server_that_ends_at_once_has_the_cause(
    layout: Layout, tmp_path: Path
) -> None:
    """The error contains the end of the server's output."""
    settings = {**submit_settings(layout, {}), **SMALL, "spark.driver.memory": "none"}
    server = SparkServer(tmp_path, os.environ, settings)
    try:
        with pytest.raises(SetupError, match="ended during its start"):
            server.start(lambda _: None)
    finally:
        server.stop()


def test_an_unreachable_server_is_an_error_within_ten_seconds() -> None:
    """PySpark's own client would retry for ten minutes."""
    begun = time.monotonic()
    with (
        connect_sessions(Server(host="localhost", port=1), {}) as found,
        pytest.raises(EngineUnavailable, match="Spark Connect at localhost:1 does not answer"),
    ):
        found.shared()
    assert time.monotonic() - begun < 10


def test_the_server_of_this_package_passes_every_check(
    sessions: ConnectSessions, tmp_path: Path
) -> None:
    """The probe of the files leaves no file behind."""
    check(sessions, tmp_path)
    assert list(tmp_path.iterdir()) == []


REFUSED: dict[str, tuple[Callable[[pytest.MonkeyPatch], dict[str, object]], str]] = {
    "a Java property": (
        lambda _: {"java_properties": {"org.apache.avro.limits.bytes.maxLength": "7"}},
        "its Java property org.apache.avro.limits.bytes.maxLength is 67108864",
    ),
    "redaction": (
        lambda _: {"redaction": "canary"},
        "its spark.redaction.string.regex is ",
    ),
    # Each process sees a different folder there.
    "files": (
        lambda _: {"locations": ["/proc/self/cwd"]},
        "it does not see the files of this machine at /proc/self/cwd",
    ),
    "PySpark's version": (
        lambda patch: (
            patch.setattr("tidemark.spark.server_requirements.version", {"pyspark": "9.9"}.get)
            or {}
        ),
        "it runs pyspark 4.",
    ),
    "Delta's version": (
        lambda patch: (
            patch.setattr(
                "tidemark.spark.server_requirements.version",
                lambda name: {"delta-spark": "9.9"}.get(name) or __import__("pyspark").__version__,
            )
            or {}
        ),
        "it runs delta-spark 4.",
    ),
    "the workers' code": (
        lambda patch: (
            patch.setattr("tidemark.spark.server_requirements.CODE_DIGEST", "newer") or {}
        ),
        "its Python workers have another version of tidemark",
    ),
}


@pytest.mark.parametrize("item", REFUSED)
def test_the_refusal_of_a_server_names_the_mismatch(
    sessions: ConnectSessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    """The error contains the requirement, and how to start a server that meets it."""
    change, problem = REFUSED[item]
    changed = change(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SetupError, match="cannot be used") as refused:
        check(sessions, tmp_path, **changed)
    assert f"cannot be used: {problem}" in refused.value.finding
    assert "tidemark spark start" in refused.value.rendered("fix")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("jars", "problem"),
    [
        pytest.param((), "it runs delta-spark of an unknown version", id="Delta"),
        pytest.param(
            ("delta-", "antlr"),
            "its class path lacks the Kafka source",
            id="Kafka",
            marks=pytest.mark.faults,
        ),
        pytest.param(
            ("delta-", "antlr", "spark-sql-kafka", "kafka-clients", "commons-pool2", "spark-token"),
            "its class path lacks Avro",
            id="Avro",
            marks=pytest.mark.faults,
        ),
    ],
)
def test_a_server_without_our_jars_is_refused(
    layout: Layout, tmp_path: Path, jars: tuple[str, ...], problem: str
) -> None:
    """A real server lacks one jar."""
    own = [str(jar) for jar in layout.spark_jars.iterdir() if jar.name.startswith(jars)]
    settings = {
        **SMALL,
        **({"spark.driver.extraClassPath": os.pathsep.join(own)} if jars else {}),
    }
    server = SparkServer(tmp_path, os.environ, settings)

    def refuse(found: Server) -> None:
        with connect_sessions(found, {}) as sessions:
            check(sessions, tmp_path)

    try:
        with pytest.raises(SetupError, match="cannot be used") as refused:
            server.start(refuse)
        assert refused.value.finding.endswith(f"cannot be used: {problem}.")
    finally:
        server.stop()


@pytest.mark.parametrize(
    "setting",
    [
        *("spark.driver.memory", "spark.hadoop.fs.s3a.endpoint", "spark.executor.cores"),
        "spark.sql.redaction.string.regex",
    ],
)
def test_a_setting_of_a_whole_application_is_refused_by_name(setting: str) -> None:
    """A session would drop the setting silently."""
    server = Server(host="localhost")
    with (
        pytest.raises(SetupError, match=setting),
        connect_sessions(server, {setting: "1"}),
    ):
        pass


@pytest.mark.parametrize("setting", ["spark.sql.warehouse.dir", "spark.sql.extensions"])
def test_a_setting_that_is_no_session_setting_is_refused_by_name(
    connect_server: Server, setting: str
) -> None:
    """The name of the setting alone does not show it."""
    with (
        connect_sessions(connect_server, {setting: "x"}) as sessions,
        pytest.raises(SetupError, match=setting),
    ):
        sessions.shared()


def test_no_session_is_opened_after_a_stop(connect_server: Server) -> None:
    """Otherwise a job of several plans would continue with the next plan."""
    with connect_sessions(connect_server, {}) as sessions:
        sessions.shared()
        sessions.close()
        tries: list[Callable[[], object]] = [
            lambda: sessions.shared().range(1).count(),
            sessions.own,
        ]
        for open_one in tries:
            with pytest.raises((EngineStopped, PySparkException)):
                open_one()


def test_the_token_of_the_environment_reaches_no_other_server(
    connect_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without a token sends no token."""
    monkeypatch.setenv(TOKEN_VARIABLE, connect_server.token)
    bare = Server(host="localhost", port=connect_server.port)
    with (
        connect_sessions(bare, {}) as sessions,
        pytest.raises(SetupError, match="no token"),
    ):
        sessions.shared()


def test_settings_of_a_session_and_of_files_are_applied(connect_server: Server) -> None:
    """The spec's settings override Tidemark's settings."""
    spec = {"spark.sql.shuffle.partitions": "3", "spark.hadoop.parquet.block.size": "1048576"}
    with connect_sessions(
        connect_server, spec, write_options={"parquet.block.size": "7"}, own_settings={}
    ) as sessions:
        assert sessions.shared().conf.get("spark.sql.shuffle.partitions") == "3"
        assert sessions.write_options == {"parquet.block.size": "1048576"}


def test_closing_interrupts_and_closes_every_session(connect_server: Server) -> None:
    """A run has one shared session, and a session for each merge."""
    with connect_sessions(connect_server, {}) as sessions:
        shared, own = sessions.shared(), sessions.own()
        assert sessions.shared() is shared
        assert own is not shared
        own.conf.set("spark.sql.shuffle.partitions", "9")
        assert shared.conf.get("spark.sql.shuffle.partitions") != "9"
    for session in (shared, own):
        with pytest.raises(PySparkException):
            session.range(1).count()
