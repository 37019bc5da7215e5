"""Free ports, ports in use, and the choice of a port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tidemark.core.errors import SetupError
from tidemark.spark import sockets

HOST = "127.0.0.1"


@pytest.fixture
def used_port() -> Iterator[int]:
    """A port with a listener."""
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_with_a_listener_is_not_free(used_port: int) -> None:
    """It accepts connections."""
    (free,) = sockets.free_ports(HOST, 1)
    assert (sockets.is_free(HOST, used_port), sockets.is_listening(HOST, used_port)) == (
        False,
        True,
    )
    assert (sockets.is_free(HOST, free), sockets.is_listening(HOST, free)) == (True, False)


def test_free_ports_are_different() -> None:
    """All of them are bound until the last is known."""
    assert len(set(sockets.free_ports(HOST, 50))) == 50


def test_a_port_in_use_is_refused_with_its_purpose(
    used_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error contains the port, the name of the server, and the option of another port."""
    monkeypatch.setattr(sockets, "_RELEASE_S", 0.2)
    ports = [*sockets.free_ports(HOST, 1), used_port]
    with pytest.raises(SetupError, match=f"Port {used_port} is in use.*for the judge") as refused:
        sockets.require_free(HOST, ports, "the judge", "`judge --port N`")
    assert "another port: `judge --port N`" in refused.value.rendered("fix")


def test_the_last_port_is_chosen_again_after_its_killed_process_releases_it() -> None:
    """A killed server keeps its port until its last thread has ended."""
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        last = holder.getsockname()[1]
        giving_back = threading.Timer(0.2, holder.close)
        giving_back.start()
        assert sockets.choose_port(HOST, 0, last, spare=1) == last
        giving_back.join()


def test_the_chosen_port_is_the_wanted_then_the_last_then_a_spare(
    used_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`require_free` refuses a wanted port in use."""
    monkeypatch.setattr(sockets, "_RELEASE_S", 0.2)
    last, spare = sockets.free_ports(HOST, 2)
    assert sockets.choose_port(HOST, used_port, last, spare) == used_port
    assert sockets.choose_port(HOST, 0, last, spare) == last
    assert sockets.choose_port(HOST, 0, used_port, spare) == spare
    assert sockets.choose_port(HOST, 0, None, spare) == spare
