"""Pages about backfills: a preview, which writes nothing, and the progress of recorded ones."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field

from tidemark.app.pipeline import Pipeline
from tidemark.bronze.backfill.selection import SelectBy, select, split_list
from tidemark.bronze.backfill.service import BackfillPreview, ChunkState
from tidemark.console.context import Page, PageContext
from tidemark.core.errors import InvalidSelection, TidemarkError
from tidemark.core.events import BackfillRequested
from tidemark.core.origins import DagRunRequester
from tidemark.core.parallel import result_or_error
from tidemark.ops.report.errors import PageTooLarge

NEWEST = 5
"""Recorded backfills whose chunks a page shows."""
MOST_RANGES = 50_000
"""Ranges of plans that the preview of a replacement reads: three seconds and 600 MB."""


class BackfillForm(BaseModel):
    """The fields of the form, as query parameters. An empty field has its default.

    Attributes:
        offsets: Ranges such as `0:100-200`, separated by commas.
        start: First moment of a time window.
        end: First moment after the window.
        retained: Whether to select all offsets that Kafka has.
        plan: Number of a plan whose ranges to select.
        partitions: Partition numbers, separated by commas.
        chunk: Maximum number of offsets of a chunk.
        readable_only: Whether to skip offsets that Kafka has deleted.
        replace: Whether to replace landed rows.
        reason: Reason of a replacement.
    """

    offsets: str = Field(default="", max_length=10_000)
    start: str = Field(default="", max_length=40)
    end: str = Field(default="", max_length=40)
    retained: bool = False
    plan: str = Field(default="", max_length=40)
    partitions: str = Field(default="", max_length=10_000)
    chunk: str = Field(default="", max_length=40)
    readable_only: bool = False
    replace: bool = False
    reason: str = Field(default="", max_length=1_000)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is selected yet."""
        return not (self.offsets or self.start or self.end or self.retained or self.plan)

    def options(self, *, approved: bool = False) -> str:
        """Return the options of `tidemark backfill` for the selection.

        Args:
            approved: Whether to approve a backfill above the limit of the spec.
        """
        options = [
            *(("--offsets", each) for each in split_list(self.offsets)),
            ("--from", self.start),
            ("--until", self.end),
            ("--plan", self.plan),
            *(("--partition", each) for each in split_list(self.partitions)),
            ("--chunk", self.chunk),
            ("--reason", self.reason),
        ]
        words = [word for name, value in options if value for word in (name, value)]
        words += ["--retained"] if self.retained else []
        words += ["--readable-only"] if self.readable_only else []
        words += ["--replace"] if self.replace else []
        words += ["--yes"] if approved else []
        return shlex.join(words)

    @property
    def select_by(self) -> SelectBy:
        """How a valid form selects offsets."""
        if split_list(self.offsets):
            return SelectBy.OFFSETS
        if self.retained:
            return SelectBy.RETAINED
        return SelectBy.PLAN if self.plan.strip() else SelectBy.TIME

    def conf(self, pipeline: str) -> Mapping[str, Any]:
        """Return the parameters of a run of the DAG `tidemark_backfill`."""
        return {
            "pipeline": pipeline,
            "select_by": self.select_by.value,
            "offsets": self.offsets or None,
            "from": self.start or None,
            "until": self.end or None,
            "plan": _number(self.plan, "plan"),
            "partitions": ",".join(split_list(self.partitions)) or None,
            "chunk": _chunk(self),
            "readable_only": self.readable_only,
            "replace": self.replace,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBackfill:
    """A recorded backfill and its chunks.

    Attributes:
        request: The request.
        chunks: State of each chunk; the error if it could not be read.
    """

    request: BackfillRequested
    chunks: Sequence[ChunkState] | TidemarkError

    @property
    def done(self) -> int:
        """Number of landed chunks."""
        return 0 if isinstance(self.chunks, TidemarkError) else sum(c.done for c in self.chunks)

    @property
    def run(self) -> DagRunRequester | None:
        """The DAG run that requested the backfill; None for other requesters."""
        return DagRunRequester.parse(self.request.requested_by)


def preview(context: PageContext, name: str, form: Annotated[BackfillForm, Query()]) -> Page:
    """The form, and for a filled one the preview of its backfill."""
    pipeline = context.pipeline(name)
    found: BackfillPreview | TidemarkError | None = None
    if not form.is_empty:
        found = result_or_error(name, lambda name: _preview(context, name, form))
    shown = found if isinstance(found, BackfillPreview) else None
    limit = pipeline.spec.records_per_backfill
    needs_approval = shown is not None and shown.offsets > limit
    return context.page(
        "backfill.html",
        name=name,
        spec=pipeline.spec,
        form=form,
        command=f"tidemark backfill {name} {form.options(approved=needs_approval)}",
        conf=form.conf(name) if shown else None,
        preview=shown,
        limit=limit,
        needs_approval=needs_approval,
        error=found if isinstance(found, TidemarkError) else None,
    )


def _preview(context: PageContext, name: str, form: BackfillForm) -> BackfillPreview:
    selection = select(
        offsets=split_list(form.offsets),
        start=form.start or None,
        end=form.end or None,
        retained=form.retained,
        plan=_number(form.plan, "plan"),
        partitions=[_required_number(each, "partitions") for each in split_list(form.partitions)],
    )
    pipeline = context.pipeline(name)
    if form.replace:
        _check_size(pipeline, form)
    return pipeline.backfills.preview(
        selection,
        _chunk(form),
        readable_only=form.readable_only,
        replaces=form.replace,
    )


def _check_size(pipeline: Pipeline, form: BackfillForm) -> None:
    """Refuse a replacement whose preview would read too many ranges of plans."""
    ledger = pipeline.control.summary(pipeline.name)
    ranges = ledger.last_sequence * len(ledger.starts)
    if ranges > MOST_RANGES:
        raise PageTooLarge.of_preview(pipeline.name, form.options(), ranges, MOST_RANGES)


def progress(context: PageContext, name: str) -> Page:
    """The newest recorded backfills with the state of their chunks."""
    pipeline = context.pipeline(name)
    newest = list(reversed(pipeline.control.backfills(name)))[:NEWEST]
    recorded = [recorded_backfill(pipeline, request) for request in newest]
    return context.page("backfills.html", name=name, spec=pipeline.spec, recorded=recorded)


def recorded_backfill(pipeline: Pipeline, request: BackfillRequested) -> RecordedBackfill:
    """Return a recorded backfill with the current state of its chunks."""
    chunks = result_or_error(request.requested_by, lambda by: pipeline.backfills.progress(by))
    return RecordedBackfill(request=request, chunks=chunks)


def _chunk(form: BackfillForm) -> int | None:
    if (chunk := _number(form.chunk, "chunk")) == 0:
        raise InvalidSelection.of_backfill(
            rule="a chunk of at least one offset", seen=repr(form.chunk)
        )
    return chunk


def _number(text: str, field: str) -> int | None:
    return _required_number(text, field) if text.strip() else None


def _required_number(text: str, field: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text):
        raise InvalidSelection.of_backfill(rule=f"{field} as numbers", seen=repr(text))
    return int(text)
