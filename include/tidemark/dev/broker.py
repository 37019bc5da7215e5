"""The embedded broker: a real Apache Kafka in KRaft mode, on this machine, without Docker.

One node for the demo and most tests, three where leaders and replicas matter. The processes are
detached: one command starts them, another stops them, and what is needed in between is in a file.
"""

from __future__ import annotations

import base64
import logging
import os
import random
import shutil
import signal
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
from tidemark.dev import broker_settings as settings
from tidemark.dev import broker_state as states
from tidemark.dev.broker_settings import HOST, BrokerConfig, Listener, NodePorts
from tidemark.dev.broker_state import BrokerState, BrokerStatus, NodeState
from tidemark.dev.complaints import complaint
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.spark import processes, sockets

__all__ = ["Broker", "BrokerConfig", "BrokerStatus", "Listener"]

_log = logging.getLogger(__name__)

_QUIET = range(20_000, 32_000)
"""Ports below those of outgoing connections: from 32768 on Linux, 49152 elsewhere."""


class Broker:
    """Starts, stops and finds the embedded broker of one folder.

    Args:
        config: Settings for a start. To stop or to ask, only `home` and `stop_timeout_s` count.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = replace(config, home=config.home.resolve(), jars=config.jars.resolve())
        self._home = self._config.home

    def status(self) -> BrokerStatus:
        """Look at the recorded processes; asks nothing of Kafka and changes nothing."""
        state = states.load(self._home)
        if state is None:
            return BrokerStatus(
                running=False,
                pids=(),
                bootstrap="",
                listeners={},
                cluster_id="",
                home=self._home,
                logs=(),
            )
        alive = self._alive(state.nodes)
        return BrokerStatus(
            running=len(alive) == len(state.nodes),
            pids=alive,
            bootstrap=next(iter(state.bootstrap.values())),
            listeners=state.bootstrap,
            cluster_id=state.cluster_id,
            home=self._home,
            logs=tuple(settings.log_file(self._home, node.node) for node in state.nodes),
        )

    def start(self) -> BrokerStatus:
        """Start what does not run and return when every node answers.

        Started again, a running broker is left as it is. A broker with a dead node gets that node
        back. If anything goes wrong, what this call started is stopped again.

        Raises:
            SetupError: Java or the jars are missing, a port is taken, the disk is full, the folder
                belongs to a cluster of another size, or Kafka stopped with an error of its own.
            KafkaUnavailable: The nodes live and did not answer in time.
        """
        return self._start(self._config.node_ids)

    def start_node(self, node: int) -> BrokerStatus:
        """Start one node, as `start` does; others that are dead stay so.

        Raises:
            SetupError, KafkaUnavailable: As `start`.
        """
        return self._start((node,))

    def _start(self, wanted: Collection[int]) -> BrokerStatus:
        self._home.mkdir(parents=True, exist_ok=True)
        with states.exclusive(self._home):
            state = self._prepared(states.load(self._home))
            missing = [n for n in state.nodes if n.node in wanted and not self._is_alive(n)]
            if missing:
                self._start_nodes(state, missing)
            return self.status()

    def kill_node(self, node: int) -> BrokerStatus:
        """End one node at once, as a crash does (SIGKILL), and return when its process is gone."""
        with states.exclusive(self._home):
            state = states.load(self._home)
            meant = [n for n in state.nodes if n.node == node] if state else []
            for pid in self._alive(meant):
                os.kill(pid, signal.SIGKILL)
            self._stop_nodes(meant)
            _log.info("broker node killed home=%s node=%d", self._home, node)
            return self.status()

    def stop(self) -> BrokerStatus:
        """Stop every node and return when no process is left. Data stays."""
        if not self._home.exists():
            return self.status()
        with states.exclusive(self._home):
            state = states.load(self._home)
            if state is not None:
                self._stop_nodes(state.nodes)
                _log.info("broker stopped home=%s", self._home)
            return self.status()

    # -- before the start ------------------------------------------------------------------------

    def _prepared(self, state: BrokerState | None) -> BrokerState:
        """The state to start from: ports chosen, none of them written yet."""
        config = self._config
        known = {} if state is None else {node.node: node for node in state.nodes}
        if state is not None and len(known) != config.nodes:
            raise SetupError(
                subject=f"the broker folder {self._home} holds a cluster of another size",
                needed=f"{config.nodes} node(s)",
                seen=f"{len(known)} node(s)",
                advice="start it with its own number of nodes, or delete the folder",
            )
        if state is not None and any(self._is_alive(node) for node in state.nodes):
            return state
        ports = self._chosen_ports({n: node.ports for n, node in known.items()})
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

    def _chosen_ports(self, before: Mapping[int, NodePorts]) -> dict[int, NodePorts]:
        config = self._config
        spare = _quiet_ports()

        def chosen(wanted: int, last: int | None) -> int:
            return sockets.choose_port(HOST, wanted, last, next(spare))

        def ports(node: int) -> NodePorts:
            last = before.get(node)
            return NodePorts(
                controller=chosen(0, last.controller if last else None),
                listeners={
                    listener.name: chosen(
                        listener.port and listener.port + node - 1,
                        last.listeners.get(listener.name) if last else None,
                    )
                    for listener in config.listeners
                },
            )

        return {node: ports(node) for node in config.node_ids}

    def _check_machine(self) -> str:
        """The java program, once this machine is known to have what a start needs."""
        config = self._config
        if not any(config.jars.glob("kafka_*.jar")):
            raise SetupError(
                subject="the jars of the embedded broker are missing",
                needed=f"kafka_*.jar in {config.jars}",
                seen="none",
                advice="fetch the JVM parts with `make setup`",
            )
        java = shutil.which(config.java)
        if java is None:
            raise SetupError(
                subject="Java is missing",
                needed=f"Java 17 or later as {config.java!r}",
                seen="no such program",
                advice="install a Java 17 runtime and put it on the PATH",
            )
        free = shutil.disk_usage(self._home).free
        if free < config.min_free_bytes:
            raise _disk_full(self._home, f"{free} bytes free", config.min_free_bytes)
        return java

    # -- the start -------------------------------------------------------------------------------

    def _start_nodes(self, state: BrokerState, missing: list[NodeState]) -> None:
        java = self._check_machine()
        ports = (port for node in missing for port in node.ports)
        sockets.require_free(HOST, ports, "the embedded broker")
        self._write_settings(state, missing)
        self._format(java, state.cluster_id, missing)
        begun = time.monotonic()
        started: set[int] = set()
        expected = {n.node for n in missing} | {n.node for n in state.nodes if self._is_alive(n)}
        try:
            for node in missing:
                state = state.with_process(node.node, self._spawn(java, node.node))
                started.add(node.node)
                states.save(self._home, state)
            nodes = [node for node in state.nodes if node.node in expected]
            self._wait_until_healthy(nodes, begun + self._config.start_timeout_s)
        except BaseException:
            self._stop_nodes(node for node in state.nodes if node.node in started)
            raise
        _log.info(
            "broker started home=%s nodes=%s seconds=%.1f",
            self._home,
            sorted(started),
            time.monotonic() - begun,
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
        """Write the cluster id into data folders that are new; Kafka does not start without."""

        def format_one(node: int) -> None:
            folder = settings.data_folder(self._home, node)
            if (folder / "meta.properties").exists():
                return
            options = ["format", "--cluster-id", cluster_id, "--config", self._proof(node)]
            done = subprocess.run(
                [java, *settings.java_options(self._config), "kafka.tools.StorageTool", *options],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                told = complaint(done.stdout + done.stderr)
                raise self._failure(node, "while formatting its data folder", told)

        with ThreadPoolExecutor(max_workers=len(missing)) as pool:
            list(pool.map(format_one, [node.node for node in missing]))

    def _spawn(self, java: str, node: int) -> int:
        command = [java, *settings.java_options(self._config), "kafka.Kafka", self._proof(node)]
        return processes.spawn_detached(command, settings.log_file(self._home, node)).pid

    # -- health ----------------------------------------------------------------------------------

    def _wait_until_healthy(self, nodes: Collection[NodeState], deadline: float) -> None:
        """Return when each node lives, listens, and is in the cluster's own list of brokers."""
        first = self._config.listeners[0].name
        ports = [node.ports.listeners[first] for node in nodes]
        addresses = ",".join(f"{HOST}:{port}" for port in ports)
        wanted = {node.node for node in nodes}
        seen = 0
        while time.monotonic() < deadline:
            self._require_alive(nodes)
            if all(sockets.is_listening(HOST, port) for port in ports):
                listed = _listed_nodes({"bootstrap.servers": addresses, **self._config.client})
                seen = len(wanted & listed)
                if seen == len(wanted):
                    return
            time.sleep(processes.POLL_S)
        raise KafkaUnavailable(
            operation=f"at {addresses} within {self._config.start_timeout_s:.0f} s of its start",
            reason=f"{seen} of {len(wanted)} node(s) answered; logs are below {self._home}",
        )

    def _require_alive(self, nodes: Collection[NodeState]) -> None:
        for node in nodes:
            if not self._is_alive(node):
                log = settings.log_file(self._home, node.node)
                told = complaint(processes.read_log(log))
                raise self._failure(node.node, f"at its start, see {log}", told)

    def _failure(self, node: int, moment: str, told: str) -> SetupError:
        if "No space left on device" in told:
            return _disk_full(self._home, "no space left on device", self._config.min_free_bytes)
        return SetupError(
            subject=f"node {node} of the embedded broker stopped {moment}",
            needed="a Kafka process that stays up",
            seen=told.rstrip("."),
            advice="mend what Kafka complains about, then start it again",
        )

    # -- processes -------------------------------------------------------------------------------

    def _proof(self, node: int) -> str:
        return str(settings.properties_file(self._home, node))

    def _alive(self, nodes: Iterable[NodeState]) -> tuple[int, ...]:
        """Process ids of those nodes that live."""
        return tuple(
            node.pid
            for node in nodes
            if node.pid is not None and processes.runs_with(node.pid, self._proof(node.node))
        )

    def _is_alive(self, node: NodeState) -> bool:
        return bool(self._alive([node]))

    def _stop_nodes(self, nodes: Iterable[NodeState]) -> None:
        meant = tuple(nodes)
        processes.stop(
            "the embedded broker",
            lambda: self._alive(meant),
            timeout_s=self._config.stop_timeout_s,
        )


def _listed_nodes(client: Mapping[str, str]) -> set[int]:
    """Ids of the brokers that the cluster says it has; none if it does not say."""
    admin = AdminClient({"log_level": 0, **client})
    try:
        return set(admin.list_topics(timeout=5).brokers)
    except KafkaException as error:
        _log.debug("broker does not answer yet error=%s", error)
        return set()


def _quiet_ports() -> Iterator[int]:
    """Free ports that no system gives to outgoing connections, all different.

    Any connection might hold another port just when a node that was killed wants it back: even one
    of a node that tries to reach the dead one, over and over.
    """
    ports = random.sample(_QUIET, len(_QUIET))
    return (port for port in ports if sockets.is_free(HOST, port))


def _new_cluster_id() -> str:
    """A cluster id in Kafka's own form: 16 random bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _disk_full(home: Path, seen: str, needed: int) -> SetupError:
    return SetupError(
        subject=f"the disk of {home} is full",
        needed=f"at least {needed} bytes free",
        seen=seen,
        advice="free some space, or put the broker's folder on another disk",
    )
