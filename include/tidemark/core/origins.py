"""Why a plan was made: for a run, or for a chunk of a backfill.

The origin is the idempotency key of the plan: a second request of the same origin gets the same
plan. The control table stores it in the columns `requested_by` and `chunk`. Different origins have
different texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from tidemark.core.errors import InvalidReference

BY_DATE = ":by-date"
"""Suffix of the requester of a run that Airflow's own backfill by dates started."""
_DAG_RUN = re.compile(rf"airflow:([^:]+):(.+?)({BY_DATE})?", re.DOTALL)
_CHUNK = re.compile(r"(.+)#(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """A run plans new offsets, or a selection of offsets as a whole.

    Attributes:
        requester: The run: `airflow:<dag>:<run>` or `cli:<user>:<id>`.

    Raises:
        InvalidReference: The text belongs to an origin of another kind.
    """

    requester: str

    def __post_init__(self) -> None:
        if _parse(self.requester):
            raise InvalidReference.of_requester(self.requester)

    def __str__(self) -> str:
        return self.requester


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRunRequester:
    """A DAG run that requests plans. Its text is `airflow:<dag>:<run>`.

    Attributes:
        dag_id: DAG id.
        run_id: Run id.
        by_date: Whether Airflow's own backfill by dates started the run. Such a backfill can reuse
            an existing run id; its plans then differ from those of the first run.
    """

    dag_id: str
    run_id: str
    by_date: bool = False

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the run of a requester; None for other requesters."""
        found = _DAG_RUN.fullmatch(text)
        return found and cls(dag_id=found[1], run_id=found[2], by_date=found[3] is not None)

    def __str__(self) -> str:
        return f"airflow:{self.dag_id}:{self.run_id}{BY_DATE if self.by_date else ''}"


@dataclass(frozen=True, slots=True)
class ChunkOrigin:
    """A backfill plans one of its chunks.

    Attributes:
        requester: The requester of the backfill.
        chunk: Number of the chunk, from 1.
    """

    requester: str
    chunk: int

    def __str__(self) -> str:
        return f"{self.requester}#{self.chunk}"


PlanOrigin: TypeAlias = RunOrigin | ChunkOrigin


def parse_origin(text: str) -> PlanOrigin:
    """Return the origin with this text."""
    return _parse(text) or RunOrigin(text)


def origin_columns(origin: PlanOrigin) -> tuple[str, int | None]:
    """Return the values of the columns `requested_by` and `chunk` of an origin."""
    if isinstance(origin, ChunkOrigin):
        return origin.requester, origin.chunk
    return str(origin), None


def origin_of_row(row: Mapping[str, Any]) -> PlanOrigin:
    """Return the origin in the columns `requested_by` and `chunk`. Old rows have no `chunk`."""
    requested_by, chunk = row["requested_by"], row.get("chunk")
    return parse_origin(requested_by) if chunk is None else ChunkOrigin(requested_by, chunk)


def _parse(text: str) -> ChunkOrigin | None:
    """Return the origin with exactly this text; None if it is the name of a run."""
    found = _CHUNK.fullmatch(text)
    origin = found and ChunkOrigin(found[1], int(found[2]))
    return origin if str(origin) == text else None
