"""A webhook that keeps what it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Webhook:
    """What was posted.

    Attributes:
        url: Where to post.
        heard: Path and body of each request.
    """

    url: str
    heard: list[tuple[str, Any]] = field(default_factory=list)

    def environ(self) -> dict[str, str]:
        """Airflow's connection to it."""
        connection = {"conn_type": "http", "password": self.url}
        return {"AIRFLOW_CONN_TIDEMARK_ALARM": json.dumps(connection)}


@contextmanager
def listening(status: int = 200) -> Iterator[Webhook]:
    """A webhook on this machine that answers with a status."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            webhook.heard.append((self.path, json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    webhook = Webhook(url=f"http://127.0.0.1:{server.server_port}/secret-token")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield webhook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
