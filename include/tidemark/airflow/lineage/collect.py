"""Lineage of a task for Airflow's OpenLineage provider; docs/reference/lineage.md describes it.

The provider emits a task's events in a fork of the task. delta-rs cannot run in a fork of a process
that has used it, so the task itself collects the lineage, before it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.app.app import App
from tidemark.app.pipelines import Outcomes

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

T = TypeVar("T")

log = logging.getLogger(__name__)


def collect_lineage(app: App, outcomes: Outcomes) -> OperatorLineage[Any, Any] | None:
    """Return the tables and topics that a task read and wrote. Lineage never fails a task.

    Args:
        app: The app of the task.
        outcomes: Results of the task.

    Returns:
        The datasets. None if the provider is missing or disabled, if reading the tables fails, or
        if it takes longer than the provider's own timeout.
    """
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return None
    try:
        if conf.is_disabled():
            return None
        from tidemark.airflow.lineage.datasets import lineage_of

        return _within(conf.execution_timeout(), lambda: lineage_of(app, outcomes))
    except Exception as failed:  # noqa: BLE001  an error of lineage must not fail the task
        log.warning("lineage not collected error=%s message=%s", type(failed).__name__, failed)
        return None


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Return a result, or raise TimeoutError. Late work continues in a thread."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except Exception as failed:  # noqa: BLE001  the caller raises it
            ended.set_exception(failed)

    # A daemon does not keep the process of the task alive.
    Thread(target=run, name="lineage", daemon=True).start()
    return ended.result(seconds)
