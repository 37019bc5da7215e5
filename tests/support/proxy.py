"""A TCP proxy between clients and a broker, which holds, slows or cuts fetches.

It parses the head of each request and response to recognise the answers to fetches. Metadata,
watermarks and new connections work while a fetch is held. The proxy alters no byte. The broker must
advertise the address of the proxy; `proxied_broker` starts such a broker.

    gate = proxy.hold(after=1_000_000)   # a million bytes of records pass
    ...start a reader...
    gate.wait_held()                     # the reader is in the middle of a fetch
    ...delete records, kill the reader, cut the connection...
    gate.release()
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self

from tidemark.local.broker import Broker, BrokerConfig, Listener
from tidemark.local.broker_settings import HOST
from tidemark.spark.sockets import free_ports

_FETCH = 1
"""Kafka's api key of Fetch. Source: Kafka protocol guide, "API Keys"."""
_CHUNK = 64 * 1024


class Gate:
    """Holds traffic from the broker after some bytes have passed.

    Attributes:
        held: Set when the first byte waits.
        waiting: Number of connections whose bytes wait.
    """

    def __init__(self, after: int, everything: bool, changed: threading.Condition) -> None:
        self.held = threading.Event()
        self.waiting = 0
        self._everything = everything
        self._left = after
        self._released = False
        self._changed = changed

    def wait_held(self, timeout_s: float = 240.0) -> None:
        """Return when a byte waits; raise TimeoutError at the time limit."""
        if not self.held.wait(timeout_s):
            raise TimeoutError(f"nothing had to wait at the gate within {timeout_s} s")

    def release(self) -> None:
        """Pass all traffic from now on."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def admit(self, wanted: int, fetch: bool, gone: Callable[[], bool]) -> int:
        """Wait until bytes may pass or the connection is gone; return how many may pass."""
        with self._changed:
            if self._released or not (fetch or self._everything):
                return wanted
            if self._left == 0:
                self.held.set()
                self.waiting += 1
                self._changed.wait_for(lambda: self._released or gone())
                self.waiting -= 1
                return wanted
            allowed = min(wanted, self._left)
            self._left -= allowed
            return allowed


@dataclass(eq=False)
class Connection:
    """A connection of a client and its connection to the server.

    Attributes:
        client: Socket of the client.
        server: Socket of the server.
        requests: Kafka's api key of each unanswered request, by correlation id.
        gone: Whether one side has closed.
    """

    client: socket.socket
    server: socket.socket
    requests: dict[int, int] = field(default_factory=dict)
    gone: bool = False


class Proxy:
    """Forwards connections to one port of this machine. A thread-safe context manager.

    Args:
        target_port: Port of the broker.

    Attributes:
        port: Port for clients.
        accepted: Number of connections so far; retries of clients open further ones.
        fetched: Bytes of answers to fetches that have passed so far.
    """

    def __init__(self, target_port: int) -> None:
        self.accepted = 0
        self.fetched = 0
        self._target_port = target_port
        self._changed = threading.Condition()
        self._gate: Gate | None = None
        self._rate: int | None = None
        self._open: set[Connection] = set()
        self._threads: list[threading.Thread] = []
        self._stopped = False
        self._listening = socket.create_server((HOST, 0))
        self.port = int(self._listening.getsockname()[1])

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._listening.shutdown(socket.SHUT_RDWR)
        self.clear()
        self.cut()
        for thread in self._threads:
            thread.join(30)
        self._listening.close()

    # -- commands --------------------------------------------------------------------------------

    def hold(self, after: int = 0, *, everything: bool = False) -> Gate:
        """Hold answers of the broker on every connection, including later ones.

        Args:
            after: Number of bytes that pass before, over all connections.
            everything: Hold and count all answers instead of only answers to fetches.
        """
        self.clear()
        self._gate = Gate(after, everything, self._changed)
        return self._gate

    def throttle(self, bytes_per_second: int | None) -> None:
        """Limit the speed of answers on each connection; None removes the limit."""
        with self._changed:
            self._rate = bytes_per_second
            self._changed.notify_all()

    def cut(self) -> int:
        """Break all open connections, and return their number. New ones are accepted."""
        with self._changed:
            cut = list(self._open)
            for connection in cut:
                self._drop(connection)
        return len(cut)

    def clear(self) -> None:
        """Release the gate, and remove the speed limit."""
        if self._gate is not None:
            self._gate.release()
        self._gate = None
        self.throttle(None)

    # -- threads ---------------------------------------------------------------------------------

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._target_port), timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            connection = Connection(client, server)
            with self._changed:
                self.accepted += 1
                self._open.add(connection)
                if self._stopped:
                    self._drop(connection)
            self._run(self._pump, connection)

    def _pump(self, connection: Connection) -> None:
        """Forward answers in this thread and requests in another, until one side closes."""
        requests = threading.Thread(
            target=self._until_gone, args=(connection, self._request), daemon=True
        )
        requests.start()
        self._until_gone(connection, self._answer)
        requests.join()
        connection.client.close()
        connection.server.close()
        with self._changed:
            self._open.discard(connection)

    def _until_gone(self, connection: Connection, pass_one: Callable[[Connection], None]) -> None:
        with suppress(OSError, EOFError):
            while True:
                pass_one(connection)
        with self._changed:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.gone = True
        for side in (connection.client, connection.server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        self._changed.notify_all()

    def _request(self, connection: Connection) -> None:
        """Forward a request (Kafka protocol guide, "Headers")."""
        head = exactly(connection.client, 12)
        size, api_key, _, correlation = struct.unpack(">ihhi", head)
        connection.requests[correlation] = api_key
        connection.server.sendall(head)
        for part in parts(connection.client, size - 8):
            connection.server.sendall(part)

    def _answer(self, connection: Connection) -> None:
        head = exactly(connection.server, 8)
        size, correlation = struct.unpack(">ii", head)
        fetch = connection.requests.pop(correlation, None) == _FETCH
        self._pass_on(connection, head, fetch)
        for part in parts(connection.server, size - 4):
            self._pass_on(connection, part, fetch)

    def _has_news(self, connection: Connection, rate: int) -> bool:
        return connection.gone or self._rate != rate

    def _pass_on(self, connection: Connection, data: bytes, fetch: bool) -> None:
        while data:
            gate, rate = self._gate, self._rate
            wanted = len(data) if rate is None else min(len(data), max(1, rate // 20))
            allowed = gate.admit(wanted, fetch, lambda: connection.gone) if gate else wanted
            connection.client.sendall(data[:allowed])
            if fetch:
                with self._changed:
                    self.fetched += allowed
            data = data[allowed:]
            if rate is not None:
                with self._changed:
                    self._changed.wait_for(
                        partial(self._has_news, connection, rate),
                        timeout=allowed / rate,
                    )


def exactly(side: socket.socket, count: int) -> bytes:
    """Read exactly this number of bytes; raise EOFError if the connection closes before."""
    data = side.recv(count, socket.MSG_WAITALL)
    if len(data) < count:
        raise EOFError
    return data


def parts(side: socket.socket, count: int) -> Iterator[bytes]:
    """Yield this number of bytes in parts; raise EOFError if the connection closes before."""
    while count:
        data = side.recv(min(count, _CHUNK))
        if not data:
            raise EOFError
        count -= len(data)
        yield data


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedBroker:
    """A broker with two listeners.

    Attributes:
        direct: Bootstrap address without the proxy, for producers, admins and the judge.
        bootstrap: Bootstrap address through the proxy, for the code under test.
        proxy: The proxy.
    """

    direct: str
    bootstrap: str
    proxy: Proxy


@contextmanager
def proxied_broker(
    home: Path,
    jars: Path,
    *,
    protocol: str = "PLAINTEXT",
    properties: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ProxiedBroker]:
    """Run a separate broker that advertises the proxy in its second listener.

    Args:
        home: Folder of the broker.
        jars: Jars of the broker.
        protocol: Security protocol of the second listener, `PROXIED`.
        properties: Broker properties, such as the logins of that listener.
    """
    (port,) = free_ports(HOST, 1)
    with Proxy(port) as proxy:
        listeners = (
            Listener(name="DIRECT"),
            Listener(
                name="PROXIED",
                port=port,
                protocol=protocol,
                advertised_ports={1: proxy.port},
            ),
        )
        embedded = Broker(
            BrokerConfig(
                home=home, jars=jars, listeners=listeners, properties=properties, heap_mb=256
            )
        )
        try:
            status = embedded.start()
            yield ProxiedBroker(
                direct=status.listeners["DIRECT"],
                bootstrap=status.listeners["PROXIED"],
                proxy=proxy,
            )
        finally:
            embedded.stop()
