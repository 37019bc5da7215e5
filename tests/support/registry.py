"""The schema registry Apicurio with Confluent's API, on a free port of this machine.

`make setup-dev` downloads it to .tidemark/registry. The first test that needs it unpacks it.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import fastavro

from tests.support.waiting import wait_until
from tidemark.delta.local_files import locked, read_json, replace_text
from tidemark.local.broker_settings import HOST
from tidemark.silver.typed.registry import ConfluentRegistry
from tidemark.spark import processes
from tidemark.spark.sockets import free_ports

VERSION = "3.0.9"
_FOLDER = Path(__file__).resolve().parents[2] / ".tidemark" / "registry"
_ARCHIVE = _FOLDER / "registry" / f"apicurio-registry-app-{VERSION}-all.tar.gz"
_RUNNER = _FOLDER / VERSION / f"apicurio-registry-app-{VERSION}-runner.jar"
API = "/apis/ccompat/v7"
"""Path of the API."""
_JSON = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class Registry:
    """A running registry.

    Attributes:
        url: URL of its API.
    """

    url: str

    def register(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        references: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Register a schema (text for Protobuf, else a JSON value), and return its id."""
        text = schema if kind == "PROTOBUF" else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": list(references)}
        request = Request(
            f"{self.url}/subjects/{subject}/versions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": _JSON},
        )
        with urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])

    def answer(self, path: str) -> bytes:
        """Return the body of the answer to a path below the URL."""
        with urlopen(f"{self.url}{path}", timeout=30) as answer:
            return bytes(answer.read())

    def client(self) -> ConfluentRegistry:
        """Return the product's client."""
        return ConfluentRegistry("schema_registry_default", {"url": self.url})

    def environ(self, connection: str = "schema_registry_default") -> dict[str, str]:
        """Return the variable of a connection to the registry."""
        return connection_environ({"url": self.url}, connection)


def connection_environ(
    extra: Mapping[str, Any], connection: str = "schema_registry_default"
) -> dict[str, str]:
    """Return the variable of a connection to a registry."""
    variable = f"AIRFLOW_CONN_{connection.upper()}"
    return {variable: json.dumps({"conn_type": "generic", "extra": extra})}


@dataclass(frozen=True, slots=True)
class RegistryProxy:
    """An HTTP server in front of a registry.

    Attributes:
        address: Host and port.
        requests: Paths of the authorised requests.
    """

    address: str
    requests: list[str] = field(default_factory=list)


@contextmanager
def registry_proxy(
    answer: Callable[[str], bytes | None], user_info: str | None = None
) -> Iterator[RegistryProxy]:
    """Run an HTTP server in front of a registry.

    Args:
        answer: Returns the body for a path; None for an unknown schema.
        user_info: Required name and password.
    """
    expected = user_info and "Basic " + b64encode(user_info.encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if expected and self.headers.get("Authorization") != expected:
                self._respond(401, b"{}")
                return
            proxy.requests.append(self.path)
            found = answer(self.path)
            if found is None:
                self._respond(404, b'{"error_code": 40403, "message": "Schema not found"}')
            else:
                self._respond(200, found)

        def _respond(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", _JSON)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    proxy = RegistryProxy(f"{HOST}:{server.server_port}")
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def registry_answers(schemas: Mapping[int, Any]) -> Callable[[str], bytes | None]:
    """Return the answers of a registry with these Avro schemas by id."""

    def answer(path: str) -> bytes | None:
        schema = schemas.get(int(path.rpartition("/")[2]))
        return schema and json.dumps({"schema": json.dumps(schema)}).encode()

    return answer


def framed(schema_id: int, payload: bytes) -> bytes:
    """Return a payload with its schema id, as Confluent's serializers write it."""
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


def avro_bytes(schema: Any, value: Any) -> bytes:
    """Return a value in Avro, written by another library than the one under test."""
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return written.getvalue()


class RegistryServer:
    """A schema registry with its files in one folder.

    Args:
        home: Folder of its log.
        settings: Apicurio's variables; without them it keeps its schemas in memory.
    """

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._settings = settings or {}
        self._file = home / "registry.json"

    def start(self) -> Registry:
        """Start the registry unless it runs, and return when it answers."""
        with locked(self._home / "registry.lock"):
            state = read_json(self._file)
            if state is None:
                state = self._spawn()
            registry = Registry(url=state["url"])
            wait_until(lambda: self._answers(registry), timeout_s=120)
            return registry

    def stop(self) -> None:
        """End the registry's process and return when it has ended."""
        state = read_json(self._file)
        if state is not None:
            running = partial(processes.session_members, state["session"])
            processes.stop("The schema registry", running, timeout_s=60)
            self._file.unlink()

    def _spawn(self) -> dict[str, Any]:
        _unpack()
        (port,) = free_ports(HOST, 1)
        command = ["java", "-Xmx256m", f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={port}"]
        started = processes.spawn_detached(
            [*command, "-jar", str(_RUNNER)],
            self._home / "registry.log",
            cwd=self._home,
            env={**os.environ, **self._settings},
        )
        state = {"url": f"http://{HOST}:{port}{API}", **asdict(started)}
        replace_text(self._file, json.dumps(state))
        return state

    def _answers(self, registry: Registry) -> bool:
        state = read_json(self._file)
        if not processes.runs_in_session(state["pid"], state["session"]):
            log = self._home / "registry.log"
            raise RuntimeError(f"the registry has ended: {processes.last_lines(log)}")
        try:
            with urlopen(f"{registry.url}/subjects", timeout=10) as answer:
                return bool(answer.status == 200)
        except (HTTPError, URLError, OSError):
            return False


@contextmanager
def running_registry(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[Registry]:
    """Provide a separate registry for the block; the arguments are those of `RegistryServer`."""
    server = RegistryServer(home, settings)
    try:
        yield server.start()
    finally:
        server.stop()


def _unpack() -> None:
    with locked(_FOLDER / ".unpacking"):
        if _RUNNER.exists():
            return
        aside = _FOLDER / ".incoming-app"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.unpack_archive(_ARCHIVE, aside)
        aside.rename(_RUNNER.parent)
