"""Fail points: the process kills itself at a selected step, for tests of crashes.

Only an environment variable enables them, and nothing in production sets it:

    TIDEMARK_FAIL_AT=control.append:after:1 tidemark plan prices

The value is `<step>:<before|after>:<n>`. A step is a method of a port (`STEPS` lists them), because
planning, landing, checking and recording change the outside world only through ports. Before the
n-th call of the step, or after its return, the process writes a line to standard error and sends
itself SIGKILL. So it flushes no buffer and releases no lock.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from tidemark.bronze.ingest.protocols import (
    BronzeLog,
    ControlTable,
    DataTable,
    Sink,
    TopicLogReader,
    TopicReader,
)
from tidemark.bronze.repair.exports import GroupOffsets
from tidemark.core.errors import SetupError
from tidemark.delta.noted_commits import NotedVersion
from tidemark.ops.maintenance.service import MaintainedTable
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.service import QualityChecker
from tidemark.silver.typed.followed_tables import Decoder
from tidemark.silver.typed.schema_table import DeltaSchemaStore
from tidemark.silver.typed.schemas import FramedLog, SchemaRegistry, SchemaStore
from tidemark.silver.typed.tables import TypedTables
from tidemark.silver.upsert.service import Merger
from tidemark.silver.upsert.table import DeltaUpsertTable

log = logging.getLogger(__name__)

VARIABLE = "TIDEMARK_FAIL_AT"
"""The environment variable that enables a fail point."""

PORTS: Mapping[str, tuple[type, ...]] = {
    "bronze": (BronzeLog, FramedLog),
    "control": (ControlTable,),
    "groups": (GroupOffsets,),
    "log_reader": (TopicLogReader,),
    "watermarks": (TopicReader,),
    "merger": (Merger,),
    "quality": (QualityChecker,),
    "sink": (Sink,),
    "results": (DeltaCheckResults,),
    "registry": (SchemaRegistry,),
    "schemas": (DeltaSchemaStore, SchemaStore),
    "table": (DataTable,),
    "decoder": (Decoder,),
    "typed": (NotedVersion,),
    "quarantine": (NotedVersion,),
    "tables": (TypedTables,),
    "maintenance": (MaintainedTable,),
    "upsert_table": (DeltaUpsertTable,),
}
"""The ports of each adapter, by the adapter's name in the names of steps."""

STEPS: tuple[str, ...] = tuple(
    f"{port}.{method}"
    for port, protocols in PORTS.items()
    for method in sorted(
        {
            name
            for protocol in protocols
            for name in dir(protocol)
            if not name.startswith("_") and callable(getattr(protocol, name))
        }
    )
)
"""All steps."""

_Adapter = TypeVar("_Adapter")


class FailPoint:
    """One enabled fail point, which counts the calls of its step.

    Args:
        text: The fail point, in the form `<step>:<before|after>:<n>`.

    Raises:
        SetupError: The fail point does not exist; the error lists the steps.
    """

    def __init__(self, text: str) -> None:
        step, moment, number = ([*text.split(":"), "", ""])[:3]
        known = step in STEPS and moment in ("before", "after") and text.count(":") == 2
        if not known or not number.isdecimal() or int(number) < 1:
            raise SetupError(
                finding=f"{VARIABLE} is not a fail point.",
                needed=f"<step>:<before|after>:<n> with n from 1 and a step of {', '.join(STEPS)}",
                seen=repr(text),
                advice=f"Unset {VARIABLE}, which is for tests of crashes.",
            )
        self.text = text
        self._step = step
        self._before = moment == "before"
        self._calls_left = int(number)
        self._lock = threading.Lock()
        log.warning("fail point enabled fail_at=%s", text)

    def wrap(self, port: str, adapter: _Adapter) -> _Adapter:
        """Return the adapter; if the step is one of its methods, with that method wrapped."""
        owner, _, method = self._step.partition(".")
        if owner != port:
            return adapter
        return cast(_Adapter, _WrappedAdapter(adapter, method, self))

    def call(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call the step; kill the process before or after the selected call."""
        with self._lock:
            self._calls_left -= 1
            is_selected = self._calls_left == 0
        if is_selected and self._before:
            self._kill_process()
        result = step(*arguments, **named)
        if is_selected:
            if isinstance(result, Iterator):
                return self._killed_at_end(result)
            self._kill_process()
        return result

    def _killed_at_end(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items, then kill the process: an iterator has returned at its end."""
        yield from items
        self._kill_process()

    def _kill_process(self) -> None:
        os.write(2, f"{kill_message(self.text)}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


class _WrappedAdapter:
    """An adapter with one method that calls the fail point."""

    def __init__(self, adapter: object, method: str, point: FailPoint) -> None:
        self._adapter = adapter
        self._method = method
        self._point = point

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._adapter, name)
        return functools.partial(self._point.call, value) if name == self._method else value


def kill_message(text: str) -> str:
    """Return the line on standard error of a process that ends at a fail point."""
    return f"tidemark: killed at fail point {text}"
