"""Named errors for exceptions of Spark; their Java stacks go to files below the home."""

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
from pyspark.sql import SparkSession, is_remote

from tidemark.core.errors import SetupError, TidemarkError
from tidemark.lake.errors import EngineFailed, storage_error
from tidemark.spark.connect import DETAILS, session_loss
from tidemark.spark.errors import EngineUnavailable
from tidemark.spark.submit import setup_error_in_message
from tidemark.spec.layout import LOG_FOLDER

log = logging.getLogger(__name__)

_LONGEST_CAUSE = 500
_KEPT_FILES = 100

_CONDITION = re.compile(r"\[_?[A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*\]")
_LOST_EXECUTOR = re.compile(r"ExecutorLostFailure.*")
_WITHOUT_VALUES = ("java.io.", "java.net.", "java.nio.", "org.apache.hadoop.", "org.apache.kafka.")
"""Packages with messages about files and connections. The log's layout names them as well."""

_OF_SESSION = ("org.apache.spark.SparkException", "java.lang.IllegalArgumentException")
"""Exceptions that a session with wrong settings raises."""
_MISSING_CLASS = re.compile(
    r"java\.lang\.(?:ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError"
    r"|NoSuchFieldError|AbstractMethodError|UnsupportedClassVersionError)"
)
_BROKEN_CLASS = "Could not initialize class"
"""The class exists; its initialisation may succeed later."""
_STOPPED = "Cannot call methods on a stopped SparkContext"
_MISSING_SOURCE = re.compile(
    r"Failed to find (?:the )?data source: [\w.]*\w|plugin class not found"
)

_DISK = {
    os.strerror(number): number
    for number in (
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EROFS, errno.EACCES),
        *(errno.EPERM, errno.EFBIG, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR),
    )
}
_ON_DISK = ("java.io.", "java.nio.file.", "org.apache.hadoop.fs.", "org.apache.hadoop.security.")
_REASON = re.compile("|".join(map(re.escape, _DISK)))
_FILE_OF_REASON = re.compile(r"^(?:file:)?(/.*) \(")
_NO_FOLDER = re.compile(r"Mkdirs failed to create (?:file:)?(/\S+)")
_NO_PARENT = re.compile(r"Parent path is not a directory: (?:file:)?(\S+)")

_SECRET = re.compile(r"secret|password|token|access[.]?key|jaas|keystore[.]key", re.IGNORECASE)
_HIDDEN = "***"


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

    def shown(self, *, may_have_values: bool) -> str:
        """The exception in one line, without possible values of a record."""
        name = self.kind.rpartition(".")[2]
        if _STOPPED in self.message:
            return "the Spark application has ended; perhaps its master does not answer"
        if may_have_values and not self.kind.startswith(_WITHOUT_VALUES) and "." in self.kind:
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
    """The named error for an exception of Spark, with its cause in one line.

    Args:
        failure: What PySpark, Py4J or PyArrow raised.
        operation: The operation, in the form "landing plan 3".
        location: The target table.
        settings: Settings of Spark (`session_settings`), which name the folder of logs.
        options: Options of the Kafka source. Texts contain no values of secret options or of
            secret settings of Spark.
        may_have_values: Whether messages may contain values of records, to be left out of texts.

    Returns:
        SetupError: A class or a data source is missing, or Spark cannot start as configured.
        StorageRefused, StorageUnavailable: A file cannot be written or read.
        EngineFailed: All other causes; the error names the file with the stack.
    """
    if lost := session_loss(failure):
        return EngineUnavailable(engine="the Spark Connect server", reason=f"{operation}: {lost}")
    chain = list(exception_chain(failure))
    secrets = _secrets({**settings, **(options or {})})
    lines = [redact(each.shown(may_have_values=may_have_values), secrets) for each in chain]
    error = _missing(chain) or _of_storage(chain, failure, operation, location)
    if error:
        return error
    stack = "\n".join(
        "\n\tat ".join((line, *each.frames)) for line, each in zip(lines, chain, strict=True)
    )
    return EngineFailed(
        operation=operation,
        reason=_told(lines)[:_LONGEST_CAUSE],
        log=_written(f"{operation}\n{stack}\n", settings.get(LOG_FOLDER)) if _framed(chain) else "",
    )


def exception_chain(failure: Exception) -> Iterator[_Cause]:
    """Yield the exception and its causes, outermost first; those of Java if Java threw it."""
    if hasattr(failure, DETAILS):
        yield from _causes_on_server(failure)
        return
    # PySpark keeps the Java exception of its named errors, Py4J of all others.
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
    """Return the settings of a session; no settings if its JVM or its server has ended."""
    with suppress(Py4JError, OSError, PySparkException):
        if is_remote():
            return dict(session.conf.getAll)
        return dict(session.sparkContext.getConf().getAll())
    return {}


def redact(text: str, secrets: set[str]) -> str:
    """A text without these secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _secrets(options: Mapping[str, str]) -> set[str]:
    values = {value for key, value in options.items() if _SECRET.search(key)}
    # The password of a JAAS configuration is quoted in it.
    quoted = {each for value in values for each in re.findall(r'"((?:[^"\\]|\\.)+)"', value)}
    return (values | quoted) - {""}


def _told(lines: list[str]) -> str:
    """The line of the innermost exception, and of the next one out if it has no message."""
    told = [line for line in lines if _CONDITION.search(line) or ": " in line]
    if not told or lines[-1] == told[-1]:
        return lines[-1]
    return f"{lines[-1]} ({told[-1]})"


def _framed(chain: list[_Cause]) -> bool:
    return any(each.frames for each in chain)


def _missing(chain: list[_Cause]) -> SetupError | None:
    for each in reversed(chain):
        # Messages of all other exceptions may contain values of records.
        if each.kind in _OF_SESSION and (mistake := setup_error_in_message(each.message)):
            return mistake
        source = _MISSING_SOURCE.search(each.message)
        is_class = _MISSING_CLASS.fullmatch(each.kind) and _BROKEN_CLASS not in each.message
        if source or is_class:
            name = each.kind.rpartition(".")[2]
            return SetupError(
                subject="Spark misses a class or a data source",
                needed="the jars of `make setup` on the class path of the driver and the executors",
                seen=source[0] if source else f"{name}: {each.message}"[:_LONGEST_CAUSE],
                advice="run `make setup`; on a cluster see docs/clusters.md",
            )
    return None


def _of_storage(
    chain: list[_Cause], failure: Exception, operation: str, location: str
) -> TidemarkError | None:
    """The storage error that caused a failure; None for all other failures."""
    found = [_reason(each) for each in reversed(chain)]
    if isinstance(failure, OSError) and failure.errno:
        found.append((failure.errno, failure.filename))
    number, file = next((each for each in found if each), (0, None))
    kind = storage_error(number)
    if kind is None:
        return None
    return kind(location=file or location, operation=operation, reason=os.strerror(number))


def _reason(thrown: _Cause) -> tuple[int, str | None] | None:
    """The operating system's error number, and the file if the message names it."""
    if not thrown.kind.startswith(_ON_DISK):
        return None
    if folder := _NO_FOLDER.search(thrown.message):
        return _reason_of_no_folder(folder[1])
    if parent := _NO_PARENT.search(thrown.message):
        return errno.ENOTDIR, parent[1]
    if thrown.kind.endswith((".AccessDeniedException", ".AccessControlException")):
        return errno.EACCES, None
    said = _REASON.search(thrown.message)
    file = _FILE_OF_REASON.search(thrown.message)
    return (_DISK[said[0]], file[1] if file else None) if said else None


def _reason_of_no_folder(folder: str) -> tuple[int, str | None] | None:
    """Why a folder cannot be made: Hadoop does not report it, so this process tries."""
    try:
        Path(folder).mkdir(parents=True)
    except OSError as refused:
        return (refused.errno, folder) if refused.errno else None
    return None


def _written(text: str, folder: str | None) -> str:
    """The file with the stack; if it cannot be written, empty, and the log contains the stack."""
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
        log.warning("the stack cannot be written to a file (%s): %s", failed, text)
        return ""
    return str(file)
