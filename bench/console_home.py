"""A home of many pipelines with recorded plans, and the pages that the console shows of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.context import Context, write_spec
from bench.history import about, write_history
from bench.kafka import fill_partitions, make_topic
from tidemark.delta.status_table import write_status

PARTITIONS = 50
PLANS = 50
"""About the number of plans of a pipeline with a short history."""
LONG = 2
"""Pipelines with a long history."""
UNREAD = 20
"""Unread records of each partition."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the console.

    Attributes:
        path: Its address.
        text: A text that only the complete page contains.
        pending: A text that the page contains until it has all values; None for a page that waits
            for them.
    """

    path: str
    text: str
    pending: str | None = None


def pages(plans: int) -> Mapping[str, Page]:
    """Return a page of each kind, most of them of the first long history."""
    long, middle = "/pipelines/long_0", plans // 2
    zoomed = f"partition=7&start={middle}&end={middle + 10}"
    return {
        "overview": Page("/", "long_0", pending=">reading<"),
        "pipeline": Page(long, 'class="coverage"'),
        "zoom": Page(f"{long}?{zoomed}", "Plans of these offsets"),
        "plans": Page(f"{long}/plans?before={middle}", "Older plans"),
        "plan": Page(f"{long}/plans/{middle}", "Events"),
        "records": Page(f"{long}/records?partition=7&offset={middle}", f"plan {middle + 1}"),
        "quality": Page(f"{long}/quality", "published"),
        "quarantine": Page("/pipelines/typed/quarantine", "No record"),
        "backfill": Page(f"{long}/backfill?retained=true&readable_only=true", "chunk"),
        "cluster": Page("/cluster", "long_0"),
        "metrics": Page("/metrics", "# EOF"),
    }


class ConsoleHome:
    """A home of many pipelines, two of them with a long history.

    Args:
        context: Context of the run.
        pipelines: Number of pipelines, at least `LONG + 1`.
        long_plans: About the number of plans of a pipeline with a long history.
    """

    def __init__(self, context: Context, pipelines: int, long_plans: int) -> None:
        self._context = context
        self._specs = context.home / "pipelines"
        short = about(PLANS)
        self.plans = {
            **{f"long_{number}": about(long_plans) for number in range(LONG)},
            **{f"short_{number:03}": short for number in range(pipelines - LONG - 1)},
            "typed": short,
        }
        self.environ = context.environ(context.home / "lakehouse", self._specs)

    def write(self) -> None:
        """Produce the records, and write the plans and a status of each pipeline."""
        context = self._context
        app = context.app(context.home / "lakehouse", self._specs)
        produced_ms = time.time_ns() // 10**6
        produced_at = datetime.fromtimestamp(produced_ms / 1000, UTC)
        for name, plans in self.plans.items():
            make_topic(context, name, PARTITIONS)
            fill_partitions(context, name, PARTITIONS, plans + UNREAD, produced_ms)
            decode = {"decode": {"value": {"format": "string"}}} if name == "typed" else {}
            write_spec(self._specs, name, name, context.conf, **decode)
        context.progress("made the topics")
        for number, (name, plans) in enumerate(self.plans.items(), start=1):
            write_history(app, name, plans, produced_at)
            if number % 20 == 0:
                context.progress(f"wrote the plans of {number} pipelines")
        status = app.pipeline("long_0").report.status().as_row()
        rows = [{**status, "pipeline": name} for name in self.plans]
        write_status(app.layout.status_table, rows, of_all=True)
