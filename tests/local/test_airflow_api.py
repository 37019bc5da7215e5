"""The client of Airflow's REST API, against servers with late or truncated answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tidemark.local.airflow_api import AirflowApi
from tidemark.local.errors import AirflowUnavailable

pytestmark = pytest.mark.slow


@contextmanager
def server_that_leaves_requests_open(
    count: int, logins: int = 0
) -> Iterator[tuple[AirflowApi, list[str]]]:
    """A client of a server that does not answer the first requests, and the requests.

    Args:
        count: Unanswered requests.
        logins: Unanswered logins; logins are not in the list of requests.
    """
    requests: list[str] = []
    late_logins = iter(range(logins))
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            if len(requests) <= count:
                ended.wait()
                return
            self._answer({"dags": [{"dag_id": "tidemark_prices", "is_paused": False}]})

        def do_POST(self) -> None:
            if self.path == "/auth/token":
                if next(late_logins, None) is not None:
                    ended.wait()
                    return
                self._answer({"access_token": "t"})
            else:
                self.do_GET()

        def _answer(self, body: object) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing to standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield AirflowApi(url, "admin", "x", timeout_s=0.5), requests
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_get_that_times_out_is_repeated() -> None:
    """A busy server may miss one request and answer the next."""
    with server_that_leaves_requests_open(2) as (api, requests):
        assert api.dags() == {"tidemark_prices": False}
        assert len(requests) == 3


def test_a_login_that_times_out_is_repeated() -> None:
    with server_that_leaves_requests_open(0, logins=2) as (api, _):
        assert api.dags() == {"tidemark_prices": False}


def test_a_server_that_never_answers_raises_unavailable_after_three_requests() -> None:
    """Each request has its own timeout."""
    with server_that_leaves_requests_open(9) as (api, requests):
        with pytest.raises(AirflowUnavailable, match="timed out"):
            api.dags()
        assert len(requests) == 3


def test_a_post_that_times_out_is_not_repeated() -> None:
    """The server may have executed the request without answering."""
    with server_that_leaves_requests_open(9) as (api, requests):
        with pytest.raises(AirflowUnavailable, match="timed out"):
            api.trigger("tidemark_prices")
        assert requests == ["POST /api/v2/dags/tidemark_prices/dagRuns"]


def test_a_connection_that_times_out_is_repeated() -> None:
    """The connection queue of a busy server may be full."""
    sent: list[str] = []

    with ExitStack() as sockets, socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        is_full = False
        while not is_full:
            try:
                sockets.enter_context(socket.create_connection(address, timeout=0.2))
            except TimeoutError:
                is_full = True
        api = AirflowApi(f"http://127.0.0.1:{address[1]}", "admin", "x", timeout_s=0.2)
        api._token = "t"
        api._client.event_hooks = {"request": [lambda request: sent.append(request.method)]}
        with pytest.raises(AirflowUnavailable, match="timed out"):
            api.dags()
    assert sent == ["GET"] * 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\n\r\n\xff",
        b"SSH-2.0\r\n",
        b"",
    ],
)
def test_a_truncated_or_non_json_answer_raises_unavailable(answer: bytes) -> None:
    """The server was stopped during its answer, or another program listens on the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(AirflowUnavailable, match="monitor/health"):
            AirflowApi(f"http://127.0.0.1:{server.getsockname()[1]}", "admin", "x").health()
        thread.join()
