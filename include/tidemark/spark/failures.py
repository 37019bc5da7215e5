"""Maps exceptions of Spark to named errors, and writes their Java stacks to files."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.core.errors import SetupError, TidemarkError
from tidemark.delta.errors import EngineFailed, storage_error
from tidemark.spark.connect import DETAILS, session_loss
from tidemark.spark.errors import EngineUnavailable
from tidemark.spark.sessions import has_driver_jvm
from tidemark.spark.submit import setup_error_in_message
from tidemark.spec.layout import LOG_FOLDER

log = logging.getLogger(__name__)

_LONGEST_CAUSE = 500
_KEPT_FILES = 100

_CONDITION = re.compile(r"\[_?[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\]")
_LOST_EXECUTOR = re.compile(r"ExecutorLostFailure.*")
_PACKAGES_WITHOUT_VALUES = (
    "java.io.",
    "java.net.",
    "java.nio.",
    "org.apache.hadoop.",
    "org.apache.kafka.",
)
"""Packages whose messages contain no values of records, only files and connections. The log's
layout has the same list."""

_SESSION_EXCEPTIONS = ("org.apache.spark.SparkException", "java.lang.IllegalArgumentException")
"""Exceptions that a session with wrong settings raises."""
_MISSING_CLASS = re.compile(
    r"java\.lang\.(?:ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError"
    r"|NoSuchFieldError|AbstractMethodError|UnsupportedClassVersionError)"
)
_BROKEN_CLASS = "Could not initialize class"
"""The class exists; its initialisation may succeed later."""
_STOPPED_CONTEXT = "Cannot call methods on a stopped SparkContext"
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '[\w.]+'")
_MISSING_SOURCE = re.compile(
    r"Failed to find (?:the )?data source: [\w.]*\w|plugin class not found"
)

_ERROR_NUMBERS = {
    os.strerror(number): number
    for number in (
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, errno.EACCES),
        *(errno.EPERM, errno.EFBIG, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR),
    )
}
_FILE_EXCEPTIONS = (
    "java.io.",
    "java.nio.file.",
    "org.apache.hadoop.fs.",
    "org.apache.hadoop.security.",
)
_REASON = re.compile("|".join(map(re.escape, _ERROR_NUMBERS)))
_FILE_OF_REASON = re.compile(r"^(?:file:)?(/.*) \(")
_MKDIR_FAILED = re.compile(r"Mkdirs failed to create (?:file:)?(/\S+)")
_PARENT_IS_FILE = re.compile(r"Parent path is not a directory: (?:file:)?(\S+)")

_SECRET = re.compile(r"secret|password|token|access[.]?key|jaas|keystore[.]key", re.IGNORECASE)
_MASK = "***"


@dataclass(frozen=True, slots=True)
class _Cause:
    """One exception of a chain of causes.

    Attributes:
        kind: Name of its class, with the package for one of Java.
        message: Its message.
        frames: Its stack, innermost first; empty for an exception of Python.
    """

    kind: str
    message: str
    frames: tuple[str, ...] = ()

    def one_line(self, *, may_have_values: bool) -> str:
        """Return the exception in one line, without possible values of a record."""
        name = self.kind.rpartition(".")[2]
        if _STOPPED_CONTEXT in self.message:
            return "the Spark application has ended; its master may be down"
        if (
            may_have_values
            and not self.kind.startswith(_PACKAGES_WITHOUT_VALUES)
            and "." in self.kind
        ):
            if lost := _LOST_EXECUTOR.search(self.message):
                return lost[0]
            named = _CONDITION.search(self.message)
            return f"{name} {named[0]}" if named else name
        first = next((line.strip() for line in self.message.splitlines() if line.strip()), "")
        return f"{name}: {first}" if first else name


def spark_error(
    failure: Exception,
    operation: str,
    *,
    location: str,
    settings: Mapping[str, str],
    options: Mapping[str, str] | None = None,
    may_have_values: bool,
) -> TidemarkError:
    """Return the named error for an exception of Spark, with its cause in one line.

    Args:
        failure: An exception of PySpark, Py4J or PyArrow.
        operation: The operation, in the form "landing plan 3".
        location: The target table.
        settings: Settings of Spark (`session_settings`), which contain the folder of logs.
        options: Options of the Kafka source. The error contains no value of a secret option or of
            a secret setting of Spark.
        may_have_values: Whether messages may contain values of records. The error omits them.

    Returns:
        EngineUnavailable: The Spark Connect server or its session has ended.
        SetupError: A class or a data source is missing, or Spark cannot start as configured.
        StorageFailure: A file cannot be written or read.
        EngineFailed: All other causes; the error has the path of the file with the stack.
    """
    if lost := session_loss(failure):
        return EngineUnavailable(
            engine="The Spark Connect server", reason=f"{lost}, during {operation}"
        )
    chain = list(exception_chain(failure))
    secrets = _secrets({**settings, **(options or {})})
    lines = [redact(each.one_line(may_have_values=may_have_values), secrets) for each in chain]
    error = _setup_error(chain) or _storage_error(chain, failure, operation, location)
    if error:
        return error
    stack = "\n".join(
        "\n\tat ".join((line, *each.frames)) for line, each in zip(lines, chain, strict=True)
    )
    return EngineFailed(
        operation=operation,
        reason=_summary(lines)[:_LONGEST_CAUSE],
        log=_write_stack(f"{operation}\n{stack}\n", settings.get(LOG_FOLDER))
        if any(each.frames for each in chain)
        else "",
    )


def exception_chain(failure: Exception) -> Iterator[_Cause]:
    """Yield the exception and its causes, outermost first; those of Java if Java threw it."""
    if hasattr(failure, DETAILS):
        yield from _causes_on_server(failure)
        return
    # Attribute of PySpark for its own exception classes, and of Py4J for all others.
    cause = getattr(failure, "_origin", None) or getattr(failure, "java_exception", None)
    if cause is None:
        yield _Cause(type(failure).__name__, str(failure))
    while cause is not None:
        frames = tuple(frame.toString() for frame in cause.getStackTrace())
        yield _Cause(cause.getClass().getName(), str(cause.getMessage()), frames)
        cause = cause.getCause()


def _causes_on_server(failure: Exception) -> Iterator[_Cause]:
    """Yield the causes that a Spark Connect server sent: at most the outermost six."""
    details = getattr(failure, DETAILS)
    number = details.root_error_idx if details and details.HasField("root_error_idx") else None
    if number is None:
        # The class of Spark's package makes `spark_error` hide the message, which may contain
        # values of records.
        yield _Cause(f"org.apache.spark.{type(failure).__name__}", str(failure))
    while number is not None:
        cause = details.errors[number]
        frames = tuple(
            f"{each.declaring_class}.{each.method_name}({each.file_name}:{each.line_number})"
            for each in cause.stack_trace
        )
        yield _Cause(cause.error_type_hierarchy[0], cause.message, frames)
        number = cause.cause_idx if cause.HasField("cause_idx") else None


def session_settings(session: SparkSession) -> dict[str, str]:
    """Return the settings of a session; empty if its JVM or its server has ended."""
    with suppress(Py4JError, OSError, PySparkException):
        if has_driver_jvm():
            return dict(session.sparkContext.getConf().getAll())
        return dict(session.conf.getAll)
    return {}


def redact(text: str, secrets: set[str]) -> str:
    """Return a text in which each secret is replaced by `***`."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


def _secrets(options: Mapping[str, str]) -> set[str]:
    values = {value for key, value in options.items() if _SECRET.search(key)}
    # A JAAS configuration contains the password in quotes.
    quoted = {each for value in values for each in re.findall(r'"((?:[^"\\]|\\.)+)"', value)}
    return (values | quoted) - {""}


def _summary(lines: list[str]) -> str:
    """Return the line of the innermost exception.

    If that has no message, the line of the innermost exception with a message follows.
    """
    informative = [line for line in lines if _CONDITION.search(line) or ": " in line]
    if not informative or lines[-1] == informative[-1]:
        return lines[-1]
    return f"{lines[-1]} ({informative[-1]})"


def _setup_error(chain: list[_Cause]) -> SetupError | None:
    for each in reversed(chain):
        # Messages of all other exceptions may contain values of records.
        if each.kind in _SESSION_EXCEPTIONS and (mistake := setup_error_in_message(each.message)):
            return mistake
        if module := _MISSING_MODULE.search(each.message):
            return SetupError(
                finding="The Python of Spark's executors lacks a module.",
                needed="the environment of `make setup` on the executors",
                seen=module[0],
                advice="Install it there, or send it: docs/how-to/clusters.md, Python.",
            )
        source = _MISSING_SOURCE.search(each.message)
        is_class = _MISSING_CLASS.fullmatch(each.kind) and _BROKEN_CLASS not in each.message
        if source or is_class:
            name = each.kind.rpartition(".")[2]
            return SetupError(
                finding="Spark lacks a class or a data source.",
                needed="the jars of `make setup` on the class path of the driver and the executors",
                seen=source[0] if source else f"{name}: {each.message}"[:_LONGEST_CAUSE],
                advice="Run `make setup`; for tables in S3, run `make setup STORE=s3`. For a "
                "cluster, see docs/how-to/clusters.md.",
            )
    return None


def _storage_error(
    chain: list[_Cause], failure: Exception, operation: str, location: str
) -> TidemarkError | None:
    """Return the error for a failure that the storage caused; None for all other failures."""
    found = [_file_failure(each) for each in reversed(chain)]
    if isinstance(failure, OSError) and failure.errno:
        found.append((failure.errno, failure.filename))
    number, file = next((each for each in found if each), (0, None))
    kind = storage_error(number)
    if kind is None:
        return None
    return kind(location=file or location, operation=operation, reason=os.strerror(number))


def _file_failure(cause: _Cause) -> tuple[int, str | None] | None:
    """Return the operating system's error number, and the file if the message contains it."""
    if not cause.kind.startswith(_FILE_EXCEPTIONS):
        return None
    if folder := _MKDIR_FAILED.search(cause.message):
        return _mkdir_failure(folder[1])
    if parent := _PARENT_IS_FILE.search(cause.message):
        return errno.ENOTDIR, parent[1]
    if cause.kind.endswith((".AccessDeniedException", ".AccessControlException")):
        return errno.EACCES, None
    reason = _REASON.search(cause.message)
    file = _FILE_OF_REASON.search(cause.message)
    return (_ERROR_NUMBERS[reason[0]], file[1] if file else None) if reason else None


def _mkdir_failure(folder: str) -> tuple[int, str | None] | None:
    """Return why a folder cannot be created, by creating it: Hadoop does not report the reason."""
    try:
        Path(folder).mkdir(parents=True)
    except OSError as refused:
        return (refused.errno, folder) if refused.errno else None
    return None


def _write_stack(text: str, folder: str | None) -> str:
    """Write a stack to a file and return its path.

    If this fails, return an empty text and log the stack.
    """
    try:
        if folder is None:
            raise FileNotFoundError(f"no setting {LOG_FOLDER}")
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"spark-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}.log"
        file.write_text(text, encoding="utf-8")
        for old in sorted(place.glob("spark-*.log"))[:-_KEPT_FILES]:
            old.unlink(missing_ok=True)
    except OSError as failed:
        log.warning("stack not written to a file message=%s stack=%s", failed, text)
        return ""
    return str(file)
