"""`tidemark console`: the port that the printed link names."""

from __future__ import annotations

import socket

from tidemark.cli.console import HOST, _listen


def test_the_port_accepts_connections_before_the_link_is_printed() -> None:
    """A request to the link waits for the server instead of being refused."""
    with _listen(0) as listening, socket.create_connection((HOST, listening.getsockname()[1])):
        assert listening.getsockname()[1] > 0
