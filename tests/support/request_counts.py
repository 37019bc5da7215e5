"""A proxy in front of an object store. It counts requests by table and by kind of object.

with RequestCounter(port) as counter:
    counter.delay(0.03)
    counter.take()
    ...
    print(counter.take()[Request("bronze", "log GET")])

The proxy can also kill a process at one of its requests (`kill_at`). It can refuse all requests
after a number of them (`refused`), or lose the answer to a commit (`lost_answer`). It can also
answer that another write is in progress (`refuse_commits`).
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.proxy import Connection, Proxy, exactly, parts

_TABLES = {
    "/control/offset_ranges/": "control",
    "/control/status": "status",
    "/control/schemas/": "schemas",
    "/quality/results/": "results",
    "/bronze/": "bronze",
    "_quarantine/": "quarantine",
    "_latest/": "upsert",
    "/silver/": "typed",
}
"""Tables by a part of the names of their objects. The first part in a name decides."""
_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
_CHUNKED = re.compile(rb"^transfer-encoding: *chunked", re.IGNORECASE | re.MULTILINE)
_REFUSAL = (
    b"403 Forbidden",
    b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
)
"""Status and body of the answer of S3 to a request without the right."""
_CONFLICT = (
    b"409 Conflict",
    b"<Error><Code>ConditionalRequestConflict</Code><Message>Try again</Message></Error>",
)
"""Status and body of the answer of S3 to a write beside another one."""


class Request(NamedTuple):
    """The table and the kind of object of a request.

    Attributes:
        table: The table, such as `bronze`; `other` for objects outside all tables.
        kind: The kind of object and the method, such as `log GET`.
    """

    table: str
    kind: str


Requests = Counter[Request]
"""Numbers of requests."""
_COMMIT = "log PUT"


def commits_of(requests: Requests) -> int:
    """Return the number of PUTs of commits, repeated ones included."""
    return sum(number for each, number in requests.items() if each.kind == _COMMIT)


def request_of(method: str, target: str) -> Request:
    """Return the table and the kind of an S3 request, from its method and target."""
    address = urlsplit(target)
    query = parse_qs(address.query, keep_blank_values=True)
    lists = method == "GET" and ("list-type" in query or "prefix" in query)
    name = unquote(address.path) + ("/" + query.get("prefix", [""])[0] + "/" if lists else "")
    table = next((each for part, each in _TABLES.items() if part in name), "other")
    return Request(table, _kind(method, name, lists=lists))


def _kind(method: str, name: str, *, lists: bool) -> str:
    if "/_delta_log/" not in name:
        return "data LIST" if lists else f"data {method}"
    if lists:
        return "log LIST"
    if name.endswith("/_last_checkpoint"):
        return f"_last_checkpoint {method}"
    return f"checkpoint {method}" if ".checkpoint." in name else f"log {method}"


class Kill(NamedTuple):
    """A request at which a process is killed.

    Attributes:
        pid: The process.
        request: Number of the request, from 1.
        is_applied: Whether the store executes the request before. The process gets no answer.
    """

    pid: int
    request: int
    is_applied: bool


class _CountingProxy(Proxy):
    """Counts and delays the HTTP requests to one port of this machine.

    Attributes:
        delay_s: Seconds by which the proxy delays each request.
        counts: Requests so far.
        is_paused: Whether requests are neither counted nor delayed.
        kill: The process to kill at the request that makes `counts` this long; None for none.
        refused_after: Number of requests after which the proxy refuses all others; None for never.
        lost_commit: Number of the commit whose answer gets lost, from 0; None for none.
        conflicts_left: Number of the next commits that the proxy refuses with 409.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.delay_s = 0.0
        self.counts = Requests()
        self.is_paused = False
        self.kill: Kill | None = None
        self.refused_after: int | None = None
        self.lost_commit: int | None = None
        self.conflicts_left = 0
        self._unanswered: Connection | None = None

    def take(self) -> Requests:
        """Return the counts, and reset them to 0."""
        with self._changed:
            counts, self.counts = self.counts, Requests()
        return counts

    def _request(self, connection: Connection) -> None:
        """Forward a request (RFC 9112). A client may wait for `100 Continue` before the body."""
        head = bytearray()
        while not head.endswith(b"\r\n\r\n"):
            head += _line(connection.client)
        method, target, _ = head.decode("latin-1").split(" ", 2)
        request = request_of(method, target)
        self._count(request, connection)
        is_conflict = request.kind == _COMMIT and self.conflicts_left > 0
        if is_conflict:
            self.conflicts_left -= 1
        is_refused = is_conflict or (
            self.refused_after is not None and self.counts.total() > self.refused_after
        )
        send = _ignore if is_refused else connection.server.sendall
        send(head)
        if is_refused and b"100-continue" in head.lower():
            pass  # The client sends no body before it gets an answer.
        elif _CHUNKED.search(head):
            self._forward_chunks(connection, send)
        elif length := _LENGTH.search(head):
            for part in parts(connection.client, int(length[1])):
                send(part)
        if is_refused:
            status, body = _CONFLICT if is_conflict else _REFUSAL
            connection.client.sendall(
                b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n" % (status, 0 if method == "HEAD" else len(body))
            )
            if method != "HEAD":
                connection.client.sendall(body)
            raise EOFError

    def _count(self, request: Request, connection: Connection) -> None:
        if self.is_paused:
            return
        with self._changed:
            if request.kind == _COMMIT and commits_of(self.counts) == self.lost_commit:
                self._unanswered = connection
            self.counts[request] += 1
            if self.kill and self.counts.total() == self.kill.request:
                if not self.kill.is_applied:
                    self._kill(self.kill)
                self._unanswered = connection
        if self.delay_s:
            time.sleep(self.delay_s)

    @staticmethod
    def _kill(kill: Kill) -> None:
        """Kill the process, and close the connection."""
        os.kill(kill.pid, signal.SIGKILL)
        raise EOFError

    @staticmethod
    def _forward_chunks(connection: Connection, send: Callable[[bytes], object]) -> None:
        while True:
            line = _line(connection.client)
            send(line)
            size = int(line.split(b";")[0], 16)
            # After the last chunk come trailers, up to an empty line.
            while size == 0 and line != b"\r\n":
                line = _line(connection.client)
                send(line)
            if size == 0:
                return
            send(exactly(connection.client, size + 2))

    def _answer(self, connection: Connection) -> None:
        data = connection.server.recv(64 * 1024)
        if not data:
            raise EOFError
        # A client may wait for this answer before it sends the body.
        is_final = not data.startswith(b"HTTP/1.1 100 ")
        if is_final and self._unanswered is connection:
            if self.kill:
                self._kill(self.kill)
            raise EOFError
        connection.client.sendall(data)


def _ignore(_: bytes | bytearray) -> None:
    """Send nothing."""


def _line(side: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        # Peek, because the body stays in the socket.
        seen = side.recv(8192, socket.MSG_PEEK)
        if not seen:
            raise EOFError
        end = seen.find(b"\n")
        line += exactly(side, len(seen) if end < 0 else end + 1)
    return bytes(line)


def _serve(target_port: int, commands: Pipe) -> None:
    """Run a proxy, and answer commands until the other end of the pipe closes."""
    with _CountingProxy(target_port) as proxy:
        commands.send(proxy.port)
        with suppress(EOFError):
            while True:
                name, value = commands.recv()
                if name == "take":
                    commands.send(proxy.take())
                else:
                    setattr(proxy, name, value)
                    commands.send(None)


class RequestCounter:
    """A proxy that counts requests, in a process of its own. A thread-safe context manager.

    Some functions of delta-rs hold Python's global interpreter lock (GIL) while they wait for the
    store. A proxy in the same process could not forward their requests.

    Args:
        target_port: Port of the store.

    Attributes:
        port: Port for clients.
    """

    def __init__(self, target_port: int) -> None:
        # A test process has threads, so it cannot fork.
        spawn = multiprocessing.get_context("spawn")
        self._commands, other = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(target_port, other), daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._process.start()
        self.port = int(self._commands.recv())
        return self

    def __exit__(self, *_: object) -> None:
        self._commands.close()
        self._process.terminate()
        self._process.join(30)

    def delay(self, seconds: float) -> None:
        """Delay each later request by this number of seconds."""
        self._ask("delay_s", seconds)

    def take(self) -> Requests:
        """Return the requests since the last call."""
        taken: Requests = self._ask("take", None)
        return taken

    def kill_at(self, kill: Kill) -> None:
        """Reset the counts, and kill a process at one of the next requests."""
        self.take()
        self._ask("kill", kill)

    def refused(self, after: int) -> AbstractContextManager[None]:
        """Reset the counts, and refuse the requests of a block after a number of them."""
        self.take()
        return self._during("refused_after", after, afterwards=None)

    def lost_answer(self, commit: int) -> AbstractContextManager[None]:
        """Reset the counts, and drop the answer to one commit of a block. The store keeps it.

        Args:
            commit: Number of the commit, from 0.
        """
        self.take()
        return self._during("lost_commit", commit, afterwards=None)

    def refuse_commits(self, commits: int) -> None:
        """Refuse the next commits with 409, as S3 does while another write is in progress."""
        self._ask("conflicts_left", commits)

    def uncounted(self) -> AbstractContextManager[None]:
        """Neither count nor delay the requests of a block, in all threads."""
        return self._during("is_paused", True, afterwards=False)

    @contextmanager
    def _during(self, name: str, value: object, *, afterwards: object) -> Iterator[None]:
        """Set an attribute of the proxy during a block."""
        self._ask(name, value)
        try:
            yield
        finally:
            self._ask(name, afterwards)

    def _ask(self, name: str, value: object) -> Any:
        with self._lock:
            self._commands.send((name, value))
            return self._commands.recv()
