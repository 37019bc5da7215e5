"""Tests on a secured cluster: necessary rights, quotas, named refusals, and no leaked secrets."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from deltalake import DeltaTable

from tests.support.file_lake import FileLake
from tests.support.kafka_judge import group_names, read_all
from tests.support.lake import Lake
from tests.support.plans import make_spec
from tests.support.transactions import (
    Record,
    append,
    produce_aborted,
    produce_committed,
    produce_values,
)
from tidemark.app.app import App
from tidemark.app.connections import connection_variable
from tidemark.app.run import run
from tidemark.bronze.ingest.protocols import TopicReader
from tidemark.bronze.repair.exports import Exports
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.watermarks import IsolationLevel
from tidemark.kafka.cluster import KafkaClusterReader
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable, TopicMissing
from tidemark.kafka.groups import KafkaGroupOffsets
from tidemark.kafka.options import client_config
from tidemark.kafka.reader import KafkaLogReader
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.local.broker import Broker, BrokerConfig, Listener
from tidemark.local.producer import producer_settings
from tidemark.spark.server import SparkServer
from tidemark.spark.settings import submit_settings
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker

PASSWORD = 'q"uo\\te;d=1 hush'
"""Contains the characters that could end a quoted value early."""
QUOTED = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
TOPIC = "secured"
TOPIC_WITH_GAPS = "secured-with-gaps"
"""Two committed records and a marker, three aborted records and a marker, two records."""
TOPIC_WITH_QUOTA = "secured-with-quota"
"""60 records of 10 kB. The principal `limited` reads them with the quota."""
QUOTA_BYTES_PER_S = 200_000
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


class Certificate(NamedTuple):
    """A self-signed certificate and its key, in PEM."""

    certificate: str
    key: str


def make_certificate() -> Certificate:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tidemark test")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )


class SecuredCluster(NamedTuple):
    """A secured cluster with one topic of ten records.

    Principals: `reader` may Describe and Read the topic, `describer` may Describe it, and
    `stranger` has no rights. All have the same password.
    """

    inside: str
    scram: str
    tls: str
    certificate: str

    def login(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        return {
            "bootstrap.servers": self.scram,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        }

    def tls_login(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.tls,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
            "sasl.password": PASSWORD,
            "ssl.ca.pem": self.certificate,
        }


def properties(certificate: Certificate) -> dict[str, str]:
    """Return broker settings: the login mechanisms, and no rights by default."""
    tls = "listener.name.tls."
    return {
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        f"{tls}sasl.enabled.mechanisms": "PLAIN",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
        f"{tls}plain.sasl.jaas.config": f'{PLAIN} user_reader="{QUOTED}";',
        f"{tls}ssl.keystore.type": "PEM",
        f"{tls}ssl.keystore.certificate.chain": certificate.certificate,
        f"{tls}ssl.keystore.key": certificate.key,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        # A quota permits the bytes of two seconds at once; the default is ten seconds.
        "quota.window.num": "3",
        "allow.everyone.if.no.acl.found": "false",
    }


def allow(admin: AdminClient, user: str, *operations: AclOperation, topic: str = TOPIC) -> None:
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for answer in admin.create_acls(bindings).values():
        answer.result(timeout=30)


def add_scram_users(admin: AdminClient, *users: str) -> None:
    credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changes = [
        UserScramCredentialUpsertion(user, credentials, PASSWORD.encode(), b"salt" * 4)
        for user in users
    ]
    for answer in admin.alter_user_scram_credentials(changes).values():
        answer.result(timeout=30)


@pytest.fixture(scope="module")
def secured(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """Start a broker with an open listener for the test and two secured ones."""
    certificate = make_certificate()
    embedded = Broker(
        BrokerConfig(
            home=tmp_path_factory.mktemp("secured"),
            jars=layout.kafka_jars,
            heap_mb=256,
            listeners=(
                Listener(name="INSIDE"),
                Listener(name="SCRAM", protocol="SASL_PLAINTEXT"),
                Listener(name="TLS", protocol="SASL_SSL"),
            ),
            properties=properties(certificate),
        )
    )
    try:
        status = embedded.start()
        cluster = SecuredCluster(
            status.listeners["INSIDE"],
            status.listeners["SCRAM"],
            status.listeners["TLS"],
            certificate.certificate,
        )
        admin = AdminClient({"bootstrap.servers": cluster.inside})
        for topic, partitions in ((TOPIC, 2), (TOPIC_WITH_GAPS, 1)):
            new = NewTopic(topic, num_partitions=partitions)
            admin.create_topics([new])[topic].result(timeout=30)
        add_scram_users(admin, "reader", "describer", "stranger")
        allow(admin, "reader", AclOperation.DESCRIBE, AclOperation.READ)
        allow(admin, "describer", AclOperation.DESCRIBE)
        allow(admin, "reader", AclOperation.DESCRIBE, AclOperation.READ, topic=TOPIC_WITH_GAPS)
        produce_values(cluster.inside, TOPIC, 10)
        produce_committed(cluster.inside, TOPIC_WITH_GAPS, [Record(key=b"k")] * 2)
        produce_aborted(cluster.inside, TOPIC_WITH_GAPS, [Record(key=b"k")] * 3)
        produce_values(cluster.inside, TOPIC_WITH_GAPS, 2)
        for extra in (cluster.login("reader"), cluster.login("describer"), cluster.tls_login()):
            wait_until_described(extra)
        yield cluster
    finally:
        embedded.stop()


def wait_until_described(extra: Mapping[str, Any], topic: str = TOPIC) -> None:
    """Wait until users and rights have reached the broker."""
    deadline = time.monotonic() + 120
    while True:
        try:
            watermarks(extra, topic)
        except TidemarkError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def watermarks(extra: Mapping[str, Any], topic: str = TOPIC) -> dict[int, int]:
    reader = KafkaWatermarkReader(client_config("secured", extra))
    found = reader.topic_watermarks(topic, IsolationLevel.READ_COMMITTED)
    return {partition: watermark.end for partition, watermark in found.partitions.items()}


@contextmanager
def jvm_log(spark: SparkSession, file: Path) -> Iterator[None]:
    """Write everything that Spark and the Kafka client log from INFO on to a file."""
    assert spark._jvm is not None
    log4j = spark._jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    configuration = context.getConfiguration()
    pattern = log4j.core.layout.PatternLayout.createDefaultLayout()
    appender = log4j.core.appender.FileAppender.createAppender(
        str(file), "false", "false", "secrets", "true", "false", "false", "8192", pattern, None,
        "false", None, configuration,
    )  # fmt: skip
    appender.start()
    root = configuration.getRootLogger()
    quiet = configuration.getLoggerConfig("org.apache.kafka.clients")
    before = root.getLevel(), quiet.getLevel()
    root.addAppender(appender, None, None)
    for logger in (root, quiet):
        logger.setLevel(log4j.Level.INFO)
    context.updateLoggers()
    try:
        yield
    finally:
        root.removeAppender("secrets")
        for logger, level in zip((root, quiet), before, strict=True):
            logger.setLevel(level)
        context.updateLoggers()
        appender.stop()


def shown_plans(spark: SparkSession) -> str:
    """Return the texts of every query in the Spark UI."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    queries = (executions.apply(i) for i in range(executions.size()))
    return "\n".join(
        f"{execution.description()} {execution.details()} {execution.physicalPlanDescription()} "
        f"{execution.modifiedConfigs()}"
        for execution in queries
    )


def assert_no_secret(text: str) -> None:
    assert PASSWORD not in text
    assert QUOTED not in text


# -- sufficient rights -----------------------------------------------------------------------------


@pytest.mark.spark
def test_s25_describe_and_read_on_the_topic_are_enough(
    secured: SecuredCluster, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I6. No output, log, plan or file contains the password."""
    caplog.set_level(logging.DEBUG)
    lake = Lake(
        session=spark,
        root=tmp_path / "lake",
        connection={**secured.login("reader"), "group.id": "unwanted"},
        spec=make_spec(topic=TOPIC),
    )
    with jvm_log(spark, tmp_path / "jvm.log"):
        done = lake.run("test")
    assert done.landing.records == 10
    assert lake.delivered_rows() == read_all(secured.inside, TOPIC)

    logged = (tmp_path / "jvm.log").read_text("utf-8", errors="replace")
    assert "sasl.jaas.config = [hidden]" in logged
    plans = shown_plans(spark)
    assert str(lake.uri) in plans
    for text in (logged, plans, caplog.text, str(done), str(lake.control.ledger("events"))):
        assert_no_secret(text)
    written = [file for file in lake.root.rglob("*") if file.is_file()]
    assert any(file.suffix == ".json" for file in written)
    for file in written:
        assert_no_secret(file.read_bytes().decode("latin-1"))


@pytest.mark.spark
def test_s25_no_secret_leaves_a_spark_connect_server(
    secured: SecuredCluster, layout: Layout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers logs, event logs, pages and files of server and client.

    The second run has no right to read the topic. Its error names the cause and quotes no secret.
    """
    caplog.set_level(logging.DEBUG)
    (page,) = free_ports("127.0.0.1", 1)
    (tmp_path / "events").mkdir()
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(page),
    }
    spark_server = SparkServer(tmp_path / "spark", os.environ, submit_settings(layout, settings))
    (tmp_path / "pipelines").mkdir()
    spec = f"name: events\ntopic: {TOPIC}\nschedule: '@daily'\nstart: earliest\n"
    (tmp_path / "pipelines" / "events.yaml").write_text(spec)

    def app(user: str) -> App:
        connection = {"conn_type": "kafka", "extra": secured.login(user)}
        return App(
            environ={
                "TIDEMARK_HOME": str(tmp_path),
                "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
                connection_variable("kafka_default"): json.dumps(connection),
            }
        )

    try:
        spark_server.start(lambda _: None)
        server = spark_server.running()
        assert server is not None
        plan = app("reader").pipeline("events").planner.plan("test").plan
        assert plan is not None
        runs = [
            run(app(user), server, "ingest", [plan.ref], print) for user in ("describer", "reader")
        ]
        output = json.dumps([list(each.results or ()) for each in runs])
        assert [each.exit_code for each in runs] == [ExitCode.REFUSED, ExitCode.OK], output
        pages = "".join(_pages(f"http://127.0.0.1:{page}"))
        pid = spark_server.status().pid
        process = Path("/proc") / str(pid)
        output += (process / "cmdline").read_text() + (process / "environ").read_text()
    finally:
        spark_server.stop()
    assert "kafka.bootstrap.servers" in pages
    assert "ScramLoginModule" not in pages
    for text in (output, pages, caplog.text):
        assert_no_secret(text)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any("events" in file.parts for file in files)
    for file in files:
        content = file.read_bytes().decode("latin-1")
        assert_no_secret(content)
        # The forms of a value in JSON, and in the text of a plan within JSON.
        assert "hush" not in content
        assert (server.token in content) is (file.name == "token")


def _pages(address: str) -> Iterator[str]:
    for place in ("connect/", "SQL/", "SQL/execution/?id=0", "SQL/execution/?id=1", "environment/"):
        with urlopen(f"{address}/{place}", timeout=30) as response:
            yield response.read().decode()


@pytest.mark.spark
def test_s25_both_clients_verify_the_broker_by_a_certificate_in_the_connection(
    secured: SecuredCluster, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(
        session=spark,
        root=tmp_path,
        connection=secured.tls_login(),
        spec=make_spec(topic=TOPIC),
    )
    assert lake.run("test").landing.records == 10
    assert lake.delivered_rows() == read_all(secured.inside, TOPIC)


def test_s25_a_certificate_may_be_a_file(secured: SecuredCluster, tmp_path: Path) -> None:
    extra = secured.tls_login()
    (tmp_path / "ca.pem").write_text(extra.pop("ssl.ca.pem"))
    assert watermarks({**extra, "ssl.ca.location": str(tmp_path / "ca.pem")}) == {0: 10, 1: 0}


def offsets_of_second_reader(extra: Mapping[str, Any], topic: str, end: int) -> list[int]:
    """Return the offsets that the second reader reads with this connection."""
    reader = KafkaLogReader(client_config("secured", extra))
    wanted = {0: SpanSet.of([Span(0, end)])}
    return [r.offset for r in reader.read(topic, IsolationLevel.READ_COMMITTED, wanted)]


def test_s25_the_second_reader_needs_no_right_on_groups(secured: SecuredCluster) -> None:
    """I6. The broker refuses librdkafka's request for a coordinator."""
    start = time.monotonic()
    assert offsets_of_second_reader(secured.login("reader"), TOPIC_WITH_GAPS, 9) == [0, 1, 7, 8]
    assert offsets_of_second_reader(secured.tls_login(), TOPIC, 10) == list(range(10))
    assert time.monotonic() - start < 20
    assert group_names(secured.inside) == set()


@pytest.mark.spark
def test_i6_s25_gaps_are_proven_and_tables_verified_with_the_same_rights(
    secured: SecuredCluster, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(
        session=spark,
        root=tmp_path,
        connection=secured.login("reader"),
        spec=make_spec(topic=TOPIC_WITH_GAPS),
    )
    (count,) = lake.run("test").landing.counts
    assert (count.records, count.gaps, count.unproven_gaps) == (4, 5, 0)
    assert lake.delivered_rows() == read_all(secured.inside, TOPIC_WITH_GAPS)
    verification = lake.verify.verify()
    verification.check()
    assert sum(each.records for each in verification.partitions) == 4
    assert group_names(secured.inside) == set()


# -- unknown state of Kafka ------------------------------------------------------------------------


@dataclass
class LakeOverKafka(FileLake):
    """A pipeline whose records are in memory, until it gets a connection.

    Attributes:
        connection: The connection; None for the log in memory.
    """

    connection: Mapping[str, str] | None = None

    @property
    def watermarks(self) -> TopicReader:
        """Reads watermarks."""
        if self.connection is None:
            return super().watermarks
        return KafkaWatermarkReader(client_config("secured", self.connection))


def unusable(secured: SecuredCluster, cause: str) -> Mapping[str, str]:
    """Return a connection without an answer about topic `events`."""
    match cause:
        case "Kafka is away":
            (closed,) = free_ports("127.0.0.1", 1)
            return {"bootstrap.servers": f"127.0.0.1:{closed}"}
        case "wrong password":
            return secured.login("reader", "wrong")
        case _:
            return secured.login("stranger")


CAUSES: Mapping[str, tuple[type[TidemarkError], ...]] = {
    "Kafka is away": (KafkaUnavailable,),
    "wrong password": (KafkaRefused,),
    "topic may not be described": (KafkaRefused, TopicMissing),
}


def lake_with_two_plans(root: Path) -> LakeOverKafka:
    """Return a lake whose first plan is the only copy of its records."""
    lake = LakeOverKafka(root)
    lake.run(3)
    lake.run(2)
    lake.kafka.delete_records("events", 0, 3)
    return lake


@pytest.mark.parametrize("cause", CAUSES)
def test_i3_an_undo_without_an_answer_of_kafka_removes_and_records_nothing(
    secured: SecuredCluster, tmp_path: Path, cause: str
) -> None:
    """An operator can permit the loss if Kafka is permanently gone."""
    lake = lake_with_two_plans(tmp_path)
    recorded, version = lake.ledger.event_number, DeltaTable(lake.uri).version()
    lake.connection = unusable(secured, cause)
    with pytest.raises(CAUSES[cause]) as raised:
        lake.undo.undo(1, "ops", "wrong")
    assert (lake.ledger.event_number, DeltaTable(lake.uri).version()) == (recorded, version)
    undone = lake.undo.undo(1, "ops", "wrong", allow_loss=True)
    assert (undone.rows, undone.lost, type(undone.problem)) == (3, None, raised.type)


def lose_unread(lake: LakeOverKafka) -> None:
    """Produce records, of which Kafka deletes two before they land."""
    lake.produce(4, 0)
    lake.kafka.delete_records("events", 0, 7)


def in_doubt(lake: LakeOverKafka) -> None:
    """Land plan 3 without recording it, and recreate the topic."""
    lake.land(lake.plan(2))
    lake.kafka.create("events", 2, "id-2")


def export(lake: LakeOverKafka) -> object:
    exports = Exports(
        spec=lake.spec,
        ports=lake.planner.ports,
        groups=KafkaGroupOffsets(client_config("secured", lake.connection or {})),
    )
    return exports.export("lag")


STEPS: Mapping[str, tuple[Callable[[LakeOverKafka], object], Callable[[LakeOverKafka], object]]] = {
    "replacement": (
        lambda lake: lake.plan_replacing((0, 3, 5)),
        lambda lake: lake.ingest.execute(3),
    ),
    "plan of a replacement": (lambda _: None, lambda lake: lake.plan_replacing((0, 3, 5))),
    "accepted loss": (
        lose_unread,
        lambda lake: lake.decisions.accept_loss((), "ops", "gone"),
    ),
    "accepted recreation": (
        lambda lake: lake.kafka.create("events", 2, "id-2"),
        lambda lake: lake.decisions.accept_recreation("ops", "recreated"),
    ),
    "rewind": (
        lambda lake: DeltaTable(lake.uri).restore(1),
        lambda lake: lake.repair.rewind("ops", "restored"),
    ),
    "rebuild": (
        lambda lake: shutil.rmtree(lake.control_uri),
        lambda lake: lake.repair.rebuild("ops", "lost"),
    ),
    "discarded landing": (
        in_doubt,
        lambda lake: lake.abandon.abandon(3, "ops", "in doubt", discard=True),
    ),
    "export": (lambda _: None, export),
}


@pytest.mark.faults
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("name", STEPS)
def test_i3_a_step_without_an_answer_of_kafka_destroys_and_skips_nothing(
    secured: SecuredCluster, tmp_path: Path, name: str, cause: str
) -> None:
    lake = lake_with_two_plans(tmp_path)
    prepare, step = STEPS[name]
    prepare(lake)
    before = lake.ledger.event_number, lake.rows()
    lake.connection = unusable(secured, cause)
    with pytest.raises(CAUSES[cause]):
        step(lake)
    assert (lake.ledger.event_number, lake.rows()) == before


# -- quotas ---------------------------------------------------------------------------------------


def set_quota(spark: SparkSession, bootstrap: str, user: str, consumer_byte_rate: int) -> None:
    """Set a quota with Kafka's Java client, because librdkafka has no such request."""
    jvm: Any = spark._jvm
    java, kafka = jvm.java.util, jvm.org.apache.kafka
    quota = kafka.common.quota
    admin = kafka.clients.admin.Admin.create(java.Map.of("bootstrap.servers", bootstrap))
    try:
        change = quota.ClientQuotaAlteration(
            quota.ClientQuotaEntity(java.Map.of("user", user)),
            java.List.of(
                quota.ClientQuotaAlteration.Op("consumer_byte_rate", float(consumer_byte_rate))
            ),
        )
        admin.alterClientQuotas(java.List.of(change)).all().get()
    finally:
        admin.close()


def longest_throttle_ms(spark: SparkSession, client_id: str) -> float:
    """Return the longest delay that a broker imposed on a fetch of a Java consumer."""
    jvm: Any = spark._jvm
    group = "kafka.consumer:type=consumer-fetch-manager-metrics"
    bean = jvm.javax.management.ObjectName(f"{group},client-id={client_id}")
    arguments = jvm.java.util.List.of(bean, "fetch-throttle-time-max").toArray()
    # py4j cannot call the server itself, because the JVM does not export its class.
    methods = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
    (get,) = (each for each in methods if each.getName() == "getAttribute")
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    return float(get.invoke(server, arguments))


@pytest.mark.spark
def test_s25_a_run_slowed_by_a_quota_lands_every_record_once(
    secured: SecuredCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """The batches are small: a broker never returns a batch above the quota of its window."""
    admin = AdminClient({"bootstrap.servers": secured.inside})
    new = NewTopic(TOPIC_WITH_QUOTA, num_partitions=1)
    admin.create_topics([new])[TOPIC_WITH_QUOTA].result(timeout=30)
    producer = Producer(producer_settings({"bootstrap.servers": secured.inside}))
    for batch in range(12):
        append(producer, TOPIC_WITH_QUOTA, [Record(value=bytes([batch]) * 10_000)] * 5)
    add_scram_users(admin, "limited")
    set_quota(spark, secured.inside, "limited", QUOTA_BYTES_PER_S)
    throttled = {}
    for user in ("reader", "limited"):
        allow(admin, user, AclOperation.DESCRIBE, AclOperation.READ, topic=TOPIC_WITH_QUOTA)
        wait_until_described(secured.login(user), TOPIC_WITH_QUOTA)
        lake = Lake(
            session=spark,
            root=tmp_path / user,
            connection={**secured.login(user), "client.id": f"quota-{user}"},
            spec=make_spec(topic=TOPIC_WITH_QUOTA),
        )
        assert lake.run("test").landing.records == 60
        assert lake.delivered_rows() == read_all(secured.inside, TOPIC_WITH_QUOTA)
        throttled[user] = longest_throttle_ms(spark, f"quota-{user}")
    assert throttled["limited"] > throttled["reader"] == 0


# -- missing rights --------------------------------------------------------------------------------


def refusal(extra: Mapping[str, Any]) -> TidemarkError:
    """Return the error of reading watermarks, which must come soon and contain no password."""
    start = time.monotonic()
    with pytest.raises((KafkaRefused, TopicMissing)) as caught:
        watermarks(extra)
    assert time.monotonic() - start < 20
    assert_no_secret(str(caught.value))
    assert_no_secret(repr(caught.value))
    assert not caught.value.exit_code.retryable
    return caught.value


def test_s25_the_error_of_a_principal_without_rights_names_describe(
    secured: SecuredCluster,
) -> None:
    assert "Describe" in str(refusal(secured.login("stranger")))


def cluster_reader(extra: Mapping[str, Any]) -> KafkaClusterReader:
    return KafkaClusterReader(client_config("secured", extra))


def test_s20_s25_a_missing_right_spoils_only_its_part_of_a_description(
    secured: SecuredCluster,
) -> None:
    """A principal sees the topics that it may describe. It needs another right for settings."""
    describer = cluster_reader(secured.login("describer"))
    (described,) = describer.with_offsets(describer.describe().topics)
    assert (described.name, described.records, described.problem) == (TOPIC, 10, None)
    for settings in (describer.topic_settings(TOPIC), describer.broker_settings(1)):
        assert settings.values == ()
        assert isinstance(settings.problem, KafkaRefused)
        assert "DescribeConfigs" in settings.problem.rendered("fix")
    stranger = cluster_reader(secured.login("stranger"))
    assert stranger.describe().topics == ()
    with pytest.raises(KafkaRefused, match=TOPIC):
        stranger.describe([TOPIC])


def test_s20_s25_no_description_contains_a_sensitive_setting(secured: SecuredCluster) -> None:
    """The settings file of the broker contains the password and a private key."""
    settings = cluster_reader({"bootstrap.servers": secured.inside}).broker_settings(1)
    hidden = {each.name for each in settings.values if each.is_sensitive}
    assert "listener.name.tls.plain.sasl.jaas.config" in hidden
    assert "listener.name.tls.ssl.keystore.key" in hidden
    assert {each.value for each in settings.values if each.is_sensitive} == {None}
    for text in (repr(settings), json.dumps(settings.as_record(all_settings=True))):
        assert_no_secret(text)
        assert "hush" not in text
        assert "PRIVATE KEY" not in text


@pytest.mark.parametrize("user", ["reader", "no-such-user"])
def test_s25_wrong_credentials_are_refused_before_the_timeout(
    secured: SecuredCluster, user: str
) -> None:
    error = refusal(secured.login(user, "wrong"))
    assert isinstance(error, KafkaRefused)
    assert "credentials" in error.rendered("fix")
    assert "wrong" not in str(error)


def test_s25_a_broker_with_another_certificate_is_refused(secured: SecuredCluster) -> None:
    extra = {**secured.tls_login(), "ssl.ca.pem": make_certificate().certificate}
    error = refusal(extra)
    assert isinstance(error, KafkaRefused)
    assert "certificate" in error.reason


def test_a_refused_reader_works_after_its_rights_are_granted(secured: SecuredCluster) -> None:
    admin = AdminClient({"bootstrap.servers": secured.inside})
    reader = KafkaWatermarkReader(client_config("secured", secured.login("late")))
    with pytest.raises(KafkaRefused):
        reader.topic_watermarks(TOPIC, IsolationLevel.READ_COMMITTED)
    add_scram_users(admin, "late")
    allow(admin, "late", AclOperation.DESCRIBE)
    wait_until_described(secured.login("late"))
    assert len(reader.topic_watermarks(TOPIC, IsolationLevel.READ_COMMITTED).partitions) == 2


@pytest.mark.parametrize("refused", ["password", "certificate", "describer"])
def test_s25_a_refused_second_reader_raises_a_final_error_without_password(
    secured: SecuredCluster, refused: str
) -> None:
    extra = {
        "password": lambda: secured.login("reader", "wrong"),
        "certificate": lambda: {
            **secured.tls_login(),
            "ssl.ca.pem": make_certificate().certificate,
        },
        "describer": lambda: secured.login("describer"),
    }[refused]()
    start = time.monotonic()
    with pytest.raises(KafkaRefused) as caught:
        offsets_of_second_reader(extra, TOPIC, 10)
    assert time.monotonic() - start < 20
    assert_no_secret(str(caught.value))
    assert "wrong" not in str(caught.value)
    assert not caught.value.exit_code.retryable


@pytest.mark.spark
def test_s25_landing_without_the_right_to_read_is_refused(
    secured: SecuredCluster, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(
        session=spark,
        root=tmp_path,
        connection=secured.login("describer"),
        spec=make_spec(topic=TOPIC),
    )
    with pytest.raises(KafkaRefused) as caught:
        lake.run("test")
    assert_no_secret(str(caught.value))
    assert "Read" in caught.value.rendered("fix")
    assert lake.rows() == []
    assert lake.committed() == {0: 0, 1: 0}


def test_s25_the_error_of_group_offsets_names_the_right_on_the_group(
    secured: SecuredCluster,
) -> None:
    groups = KafkaGroupOffsets(client_config("secured", secured.login("reader")))
    for request in (
        lambda: groups.committed("old", TOPIC, [0, 1]),
        lambda: groups.commit("old", TOPIC, {0: 1}),
    ):
        start = time.monotonic()
        with pytest.raises(KafkaRefused) as refused:
            request()
        assert time.monotonic() - start < 40
        assert "Describe on group 'old'" in refused.value.rendered("fix")
        assert_no_secret(str(refused.value))
    assert group_names(secured.inside) == set()
