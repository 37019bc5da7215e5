"""Requests to Airflow's REST API that only tests send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tidemark.local.airflow_api import AirflowApi


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetEvent:
    """One asset event of a `publish` task.

    Attributes:
        uri: URI of the asset.
        run_id: Id of the task's run.
        extra: Pipeline, plan, table version, records and ranges.
    """

    uri: str
    run_id: str
    extra: Mapping[str, Any]


def asset_events(api: AirflowApi, dag_id: str) -> list[AssetEvent]:
    """Return the asset events of a DAG, oldest first."""
    query = {"limit": 1000, "order_by": "timestamp", "source_dag_id": dag_id}
    found = api.call("GET", "/assets/events", query=query)["asset_events"]
    return [
        AssetEvent(
            uri=event["uri"], run_id=event["source_run_id"] or "", extra=event["extra"] or {}
        )
        for event in found
    ]


def clear_tasks(
    api: AirflowApi, dag_id: str, run_id: str, tasks: Sequence[str], *, downstream: bool
) -> None:
    """Make Airflow run tasks of an ended run again, as the Clear button does.

    Args:
        api: The client.
        dag_id: DAG id.
        run_id: Run id.
        tasks: Task ids.
        downstream: Whether to clear the tasks after them, too.
    """
    body = {
        "dry_run": False,
        "only_failed": False,
        "dag_run_id": run_id,
        "task_ids": list(tasks),
        "include_downstream": downstream,
    }
    api.call("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", body)
