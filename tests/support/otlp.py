"""A receiver of OpenTelemetry metrics (OTLP over HTTP)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


@dataclass
class Receiver:
    """Received metrics.

    Attributes:
        port: Port on 127.0.0.1.
        requests: The requests of exporters, oldest first.
    """

    port: int
    requests: list[ExportMetricsServiceRequest] = field(default_factory=list)

    def points(self, name: str) -> list[tuple[Mapping[str, str], Any]]:
        """Return tags and data point of each value of a metric, sorted by tags."""
        found = [
            ({each.key: each.value.string_value for each in point.attributes}, point)
            for request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in (*metric.sum.data_points, *metric.exponential_histogram.data_points)
        ]
        return sorted(found, key=lambda each: sorted(each[0].items()))


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """Run a receiver on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
