"""Log lines of all processes: text, or one JSON object for each event.

The template of a log call is the event, then its fields: `"planned pipeline=%s plan=%d"`. A text
line contains the rendered template. A JSON line has the event without the fields, and each field
under its own name.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Any, Self

from tidemark.core.errors import SetupError

_OURS = "tidemark"
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CONVERSION = re.compile(r"(?P<field>\b[a-z_]+=)?(?P<conversion>%(?:%|[.\d]*[a-z]))")


class LogFormat(Enum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """Return the format that TIDEMARK_LOG_FORMAT selects; by default text.

        Raises:
            SetupError: There is no such format.
        """
        text = environ.get("TIDEMARK_LOG_FORMAT") or cls.TEXT.value
        try:
            return cls(text)
        except ValueError:
            raise SetupError(
                finding=f"The log format {text!r} does not exist.",
                needed=" or ".join(each.value for each in cls),
                seen=text,
                advice="Correct the environment variable TIDEMARK_LOG_FORMAT, or unset it.",
            ) from None


@dataclass(frozen=True, slots=True)
class LogFields:
    """Fields of a log call whose names are known only when it runs; the argument of a `%s`.

    Attributes:
        values: JSON types by name; a line omits None.
    """

    values: Mapping[str, Any]

    def __str__(self) -> str:
        return " ".join(
            f"{key}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
            for key, value in self.present().items()
        )

    def present(self) -> dict[str, Any]:
        """Return the values that are not None."""
        return {key: value for key, value in self.values.items() if value is not None}


class JsonFormatter(logging.Formatter):
    """Formats a log record as a JSON object in one line, regardless of its values.

    Numbers keep their type. Any other value is the text that a text line contains, so a value with
    a redacted text stays redacted.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        event, fields = event_and_fields(record)
        own = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": event,
        }
        exception = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        # ASCII alone: the line separators of Unicode end a line for some readers.
        return json.dumps({**own, **fields, **own, **exception}, default=str)


def event_and_fields(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """Return the event of a log record, and the values of its fields.

    The lines after the first one are the field `detail`. A record of another package has no fields,
    because its template has another form.
    """
    if record.name.partition(".")[0] != _OURS or not isinstance(record.args, tuple):
        return record.getMessage(), {}
    arguments, fields = iter(record.args), dict[str, Any]()
    text = str(record.msg)
    # Without arguments, the text is no template.
    if record.args:
        text = _CONVERSION.sub(lambda found: _rest(found, arguments, fields), text)
    event, _, detail = text.partition("\n")
    if detail:
        fields["detail"] = detail
    return " ".join(event.split()), fields


def _rest(found: re.Match[str], arguments: Iterator[Any], fields: dict[str, Any]) -> str:
    """Add a field to `fields` and return an empty text, or return the text of a value without name.

    Args:
        found: A conversion of the template, with the name of its field.
        arguments: The remaining arguments of the call.
        fields: The fields so far.
    """
    if found["conversion"] == "%%":
        return "%"
    value = next(arguments, None)
    if isinstance(value, LogFields):
        fields.update(value.present())
        return ""
    if found["field"]:
        fields[found["field"].removesuffix("=")] = _json_value(value)
        return ""
    return str(found["conversion"] % (value,))


def _json_value(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case bool() | int() | str() | None:
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return str(value)


def configure_logging(log_format: LogFormat, terminal: logging.Handler | None = None) -> None:
    """Write the log of this process to standard error: warnings, and what loggers allow.

    In JSON, Python's warnings and exceptions that end the process are lines as well.

    Args:
        log_format: The format of a line.
        terminal: Writes the lines of the text format to a terminal; None for a file or a pipe.
    """
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(TEXT_FORMAT))
    if terminal and log_format is LogFormat.TEXT:
        handler = terminal
    if log_format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_of_thread
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def is_json_log() -> bool:
    """Return whether this process writes its log as JSON."""
    handlers = logging.getLogger().handlers
    return any(isinstance(handler.formatter, JsonFormatter) for handler in handlers)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        traceback.print_exception(kind, error, trace)
        return
    logging.getLogger(_OURS).critical("unexpected error ends the process", exc_info=error)


def _log_uncaught_of_thread(uncaught: threading.ExceptHookArgs) -> None:
    logging.getLogger(_OURS).critical("unexpected error ends a thread", exc_info=uncaught.exc_value)


def json_object(line: str) -> dict[str, Any] | None:
    """Return the object of a line that contains one as JSON, such as a log line; else None."""
    try:
        found = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
