"""TCP ports of this machine: which are free, which are taken."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from tidemark.core.errors import SetupError

_RELEASE_S = 3.0


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As Java does it: connections that wait out their end (TIME_WAIT) are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def wait_until_free(host: str, port: int) -> bool:
    """Return whether the port is free, or becomes free within some seconds.

    A process that was killed holds its ports until its last thread has ended.
    """
    deadline = time.monotonic() + _RELEASE_S
    while not is_free(host, port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_listening(host: str, port: int) -> bool:
    """Whether somebody listens on the port."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def free_ports(host: str, count: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def choose_port(host: str, wanted: int, last: int | None, spare: int) -> int:
    """The port to take: the one asked for, else the last one again if it is free, else the spare.

    Args:
        host: Address to listen on.
        wanted: Port asked for, free or not; 0 for any.
        last: Port of the last start, if there was one.
        spare: A free port.
    """
    if wanted:
        return wanted
    return last if last is not None and wait_until_free(host, last) else spare


def require_free(host: str, ports: Iterable[int], purpose: str) -> None:
    """Refuse a port that another process still uses after some seconds.

    Args:
        host: Address to listen on.
        ports: Ports that will be listened on.
        purpose: Who will listen, for the error.

    Raises:
        SetupError: Naming the port.
    """
    for port in ports:
        if not wait_until_free(host, port):
            raise SetupError(
                subject=f"port {port} is taken",
                needed=f"a free port {port} for {purpose}",
                seen="another process that listens on it",
                advice="stop that process, or choose another port (0 takes a free one)",
            )
