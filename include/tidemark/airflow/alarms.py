"""Alarms about failed tasks, late runs and exceeded limits.

An alarm goes to the log. If Airflow has a connection `tidemark_alarm`, the alarm goes to a webhook
as well. The password of the connection is the URL, and the request is a POST of JSON with a `text`.
A failed request changes nothing for the run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import (  # type: ignore[attr-defined]  # its stub lacks deadlines
    DeadlineAlert,
    DeadlineReference,
    SyncCallback,
)
from airflow.sdk.exceptions import AirflowFailException

from tidemark.airflow.connections import check_connections, connection
from tidemark.airflow.operators import with_app
from tidemark.app.app import App
from tidemark.app.pipelines import for_each
from tidemark.app.statuses import record_status
from tidemark.core.errors import TidemarkError, one_line
from tidemark.kafka.errors import InvalidConnection
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)

ALARM_CONNECTION = "tidemark_alarm"
_TIMEOUT_S = 10.0


@with_app
def record_status_of_all(app: App) -> list[dict[str, Any]]:
    """Write the state of every pipeline to the status table.

    Returns:
        The pipelines with alarms, each with its alarms as `TidemarkError.as_record`.
    """
    names = list(app.specs)
    check_connections(app, names)
    statuses = for_each(app, names, lambda each: each.report.status())
    found = {**statuses, **app.spec_folder.broken}
    unrecorded: list[dict[str, Any]] = []
    try:
        if found:
            record_status(app, found)
    except TidemarkError as error:
        # The alarms of the pipelines do not depend on the tables.
        unrecorded = [{"pipeline": "control/status", "alarms": [error.as_record()]}]
    alarms = []
    for name, status in found.items():
        errors = [status] if isinstance(status, TidemarkError) else list(status.alarms())
        if errors:
            records = [error.as_record() for error in errors]
            alarms.append({"pipeline": name, "alarms": records})
    log.info("status recorded pipelines=%d with_alarms=%d", len(found), len(alarms))
    return alarms + unrecorded


def raise_alarms(pipeline: str, alarms: Sequence[Mapping[str, Any]]) -> None:
    """Fail with the alarms of a pipeline."""
    texts = [f"{alarm['error']}: {one_line(alarm)}" for alarm in alarms]
    raise AirflowFailException(f"{pipeline}: " + "\n".join(texts))


def alarm_on_failure(context: Mapping[str, Any]) -> None:
    """Send an alarm with the error of a failed task."""
    task = context["task_instance"]
    where = f"{task.dag_id}.{task.task_id} of {task.run_id}"
    send_alarm(f"{where} failed: {context.get('exception') or 'see its log'}")


def alarm_on_deadline(pipeline: str, **_: Any) -> None:
    """Send an alarm about a run that has not ended in time."""
    send_alarm(
        f"A run of {pipeline} has not ended in time (alarms.deadline_minutes). Check its tasks in "
        f"Airflow, and `tidemark status {pipeline}`."
    )


def deadline(spec: PipelineSpec) -> DeadlineAlert | None:
    """Return the deadline alert of a pipeline; None if the spec sets no deadline."""
    if spec.alarms.deadline is None:
        return None
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=spec.alarms.deadline,
        callback=SyncCallback(alarm_on_deadline, kwargs={"pipeline": spec.name}),
    )


def send_alarm(text: str) -> None:
    """Write an alarm to the log, and send it to the webhook if there is one."""
    log.error("alarm message=%s", text)
    try:
        url = connection(ALARM_CONNECTION).password
    except InvalidConnection:
        return
    import httpx2

    # httpx2 logs each URL at level INFO. The URL is a secret.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        httpx2.post(url or "", json={"text": text}, timeout=_TIMEOUT_S).raise_for_status()
    except (httpx2.HTTPError, httpx2.InvalidURL) as failed:
        # The text of the exception contains the URL.
        log.warning("alarm not sent error=%s", type(failed).__name__)
