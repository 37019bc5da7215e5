"""Metrics of all pipelines as OpenMetrics text, from the rows of the status table.

The text is also valid in Prometheus's older format, because every metric is a gauge. Undo, rewind
and replay lower each value at times, so none is a counter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from tidemark.core.publication import PublicationStatus
from tidemark.core.throughput import Forecast

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Content type of the text of `openmetrics`."""

Row: TypeAlias = Mapping[str, Any]
"""A row of the status table, `PipelineStatus.as_row`. Missing columns count as unknown."""

Samples: TypeAlias = Iterable[tuple[str | None, Any]]
"""Values of one pipeline, each with the value of the second label; None for no second label."""

_UNITS = ("seconds", "bytes")
_MOST_AHEAD = timedelta(minutes=1)
"""Maximum time by which a status may be ahead of this machine's clock. A later one is exported with
its topic only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A gauge of each pipeline.

    Attributes:
        name: Name without labels.
        text: What it measures, in one sentence.
        samples: Returns the values of one row at the current time; None for an unknown value.
        label: Second label, after `pipeline`; None without one.
    """

    name: str
    text: str
    samples: Callable[[Row, datetime], Samples]
    label: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels."""
        return ("pipeline", self.label) if self.label else ("pipeline",)

    def lines(self, rows: Sequence[Row], now: datetime) -> Iterator[str]:
        """Yield the lines of the metric: its description, and one line for each value."""
        yield f"# TYPE {self.name} gauge"
        unit = self.name.rpartition("_")[2]
        if unit in _UNITS:
            yield f"# UNIT {self.name} {unit}"
        yield f"# HELP {self.name} {self.text}"
        for row in rows:
            for value_of_label, value in self.samples(row, now):
                if value is not None and not _is_nonsense(value):
                    values = (row["pipeline"], value_of_label)
                    pairs = zip(self.labels, values, strict=False)
                    labels = ",".join(f'{name}="{_escaped(each)}"' for name, each in pairs)
                    yield f"{self.name}{{{labels}}} {_number(value)}"


def openmetrics(rows: Sequence[Row], now: datetime, *, invalid_specs: int | None = None) -> str:
    """Return the metrics as OpenMetrics text, for the content type `CONTENT_TYPE`.

    Args:
        rows: The newest row of each pipeline; each pipeline occurs once.
        now: Current time.
        invalid_specs: Number of invalid specs; None if unknown.
    """
    rows = [row if row["checked_at"] <= now + _MOST_AHEAD else _topic_only(row) for row in rows]
    lines = [
        "# TYPE tidemark_pipelines gauge",
        f"# HELP tidemark_pipelines {PIPELINES_TEXT}",
        f"tidemark_pipelines {len(rows)}",
        "# TYPE tidemark_invalid_specs gauge",
        f"# HELP tidemark_invalid_specs {INVALID_SPECS_TEXT}",
        *([] if invalid_specs is None else [f"tidemark_invalid_specs {invalid_specs}"]),
        *(line for metric in METRICS for line in metric.lines(rows, now)),
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _topic_only(row: Row) -> Row:
    return {"pipeline": row["pipeline"], "topic": row.get("topic")}


def _escaped(value: Any) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: Any) -> str:
    if isinstance(value, datetime):
        value = value.timestamp()
    return str(value) if isinstance(value, int) else repr(float(value))


def _is_nonsense(value: Any) -> bool:
    """Return whether a value is infinite, or negative because the clocks of two machines differ."""
    return isinstance(value, int | float) and not 0 <= value < math.inf


def _column(name: str, column: str, text: str) -> Metric:
    """Return the metric of a column."""
    return Metric(name=name, text=text, samples=lambda row, _: [(None, row.get(column))])


def _kafka_column(name: str, column: str, text: str) -> Metric:
    """Return the metric of a column from Kafka, without the value of an earlier status."""

    def samples(row: Row, _: datetime) -> Samples:
        is_current = row.get("lag_checked_at") == row.get("checked_at")
        return [(None, row.get(column) if is_current else None)]

    return Metric(name=name, text=text, samples=samples)


def _age(row: Row, now: datetime) -> Samples:
    if (checked_at := row.get("checked_at")) is None:
        return []
    return [(None, max(0.0, (now - checked_at).total_seconds()))]


def _plans(row: Row, _: datetime) -> Samples:
    return [(status.value, row.get(f"{status}_plans")) for status in PublicationStatus]


def _forecasts(row: Row, _: datetime) -> Samples:
    current = row.get("forecast")
    return [(each.value, int(each == current)) for each in Forecast] if current else []


def _alarms(row: Row, _: datetime) -> Samples:
    names = row.get("alarms")
    return Counter(names.split(", ")).items() if names else []


def _problem(row: Row, _: datetime) -> Samples:
    return [(row["problem"], 1)] if row.get("problem") else []


def _topic(row: Row, _: datetime) -> Samples:
    return [(row["topic"], 1)] if row.get("topic") else []


PIPELINES_TEXT = "Pipelines with a recorded status."
INVALID_SPECS_TEXT = "Invalid specs of pipelines."

METRICS: Sequence[Metric] = (
    Metric(
        name="tidemark_pipeline_info",
        label="topic",
        text="Always 1; the label has the topic of the pipeline.",
        samples=_topic,
    ),
    Metric(
        name="tidemark_status_age_seconds",
        text="Age of the recorded status, from which the pipeline's other metrics come.",
        samples=_age,
    ),
    _kafka_column(
        "tidemark_lag_offsets",
        "lag",
        "Offsets that have not landed, an upper bound on the records.",
    ),
    _kafka_column("tidemark_lag_seconds", "lag_seconds", "Age of the oldest unread record."),
    _kafka_column(
        "tidemark_held_back_offsets",
        "held_back",
        "Offsets behind an open transaction, which are not part of the lag.",
    ),
    _kafka_column(
        "tidemark_runway_seconds",
        "runway_seconds",
        "Shortest time until Kafka deletes unread records.",
    ),
    _kafka_column(
        "tidemark_arriving_offsets_per_second",
        "new_offsets_per_second",
        "New offsets per second since the oldest unread record.",
    ),
    Metric(
        name="tidemark_forecast",
        label="forecast",
        text="1 for the current forecast of the end of the lag, 0 for the other forecasts.",
        samples=_forecasts,
    ),
    _column(
        "tidemark_caught_up_timestamp_seconds",
        "caught_up_at",
        "Time at which the lag will be 0, for the forecast `later`.",
    ),
    _column("tidemark_landed_records", "records", "Records landed by all plans."),
    _column(
        "tidemark_missing_rows",
        "missing_rows",
        "Landed rows that another program removed from the data table.",
    ),
    _column("tidemark_stored_bytes", "stored_bytes", "Bytes of the data table's files."),
    _column(
        "tidemark_last_landed_timestamp_seconds",
        "last_landed_at",
        "Time at which the newest run landed its plan.",
    ),
    _column(
        "tidemark_last_landed_records", "last_landed_records", "Records that the newest run landed."
    ),
    _column(
        "tidemark_last_landed_bytes",
        "last_landed_bytes",
        "Bytes of the files that the newest run landed; absent after a compaction.",
    ),
    _column(
        "tidemark_last_landed_duration_seconds",
        "last_landed_seconds",
        "Time from the recording of the newest run's plan to that of its landing.",
    ),
    _column("tidemark_open_plans", "open_plans", "Recorded plans that have not landed."),
    _column(
        "tidemark_open_plan_timestamp_seconds",
        "open_since",
        "Time of the recording of the oldest open plan.",
    ),
    _column(
        "tidemark_open_plan_runs",
        "open_plan_runs",
        "Highest number of runs that requested one open plan.",
    ),
    _column(
        "tidemark_undecoded_offsets",
        "undecoded",
        "Published offsets that the typed table lacks.",
    ),
    _column(
        "tidemark_unchecked_offsets",
        "unchecked",
        "Landed offsets that are not decoded because they are not checked.",
    ),
    _column("tidemark_quarantined_records", "quarantined", "Records in quarantine."),
    Metric(
        name="tidemark_plans",
        label="status",
        text="Plans by publication status.",
        samples=_plans,
    ),
    Metric(
        name="tidemark_alarms",
        label="error",
        text="Alarms by the name of their error; absent without an alarm.",
        samples=_alarms,
    ),
    Metric(
        name="tidemark_problem",
        label="error",
        text="1 for the error that would refuse the next run; absent without one.",
        samples=_problem,
    ),
)
"""Every metric of a pipeline; docs/reference/metrics.md lists them."""
