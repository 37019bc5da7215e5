"""The embedded broker, with real Kafka processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.support.cluster import kill_node
from tests.support.commands import Command
from tests.support.kafka_judge import read_all
from tidemark.core.errors import SetupError
from tidemark.kafka.errors import KafkaRefused
from tidemark.local import broker_state as states
from tidemark.local.broker import Broker, BrokerConfig, BrokerStatus, Listener
from tidemark.local.broker_settings import NodePorts, properties_file
from tidemark.local.producer import produce
from tidemark.spark.processes import runs_with
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout

_QUICK_TO_NOTICE = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""Short timeouts after which the controller fences a killed broker, and accepts it again."""


@pytest.fixture
def config(layout: Layout, tmp_path: Path) -> BrokerConfig:
    """Settings of a broker of this test's own."""
    return BrokerConfig(home=tmp_path / "broker", jars=layout.kafka_jars, heap_mb=256)


@pytest.fixture
def own(config: BrokerConfig) -> Iterator[Broker]:
    """A separate broker, not started; stopped at the end of the test."""
    embedded = Broker(config)
    yield embedded
    embedded.stop()


def _pids_of(home: Path) -> list[int]:
    """Every process that was started with a settings file below this folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(part.startswith(f"{home}/node-") for part in command):
            found.append(int(folder.name))
    return sorted(found)


def _known_brokers(status: BrokerStatus) -> int:
    admin = AdminClient({"bootstrap.servers": status.bootstrap})
    return len(admin.list_topics(timeout=10).brokers)


# -- one node ------------------------------------------------------------------------------------


@pytest.mark.broker
def test_start_returns_when_the_broker_answers(broker: BrokerStatus, admin: AdminClient) -> None:
    """The status has Kafka's own cluster id."""
    cluster = admin.describe_cluster().result(timeout=10)
    assert broker.running
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.cluster_id == broker.cluster_id
    assert list(broker.pids) == _pids_of(broker.home)


@pytest.mark.broker
def test_starting_a_running_broker_changes_nothing(broker: BrokerStatus, layout: Layout) -> None:
    """The second start returns the same process and address."""
    again = Broker(BrokerConfig(home=layout.broker, jars=layout.kafka_jars)).start()
    assert again == broker
    assert _pids_of(broker.home) == list(broker.pids)


@pytest.mark.broker
def test_a_metadata_request_does_not_create_a_topic(
    broker: BrokerStatus, admin: AdminClient
) -> None:
    """The broker has auto.create.topics.enable=false."""
    admin.list_topics("misspelt", timeout=10)
    assert "misspelt" not in admin.list_topics(timeout=10).topics


@pytest.mark.broker
def test_one_process_starts_the_broker_and_another_stops_it(
    own: Broker, config: BrokerConfig
) -> None:
    """The starting process may exit before."""
    script = (
        "import sys; from pathlib import Path;"
        "from tidemark.local.broker import Broker, BrokerConfig;"
        "Broker(BrokerConfig(home=Path(sys.argv[1]), jars=Path(sys.argv[2]), heap_mb=256)).start()"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(config.home), str(config.jars)], check=True, timeout=120
    )
    found = own.status()
    assert found.running
    assert _known_brokers(found) == 1
    assert not own.stop().running
    assert _pids_of(config.home) == []
    assert own.stop() == own.status()


@pytest.mark.broker
def test_restart_keeps_records_address_and_cluster_id(own: Broker) -> None:
    """The port of the first start is chosen again if it is free."""
    first = own.start()
    produce({"bootstrap.servers": first.bootstrap}, "streams-intro")
    before = read_all(first.bootstrap, "streams-intro")
    own.stop()
    second = own.start()
    assert (second.bootstrap, second.cluster_id) == (first.bootstrap, first.cluster_id)
    assert second.pids != first.pids
    assert read_all(second.bootstrap, "streams-intro") == before
    assert len(before) == 5


@pytest.mark.broker
def test_the_command_starts_the_broker_at_the_port_of_its_last_start(
    unconnected: Command,
) -> None:
    """Connections of other programs, such as Airflow, contain the port."""
    try:
        first = unconnected("broker", "start", "--port", "0", "--json").json
        unconnected("broker", "stop")
        assert unconnected("broker", "start", "--json").json["bootstrap"] == first["bootstrap"]
    finally:
        unconnected("broker", "stop")


@pytest.mark.broker
def test_a_killed_broker_is_reported_and_starts_again_with_its_records(
    config: BrokerConfig,
) -> None:
    """The status comes from the process table."""
    embedded = Broker(replace(config, properties=_QUICK_TO_NOTICE))
    try:
        status = embedded.start()
        produce({"bootstrap.servers": status.bootstrap}, "orders", records=30)
        (pid,) = status.pids
        os.kill(pid, SIGKILL)
        _wait_until_gone(pid, properties_file(status.home, 1))
        assert not embedded.status().running
        assert embedded.status().pids == ()
        assert len(read_all(embedded.start().bootstrap, "orders")) == 30
    finally:
        embedded.stop()


def _wait_until_gone(pid: int, proof: Path) -> None:
    deadline = time.monotonic() + 60
    while runs_with(pid, str(proof)):
        assert time.monotonic() < deadline, f"process {pid} survived SIGKILL"
        time.sleep(0.02)


# -- refused starts --------------------------------------------------------------------------------


def test_a_port_in_use_is_refused_before_the_broker_starts(
    config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error contains the port."""
    monkeypatch.setattr("tidemark.spark.sockets._RELEASE_S", 0.2)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        embedded = Broker(replace(config, listeners=(Listener(name="EXTERNAL", port=port),)))
        with pytest.raises(SetupError, match=f"Port {port} is in use"):
            embedded.start()
    assert not embedded.status().running
    assert _pids_of(config.home) == []


@pytest.mark.broker
def test_the_error_contains_kafkas_own_error_line(config: BrokerConfig) -> None:
    """No process remains after the failed start."""
    embedded = Broker(replace(config, properties={"log.cleaner.dedupe.buffer.size": "1"}))
    with pytest.raises(SetupError, match=r"log\.cleaner\.dedupe.buffer\.size") as caught:
        embedded.start()
    assert "Node 1 of the embedded broker ended while formatting" in caught.value.rendered(
        "problem"
    )
    assert len(caught.value.rendered("actual").splitlines()) == 1
    assert not embedded.status().running
    assert _pids_of(config.home) == []


@pytest.mark.broker
def test_a_port_taken_during_the_start_is_reported_from_kafkas_log(config: BrokerConfig) -> None:
    """The port was free at the check before the start."""
    (controller,) = free_ports("127.0.0.1", 1)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        listeners = f"CONTROLLER://127.0.0.1:{controller},EXTERNAL://127.0.0.1:{port}"
        properties = {
            "listeners": listeners,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        }
        embedded = Broker(replace(config, properties=properties))
        with pytest.raises(SetupError, match="Address already in use") as caught:
            embedded.start()
    assert str(config.home / "node-1" / "kafka.log") in caught.value.rendered("problem")
    assert _pids_of(config.home) == []


def test_a_missing_java_is_reported(config: BrokerConfig) -> None:
    """The error is raised before any process starts."""
    with pytest.raises(SetupError, match="Java is missing"):
        Broker(replace(config, java="no-such-java")).start()


def test_missing_jars_are_reported_with_the_command_that_downloads_them(
    config: BrokerConfig, tmp_path: Path
) -> None:
    """The jars come from `make setup`."""
    with pytest.raises(SetupError, match=r"jars .* are missing.*make setup"):
        Broker(replace(config, jars=tmp_path)).start()


def test_too_little_free_space_is_refused_before_the_start(config: BrokerConfig) -> None:
    """The error contains the folder."""
    with pytest.raises(SetupError, match="is full") as caught:
        Broker(replace(config, min_free_bytes=2**62)).start()
    assert str(config.home) in str(caught.value)


def test_a_folder_with_a_cluster_of_another_size_is_refused(config: BrokerConfig) -> None:
    """A node's data belongs to one cluster."""
    _record(config.home, pid=None)
    with pytest.raises(SetupError, match="another size"):
        Broker(replace(config, nodes=3)).start()


def test_a_reused_process_id_is_neither_running_nor_signalled(config: BrokerConfig) -> None:
    """The settings file among the arguments identifies the process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        _record(config.home, pid=stranger.pid)
        assert not Broker(config).status().running
        assert not Broker(config).stop().running
        assert stranger.poll() is None
        stranger.communicate(b"\n")
        assert stranger.returncode == 0


def test_status_and_stop_before_the_first_start_create_no_folder(config: BrokerConfig) -> None:
    """Both may run at any time."""
    status = Broker(config).stop()
    assert (status.running, status.pids, status.bootstrap) == (False, (), "")
    assert not config.home.exists()


def _record(home: Path, *, pid: int | None) -> None:
    home.mkdir(parents=True)
    ports = NodePorts(controller=1, listeners={"EXTERNAL": 2})
    node = states.NodeState(node=1, ports=ports, pid=pid)
    state = states.BrokerState(cluster_id="x", bootstrap={"EXTERNAL": "127.0.0.1:2"}, nodes=(node,))
    states.save(home, state)


# -- three nodes ---------------------------------------------------------------------------------


@pytest.mark.broker
@pytest.mark.faults
def test_s17_three_nodes_survive_the_kill_of_one(config: BrokerConfig) -> None:
    """S17: the other nodes serve all records, and each node starts again alone."""
    embedded = Broker(replace(config, nodes=3, properties=_QUICK_TO_NOTICE))
    try:
        status = embedded.start()
        assert len(status.pids) == 3
        assert _known_brokers(status) == 3
        # No outgoing connection gets such a port, so a killed node finds its own port free.
        state = states.load(config.home)
        assert state is not None
        ports = [port for node in state.nodes for port in node.ports]
        assert len(set(ports)) == 6
        assert max(ports) < 32_768
        client = {"bootstrap.servers": status.bootstrap}
        assert sum(produce(client, "orders", records=60).values()) == 60
        topics = AdminClient(client).list_topics("orders", timeout=10).topics
        replicas = {len(p.replicas) for p in topics["orders"].partitions.values()}
        assert replicas == {3}
        killed = kill_node(embedded, 1)
        assert not killed.running
        assert killed.pids == status.pids[1:]
        assert _pids_of(config.home) == sorted(killed.pids)
        assert len(read_all(status.bootstrap, "orders")) == 60
        again = embedded.start()
        assert again.running
        assert again.pids[1:] == status.pids[1:]
        assert _known_brokers(again) == 3
        for node in (1, 2):
            kill_node(embedded, node)
        one_back = embedded.start_node(2)
        assert not one_back.running
        assert one_back.pids[1:] == status.pids[2:]
        assert len(one_back.pids) == 2
        assert len(read_all(status.bootstrap, "orders")) == 60
    finally:
        embedded.stop()
    assert _pids_of(config.home) == []


# -- listeners and rights ------------------------------------------------------------------------

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SECURED = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.external.plain.sasl.jaas.config": f'{_PLAIN} user_reader="reader-secret";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.mark.broker
def test_s21_s25_secured_broker_keeps_its_listeners_apart(config: BrokerConfig) -> None:
    """S21 and S25: each listener advertises itself; a principal has the rights of its ACLs."""
    internal, external = free_ports("127.0.0.1", 2)
    listeners = (
        Listener(name="INTERNAL", port=internal, advertised_host="localhost"),
        Listener(name="EXTERNAL", port=external, protocol="SASL_PLAINTEXT"),
    )
    embedded = Broker(replace(config, listeners=listeners, properties=_SECURED))
    try:
        status = embedded.start()
        assert status.listeners == {
            "INTERNAL": f"localhost:{internal}",
            "EXTERNAL": f"127.0.0.1:{external}",
        }
        inside = AdminClient({"bootstrap.servers": status.bootstrap})
        reader = {
            "bootstrap.servers": status.listeners["EXTERNAL"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "reader",
            "sasl.password": "reader-secret",
        }
        outside = AdminClient(reader)
        assert _addresses(inside) == {f"localhost:{internal}"}
        assert _addresses(outside) == {f"127.0.0.1:{external}"}
        inside.create_topics([NewTopic("orders", 3)])["orders"].result(timeout=10)
        assert "orders" not in outside.list_topics(timeout=10).topics
        inside.create_acls([_may_describe("orders")])
        _wait_until_listed(outside, "orders")
        with pytest.raises(KafkaRefused):
            produce(reader, "orders", records=1, timeout_s=20)
        stranger = AdminClient({**reader, "sasl.password": "wrong", "log_level": "0"})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=2)
    finally:
        embedded.stop()


def _addresses(admin: AdminClient) -> set[str]:
    brokers = admin.list_topics(timeout=10).brokers.values()
    return {f"{broker.host}:{broker.port}" for broker in brokers}


def _may_describe(topic: str) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:reader",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )


def _wait_until_listed(admin: AdminClient, topic: str) -> None:
    deadline = time.monotonic() + 60
    while topic not in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline, f"{topic} is not visible"
        time.sleep(0.05)
