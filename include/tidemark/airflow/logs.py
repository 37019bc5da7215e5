"""Fields of log lines in the logs of Airflow's tasks.

Airflow writes the log of a task as JSON by structlog. A message of Python's `logging` is one string
in this JSON. With TIDEMARK_LOG_FORMAT=json, its fields become values of the JSON.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from structlog.contextvars import bound_contextvars

from tidemark.core.logs import LogFormat, event_and_fields, json_object

_OURS = logging.getLogger("tidemark")


class _PassOn(logging.Handler):
    """Passes records to Airflow's handlers: the event as message, the fields as own values."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        try:
            event, fields = event_and_fields(record)
        except Exception:  # noqa: BLE001  a wrong log call must not fail the task
            self.handleError(record)
            return
        _pass_on({**record.__dict__, "msg": event, "args": None}, fields)


def _pass_on(record: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    # Airflow's formatter merges the variables of this context into the line.
    with bound_contextvars(**fields):
        logging.getLogger().handle(logging.makeLogRecord(record))


@contextmanager
def log_with_fields() -> Iterator[None]:
    """Log with fields inside the block, if TIDEMARK_LOG_FORMAT requests it.

    Raises:
        SetupError: There is no such format.
    """
    if LogFormat.of(os.environ) is LogFormat.TEXT:
        yield
        return
    before = list(_OURS.handlers), _OURS.propagate
    _OURS.handlers, _OURS.propagate = [_PassOn()], False
    try:
        yield
    finally:
        _OURS.handlers, _OURS.propagate = before


def log_job_line(log: logging.Logger, line: str) -> None:
    """Log a line that a job printed. A line of a JSON log keeps its logger, level and fields."""
    written = json_object(line) if _writes_fields() else None
    if written is None or not {"logger", "level", "event"} <= written.keys():
        log.info("%s", line)
        return
    name, level = str(written.pop("logger")), str(written.pop("level"))
    event = str(written.pop("event"))
    # Airflow's line has its own time.
    written.pop("time", None)
    number = logging.getLevelNamesMapping().get(level, logging.INFO)
    record = {"name": name, "levelname": level, "levelno": number, "msg": event}
    _pass_on(record, written)


def _writes_fields() -> bool:
    return any(isinstance(handler, _PassOn) for handler in _OURS.handlers)
