"""A webhook that records requests."""

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
    """A running webhook.

    Attributes:
        url: URL of the webhook.
        requests: Path and body of each request.
    """

    url: str
    requests: list[tuple[str, Any]] = field(default_factory=list)

    def environ(self) -> dict[str, str]:
        """Return the variable of Airflow's connection to the webhook."""
        connection = {"conn_type": "http", "password": self.url}
        return {"AIRFLOW_CONN_TIDEMARK_ALARM": json.dumps(connection)}


@contextmanager
def running_webhook(status: int = 200) -> Iterator[Webhook]:
    """Run a webhook that answers with a status."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            webhook.requests.append((self.path, json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

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
