"""Callables of the maintenance DAG's tasks. They import heavy libraries when they run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tidemark.airflow.failures import airflow_failures, raise_failed
from tidemark.app.adapters import utc_now
from tidemark.app.app import App
from tidemark.app.pipelines import maintain_each, result_of
from tidemark.core.logs import LogFields

log = logging.getLogger(__name__)


def maintain_table(pipeline: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Maintain the data table of one pipeline."""
    with airflow_failures():
        table = App.from_environment().maintenance(pipeline)
        return table.maintain(_retention(params), dry_run=params["dry_run"]).as_record()


def maintain_shared(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Maintain the tables that pipelines share. A failed table does not stop the others."""
    tables = App.from_environment().shared_maintenance()
    outcomes = maintain_each(tables, _retention(params), dry_run=params["dry_run"])
    raise_failed(outcomes)
    return [result_of(each) for each in outcomes.records]


def prune_data_docs(params: Mapping[str, Any]) -> int:
    """Remove old pages of Data Docs. Return their number."""
    from tidemark.quality.data_docs import DataDocs

    with airflow_failures():
        keep, dry_run = timedelta(days=params["keep_docs_days"]), params["dry_run"]
        docs = DataDocs(App.from_environment().layout.data_docs)
        pages = docs.prune(utc_now(), keep, dry_run=dry_run)
        log.info("Data Docs pruned %s", LogFields({"pages": pages, "dry_run": dry_run}))
        return pages


def _retention(params: Mapping[str, Any]) -> timedelta:
    return timedelta(hours=params["keep_hours"])
