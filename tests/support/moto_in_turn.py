"""Run Moto's server with one write at a time, as a script in Moto's own environment.

Moto looks for an object and stores it in two steps. Two concurrent PUTs with `If-None-Match: *`
can both succeed, but S3 promises that only one does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, TypeAlias

Application: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class WritesInTurn:
    """A WSGI application that passes requests to another one, writes one at a time."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._writing = Lock()

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request."""
        if environ["REQUEST_METHOD"] in {"GET", "HEAD"}:
            return self._application(environ, start_response)
        with self._writing:
            return list(self._application(environ, start_response))


def main(host: str, port: int) -> None:
    """Serve until the process is terminated."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import run_simple

    served = WritesInTurn(DomainDispatcherApplication(create_backend_app))
    run_simple(host, port, served, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
