"""Settings of the embedded broker, as values and as a server.properties file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
"""The only address the embedded broker listens on."""

_CONTROLLER = "CONTROLLER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listener of every node.

    Attributes:
        name: Name of the listener, in upper case.
        protocol: PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL.
        port: Port of the first node; node n has `port + n - 1`. 0 selects a free port for each
            node, which a restart selects again if it is free.
        advertised_host: Host that the nodes advertise to clients.
        advertised_ports: Ports that nodes advertise, by node, if proxies listen there. Other nodes
            advertise the port that they listen on.
    """

    name: str
    protocol: str = "PLAINTEXT"
    port: int = 0
    advertised_host: str = HOST
    advertised_ports: Mapping[int, int] = field(default_factory=dict)

    def advertised(self, node: int, port: int) -> str:
        """Return the address that a node with this port advertises, as `host:port`."""
        return f"{self.advertised_host}:{self.advertised_ports.get(node, port)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Configuration of an embedded broker.

    Attributes:
        home: Folder for all files of the broker: data, logs, settings, process ids.
        jars: Folder with the jars of `kafka_2.13` and `kafka-tools`.
        nodes: Number of nodes, each a broker and a controller.
        listeners: The first listener also serves the traffic between brokers and the health check.
        properties: Broker properties, which override the defaults.
        client: librdkafka settings of the health check, if the first listener requires some.
        heap_mb: Java heap of each node, in MiB.
        java: The java program: a name on the PATH, or a path.
        min_free_bytes: Free space that a start requires on the disk of `home`, in bytes.
        start_timeout_s: Longest time until all nodes answer, in seconds.
        stop_timeout_s: Seconds between SIGTERM and SIGKILL.
    """

    home: Path
    jars: Path
    nodes: int = 1
    listeners: tuple[Listener, ...] = (Listener(name="EXTERNAL"),)
    properties: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)
    heap_mb: int = 512
    java: str = "java"
    min_free_bytes: int = 256 * 1024 * 1024
    start_timeout_s: float = 90.0
    stop_timeout_s: float = 20.0

    @property
    def node_ids(self) -> range:
        """Kafka's `node.id` of every node: 1, 2, ..."""
        return range(1, self.nodes + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """Ports of one node: the controller's port, and the ports of the listeners by name."""

    controller: int
    listeners: Mapping[str, int]

    def __iter__(self) -> Iterator[int]:
        yield self.controller
        yield from self.listeners.values()


def properties_file(home: Path, node: int) -> Path:
    """Return the node's settings file; its path also identifies the node's process."""
    return home / f"node-{node}" / "server.properties"


def data_folder(home: Path, node: int) -> Path:
    """Return the folder of the node's partition logs."""
    return home / f"node-{node}" / "data"


def log_file(home: Path, node: int) -> Path:
    """Return the file with the node's output since its last start; `.1` has the start before."""
    return home / f"node-{node}" / "kafka.log"


def broker_properties(
    config: BrokerConfig, node: int, ports: Mapping[int, NodePorts]
) -> dict[str, str]:
    """Return the properties of one node.

    Source: the broker configuration of Apache Kafka 4.1. The values that differ from Kafka's
    defaults suit one machine with short logs, or prevent the creation of topics by accident.
    """
    mine = ports[node]
    copies = str(min(config.nodes, 3))
    quorum = str(min(config.nodes, 3) // 2 + 1)
    protocols = {listener.name: listener.protocol for listener in config.listeners}
    defaults = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "log.dirs": str(data_folder(config.home, node)),
        "controller.quorum.voters": ",".join(
            f"{n}@{HOST}:{ports[n].controller}" for n in config.node_ids
        ),
        "controller.listener.names": _CONTROLLER,
        "inter.broker.listener.name": config.listeners[0].name,
        "listeners": ",".join(
            [
                f"{_CONTROLLER}://{HOST}:{mine.controller}",
                *(f"{name}://{HOST}:{mine.listeners[name]}" for name in protocols),
            ]
        ),
        "advertised.listeners": ",".join(
            f"{listener.name}://{listener.advertised(node, mine.listeners[listener.name])}"
            for listener in config.listeners
        ),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}"
            for name, protocol in {_CONTROLLER: "PLAINTEXT", **protocols}.items()
        ),
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": quorum,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": quorum,
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": quorum,
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        # The default takes 128 MiB of the heap, far more than the logs of one machine need.
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
        # Without a controlled shutdown, the next start of a single node waits until the old session
        # ends (9 s). If several nodes stop together, the last one would wait for a controller
        # until a timeout.
        "controlled.shutdown.enable": "true" if config.nodes == 1 else "false",
    }
    return {**defaults, **config.properties}


def render_properties(properties: Mapping[str, str]) -> str:
    """Return the text of a Java properties file."""
    escaped = {
        name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in properties.items()
    }
    return "".join(f"{name}={value}\n" for name, value in escaped.items())


def java_options(config: BrokerConfig) -> tuple[str, ...]:
    """Return options for a JVM with a fast start and little memory."""
    return (
        f"-Xmx{config.heap_mb}m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        # SLF4J's simple binding prints to standard error, which is the node's log file.
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
        "-cp",
        f"{config.jars}/*",
    )
