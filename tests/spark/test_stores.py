"""Spark on an S3 server: settings, class path, conditional commits, and whole runs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import obstore
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError

from tests.fixtures_stores import PlaceIn
from tests.support.commands import Command
from tests.support.kafka_judge import read_ranges
from tests.support.plans import make_spec
from tests.support.request_counts import RequestCounter
from tests.support.scripts import load_script
from tests.support.stores import Store
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records
from tidemark.app.engines import Engines
from tidemark.core.errors import ExitCode, SetupError
from tidemark.local.broker import BrokerStatus
from tidemark.spark.server import SparkServer
from tidemark.spark.server_requirements import _Checks
from tidemark.spark.settings import (
    local_environment,
    local_settings,
    server_settings,
    submit_settings,
)
from tidemark.spark.stores import (
    CLASS_PATH_VARIABLE,
    LOG_STORES,
    S3A_BUFFER_FOLDER,
    class_path_variable,
    endpoint_settings,
    store_settings,
)
from tidemark.spark.submit import pyspark_folder
from tidemark.spec.layout import Layout

SECRETS = {"AWS_ACCESS_KEY_ID": "canary-id", "AWS_SECRET_ACCESS_KEY": "canary-secret"}
WRITERS = 8
ENDPOINT = "spark.hadoop.fs.s3a.endpoint"


@pytest.fixture
def set_up(tmp_path: Path) -> Layout:
    """A checkout with the jars of S3, and local tables."""
    layout = Layout(project=tmp_path, home=tmp_path)
    for name in ("jars/sdk.jar", "own/tidemark.jar", ".incoming/jars/sdk.jar"):
        jar = layout.jvm / "stores" / "s3" / name
        jar.parent.mkdir(parents=True)
        jar.touch()
    return layout


@pytest.mark.parametrize("lakehouse", [None, "s3://lake/house", "s3a://lake/house"])
def test_the_log_store_is_set_wherever_the_lakehouse_is(
    set_up: Layout, lakehouse: str | None
) -> None:
    """A target may be in S3 although the other tables are not."""
    settings = submit_settings(replace(set_up, lakehouse_root=lakehouse), {})
    assert LOG_STORES.items() <= settings.items()
    # The protocol of S3's committer applies to all writes.
    assert ("spark.sql.sources.commitProtocolClass" in settings) == (lakehouse is not None)


def test_a_job_with_a_table_in_s3_is_refused_until_its_jars_are_set_up(
    set_up: Layout, tmp_path: Path
) -> None:
    spec = make_spec(target="s3a://lake/events")
    plain = replace(set_up, project=tmp_path / "plain")
    with pytest.raises(SetupError, match="make setup STORE=s3"):
        Engines(plain, {}).submit_settings(spec)
    assert Engines(plain, {}).submit_settings(replace(spec, target="bronze/events"))
    assert Engines(set_up, {}).submit_settings(spec)


def test_the_environment_of_the_store_becomes_settings_without_credentials() -> None:
    environ = {**SECRETS, "AWS_ENDPOINT_URL": "http://host:9000", "AWS_REGION": "eu-central-1"}
    assert endpoint_settings(environ) == {
        ENDPOINT: "http://host:9000",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-central-1",
    }
    amazon = {"AWS_DEFAULT_REGION": "eu-west-1"}
    assert endpoint_settings(amazon) == {"spark.hadoop.fs.s3a.endpoint.region": "eu-west-1"}


def test_executors_and_drivers_have_the_jars_of_the_stores(set_up: Layout, tmp_path: Path) -> None:
    """The driver has them after Spark's own jars, so that the class archive stays valid."""
    plain, layout = replace(set_up, project=tmp_path / "plain"), set_up
    assert class_path_variable(plain, {}) == {}
    assert submit_settings(plain, {})["spark.executor.extraClassPath"] == f"{plain.spark_jars}/*"
    stores = f"{layout.jvm}/stores/s3/jars/*:{layout.jvm}/stores/s3/own/*"
    given = {CLASS_PATH_VARIABLE: "/opt/hadoop/*"}
    assert class_path_variable(layout, given) == {CLASS_PATH_VARIABLE: f"/opt/hadoop/*:{stores}"}
    settings = submit_settings(layout, {})
    assert settings["spark.executor.extraClassPath"] == f"{layout.spark_jars}/*:{stores}"
    assert settings["spark.driver.extraClassPath"] == f"{layout.spark_jars}/*"


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_server_with_unconditional_commits_to_s3_is_refused(scheme: str) -> None:
    found = dict(LOG_STORES)
    session = Mock()
    session.conf.get = lambda key, _: found.get(key)
    checks = _Checks("a server", session)
    checks.log_store(f"{scheme}://lake/house")
    found[f"spark.delta.logStore.{scheme}.impl"] = "io.delta.storage.S3SingleDriverLogStore"
    with pytest.raises(SetupError, match="ConditionalS3LogStore"):
        checks.log_store(f"{scheme}://lake/house")
    checks.log_store("/lake/house")


class JvmLogStore:
    """The log store of commits to S3, in a JVM without Spark.

    Args:
        jvm: The JVM.
        layout: Folders of the jars.
        environ: Variables of the S3 server.
    """

    def __init__(self, jvm: Any, layout: Layout, environ: dict[str, str]) -> None:
        self._jvm = jvm
        self._configuration = jvm.org.apache.hadoop.conf.Configuration()
        settings = {**store_settings(layout), **endpoint_settings(environ)}
        for name, value in settings.items():
            self._configuration.set(name.removeprefix("spark.hadoop."), value)
        name = settings["spark.delta.logStore.s3.impl"]
        self._store = getattr(jvm.tidemark, name.rpartition(".")[2])(self._configuration)

    def write(self, uri: str, lines: Sequence[str], *, overwrite: bool = False) -> str:
        """Write a file; return "", or the Java class of the exception."""
        actions = self._jvm.java.util.ArrayList()
        for line in lines:
            actions.add(line)
        path = self._jvm.org.apache.hadoop.fs.Path(uri)
        try:
            self._store.write(path, actions.iterator(), overwrite, self._configuration)
        except Py4JJavaError as failure:
            return str(failure.java_exception.getClass().getName())
        return ""

    def read(self, uri: str) -> list[str]:
        """Return the lines of a file."""
        return list(self._store.read(self._jvm.org.apache.hadoop.fs.Path(uri), self._configuration))


@contextmanager
def log_store(layout: Layout, environ: dict[str, str]) -> Iterator[JvmLogStore]:
    """Yield the log store for an S3 server."""
    build = load_script("build")
    folders = (layout.spark_jars, pyspark_folder() / "jars", *layout.store_jars)
    with build.java(jar for folder in folders for jar in folder.glob("*.jar")) as gateway:
        yield JvmLogStore(gateway.jvm, layout, environ)


REFUSED = "java.nio.file.FileAlreadyExistsException"


@pytest.mark.store
def test_s3_refuses_the_second_commit_of_one_version(
    layout: Layout, conditional_store: Store, place_in: PlaceIn
) -> None:
    """Delta's own log store for S3 would let both succeed on different machines."""
    folder = place_in(conditional_store)
    with log_store(layout, dict(conditional_store.environ)) as logs:
        for uri in (f"{folder}/0.json", f"{folder.replace('s3:', 's3a:')}/1.json"):
            assert logs.write(uri, ["a", "ä"]) == ""
            assert logs.write(uri, ["b"]) == REFUSED
            assert logs.read(uri) == ["a", "ä"]
            assert logs.write(uri, ["c"], overwrite=True) == ""
            assert logs.read(uri) == ["c"]
        for version in range(10):
            uri = f"{folder}/race/{version}.json"
            with ThreadPoolExecutor(WRITERS) as writers:
                ends = list(
                    writers.map(partial(logs.write, uri), [[str(n)] for n in range(WRITERS)])
                )
            assert sorted(ends) == ["", *[REFUSED] * (WRITERS - 1)]
            assert logs.read(uri) == [str(ends.index(""))]


def test_files_that_wait_for_their_upload_are_private(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, S3A writes them to a folder that all users of the machine can read."""
    with local_environment("local[2]", {"SPARK_LOCAL_DIRS": str(tmp_path)}, {}) as variables:
        folder = variables["SPARK_LOCAL_DIRS"]
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folder)
        build = load_script("build")
        with build.java((pyspark_folder() / "jars").glob("*.jar")) as gateway:
            configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
            configuration.set("buffers", local_settings("local[2]")[S3A_BUFFER_FOLDER])
            assert configuration.get("buffers") == folder
    server = SparkServer(tmp_path / "spark", {}, server_settings(layout))
    server._prepare(0)
    text = (tmp_path / "spark" / "server.properties").read_text()
    (line,) = [each for each in text.splitlines() if each.startswith(S3A_BUFFER_FOLDER)]
    assert line.endswith("scratch-0")


@pytest.fixture
def proxied(
    layout: Layout, conditional_store: Store, place_in: PlaceIn
) -> Iterator[tuple[str, JvmLogStore, RequestCounter]]:
    """The folder of a log, and the log store for an S3 server behind a proxy."""
    # Sets the credentials, which the JVM inherits.
    folder = f"{place_in(conditional_store)}/_delta_log"
    environ = dict(conditional_store.environ)
    with RequestCounter(int(environ["AWS_ENDPOINT_URL"].rpartition(":")[2])) as counter:
        environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{counter.port}"
        with log_store(layout, environ) as logs:
            yield folder, logs, counter


@pytest.mark.store
def test_a_commit_of_spark_whose_answer_is_lost_succeeds(
    proxied: tuple[str, JvmLogStore, RequestCounter],
) -> None:
    """The client writes again, and the condition refuses the file that it wrote itself."""
    folder, logs, counter = proxied
    uri = f"{folder}/0.json"
    with counter.lost_answer(0):
        assert logs.write(uri, ["mine"]) == ""
        made = {each.kind: number for each, number in counter.take().items()}
    assert (made["log PUT"], made["log HEAD"]) == (2, 1)
    assert logs.read(uri) == ["mine"]
    assert logs.write(uri, ["another"]) == REFUSED


@pytest.mark.store
def test_a_commit_is_repeated_after_conflicts_up_to_a_limit(
    proxied: tuple[str, JvmLogStore, RequestCounter],
) -> None:
    """S3 answers 409 while another write is in progress, which may then fail."""
    folder, logs, counter = proxied
    uri = f"{folder}/0.json"
    counter.refuse_commits(3)
    assert logs.write(uri, ["mine"]) == ""
    assert logs.read(uri) == ["mine"]
    counter.refuse_commits(100)
    assert logs.write(uri.replace("0.json", "1.json"), ["mine"]).endswith("Exception")
    assert counter.take().total() < 50


SPEC = """\
name: events
topic: {topic}
schedule: "@once"
start: earliest
decode:
  key: {{format: string}}
  value:
    format: json
    schema: {{number: long}}
  upsert: {{}}
"""


def check_pipeline(
    command: Command, broker: BrokerStatus, topic: str, master: Sequence[str]
) -> None:
    """Run, undo and repeat a plan, and compare each table with the topic."""

    def records(first: int) -> None:
        produce_records(
            broker.bootstrap,
            topic,
            [
                Record(key=b"%d" % (n % 7), value=b'{"number": %d}' % n, partition=n % 2)
                for n in range(first, first + 20)
            ],
        )

    def run() -> None:
        ran = command("run", "events", "--json", *master)
        assert ran.code == ExitCode.OK, ran.out + ran.err

    records(0)
    run()
    records(20)
    run()
    undone = command("undo", "events", "--plan", "1", "--reason", "a test", "--json")
    assert undone.code == ExitCode.OK, undone.out + undone.err
    run()
    verified = command("verify", "events", "--json")
    assert verified.code == ExitCode.OK, verified.out + verified.err
    assert command("maintain", "events", "--json").code == ExitCode.OK
    log = read_ranges(broker.bootstrap, topic, {0: (0, 20), 1: (0, 20)})
    lake = os.environ["TIDEMARK_LAKEHOUSE"]

    def rows(table: str) -> list[dict[str, Any]]:
        return list(pa.table(DeltaTable(f"{lake}/{table}").scan()).to_pylist())

    places = sorted((each.partition, each.offset, each.value) for each in log)
    bronze = rows("bronze/events")
    assert sorted((row["partition"], row["offset"], row["value"]) for row in bronze) == places
    typed = rows("silver/events")
    assert sorted((row["partition"], row["offset"]) for row in typed) == [p[:2] for p in places]
    newest = {(each.partition, each.key): each.value for each in log}
    latest = rows("silver/events_latest")
    assert {
        (row["partition"], row["key"].encode()): b'{"number": %d}' % row["value"]["number"]
        for row in latest
    } == newest
    assert len(latest) == len(newest)

    # Only `ConditionalS3LogStore` writes this metadata.
    objects = obstore.store.from_url(f"{lake}/silver/events_latest/_delta_log")
    commits = DeltaTable(f"{lake}/silver/events_latest").history()
    merges = [each["version"] for each in commits if each["operation"] == "MERGE"]
    assert merges
    for version in merges:
        assert "tidemark-writer" in obstore.get(objects, f"{version:020}.json").attributes


@pytest.mark.parametrize("engine", ["spark-submit", "server"])
@pytest.mark.broker
@pytest.mark.store
@pytest.mark.e2e
@pytest.mark.faults
def test_all_tables_of_a_pipeline_are_exact_in_s3(
    engine: str,
    by_submit: Command,
    broker: BrokerStatus,
    conditional_store: Store,
    place_in: PlaceIn,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TIDEMARK_LAKEHOUSE", place_in(conditional_store))
    topic = f"s3-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    make_topic(admin, broker.bootstrap, topic, partitions=2)
    specs = tmp_path / "pipelines"
    specs.mkdir()
    (specs / "events.yaml").write_text(SPEC.format(topic=topic))
    if engine == "spark-submit":
        check_pipeline(by_submit, broker, topic, ("--master", "local[2]"))
        return
    started = by_submit("spark", "start")
    try:
        assert started.code == ExitCode.OK, started.out + started.err
        check_pipeline(by_submit, broker, topic, ())
    finally:
        by_submit("spark", "stop")
