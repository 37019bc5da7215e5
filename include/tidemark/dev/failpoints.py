"""Fail points: a process that kills itself at a step of its own choosing, for tests of crashes.

Off unless the environment says otherwise, and nothing that runs in production sets it:

    TIDEMARK_FAIL_AT=control.append:after:1 tidemark plan prices

The value is `<step>:<before|after>:<n>`. A step is a method of a port (`STEPS` lists them), because
all that planning, landing, confirming and recording do to the world goes through one. At the n-th
call of that step in the process, before it or after it has come back, the process says so on
standard error and sends itself SIGKILL: nothing is flushed, released or told.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from tidemark.core.errors import SetupError
from tidemark.ingest.protocols import (
    BronzeLog,
    BronzeTable,
    ControlTable,
    Sink,
    TopicLogReader,
    TopicReader,
)
from tidemark.ingest.start import OffsetSource
from tidemark.maintenance.service import MaintainedTable
from tidemark.quality.gx.checker import CheckResults
from tidemark.quality.publication_service import PublicationTable
from tidemark.quality.service import QualityChecker, QualityPages
from tidemark.repair.exports import GroupOffsets
from tidemark.report.service import QualityHistory
from tidemark.typed.schemas import FramedLog, SchemaRegistry, SchemaStore, TypedTable
from tidemark.upsert.service import Merger, TypedLog, UpsertTable

log = logging.getLogger(__name__)

VARIABLE = "TIDEMARK_FAIL_AT"
"""The environment variable that arms a fail point."""

PORTS: Mapping[str, tuple[type, ...]] = {
    "bronze": (BronzeLog, FramedLog),
    "control": (ControlTable,),
    "groups": (GroupOffsets,),
    "history": (QualityHistory,),
    "log_reader": (TopicLogReader,),
    "watermarks": (TopicReader,),
    "merger": (Merger,),
    "quality": (QualityChecker,),
    "quality_pages": (QualityPages,),
    "sink": (Sink,),
    "source": (OffsetSource,),
    "results": (CheckResults,),
    "registry": (SchemaRegistry,),
    "schemas": (SchemaStore,),
    "table": (BronzeTable, TypedTable),
    "typed": (TypedLog,),
    "maintenance": (MaintainedTable,),
    "upsert_table": (UpsertTable,),
    "publication": (PublicationTable,),
}
"""The name of each adapter in the names of steps, and the ports that it implements."""

STEPS: tuple[str, ...] = tuple(
    f"{port}.{method}"
    for port, protocols in PORTS.items()
    for method in sorted({name for protocol in protocols for name in dir(protocol)})
    if not method.startswith("_")
)
"""Every step that can be named."""

_Adapter = TypeVar("_Adapter")


class FailPoint:
    """One armed fail point, which counts the calls of its step.

    Args:
        text: `<step>:<before|after>:<n>`, as in `VARIABLE`.

    Raises:
        SetupError: There is no such fail point; the known ones are listed.
    """

    def __init__(self, text: str) -> None:
        step, moment, number = ([*text.split(":"), "", ""])[:3]
        known = step in STEPS and moment in ("before", "after") and text.count(":") == 2
        if not known or not number.isdecimal() or int(number) < 1:
            raise SetupError(
                subject=f"{VARIABLE} names no fail point",
                needed=f"<step>:<before|after>:<n> with n from 1 and a step of {', '.join(STEPS)}",
                seen=repr(text),
                advice=f"unset {VARIABLE}: it is for tests of crashes",
            )
        self.text = text
        self._step = step
        self._before = moment == "before"
        self._left = int(number)
        self._counting = threading.Lock()
        log.warning("this process will kill itself at %s", text)

    def armed(self, port: str, adapter: _Adapter) -> _Adapter:
        """The adapter, with the step wrapped if it is one of its methods."""
        owner, _, method = self._step.partition(".")
        if owner != port:
            return adapter
        return cast(_Adapter, _Armed(adapter, method, self))

    def call(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call the step, and die before or after if this is the call that was meant."""
        with self._counting:
            self._left -= 1
            is_meant = self._left == 0
        if is_meant and self._before:
            self._die()
        result = step(*arguments, **named)
        if is_meant:
            if isinstance(result, Iterator):
                return self._drained(result)
            self._die()
        return result

    def _drained(self, items: Iterator[Any]) -> Iterator[Any]:
        """What comes bit by bit has come back when the last bit has."""
        yield from items
        self._die()

    def _die(self) -> None:
        os.write(2, f"{kill_message(self.text)}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


class _Armed:
    """An adapter with one method that may be the last thing the process does."""

    def __init__(self, adapter: object, method: str, point: FailPoint) -> None:
        self._adapter = adapter
        self._method = method
        self._point = point

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._adapter, name)
        return functools.partial(self._point.call, value) if name == self._method else value


def kill_message(text: str) -> str:
    """The line that a process leaves on standard error when it dies at a fail point."""
    return f"tidemark: killed at fail point {text}"
