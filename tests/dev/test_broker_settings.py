"""Settings of the embedded broker."""

from __future__ import annotations

from pathlib import Path

from tidemark.dev.broker_settings import BrokerConfig, Listener, NodePorts, broker_properties


def test_a_listener_advertises_the_port_of_a_proxy() -> None:
    """The node still listens on its own port."""
    config = BrokerConfig(
        home=Path("broker"),
        jars=Path("jars"),
        nodes=2,
        listeners=(
            Listener(name="DIRECT"),
            Listener(name="BETWEEN", advertised_host="localhost", advertised_port=7001),
        ),
    )
    ports = {
        node: NodePorts(
            controller=9000 + node, listeners={"DIRECT": 9100 + node, "BETWEEN": 9200 + node}
        )
        for node in config.node_ids
    }
    for node in config.node_ids:
        properties = broker_properties(config, node, ports)
        assert properties["listeners"] == (
            f"CONTROLLER://127.0.0.1:{9000 + node},"
            f"DIRECT://127.0.0.1:{9100 + node},BETWEEN://127.0.0.1:{9200 + node}"
        )
        assert properties["advertised.listeners"] == (
            f"DIRECT://127.0.0.1:{9100 + node},BETWEEN://localhost:{7000 + node}"
        )


def test_single_nodes_advertise_their_own_ports() -> None:
    """Other nodes advertise the listener's port, or the port that they listen on."""
    listener = Listener(name="BETWEEN", advertised_ports={2: 7302})
    assert [listener.advertised(node, 9200 + node) for node in (1, 2)] == [
        "127.0.0.1:9201",
        "127.0.0.1:7302",
    ]
    both = Listener(name="BETWEEN", advertised_port=7001, advertised_ports={2: 7302})
    assert [both.advertised(node, 9200 + node) for node in (1, 2, 3)] == [
        "127.0.0.1:7001",
        "127.0.0.1:7302",
        "127.0.0.1:7003",
    ]
