"""Recorded state of the embedded broker, which later processes read: a small JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from tidemark.delta.local_files import locked, read_json, replace_text
from tidemark.local.broker_settings import NodePorts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """Ports and process id of one node; no process id before its first start."""

    node: int
    ports: NodePorts
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """The content of `broker.json`.

    Attributes:
        cluster_id: Kafka's cluster id; restarts keep it.
        bootstrap: Bootstrap addresses by listener name; the first listener comes first.
        nodes: All nodes of the cluster.
    """

    cluster_id: str
    bootstrap: dict[str, str]
    nodes: tuple[NodeState, ...]

    def with_process(self, node: int, pid: int) -> BrokerState:
        """Return a copy of the state with the process id of one node."""
        nodes = (replace(n, pid=pid) if n.node == node else n for n in self.nodes)
        return replace(self, nodes=tuple(nodes))


_STATE = TypeAdapter(BrokerState)


def load(home: Path) -> BrokerState | None:
    """Return the state of the last start; None before the first."""
    raw = read_json(_file(home))
    return None if raw is None else _STATE.validate_python(raw)


def save(home: Path, state: BrokerState) -> None:
    """Replace the recorded state atomically."""
    replace_text(_file(home), _STATE.dump_json(state, indent=2).decode() + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """Status of an embedded broker, from the recorded state and the process table.

    Attributes:
        running: Whether the processes of all nodes run.
        pids: Process ids of the running nodes.
        bootstrap: Bootstrap addresses of the first listener; empty before the first start.
        listeners: Bootstrap addresses by listener name.
        cluster_id: Kafka's cluster id; empty before the first start.
        home: Folder of data, logs and settings.
        logs: Log file of each node.
    """

    running: bool
    pids: tuple[int, ...] = ()
    bootstrap: str = ""
    listeners: Mapping[str, str] = field(default_factory=dict)
    cluster_id: str = ""
    home: Path
    logs: tuple[Path, ...] = ()


def exclusive(home: Path) -> AbstractContextManager[None]:
    """Return a lock for starting and stopping the broker of this folder."""
    return locked(home / "broker.lock")


def _file(home: Path) -> Path:
    return home / "broker.json"
