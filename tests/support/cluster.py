"""Three Kafka nodes, each behind a proxy; tests kill nodes and move leaders."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    PartitionMetadata,
)

from tests.support.kafka_judge import log_ranges
from tests.support.proxy import ProxiedBroker, Proxy
from tests.support.waiting import wait_until
from tidemark.local.broker import Broker, BrokerConfig, BrokerStatus, Listener
from tidemark.local.broker_settings import HOST, data_folder, properties_file
from tidemark.local.broker_state import load
from tidemark.spark.processes import runs_with
from tidemark.spark.sockets import is_free

NODES = (1, 2, 3)
PROPERTIES: Mapping[str, str] = {
    # Time until the controller fences a dead node, or accepts it again; 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Only tests move leaders.
    "auto.leader.rebalance.enable": "false",
}
_THROTTLED = "leader.replication.throttled"


def kill_node(broker: Broker, node: int) -> BrokerStatus:
    """Kill the process of one node, and return the broker's status when it has ended."""
    home = broker.status().home
    state = load(home)
    assert state is not None
    (pid,) = (each.pid for each in state.nodes if each.node == node)
    assert pid is not None
    argument = str(properties_file(home, node))
    assert runs_with(pid, argument)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not runs_with(pid, argument), what=f"node {node} ends")
    return broker.status()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster.

    Attributes:
        broker: Its processes.
        jars: Folder of Kafka's own tools.
        direct: Addresses without proxies, by node.
        proxies: The proxy in front of each node.
    """

    broker: Broker
    jars: Path
    direct: Mapping[int, str]
    proxies: Mapping[int, Proxy]

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes without proxies, for producers, admins and the judge."""
        return ",".join(self.direct.values())

    def behind_proxy(self, node: int) -> ProxiedBroker:
        """Return the cluster behind its proxies, with the proxy of one node."""
        addresses = ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxies.values())
        return ProxiedBroker(direct=self.bootstrap, bootstrap=addresses, proxy=self.proxies[node])

    def admin(self, timeout_s: int = 60) -> AdminClient:
        """Return a new admin client, without cached metadata.

        Keep a reference until it has answered. Garbage collection of a client drops its answers.
        """
        return AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "socket.timeout.ms": timeout_s * 1000,
                "log_level": 0,
            }
        )

    # -- nodes -----------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """Kill a node and its connections."""
        kill_node(self.broker, node)
        self.proxies[node].cut()

    def restart_dead_nodes(self) -> None:
        """Start every dead node, and return when all replicas are in sync."""
        for proxy in self.proxies.values():
            proxy.clear()
        self.broker.start()
        wait_until(self._whole, what="every replica in sync")

    def controller(self) -> int:
        """Return the leader of the controllers' quorum, from the state files of the nodes."""
        elections = []
        for node in NODES:
            file = data_folder(self.broker.status().home, node) / "__cluster_metadata-0"
            state = json.loads((file / "quorum-state").read_text())
            elections.append((state["leaderEpoch"], state["leaderId"]))
        return int(max(elections)[1])

    def others(self, *but: int) -> list[int]:
        """Return all other nodes, in order."""
        return [node for node in NODES if node not in but]

    def _whole(self) -> bool:
        try:
            found = self.admin().list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
        return set(found.brokers) == set(NODES) and all(
            p.leader in NODES and set(p.isrs) == set(p.replicas) for p in partitions
        )

    # -- topics ----------------------------------------------------------------------------------

    def make_topic(
        self,
        purpose: str,
        *replicas: Sequence[int],
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic; `replicas` has the nodes of each partition, the leader first."""
        name = f"{purpose[:80]}-{uuid.uuid4().hex[:8]}"
        new = NewTopic(
            name,
            num_partitions=len(replicas),
            replica_assignment=[list(nodes) for nodes in replicas],
            config=dict(config or {}),
        )
        admin = self.admin()
        admin.create_topics([new])[name].result(timeout=30)
        wait_until(lambda: len(log_ranges(self.bootstrap, name)), what=f"partitions of {name}")
        for partition, nodes in enumerate(replicas):
            self.wait_for_leader(name, nodes[0], partition)
        return name

    def partition(self, topic: str, partition: int = 0) -> PartitionMetadata:
        """Return the current leader, replicas and in-sync replicas of a partition."""
        found = self.admin().list_topics(topic, timeout=10).topics[topic].partitions
        return found[partition]

    def wait_for_leader(self, topic: str, node: int, partition: int = 0) -> None:
        """Return when a node leads a partition."""
        wait_until(
            lambda: self.partition(topic, partition).leader == node,
            what=f"{topic}[{partition}] led by {node}",
        )

    def wait_for_in_sync(self, topic: str, nodes: Sequence[int], partition: int = 0) -> None:
        """Return when exactly these replicas are in sync."""
        wait_until(
            lambda: set(self.partition(topic, partition).isrs) == set(nodes),
            what=f"{topic}[{partition}] in sync on {nodes}",
        )

    def elect(
        self, topic: str, node: int, partition: int = 0, kind: ElectionType = ElectionType.PREFERRED
    ) -> None:
        """Elect a leader of a partition, and return when this node leads it."""

        def elected() -> bool:
            # A new client each time, because a client with the address of a dead node waits for it.
            # Nodes may refuse a request until they have connected to each other.
            admin = self.admin(timeout_s=5)
            try:
                admin.elect_leaders(kind, [TopicPartition(topic, partition)]).result(timeout=30)
            except KafkaException:
                return False
            return self.partition(topic, partition).leader == node

        wait_until(elected, what=f"{topic}[{partition}] elects {node}")

    def reassign(self, topic: str, nodes: Sequence[int]) -> None:
        """Change the replicas of partition 0, or their order; the first one is preferred."""
        wanted = {"topic": topic, "partition": 0, "replicas": list(nodes)}
        file = self.broker.status().home / f"reassign-{uuid.uuid4().hex[:8]}.json"
        file.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
        subprocess.run(
            [
                *("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{self.jars}/*"),
                "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
                *("--bootstrap-server", self.bootstrap, "--execute"),
                *("--reassignment-json-file", str(file)),
            ],
            check=True,
            capture_output=True,
            timeout=180,
        )
        wait_until(
            lambda: list(self.partition(topic).replicas) == list(nodes), what=f"{topic} on {nodes}"
        )

    def throttle_replication(self, topic: str, leader: int, bytes_per_second: int | None) -> None:
        """Limit the replication of partition 0 to replicas that are not in sync; None: no limit.

        One or two megabytes pass anyway, because the leader counts bytes after its answer.
        """
        rate = None if bytes_per_second is None else str(bytes_per_second)
        self._configure(ConfigResource.Type.BROKER, str(leader), f"{_THROTTLED}.rate", rate)
        replicas = None if rate is None else f"0:{leader}"
        self._configure(ConfigResource.Type.TOPIC, topic, f"{_THROTTLED}.replicas", replicas)

    def _configure(
        self, kind: ConfigResource.Type, resource: str, name: str, value: str | None
    ) -> None:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name, value, incremental_operation=operation)
        changed = ConfigResource(kind, resource, incremental_configs=[entry])
        admin = self.admin()
        for answer in admin.incremental_alter_configs([changed]).values():
            answer.result(timeout=30)


@contextmanager
def three_nodes(home: Path, jars: Path) -> Iterator[Cluster]:
    """Run a separate cluster during the block."""
    first = _free_row(len(NODES))
    ports = {node: first + node - 1 for node in NODES}
    with ExitStack() as stack:
        proxies = {node: stack.enter_context(Proxy(port)) for node, port in ports.items()}
        listeners = (
            Listener(name="DIRECT"),
            Listener(
                name="PROXIED",
                port=first,
                advertised_ports={node: proxy.port for node, proxy in proxies.items()},
            ),
        )
        broker = Broker(
            BrokerConfig(
                home=home,
                jars=jars,
                nodes=len(NODES),
                listeners=listeners,
                properties=PROPERTIES,
                heap_mb=192,
                stop_timeout_s=5,
            )
        )
        stack.callback(broker.stop)
        addresses = broker.start().bootstrap.split(",")
        yield Cluster(
            broker=broker,
            jars=jars,
            direct=dict(zip(NODES, addresses, strict=True)),
            proxies=proxies,
        )


def _free_row(count: int) -> int:
    """Return the first of `count` consecutive free ports, below the system's ephemeral ports."""
    while True:
        first = random.randrange(20_000, 30_000)
        if all(is_free(HOST, first + place) for place in range(count)):
            return first
