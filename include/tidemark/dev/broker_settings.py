"""What the embedded broker is told: its settings, as values and as a server.properties file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
"""The only address the embedded broker listens on."""

_CONTROLLER = "CONTROLLER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address that every node offers.

    Attributes:
        name: Kafka's name of the listener, upper case.
        protocol: PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL.
        port: The first node's port; node n gets `port + n - 1`. 0 takes a free port for each node
            and keeps it over restarts while it stays free.
        advertised_host: The host that clients are told to come back to.
        advertised_port: The port that clients of the first node are told to come back to, where
            something in between listens for them; node n tells `advertised_port + n - 1`. 0 tells
            the port that the node listens on.
        advertised_ports: The same for single nodes, by node; wins over `advertised_port`.
    """

    name: str
    protocol: str = "PLAINTEXT"
    port: int = 0
    advertised_host: str = HOST
    advertised_port: int = 0
    advertised_ports: Mapping[int, int] = field(default_factory=dict)

    def advertised(self, node: int, port: int) -> str:
        """What clients of a node that listens on `port` are told, as `host:port`."""
        told = self.advertised_port + node - 1 if self.advertised_port else port
        return f"{self.advertised_host}:{self.advertised_ports.get(node, told)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """How to run Apache Kafka in KRaft mode as processes of this machine.

    Attributes:
        home: Folder of everything the broker writes: data, logs, settings, process ids.
        jars: Folder with the jars of `kafka_2.13` and `kafka-tools`.
        nodes: Number of nodes, each a broker and a controller.
        listeners: The first one also carries the traffic between brokers and the health check.
        properties: Broker properties, laid over the defaults and winning over them.
        client: librdkafka settings that the health check needs when the first listener is secured.
        heap_mb: Java heap of each node, MiB.
        java: The java program, a name on the PATH or a path.
        min_free_bytes: Refuse to start with less than this free on the disk of `home`.
        start_timeout_s: How long all nodes together may take until they answer.
        stop_timeout_s: How long they may take to stop before they are killed.
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

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"nodes must be at least 1, not {self.nodes}")
        if not self.listeners:
            raise ValueError("a broker needs at least one listener")
        if _CONTROLLER in {listener.name for listener in self.listeners}:
            raise ValueError(f"the listener name {_CONTROLLER} is the controllers' own")

    @property
    def node_ids(self) -> range:
        """Kafka's `node.id` of every node: 1, 2, ..."""
        return range(1, self.nodes + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """The ports of one node: the controller's, and one by listener name."""

    controller: int
    listeners: Mapping[str, int]

    def __iter__(self) -> Iterator[int]:
        yield self.controller
        yield from self.listeners.values()


def node_folder(home: Path, node: int) -> Path:
    """Where one node keeps its settings, its log file and its data."""
    return home / f"node-{node}"


def properties_file(home: Path, node: int) -> Path:
    """The node's settings; the path is also what identifies its process."""
    return node_folder(home, node) / "server.properties"


def data_folder(home: Path, node: int) -> Path:
    """The node's log directory, in Kafka's sense of log."""
    return node_folder(home, node) / "data"


def log_file(home: Path, node: int) -> Path:
    """What the node prints, since its last start; the start before is kept as `.1`."""
    return node_folder(home, node) / "kafka.log"


def broker_properties(
    config: BrokerConfig, node: int, ports: Mapping[int, NodePorts]
) -> dict[str, str]:
    """Every property of one node.

    Names and defaults are those of the broker configuration of Apache Kafka 4.1. What differs from
    Kafka's defaults is small (one machine, short logs) or strict (no topic by accident).
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
        # 128 MiB of the heap by default: far more than the logs of one machine need.
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
        # A node on its own says goodbye, or its next start waits until the old session ends (9 s).
        # Of several that stop together, the last would say it to nobody, until a timeout.
        "controlled.shutdown.enable": "true" if config.nodes == 1 else "false",
    }
    return {**defaults, **config.properties}


def render_properties(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file."""
    lines = (f"{name}={_escaped(value)}" for name, value in properties.items())
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def java_options(config: BrokerConfig) -> tuple[str, ...]:
    """Options of a JVM that starts fast and stays small."""
    return (
        f"-Xmx{config.heap_mb}m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        # SLF4J's simple binding prints to standard error, which goes to the node's log file.
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
        "-cp",
        f"{config.jars}/*",
    )
