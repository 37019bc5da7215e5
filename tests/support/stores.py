"""Object stores on free ports of this machine: one honours conditional writes, one ignores them.

`make stores` downloads both to .tidemark/stores.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.support import moto_in_turn
from tests.support.waiting import wait_until
from tidemark.local.broker_settings import HOST
from tidemark.spark.sockets import free_ports

_FOLDER = Path(__file__).resolve().parents[2] / ".tidemark" / "stores"
BUCKET = "lake"
_QUIET = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A running object store with one empty bucket.

    Attributes:
        uri: The bucket.
        environ: Variables with which delta-rs uses the store.
    """

    uri: str
    environ: Mapping[str, str]

    def put(self, uri: str, content: bytes) -> None:
        """Store an object, without a condition."""
        url = f"{self.environ['AWS_ENDPOINT_URL']}/{quote(uri.removeprefix('s3://'))}"
        # Without a type, urllib sends the type of a form, which moto tries to parse.
        headers = {"Content-Type": "application/octet-stream"}
        with urlopen(Request(url, data=content, headers=headers, method="PUT"), timeout=30):
            pass


@contextmanager
def honouring_store(home: Path) -> Iterator[Store]:
    """Moto, which refuses a PUT with `If-None-Match: *` to an object that exists.

    Its writes run one at a time (tests/support/moto_in_turn.py).
    """
    (port,) = free_ports(HOST, 1)
    python = _FOLDER / "python" / "bin" / "python"
    command = [str(python), str(Path(moto_in_turn.__file__)), HOST, str(port)]
    with _running(command, home, port) as store:
        yield store


@contextmanager
def ignoring_store(home: Path) -> Iterator[Store]:
    """S3Proxy over a folder, which ignores the condition and overwrites the object."""
    (port,) = free_ports(HOST, 1)
    (home / "data").mkdir(parents=True, exist_ok=True)
    settings = {
        "s3proxy.endpoint": f"http://{HOST}:{port}",
        "s3proxy.authorization": "none",
        "s3proxy.ignore-unknown-headers": "true",
        "jclouds.provider": "filesystem",
        "jclouds.filesystem.basedir": str(home / "data"),
    }
    written = "".join(f"{name}={value}\n" for name, value in settings.items())
    (home / "s3proxy.conf").write_text(written)
    (home / "logback.xml").write_text(_QUIET)
    (jar,) = (_FOLDER / "s3proxy").glob("*.jar")
    command = ["java", "-Xmx128m", f"-Dlogback.configurationFile={home / 'logback.xml'}"]
    command += ["-cp", str(jar), "org.gaul.s3proxy.Main"]
    with _running([*command, "--properties", str(home / "s3proxy.conf")], home, port) as store:
        yield store


@contextmanager
def _running(command: Sequence[str], home: Path, port: int) -> Iterator[Store]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "store.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
    try:
        wait_until(lambda: _has_bucket(port, process, home), timeout_s=120)
        yield Store(
            uri=f"s3://{BUCKET}",
            environ={
                "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
            },
        )
    finally:
        process.terminate()
        process.wait(60)


def _has_bucket(port: int, process: subprocess.Popen[bytes], home: Path) -> bool:
    """Create the bucket; return False while the store does not answer."""
    if process.poll() is not None:
        raise RuntimeError(f"the store ended with {process.returncode}; see {home}/store.log")
    try:
        with urlopen(Request(f"http://{HOST}:{port}/{BUCKET}", method="PUT"), timeout=10) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
