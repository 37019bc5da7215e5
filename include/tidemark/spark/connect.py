"""Sessions on a Spark Connect server, opened for one run and closed with it."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from tidemark.errors import EngineStopped, EngineUnavailable, EngineUnsuitable, SetupError
from tidemark.spark.engine import MODE_VARIABLE, Server
from tidemark.spark.sessions import SQL_SETTINGS, log_no_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DETAILS = "server_details"
"""Attribute of a server's exception that contains its causes as the server sent them."""

PLANS_AT_ONCE = 4
"""Plans that one run lands at the same time on a server, which has other runs as well."""

_HEARTBEAT_S = 5
"""Seconds between two calls that only keep a connection in use."""

_CHANNEL = (
    # The client pings a connection on which nothing arrives, and closes it without an answer.
    # Spark's server closes a connection for its third ping in 5 minutes, and has no setting for
    # it. With heartbeats nothing arrives only if the server does not answer.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    # Otherwise the client itself delays a ping by a minute.
    ("grpc.http2.max_pings_without_data", 0),
    # The machine of a server that does not answer still accepts connections.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Of this machine, and of a cluster: no server is behind a proxy for the web.
    ("grpc.enable_http_proxy", 0),
)
"""Options of the connection."""

_CLOSING_S = 3
"""Seconds that closing waits for an answer: Airflow kills a task five seconds after SIGTERM."""

_RETRIES: Mapping[str, Any] = {
    # PySpark's own policy repeats a call for ten minutes. With these it gives up after 6 s.
    "max_retries": 5,
    "initial_backoff": 100,
    "backoff_multiplier": 3.0,
    "max_backoff": 3_000,
    "max_server_retry_delay": 3_000,
}

SESSION_SETTINGS: Mapping[str, str] = {
    **SQL_SETTINGS,
    "spark.sql.ansi.enabled": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Named errors need the causes of a failure.
    "spark.sql.connect.enrichError.enabled": "true",
    "spark.sql.connect.serverStacktrace.enabled": "true",
}
"""Settings of each session, which a server has in other ways as its own defaults."""

_WRITING = "spark.hadoop.parquet."
_SETTABLE = ("spark.sql.", "spark.databricks.delta.")
_NOT_FOR_SPECS = "spark.sql.redaction."
"""What a server leaves out of the text of plans is not for a pipeline to say."""


class ConnectSessions:
    """Sessions on one server.

    Args:
        server: The server.
        settings: Of the pipeline's `spark` section; they win over ours.
        write_options: Options for writing Parquet files.
        own_settings: Settings of ours, such as the folder of logs.

    Raises:
        EngineUnsuitable: A setting cannot be of one session.
    """

    def __init__(
        self,
        server: Server,
        settings: Mapping[str, str],
        write_options: Mapping[str, str],
        own_settings: Mapping[str, str],
    ) -> None:
        of_files = {key: value for key, value in settings.items() if key.startswith(_WRITING)}
        check_settings(server, settings)
        self.server = server
        self.write_options = {
            **write_options,
            **{key.removeprefix("spark.hadoop."): value for key, value in of_files.items()},
        }
        self._settings = {
            **SESSION_SETTINGS,
            **{key: value for key, value in settings.items() if key not in of_files},
            **own_settings,
        }
        self._opened: list[Any] = []
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None
        self._shared: SparkSession | None = None
        self._lock = threading.Lock()

    def shared(self) -> SparkSession:
        """The session that the plans of the run share.

        Raises:
            EngineUnavailable: The server does not answer.
            EngineUnsuitable: It does not take a setting.
            SetupError: It refuses this client.
        """
        with self._lock:
            if self._shared is None:
                self._shared = self._open()
            return self._shared

    def own(self) -> SparkSession:
        """A new session; raises as `shared`."""
        return self._open()

    def plans_at_once(self) -> int:
        """The same number for every server; opens the shared session."""
        self.shared()
        return PLANS_AT_ONCE

    def close(self) -> None:
        """Close the sessions, and open no more; what they still do on the server is interrupted.

        Waits for a server that does not answer for some seconds only.
        """
        self._closed.set()
        closing = threading.Thread(target=self._close_all, daemon=True)
        closing.start()
        closing.join(_CLOSING_S)

    def _close_all(self) -> None:
        for session in list(self._opened):
            # A server that is away has none any more: there is nothing to try again, or to log.
            session.client.set_retry_policies([])
            for step in (session.interruptAll, session.client.release_session):
                with suppress(Exception):
                    step()
            session.release_session_on_close = False
            session.stop()
            # PySpark closes it again when it is collected, with a lock that the thread may hold.
            session.client.close = _nothing

    def _open(self) -> SparkSession:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client.core import DefaultChannelBuilder
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        self._check_open()
        server = self.server
        builder = DefaultChannelBuilder(f"sc://{server.host}:{server.port}", list(_CHANNEL))
        # None as well: PySpark would send the environment's token to any server.
        builder.set("token", server.token or None)
        if server.use_ssl:
            builder.set("use_ssl", "true")
        if server.user:
            builder.set("user_id", server.user)
        # Always a new one. Great Expectations finds it as the default session of the process.
        session: Any = ConnectSession.builder.channelBuilder(builder).create()
        client = session.client
        client.set_retry_policies([DefaultPolicy(**_RETRIES)])
        keep_details(client)
        self._opened.append(session)
        self._start_heart()
        if self._closed.is_set():
            self._close_all()
        self._check_open()
        try:
            for key, value in self._settings.items():
                self._set(session, key, value)
        except PySparkException as failure:
            raise refusal(server, failure) from None
        return session

    def _start_heart(self) -> None:
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, daemon=True)
            self._heart.start()

    def _beat(self) -> None:
        """Call the server on each connection until the sessions are closed."""
        while not self._closed.wait(_HEARTBEAT_S):
            for session in list(self._opened):
                # A server that is lost is the error of what the session does.
                with suppress(Exception):
                    session.client.get_configs("spark.sql.session.timeZone")

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise EngineStopped(status=-signal.SIGTERM)

    def _set(self, session: Any, key: str, value: str) -> None:
        from pyspark.errors import AnalysisException

        try:
            session.conf.set(key, value)
            seen = session.conf.get(key)
        except AnalysisException as refused:
            seen = f"refused ({refused.getCondition()})"
        if str(seen).lower() != value.lower():
            raise EngineUnsuitable(
                engine=str(self.server),
                problem=f"{key} is {seen} in a session that has set it to {value}",
                needed=f"a server whose sessions can have {key}={value}",
                advice=RESTART,
            )


def _nothing() -> None:
    """Stands for a step that has been done."""


def check_settings(server: Server, settings: Mapping[str, str]) -> None:
    """Refuse Spark settings of a pipeline that a session would drop without a word.

    Raises:
        EngineUnsuitable: A setting cannot be of one session.
    """
    for key in settings:
        if not key.startswith((_WRITING, *_SETTABLE)) or key.startswith(_NOT_FOR_SPECS):
            raise EngineUnsuitable(
                engine=str(server),
                problem=f"{key} in the spark section is a setting of a whole application",
                needed=f"settings that begin with {', '.join(_SETTABLE)} or {_WRITING}",
                advice=f"set it where the server is started, or run {SUBMIT}",
            )


SUBMIT = "by spark-submit: --master 'local[*]', or in Airflow a connection of type spark"
RESTART = (
    "start a server with `tidemark spark start`, or see docs/clusters.md, Spark Connect, for the "
    f"settings of another one; or run {SUBMIT}"
)


@contextmanager
def connected(
    server: Server,
    settings: Mapping[str, str],
    *,
    write_options: Mapping[str, str] = MappingProxyType({}),
    own_settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ConnectSessions]:
    """Sessions on a server, for the block; they are interrupted and closed at its end.

    In the block PySpark's functions are those of Spark Connect, in all threads of the process.

    Raises:
        EngineUnsuitable: A setting cannot be of one session.
    """
    sessions = ConnectSessions(server, settings, write_options, own_settings)
    before = os.environ.get(MODE_VARIABLE)
    os.environ[MODE_VARIABLE] = "1"
    log_no_values()
    try:
        with warnings.catch_warnings():
            # PySpark's words on each call that it gives up repeating; the error says it.
            warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
            yield sessions
    except BaseException as ended:
        if not isinstance(ended, Exception):
            # The process is on its way out, and its threads are in the middle of something.
            before = os.environ[MODE_VARIABLE]
        raise
    finally:
        sessions.close()
        if before is None:
            os.environ.pop(MODE_VARIABLE, None)


def keep_details(client: Any) -> None:
    """Let exceptions of a client carry what the server has told of their causes.

    PySpark makes one text of it, in which a message may look like another cause.
    """
    fetch, handle = client._fetch_enriched_error, client._handle_rpc_error
    told = threading.local()

    def fetched(info: Any) -> Any:
        told.details = fetch(info)
        return told.details

    def handled(error: Any) -> NoReturn:
        told.details = None
        try:
            handle(error)
        except Exception as failure:
            setattr(failure, DETAILS, told.details)
            raise
        raise AssertionError("an error that was handled without an exception")

    client._fetch_enriched_error = fetched
    client._handle_rpc_error = handled


def refusal(server: Server, failure: Exception) -> Exception:
    """The named error for an answer of a server, or for none; the failure itself if unknown."""
    if lost := session_lost(failure):
        return EngineUnavailable(engine=str(server), reason=lost)
    if status_of(failure) in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return SetupError(
            subject=f"{server} refuses this client",
            needed="the server's token",
            seen="a token that is wrong" if server.token else "no token",
            advice="set SPARK_CONNECT_AUTHENTICATE_TOKEN, or in Airflow the connection's password",
        )
    return failure


def session_lost(failure: BaseException) -> str:
    """How a session or its server was lost; empty for all other failures."""
    if status_of(failure) == "UNAVAILABLE":
        return "no connection"
    ask: Callable[[], str | None] = getattr(failure, "getCondition", lambda: None)
    condition = ask() or ""
    is_gone = condition.startswith("INVALID_HANDLE.") or condition == "NO_ACTIVE_SESSION"
    return f"its session has ended ({condition})" if is_gone else ""


def status_of(failure: BaseException) -> str:
    """Name of the gRPC status of an exception of Spark Connect; empty without one."""
    ask: Callable[[], Any] | None = getattr(failure, "getGrpcStatusCode", None)
    code = ask() if ask else getattr(failure, "code", lambda: None)()
    return str(getattr(code, "name", ""))
