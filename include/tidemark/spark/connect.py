"""Sessions on a Spark Connect server, opened and closed by one run."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from tidemark.core.errors import SetupError
from tidemark.spark.engine import MODE_VARIABLE, Server, ShowTasks
from tidemark.spark.errors import EngineStopped, EngineUnavailable
from tidemark.spark.sessions import SQL_SETTINGS, disable_value_logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DETAILS = "server_details"
"""Attribute of a client's exception that contains the causes as the server sent them."""

PLANS_AT_ONCE = 4
"""Number of plans that one run lands concurrently on a server, which other runs use as well."""

_HEARTBEAT_S = 5
"""Seconds between two calls that only keep the connection active."""

_CHANNEL = (
    # The client pings an idle connection, and closes the connection if no answer arrives. Spark's
    # server closes a connection at its third ping in 5 minutes, and has no setting for this limit.
    # With heartbeats a connection is idle only if the server does not answer.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    # By default the client delays a ping by a minute.
    ("grpc.http2.max_pings_without_data", 0),
    # The machine of a frozen server still accepts connections.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Neither a local server nor a server of a cluster is behind a web proxy.
    ("grpc.enable_http_proxy", 0),
)
"""gRPC options of the connection."""

_LOOPBACK = "ipv4:127.0.0.1:{}"

_CLOSE_TIMEOUT_S = 3
"""Seconds that `close` waits for an answer: Airflow kills a task five seconds after SIGTERM."""

_RETRIES: Mapping[str, Any] = {
    # PySpark's own policy repeats a call for ten minutes. With these values it stops after 6 s.
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
"""Settings of each session, because the defaults of a server may differ."""

_SESSION_LOST = ("NO_ACTIVE_SESSION", "RESPONSE_ALREADY_RECEIVED")
"""PySpark's own errors for a lost session, the second for an operation that already answered."""

_PARQUET_PREFIX = "spark.hadoop.parquet."
_SESSION_PREFIXES = ("spark.sql.", "spark.databricks.delta.")
_REDACTION_PREFIX = "spark.sql.redaction."
"""A pipeline must not change which options a server redacts from the text of plans."""


class TaskCounter:
    """Counts the tasks of all queries of a job; a progress handler of PySpark.

    Args:
        show: Called after each message of the server, from the threads of the queries.
    """

    def __init__(self, show: ShowTasks) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._queries: dict[str | None, tuple[int, int]] = {}

    def __call__(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,  # noqa: ARG002  PySpark passes it by name
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Count the tasks of a query. All tasks of a query that has ended are finished."""
        with self._lock:
            finished, total = self._queries.get(operation_id, (0, 0))
            if stages and not done:
                finished = sum(each.num_completed_tasks for each in stages)
                total = sum(each.num_tasks for each in stages)
            self._queries[operation_id] = (total if done else finished, total)
            counts = self._queries.values()
            self._show(sum(n for n, _ in counts), sum(n for _, n in counts))


class ConnectSessions:
    """Sessions on one server.

    Args:
        server: The server.
        settings: Settings of the pipeline's `spark` section. They override Tidemark's settings.
        write_options: Options for writing Parquet files.
        own_settings: Tidemark's settings that a pipeline cannot override, such as the log folder.
        show_tasks: Called with the numbers of finished and of all known Spark tasks; None to show
            no progress.

    Raises:
        SetupError: A setting is not a session setting.
    """

    def __init__(
        self,
        server: Server,
        settings: Mapping[str, str],
        write_options: Mapping[str, str],
        own_settings: Mapping[str, str],
        show_tasks: ShowTasks | None = None,
    ) -> None:
        file_settings = {
            key: value for key, value in settings.items() if key.startswith(_PARQUET_PREFIX)
        }
        check_settings(server, settings)
        self.server = server
        self.write_options = {
            **write_options,
            **{key.removeprefix("spark.hadoop."): value for key, value in file_settings.items()},
        }
        self._settings = {
            **SESSION_SETTINGS,
            **{key: value for key, value in settings.items() if key not in file_settings},
            **own_settings,
        }
        self._task_counter = TaskCounter(show_tasks) if show_tasks else None
        self._opened: list[Any] = []
        self._closed = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self._shared: SparkSession | None = None
        self._lock = threading.Lock()

    def shared(self) -> SparkSession:
        """Return the session that the plans of the run share.

        Raises:
            EngineUnavailable: The server does not answer.
            SetupError: The server refuses a setting, or the server refuses this client.
        """
        with self._lock:
            if self._shared is None:
                self._shared = self._open()
            return self._shared

    def own(self) -> SparkSession:
        """Return a new session; raises the errors of `shared`."""
        return self._open()

    def plans_at_once(self) -> int:
        """Open the shared session and return `PLANS_AT_ONCE`."""
        self.shared()
        return PLANS_AT_ONCE

    def close(self) -> None:
        """Interrupt and close the sessions; no new session can be opened afterwards.

        Waits at most three seconds for the server.
        """
        self._closed.set()
        closing = threading.Thread(target=self._close_all, daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)

    def _close_all(self) -> None:
        for session in list(self._opened):
            # A server that has ended has no sessions, so retries and log lines are useless.
            session.client.set_retry_policies([])
            for step in (partial(_interrupt, session), session.client.release_session):
                with suppress(Exception):
                    step()
            session.release_session_on_close = False
            session.stop()
            # The garbage collector makes PySpark close the client again. That takes a lock, which
            # this thread may hold.
            session.client.close = _do_nothing

    def _open(self) -> SparkSession:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.client.core import DefaultChannelBuilder
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        class Builder(DefaultChannelBuilder):  # type: ignore[misc]  # PySpark ships no types for it
            @property
            def endpoint(self) -> str:
                # The name also resolves to ::1, where another user may listen for the token.
                return _LOOPBACK.format(server.port) if server.is_local else str(super().endpoint)

        self._check_open()
        server = self.server
        builder = Builder(f"sc://{server.host}:{server.port}", list(_CHANNEL))
        # Set None too: otherwise PySpark sends the environment's token to any server.
        builder.set("token", server.token or None)
        if server.use_ssl:
            builder.set("use_ssl", "true")
        if server.user:
            builder.set("user_id", server.user)
        # Always create a session. Great Expectations uses it as the default session of the process.
        session: Any = ConnectSession.builder.channelBuilder(builder).create()
        client = session.client
        client.set_retry_policies([DefaultPolicy(**_RETRIES)])
        attach_server_details(client)
        if self._task_counter:
            session.registerProgressHandler(self._task_counter)
        self._opened.append(session)
        self._start_heartbeat()
        if self._closed.is_set():
            self._close_all()
        self._check_open()
        try:
            for key, value in self._settings.items():
                self._set(session, key, value)
        except PySparkException as failure:
            raise server_error(server, failure) from None
        return session

    def _start_heartbeat(self) -> None:
        if self._heartbeat is None:
            self._heartbeat = threading.Thread(target=self._send_heartbeats, daemon=True)
            self._heartbeat.start()

    def _send_heartbeats(self) -> None:
        """Call the server on each connection until the sessions are closed."""
        while not self._closed.wait(_HEARTBEAT_S):
            for session in list(self._opened):
                # If the server is lost, the calls of the plans raise the error.
                with suppress(Exception):
                    self._send_heartbeat(session.client)

    @staticmethod
    def _send_heartbeat(client: Any) -> None:
        from pyspark.errors import PySparkException

        try:
            client.get_configs("spark.sql.session.timeZone")
        except PySparkException as failure:
            if session_loss(failure):
                # Otherwise each later call would be retried for seconds.
                client.set_retry_policies([])
            raise

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
            raise SetupError.of_engine(
                engine=str(self.server),
                mismatch=f"{key} is {seen} after a session set it to {value}",
                needed=f"a server whose sessions accept {key}={value}",
                advice=RESTART_ADVICE,
            )


def _interrupt(session: Any) -> None:
    """Interrupt the operations of a session, and return when each has ended on the server.

    A server that closes a session while an operation is ending leaves the session half closed.
    """
    from pyspark.sql.connect.proto import ReattachExecuteRequest

    client = session.client
    for operation in session.interruptAll():
        request = ReattachExecuteRequest(
            session_id=session.session_id,
            operation_id=operation,
            client_type=client._builder.userAgent,
        )
        if client._user_id:
            request.user_context.user_id = client._user_id
        # The answers end with the error that the operation was cancelled.
        with suppress(Exception):
            for _ in client._stub.ReattachExecute(request, metadata=client._builder.metadata()):
                pass


def _do_nothing() -> None:
    """Do nothing; replaces a method that must not run again."""


def check_settings(server: Server, settings: Mapping[str, str]) -> None:
    """Raise `SetupError` for settings of a pipeline that a session would silently drop."""
    for key in settings:
        if not key.startswith((_PARQUET_PREFIX, *_SESSION_PREFIXES)) or key.startswith(
            _REDACTION_PREFIX
        ):
            raise SetupError.of_engine(
                engine=str(server),
                mismatch=f"{key} in the spark section is a setting of the whole application",
                needed=f"keys that begin with {', '.join(_SESSION_PREFIXES)} or {_PARQUET_PREFIX}",
                advice=f"Set it at the start of the server, or run {SUBMIT_ADVICE}.",
            )


SUBMIT_ADVICE = "by spark-submit: --master 'local[*]', or in Airflow a connection of type spark"
"""How to run a job by spark-submit, as the end of a sentence."""
RESTART_ADVICE = (
    "Start a server with `tidemark spark start`; docs/how-to/clusters.md, A managed or shared "
    f"server, has the settings of other servers. Or run {SUBMIT_ADVICE}."
)
"""The remedy for a server with wrong settings, as sentences."""


@contextmanager
def connect_sessions(
    server: Server,
    settings: Mapping[str, str],
    *,
    write_options: Mapping[str, str] = MappingProxyType({}),
    own_settings: Mapping[str, str] = MappingProxyType({}),
    show_tasks: ShowTasks | None = None,
) -> Iterator[ConnectSessions]:
    """Provide sessions on a server; interrupt and close them at the end of the block.

    In the block PySpark uses the functions of Spark Connect, in all threads of the process.
    """
    sessions = ConnectSessions(server, settings, write_options, own_settings, show_tasks)
    before = os.environ.get(MODE_VARIABLE)
    os.environ[MODE_VARIABLE] = "1"
    disable_value_logging()
    try:
        with warnings.catch_warnings():
            # PySpark warns when it stops repeating a call; the named error reports the same.
            warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
            yield sessions
    except BaseException as ended:
        if not isinstance(ended, Exception):
            # The process is ending, and its threads may still use PySpark's functions.
            before = os.environ[MODE_VARIABLE]
        raise
    finally:
        sessions.close()
        if before is None:
            os.environ.pop(MODE_VARIABLE, None)


def attach_server_details(client: Any) -> None:
    """Attach the causes that the server sent to the exceptions of a client.

    PySpark joins the causes into one text, in which a message may look like another cause.
    """
    fetch, handle = client._fetch_enriched_error, client._handle_rpc_error
    received = threading.local()

    def fetched(info: Any) -> Any:
        received.details = fetch(info)
        return received.details

    def handled(error: Any) -> NoReturn:
        received.details = None
        try:
            handle(error)
        except Exception as failure:
            setattr(failure, DETAILS, received.details)
            raise
        raise AssertionError("PySpark handled an error without raising an exception")

    client._fetch_enriched_error = fetched
    client._handle_rpc_error = handled


def server_error(server: Server, failure: Exception) -> Exception:
    """Return the named error for a server's failure; the failure itself if it is unknown."""
    if lost := session_loss(failure):
        return EngineUnavailable(engine=str(server), reason=lost)
    if grpc_status(failure) in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return SetupError(
            finding=f"{server} refuses this client.",
            needed="the server's token",
            seen="a wrong token" if server.token else "no token",
            advice="Set SPARK_CONNECT_AUTHENTICATE_TOKEN, or in Airflow the connection's password.",
        )
    return failure


def session_loss(failure: BaseException) -> str:
    """Return how a session or its server was lost, in one clause; empty for all other failures."""
    if grpc_status(failure) == "UNAVAILABLE":
        return "no connection"
    get_condition: Callable[[], str | None] = getattr(failure, "getCondition", lambda: None)
    condition = get_condition() or ""
    is_gone = condition.startswith("INVALID_HANDLE.") or condition in _SESSION_LOST
    return f"its session has ended ({condition})" if is_gone else ""


def grpc_status(failure: BaseException) -> str:
    """Return the name of the gRPC status of an exception; empty if it has none."""
    get_status: Callable[[], Any] | None = getattr(failure, "getGrpcStatusCode", None)
    code = get_status() if get_status else getattr(failure, "code", lambda: None)()
    return str(getattr(code, "name", ""))
