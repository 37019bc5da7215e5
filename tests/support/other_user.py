"""A program that tries to get data of another user's Spark over TCP and from files.

It reads a request from standard input, drops root's rights, and prints a report:

    {"uid": 65534, "ports": [["127.0.0.1", 1234]], "folders": ["/tmp/x"], "canaries": ["s3cret"],
     "tmp": "/tmp/y"}
    {"ports": {"1234": {"protocol": "blocks", "accepted": [], "refused": [], "found": []}},
     "files": {"read": ["/tmp/x/a"], "found": {}}}

The clients of Spark's protocols are Spark's own: a Spark application of the other user.
"""

from __future__ import annotations

import encodings.idna
import http.client
import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # gRPC ships no types
import pyspark.testing
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

LATER_IMPORTS = (encodings.idna, pyspark.testing)
"""Modules that others import late: this user may have no right to read them."""

Address = tuple[str, int]
"""IP address and port."""

_TIMEOUT_S = 3.0
_NO_BLOCK = "BlockNotFoundException"
REFUSAL = "Expected SaslMessage"
"""Begins the answer of Spark to a client that does not authenticate."""

_BLOCKS = (
    *(f"broadcast_{number}_piece{piece}" for number in range(400) for piece in range(2)),
    *(f"rdd_{number}_{part}" for number in range(60) for part in range(4)),
    *(f"taskresult_{number}" for number in range(100)),
)
_PAGES = (
    *("/", "/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/connect/", "/SQL/"),
    *(f"/SQL/execution/?id={number}" for number in range(5)),
)
_APPLICATIONS = "/api/v1/applications"
_PAGES_OF_APPLICATION = ("environment", "executors", "jobs", "sql?details=true", "storage/rdd")
_UNAUTHENTICATED = "UNAUTHENTICATED"


class Found:
    """The answers of one port.

    Attributes:
        accepted: The requests that the port served.
        refused: The distinct refusals.
        canaries: The canaries in the answers.
        count: Number of answers with data.
    """

    def __init__(self, canaries: Iterable[str]) -> None:
        self._wanted = [each.encode() for each in canaries]
        self.accepted: list[str] = []
        self.refused: set[str] = set()
        self.canaries: set[str] = set()
        self.count = 0

    def search(self, data: bytes) -> None:
        """Look for canaries in an answer."""
        self.count += 1
        self.canaries |= {each.decode() for each in self._wanted if each in data}

    def as_record(self, protocol: str) -> dict[str, Any]:
        return {
            "protocol": protocol,
            "accepted": self.accepted[:10],
            "refused": sorted(self.refused),
            "found": sorted(self.canaries),
            "count": self.count,
        }


# -- protocols of text and small binaries ----------------------------------------------------------


def _exchange(place: Address, *requests: bytes, until: bytes = b"") -> bytes:
    """Send requests on one connection; return the answers until a text, the end or a timeout.

    The text ends the answer to each request.
    """
    answer = b""
    with suppress(OSError), socket.create_connection(place, timeout=_TIMEOUT_S) as link:
        for request in requests:
            link.sendall(request)
            seen = len(answer)
            while part := link.recv(65536):
                answer += part
                if until in answer[seen:]:
                    break
    return answer


def pages(place: Address, found: Found) -> bool:
    """Read the pages of a web server; return False for a port of another server."""
    try:
        listing = _page(place, _APPLICATIONS)
    except (OSError, http.client.HTTPException):
        return False
    found.search(listing)
    names = list(_PAGES)
    with suppress(ValueError, TypeError):
        for application in json.loads(listing):
            root = f"{_APPLICATIONS}/{application['id']}"
            names += [f"{root}/{each}" for each in _PAGES_OF_APPLICATION]
    for name in names:
        with suppress(OSError, http.client.HTTPException):
            found.search(_page(place, name))
    return True


def _page(place: Address, name: str) -> bytes:
    link = http.client.HTTPConnection(*place, timeout=5 * _TIMEOUT_S)
    try:
        link.request("GET", name)
        return link.getresponse().read()
    finally:
        link.close()


def py4j(place: Address, found: Found) -> bool:
    """Call a Py4J gateway without its token and with a wrong one."""
    is_gateway = False
    call = b"r\nu\njava.lang.System\ne\n"
    for requests in ((call,), (b"A\nwrong\ne\n", call)):
        answer = _exchange(place, *requests, until=b"\n")
        found.search(answer)
        if answer.startswith(b"!x"):
            found.refused.add("Authentication" if b"Authentication error" in answer else "other")
            is_gateway = True
        elif answer.startswith(b"!y"):
            found.accepted.append("a call of Py4J")
            is_gateway = True
    return is_gateway


def python_worker(place: Address, found: Found) -> bool:
    """Speak to the daemon of Python workers with a wrong secret."""
    # The worker answers with its process id, and then with a text after its length.
    answer = _exchange(place, struct.pack(">i", 5) + b"wrong", until=struct.pack(">i", 3) + b"err")
    found.search(answer)
    if answer.endswith(b"err"):
        found.refused.add("err")
    elif answer.endswith(b"ok"):
        found.accepted.append("a wrong secret")
    return answer.endswith((b"err", b"ok"))


def silent(place: Address, found: Found) -> bool:
    """Send the length of a token to a server that answers a wrong token by closing."""
    try:
        with socket.create_connection(place, timeout=_TIMEOUT_S) as link:
            link.sendall(b"wrong" * 100)
            found.search(link.recv(65536))
    except ConnectionResetError:
        pass
    except OSError:
        return False
    found.refused.add("closed")
    return True


def connect(place: Address, found: Found) -> bool:
    """Call each method of a Spark Connect server without a token and with a wrong one."""
    service = base_pb2.DESCRIPTOR.services_by_name["SparkConnectService"]
    with grpc.insecure_channel("{}:{}".format(*place), [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            return False
        stub = base_pb2_grpc.SparkConnectServiceStub(channel)
        for method in service.methods:
            for metadata in ((), (("authorization", "Bearer wrong"),)):
                request = getattr(base_pb2, method.input_type.name)()
                request.session_id = "00112233-4455-6677-8899-aabbccddeeff"
                request.user_context.user_id = "root"
                outcome = _grpc_status(stub, method, request, metadata, found)
                if outcome == _UNAUTHENTICATED:
                    found.refused.add(outcome)
                else:
                    found.accepted.append(f"{method.name}: {outcome}")
    return True


def _grpc_status(stub: Any, method: Any, request: Any, metadata: Any, found: Found) -> str:
    sent = iter([request]) if method.client_streaming else request
    try:
        answer = getattr(stub, method.name)(sent, metadata=metadata, timeout=_TIMEOUT_S)
        for each in answer if method.server_streaming else [answer]:
            found.search(each.SerializeToString())
    except grpc.RpcError as refused:
        return str(refused.code().name)
    return "OK"


# -- Spark's own protocols -------------------------------------------------------------------------


class SparkUser:
    """A Spark application of this user, whose clients speak to ports of other applications.

    Args:
        tmp: Folder for temporary files.
    """

    def __init__(self, tmp: str) -> None:
        settings = {
            "spark.master": "local[1]",
            "spark.app.name": "other",
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": tmp,
            "spark.rpc.askTimeout": "4s",
            "spark.rpc.lookupTimeout": "4s",
            "spark.shuffle.io.maxRetries": "0",
            "spark.shuffle.io.connectionTimeout": "4s",
        }
        self._context = SparkContext(conf=SparkConf().setAll(list(settings.items())))
        self._context.setLogLevel("OFF")
        self._jvm: Any = self._context._jvm
        self._env = self._jvm.org.apache.spark.SparkEnv.get()

    def speak(self, place: Address, found: Found) -> bool:
        """Fetch blocks and look for endpoints; return whether the port is one of Spark's own."""
        blocks, endpoints = self._blocks(place, found), self._endpoints(place, found)
        return blocks or endpoints

    def _endpoints(self, place: Address, found: Found) -> bool:
        """Look for endpoints of an application; return whether the port speaks Spark's RPC."""
        address = self._jvm.org.apache.spark.rpc.RpcAddress(*place)
        for name in ("BlockManagerMaster", "HeartbeatReceiver"):
            try:
                self._env.rpcEnv().setupEndpointRef(address, name)
            except Py4JJavaError as failed:
                return self._is_refusal(failed, found)
            found.accepted.append(f"endpoint {name}")
        return True

    def _blocks(self, place: Address, found: Found) -> bool:
        """Fetch blocks of an application; return whether the port serves blocks."""
        transfer = self._env.blockManager().blockTransferService()
        for block in _BLOCKS:
            try:
                fetched = transfer.fetchBlockSync(*place, "driver", block, None)
            except Py4JJavaError as failed:
                text = _text(failed)
                if _NO_BLOCK in text:
                    continue
                return self._is_refusal(failed, found) or bool(found.accepted)
            found.accepted.append(block)
            self._search(fetched, found)
        return bool(found.accepted)

    def _is_refusal(self, failed: Py4JJavaError, found: Found) -> bool:
        """Record that the port requires Spark's secret; return False for all other failures."""
        if REFUSAL not in _text(failed):
            return False
        found.refused.add(REFUSAL)
        return True

    def _search(self, fetched: Any, found: Found) -> None:
        data = self._jvm.org.apache.spark.network.util.JavaUtils.bufferToArray(
            fetched.nioByteBuffer()
        )
        found.search(data)
        with suppress(Py4JJavaError):
            codec = self._jvm.org.apache.spark.io.CompressionCodec.createCodec(
                self._env.conf(), "lz4"
            )
            stream = codec.compressedInputStream(self._jvm.java.io.ByteArrayInputStream(data))
            found.search(stream.readAllBytes())


def _text(failed: Py4JJavaError) -> str:
    texts, cause = [], failed.java_exception
    while cause is not None:
        texts.append(str(cause.toString()))
        cause = cause.getCause()
    return " <- ".join(texts)


# -- files -----------------------------------------------------------------------------------------


def readable_files(folders: Iterable[str], canaries: Iterable[str]) -> dict[str, Any]:
    """Search the files below some folders, and the processes, that this user can read."""
    read: list[str] = []
    found: dict[str, list[str]] = {}
    places = [
        Path(root, name) for each in folders for root, _, names in os.walk(each) for name in names
    ]
    places += [
        each / name
        for each in Path("/proc").iterdir()
        if each.name.isdecimal()
        for name in ("cmdline", "environ")
    ]
    wanted = [each.encode() for each in canaries]
    for place in places:
        with suppress(OSError):
            data = place.read_bytes()
            read.append(str(place))
            if hits := [each.decode() for each in wanted if each in data]:
                found[str(place)] = hits
    return {"read": read, "found": found}


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(request["uid"], request["uid"], request["uid"])
        os.setresuid(request["uid"], request["uid"], request["uid"])
    os.environ["HOME"] = request["tmp"]
    canaries = request["canaries"]
    places: list[Address] = [(host, port) for host, port in request["ports"]]
    answered: dict[int, dict[str, Any]] = {}

    def probe(place: Address, protocols: Mapping[str, Callable[[Address, Found], bool]]) -> None:
        for name, speak in protocols.items():
            found = Found(canaries)
            if place[1] not in answered and speak(place, found):
                answered[place[1]] = found.as_record(name)

    user = SparkUser(request["tmp"])
    with ThreadPoolExecutor(len(places)) as threads:
        for protocols in (
            {"connect": connect, "pages": pages, "py4j": py4j, "python worker": python_worker},
            {"spark": user.speak},
            # These bytes make other servers close the connection, too.
            {"silent": silent},
        ):
            list(threads.map(partial(probe, protocols=protocols), places))
    files = readable_files(request["folders"], canaries)
    json.dump({"uid": os.getuid(), "ports": answered, "files": files}, sys.stdout)


if __name__ == "__main__":
    main()
