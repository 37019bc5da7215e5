"""The embedded broker: Apache Kafka in KRaft mode, as processes of this machine, without Docker.

The demo and most tests use one node; tests of leaders and replicas use three. The processes are
detached: one command starts them, and another finds them by a state file and stops them.
"""

from __future__ import annotations

import base64
import logging
import random
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemark.core.errors import SetupError
from tidemark.core.texts import counted
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.local import broker_settings as settings
from tidemark.local import broker_state as states
from tidemark.local.broker_settings import HOST, BrokerConfig, Listener, NodePorts
from tidemark.local.broker_state import BrokerState, BrokerStatus, NodeState
from tidemark.spark import processes, sockets
from tidemark.spec.layout import Layout

__all__ = ["Broker", "BrokerConfig", "BrokerStatus", "Listener"]

_log = logging.getLogger(__name__)

_STABLE_PORTS = range(20_000, 32_000)
"""Ports below the range of outgoing connections, which begins at 32768 (Linux) or 49152."""

_ERROR_LINE = re.compile(r" (ERROR|FATAL) |^Exception in |^Error|^Terminating")
_STACK_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")
_ERROR_LINES = 3


DEFAULT_PORT = 9092
"""Port of the broker's first start by a command."""

PORT_CHOICE = (
    "`tidemark broker start --port N`, `tidemark up --kafka-port N` or `make up KAFKA_PORT=N`"
)
"""The commands that select the broker's port."""

PURPOSE = "the embedded broker"
"""The purpose of the broker's ports, for errors."""


def home_broker(layout: Layout, *, port: int = 0, nodes: int = 1) -> Broker:
    """Return the embedded broker of a home; `port` 0 selects a free port."""
    return Broker(
        BrokerConfig(
            home=layout.broker,
            jars=layout.kafka_jars,
            nodes=nodes,
            listeners=(Listener(name="EXTERNAL", port=port),),
        )
    )


class Broker:
    """The embedded broker of one folder.

    Args:
        config: Configuration of a start. Other methods use only `home` and `stop_timeout_s`.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = replace(config, home=config.home.resolve(), jars=config.jars.resolve())
        self._home = self._config.home

    def status(self) -> BrokerStatus:
        """Return the status of the recorded processes, without a request to Kafka."""
        state = states.load(self._home)
        if state is None:
            return BrokerStatus(running=False, home=self._home)
        pids = self._running_pids(state.nodes)
        return BrokerStatus(
            running=len(pids) == len(state.nodes),
            pids=pids,
            bootstrap=next(iter(state.bootstrap.values())),
            listeners=state.bootstrap,
            cluster_id=state.cluster_id,
            home=self._home,
            logs=tuple(settings.log_file(self._home, node.node) for node in state.nodes),
        )

    def last_port(self) -> int | None:
        """Return the port of the first listener at the last start; None before any start."""
        state = states.load(self._home)
        return None if state is None else next(iter(state.nodes[0].ports.listeners.values()))

    def check_port(self) -> None:
        """Raise SetupError if the broker does not run and the port of its first listener is taken.

        `start` checks it too. This call needs neither Java nor the jars.
        """
        port = self._config.listeners[0].port
        if port and not self.status().running:
            sockets.require_free(HOST, [port], PURPOSE, PORT_CHOICE)

    def start(self) -> BrokerStatus:
        """Start the nodes that do not run, and return when all nodes answer.

        If the start fails, this call stops the nodes that it has started.

        Raises:
            SetupError: Java or the jars are missing, a port is in use, or the disk is full. Or the
                folder has a cluster of another size, or Kafka ended with an error.
            KafkaUnavailable: The nodes run and did not answer in time.
        """
        return self._start(self._config.node_ids)

    def start_node(self, node: int) -> BrokerStatus:
        """Start one node, and leave the other nodes unchanged. Tests of broker faults use it.

        Raises the errors of `start`.
        """
        return self._start((node,))

    def _start(self, wanted: Collection[int]) -> BrokerStatus:
        self._home.mkdir(parents=True, exist_ok=True)
        with states.exclusive(self._home):
            state = self._prepare(states.load(self._home))
            missing = [n for n in state.nodes if n.node in wanted and not self._is_running(n)]
            if missing:
                self._start_nodes(state, missing)
            return self.status()

    def stop(self) -> BrokerStatus:
        """Stop all nodes and return when their processes have ended; the data stays."""
        if not self._home.exists():
            return self.status()
        with states.exclusive(self._home):
            state = states.load(self._home)
            if state is not None:
                self._stop_nodes(state.nodes)
                _log.info("broker stopped home=%s", self._home)
            return self.status()

    # -- preparation -----------------------------------------------------------------------------

    def _prepare(self, state: BrokerState | None) -> BrokerState:
        """Return the state to start from, with the ports of all nodes; writes nothing."""
        config = self._config
        known = {} if state is None else {node.node: node for node in state.nodes}
        if state is not None and len(known) != config.nodes:
            raise SetupError(
                finding=f"The broker folder {self._home} has a cluster of another size.",
                needed=counted(config.nodes, "node"),
                seen=counted(len(known), "node"),
                advice="Start the broker with its previous number of nodes, or delete the folder.",
            )
        if state is not None and any(self._is_running(node) for node in state.nodes):
            return state
        spare = _free_stable_ports()
        ports = {n: self._choose_ports(n, known.get(n), spare) for n in config.node_ids}
        return BrokerState(
            cluster_id=_new_cluster_id() if state is None else state.cluster_id,
            bootstrap={
                listener.name: ",".join(
                    listener.advertised(n, ports[n].listeners[listener.name])
                    for n in config.node_ids
                )
                for listener in config.listeners
            },
            nodes=tuple(NodeState(node=n, ports=ports[n]) for n in config.node_ids),
        )

    def _choose_ports(self, node: int, last: NodeState | None, spare: Iterator[int]) -> NodePorts:
        def chosen(wanted: int, before: int | None) -> int:
            return sockets.choose_port(HOST, wanted, before, next(spare))

        before = last.ports.listeners if last else {}
        return NodePorts(
            controller=chosen(0, last.ports.controller if last else None),
            listeners={
                each.name: chosen(each.port and each.port + node - 1, before.get(each.name))
                for each in self._config.listeners
            },
        )

    def _check_machine(self) -> str:
        """Check for jars, Java and free space, and return the java program."""
        config = self._config
        if not any(config.jars.glob("kafka_*.jar")):
            raise SetupError(
                finding="The jars of the embedded broker are missing.",
                needed=f"kafka_*.jar in {config.jars}",
                advice="Run `make setup`, which downloads them.",
            )
        java = shutil.which(config.java)
        if java is None:
            raise SetupError(
                finding="Java is missing.",
                needed=f"Java 17 as {config.java!r}",
                advice="Install a Java 17 runtime on the PATH.",
            )
        free = shutil.disk_usage(self._home).free
        if free < config.min_free_bytes:
            raise _disk_full(self._home, f"{free} bytes free", config.min_free_bytes)
        return java

    # -- the start -------------------------------------------------------------------------------

    def _start_nodes(self, state: BrokerState, missing: list[NodeState]) -> None:
        java = self._check_machine()
        ports = (port for node in missing for port in node.ports)
        sockets.require_free(HOST, ports, PURPOSE, PORT_CHOICE)
        self._write_settings(state, missing)
        self._format(java, state.cluster_id, missing)
        start = time.monotonic()
        started: set[int] = set()
        expected = {n.node for n in missing} | {n.node for n in state.nodes if self._is_running(n)}
        try:
            for node in missing:
                state = state.with_process(node.node, self._spawn(java, node.node))
                started.add(node.node)
                states.save(self._home, state)
            nodes = [node for node in state.nodes if node.node in expected]
            self._wait_until_healthy(nodes, start + self._config.start_timeout_s)
        except BaseException:
            self._stop_nodes(node for node in state.nodes if node.node in started)
            raise
        _log.info(
            "broker started home=%s nodes=%s seconds=%.1f",
            self._home,
            ",".join(map(str, sorted(started))),
            time.monotonic() - start,
        )

    def _write_settings(self, state: BrokerState, missing: list[NodeState]) -> None:
        ports = {node.node: node.ports for node in state.nodes}
        for node in missing:
            file = settings.properties_file(self._home, node.node)
            file.parent.mkdir(parents=True, exist_ok=True)
            properties = settings.broker_properties(self._config, node.node, ports)
            file.touch(mode=0o600)
            file.write_text(settings.render_properties(properties), encoding="utf-8")

    def _format(self, java: str, cluster_id: str, missing: list[NodeState]) -> None:
        """Write the cluster id into new data folders; Kafka does not start without it."""

        def format_one(node: int) -> None:
            folder = settings.data_folder(self._home, node)
            if (folder / "meta.properties").exists():
                return
            options = ["format", "--cluster-id", cluster_id, "--config", self._argument(node)]
            done = subprocess.run(
                [java, *settings.java_options(self._config), "kafka.tools.StorageTool", *options],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                lines = _error_lines(done.stdout + done.stderr)
                raise self._failure(node, "while formatting its data folder", lines)

        with ThreadPoolExecutor(max_workers=len(missing)) as pool:
            list(pool.map(format_one, [node.node for node in missing]))

    def _spawn(self, java: str, node: int) -> int:
        command = [java, *settings.java_options(self._config), "kafka.Kafka", self._argument(node)]
        return processes.spawn_detached(command, settings.log_file(self._home, node)).pid

    # -- health ----------------------------------------------------------------------------------

    def _wait_until_healthy(self, nodes: Collection[NodeState], deadline: float) -> None:
        """Wait until each node runs, listens, and is in the cluster's list of brokers."""
        first = self._config.listeners[0].name
        ports = [node.ports.listeners[first] for node in nodes]
        addresses = ",".join(f"{HOST}:{port}" for port in ports)
        wanted = {node.node for node in nodes}
        seen = 0
        while time.monotonic() < deadline:
            for node in nodes:
                if not self._is_running(node):
                    log = settings.log_file(self._home, node.node)
                    lines = _error_lines(processes.read_log(log))
                    raise self._failure(node.node, f"at its start, see {log}", lines)
            if all(sockets.is_listening(HOST, port) for port in ports):
                listed = _listed_nodes({"bootstrap.servers": addresses, **self._config.client})
                seen = len(wanted & listed)
                if seen == len(wanted):
                    return
            time.sleep(processes.POLL_S)
        raise KafkaUnavailable(
            operation=f"the start of the embedded broker at {addresses}",
            reason=f"answers after {self._config.start_timeout_s:.0f} s: {seen} of "
            f"{counted(len(wanted), 'node')}; their logs are below {self._home}",
        )

    def _failure(self, node: int, moment: str, lines: str) -> SetupError:
        if "No space left on device" in lines:
            return _disk_full(self._home, "no space left on device", self._config.min_free_bytes)
        return SetupError(
            finding=f"Node {node} of the embedded broker ended {moment}.",
            needed="a Kafka process that keeps running",
            seen=lines.rstrip("."),
            advice="Fix the cause that Kafka reports, then start the broker again.",
        )

    # -- processes -------------------------------------------------------------------------------

    def _argument(self, node: int) -> str:
        """Return the command-line argument that identifies the process of a node."""
        return str(settings.properties_file(self._home, node))

    def _running_pids(self, nodes: Iterable[NodeState]) -> tuple[int, ...]:
        """Return the process ids of those nodes that run."""
        return tuple(
            node.pid
            for node in nodes
            if node.pid is not None and processes.runs_with(node.pid, self._argument(node.node))
        )

    def _is_running(self, node: NodeState) -> bool:
        return bool(self._running_pids([node]))

    def _stop_nodes(self, nodes: Iterable[NodeState]) -> None:
        stopping = tuple(nodes)
        processes.stop(
            "The embedded broker",
            lambda: self._running_pids(stopping),
            timeout_s=self._config.stop_timeout_s,
        )


def _listed_nodes(client: Mapping[str, str]) -> set[int]:
    """Return the ids of the cluster's brokers; empty if the cluster does not answer."""
    admin = AdminClient({"log_level": 0, **client})
    try:
        return set(admin.list_topics(timeout=5).brokers)
    except KafkaException as error:
        _log.debug("broker does not answer message=%s", error)
        return set()


def _free_stable_ports() -> Iterator[int]:
    """Yield different free ports that no system gives to outgoing connections.

    An outgoing connection could hold any other port when a killed node starts again. It may even
    be a connection of a node that tries to reach the killed node.
    """
    ports = random.sample(_STABLE_PORTS, len(_STABLE_PORTS))
    return (port for port in ports if sockets.is_free(HOST, port))


def _new_cluster_id() -> str:
    """Return a cluster id in Kafka's form: 16 random bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _disk_full(home: Path, seen: str, needed: int) -> SetupError:
    return SetupError(
        finding=f"The disk of {home} is full.",
        needed=f"at least {needed} bytes free",
        seen=seen,
        advice="Free some space, or move the broker's folder to another disk.",
    )


def _error_lines(text: str) -> str:
    """Return the lines of Kafka's output that explain its end: the first error, else the end."""
    lines = [line for line in text.splitlines() if line.strip() and not _STACK_FRAME.match(line)]
    errors = (number for number, line in enumerate(lines) if _ERROR_LINE.search(line))
    first = next(errors, max(0, len(lines) - _ERROR_LINES))
    return "; ".join(lines[first : first + _ERROR_LINES]) or "no output"
