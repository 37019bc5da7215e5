"""The two engines of a job: a Spark application of its own, or a session of a standing server."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias
from urllib.parse import unquote, urlsplit

from tidemark.errors import EngineStopped, ExitCode, SetupError, TidemarkError

SCHEME = "sc"
"""Scheme of the address of a Spark Connect server."""

DEFAULT_PORT = 15002
"""Spark's own default port of a Spark Connect server."""

TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  the name, not a token
"""The environment variable from which Spark's server and client take the token."""

MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"
"""The environment variable that makes PySpark's functions those of Spark Connect."""

_REMOTE_VARIABLE = "SPARK_REMOTE"


@dataclass(frozen=True, slots=True)
class Submit:
    """A job is a process of its own: spark-submit, in client mode.

    Attributes:
        master: Spark master URL.
        binary: The spark-submit program.
        settings: Settings of the master, such as a queue; those of the job win over them.
    """

    master: str
    binary: str = "spark-submit"
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"spark-submit, master {self.master}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A job runs in this process, on a session of a Spark Connect server.

    Attributes:
        host: Host name. With a token and without TLS only "localhost" is possible.
        port: Port.
        token: The server's token; empty without one.
        use_ssl: Whether the connection is encrypted.
        user: Name of the user on the server; empty for that of the operating system.
    """

    host: str
    port: int = DEFAULT_PORT
    token: str = field(default="", repr=False)
    use_ssl: bool = False
    user: str = ""

    def __str__(self) -> str:
        return f"Spark Connect at {self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str, token: str = "") -> Self:
        """The server at an address such as `sc://host:15002/;use_ssl=true;user_id=etl`.

        Args:
            url: The address.
            token: The token, unless the address has one.

        Raises:
            SetupError: It is no such address.
        """
        parts = urlsplit(url)
        pairs = [each.partition("=") for each in parts.path.lstrip("/").split(";") if each]
        given = {key: unquote(value) for key, _, value in pairs}
        try:
            port = parts.port
        except ValueError:
            port = 0
        unknown = set(given) - {"token", "use_ssl", "user_id"}
        if parts.scheme != SCHEME or not parts.hostname or port == 0 or unknown:
            raise SetupError(
                subject="no address of a Spark Connect server",
                needed="sc://HOST:PORT, perhaps with /;use_ssl=true;user_id=NAME",
                seen=re.sub(r"(token=)[^;]*", r"\1***", url),
                advice="correct --master, or in Airflow the connection of type spark_connect",
            )
        return cls(
            # PySpark speaks to any other name by TLS if there is a token.
            host="localhost" if parts.hostname in ("127.0.0.1", "::1") else parts.hostname,
            port=port or DEFAULT_PORT,
            token=given.get("token", token),
            use_ssl=given.get("use_ssl", "").lower() == "true",
            user=given.get("user_id", ""),
        )


Engine: TypeAlias = Submit | Server


def engine_of(master: str, token: str = "") -> Engine:
    """The engine that a Spark master stands for.

    Args:
        master: A master of spark-submit, or the address of a Spark Connect server.
        token: The server's token.

    Raises:
        SetupError: It begins like the address of a server, and is none.
    """
    return Server.parse(master, token) if master.startswith(f"{SCHEME}:") else Submit(master)


def without_connect(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which spark-submit runs an application of its own."""
    left_out = (MODE_VARIABLE, _REMOTE_VARIABLE)
    return {key: value for key, value in environ.items() if key not in left_out}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """How a job ended.

    Attributes:
        exit_code: One of `ExitCode`.
        results: The job's report on each plan; None if it ended before its report.
        stopped: The error for a job that ended without a result, or with an exit code that no job
            returns; None if the job reported its own exit code.
    """

    exit_code: ExitCode
    results: Sequence[Mapping[str, Any]] | None
    stopped: TidemarkError | None = None


class Stop:
    """Ends a job from outside: from a signal's handler, or from another thread."""

    def __init__(self) -> None:
        self._end: Callable[[], None] | None = None
        self._is_called = False

    def __call__(self) -> None:
        """End what runs now, and all that would begin later."""
        self._is_called = True
        if self._end:
            self._end()

    def check(self) -> None:
        """Refuse to begin after the call.

        Raises:
            EngineStopped: The job was stopped.
        """
        if self._is_called:
            raise EngineStopped(status=-signal.SIGTERM)

    @contextmanager
    def ends(self, end: Callable[[], None]) -> Iterator[None]:
        """While the block runs, `end` is what ends it.

        Raises:
            EngineStopped: It was stopped before it began.
        """
        self._end = end
        try:
            # The call may have come after the last look.
            if self._is_called:
                end()
            self.check()
            yield
        finally:
            self._end = None
