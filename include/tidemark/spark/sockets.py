"""TCP ports of this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from tidemark.core.errors import SetupError

_RELEASE_S = 3.0
"""Seconds in which a killed process releases its ports."""


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As Java does: connections in the state TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def wait_until_free(host: str, port: int) -> bool:
    """Return whether the port is free, or becomes free within `_RELEASE_S`.

    A killed process holds its ports until its last thread has ended.
    """
    deadline = time.monotonic() + _RELEASE_S
    while not is_free(host, port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_listening(host: str, port: int) -> bool:
    """Return whether a server listens on the port."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def free_ports(host: str, count: int) -> list[int]:
    """Return `count` different ports that are free now."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def choose_port(host: str, wanted: int, last: int | None, spare: int) -> int:
    """Return the wanted port; without one, the last port if it is free, else the spare port.

    Args:
        host: Address to listen on.
        wanted: Explicitly selected port, free or not; 0 for any port.
        last: Port of the last start; None before the first.
        spare: A free port.
    """
    if wanted:
        return wanted
    return last if last is not None and wait_until_free(host, last) else spare


def require_free(host: str, ports: Iterable[int], purpose: str, choice: str) -> None:
    """Raise `SetupError` for a port that another process still uses after `_RELEASE_S`.

    Args:
        host: Address to listen on.
        ports: The ports to listen on.
        purpose: Name of the server, for the error.
        choice: The commands that select another port, for the error.
    """
    for port in ports:
        if not wait_until_free(host, port):
            raise SetupError(
                finding=f"Port {port} is in use.",
                needed=f"a free port for {purpose}",
                seen="another process listens on it",
                advice=f"Stop that process, or choose another port: {choice}. "
                "Port 0 selects a free one.",
            )
