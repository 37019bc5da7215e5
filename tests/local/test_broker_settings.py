"""Settings of the embedded broker."""

from __future__ import annotations

from pathlib import Path

from tidemark.local.broker_settings import BrokerConfig, Listener, NodePorts, broker_properties


def test_a_node_advertises_the_port_of_its_proxy() -> None:
    """The node still listens on its own port; a node without a proxy advertises that."""
    config = BrokerConfig(
        home=Path("broker"),
        jars=Path("jars"),
        nodes=2,
        listeners=(
            Listener(name="DIRECT"),
            Listener(name="BETWEEN", advertised_host="localhost", advertised_ports={2: 7002}),
        ),
    )
    ports = {
        node: NodePorts(
            controller=9000 + node, listeners={"DIRECT": 9100 + node, "BETWEEN": 9200 + node}
        )
        for node in config.node_ids
    }
    for node, advertised in ((1, 9201), (2, 7002)):
        properties = broker_properties(config, node, ports)
        assert properties["listeners"] == (
            f"CONTROLLER://127.0.0.1:{9000 + node},"
            f"DIRECT://127.0.0.1:{9100 + node},BETWEEN://127.0.0.1:{9200 + node}"
        )
        assert properties["advertised.listeners"] == (
            f"DIRECT://127.0.0.1:{9100 + node},BETWEEN://localhost:{advertised}"
        )
