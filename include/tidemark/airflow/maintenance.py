"""Callables of the maintenance DAG's tasks. They import heavy libraries when they run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidemark.airflow.failures import airflow_failures, raise_failed
from tidemark.app import App
from tidemark.core.errors import TidemarkError
from tidemark.core.logs import LogFields
from tidemark.core.parallel import map_in_threads
from tidemark.pages import quality_pages
from tidemark.pipeline import utc_now
from tidemark.pipelines import Outcomes

if TYPE_CHECKING:
    from tidemark.maintenance.service import Maintenance

log = logging.getLogger(__name__)


def maintain_table(pipeline: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Maintain the data table of one pipeline."""
    with airflow_failures():
        return _maintained(App.from_environment().maintenance(pipeline), params)


def maintain_shared(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Maintain the tables that pipelines share. A failed table does not stop the others."""
    tables = {each.name: each for each in App.from_environment().shared_maintenance()}
    results = map_in_threads(list(tables), lambda name: _maintained(tables[name], params), 1)
    outcomes = Outcomes()
    for name, each in zip(tables, results, strict=True):
        outcomes.add(name, each)
    raise_failed(outcomes)
    return [each for each in results if not isinstance(each, TidemarkError)]


def prune_pages(params: Mapping[str, Any]) -> int:
    """Remove old pages of quality checks. Return their number."""
    with airflow_failures():
        keep, dry_run = timedelta(days=params["keep_docs_days"]), params["dry_run"]
        pages = quality_pages(App.from_environment()).prune(utc_now(), keep, dry_run=dry_run)
        log.info("quality pages pruned %s", LogFields({"pages": pages, "dry_run": dry_run}))
        return pages


def _maintained(maintenance: Maintenance, params: Mapping[str, Any]) -> dict[str, Any]:
    keep = timedelta(hours=params["keep_hours"])
    return maintenance.maintain(keep, dry_run=params["dry_run"]).as_record()
