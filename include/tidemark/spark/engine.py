"""The two engines of a job: a separate Spark application, or a Spark Connect session."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias
from urllib.parse import unquote, urlsplit

from tidemark.core.errors import ExitCode, SetupError, TidemarkError
from tidemark.spark.errors import EngineStopped

ShowTasks: TypeAlias = Callable[[int, int], None]
"""Shows the number of finished Spark tasks, and the number of all Spark tasks."""

SCHEME = "sc"
"""Scheme of the address of a Spark Connect server."""

DEFAULT_PORT = 15002
"""Spark's own default port of a Spark Connect server."""

TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  the name, not a token
"""The environment variable from which Spark's server and client read the token."""

MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"
"""The environment variable that switches PySpark's functions to Spark Connect."""

_REMOTE_VARIABLE = "SPARK_REMOTE"

SECRET_VARIABLES = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__", TOKEN_VARIABLE)
"""Prefixes of variables with secrets: connections, settings of Airflow, the token of a server."""


@dataclass(frozen=True, slots=True)
class Submit:
    """spark-submit in client mode runs a job as a separate process.

    Attributes:
        master: Spark master URL.
        binary: The spark-submit program.
        settings: Settings of the master, such as a queue. Settings of the job override them.
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
        host: Host name. With a token and without TLS it must be "localhost".
        port: Port.
        token: The server's token; empty if the server requires none.
        use_ssl: Whether the connection is encrypted.
        user: Name of the user on the server; empty for the user of the operating system.
    """

    host: str
    port: int = DEFAULT_PORT
    token: str = field(default="", repr=False)
    use_ssl: bool = False
    user: str = ""

    def __str__(self) -> str:
        return f"Spark Connect at {self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        return self.host == "localhost"

    @classmethod
    def parse(cls, url: str, token: str = "") -> Self:
        """Return the server at an address such as `sc://host:15002/;use_ssl=true;user_id=etl`.

        Args:
            url: The address.
            token: The token, unless the address contains one.

        Raises:
            SetupError: The URL is not the address of a Spark Connect server.
        """
        parts = urlsplit(url)
        pairs = [each.partition("=") for each in parts.path.lstrip("/").split(";") if each]
        given = {key: unquote(value) for key, _, value in pairs}
        try:
            port = parts.port
        except ValueError:
            port = 0
        unknown = set(given) - {"token", "use_ssl", "user_id"}
        host = parts.hostname or ""
        # PySpark cannot write an IPv6 address into its URL.
        if parts.scheme != SCHEME or not host or ":" in host or port == 0 or unknown:
            raise SetupError(
                finding="The address of the Spark Connect server is invalid.",
                needed="sc://HOST:PORT, optionally followed by /;use_ssl=true;user_id=NAME",
                seen=re.sub(r"(?i)(token=)[^;]*|//[^/@]*@", r"\1***", url),
                advice="Correct --master, or in Airflow the connection of type spark_connect.",
            )
        return cls(
            # If there is a token, PySpark uses TLS for every other name.
            host="localhost" if host == "127.0.0.1" else host,
            port=port or DEFAULT_PORT,
            token=given.get("token", token),
            use_ssl=given.get("use_ssl", "").lower() == "true",
            user=given.get("user_id", ""),
        )


Engine: TypeAlias = Submit | Server


def engine_of(master: str, token: str = "") -> Engine:
    """Return the engine of a Spark master.

    Args:
        master: A master of spark-submit, or the address of a Spark Connect server.
        token: The server's token.
    """
    return Server.parse(master, token) if master.startswith(f"{SCHEME}:") else Submit(master)


def without_connect(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that make PySpark use Spark Connect."""
    removed = (MODE_VARIABLE, _REMOTE_VARIABLE)
    return {key: value for key, value in environ.items() if key not in removed}


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that contain secrets."""
    return {key: value for key, value in environ.items() if not key.startswith(SECRET_VARIABLES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """Result of a job.

    Attributes:
        exit_code: One of `ExitCode`.
        results: The job's result for each plan; None if the job ended before it reported them.
        failure: The error for a job that ended without a result, or with an exit code that no job
            returns. None if the job reported its own exit code.
    """

    exit_code: ExitCode
    results: Sequence[Mapping[str, Any]] | None
    failure: TidemarkError | None = None


class Stop:
    """Ends a job from a signal handler or from another thread."""

    def __init__(self) -> None:
        self._end: Callable[[], None] | None = None
        self._is_called = False

    def __call__(self) -> None:
        """End the running job, and prevent later ones from starting."""
        self._is_called = True
        if self._end:
            self._end()

    def check(self) -> None:
        """Raise `EngineStopped` if this object has been called."""
        if self._is_called:
            raise EngineStopped(status=-signal.SIGTERM)

    @contextmanager
    def ends(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` if this object is called while the block runs; run `check` first."""
        self._end = end
        try:
            # A signal may have called this object after the last check.
            if self._is_called:
                end()
            self.check()
            yield
        finally:
            self._end = None
