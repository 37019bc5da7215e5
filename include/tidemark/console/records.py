"""The page of records: each offset with Kafka's record, the table's rows, and why one is absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import AwareDatetime, BaseModel, Field

from tidemark.console.context import Page, PageContext
from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_or_error
from tidemark.core.payload_text import PayloadText
from tidemark.core.record import LogRecord
from tidemark.pipeline import Pipeline
from tidemark.report.record_page import RecordPage, json_value

COUNT = 50
"""Offsets of a page."""


class RecordPlace(BaseModel):
    """Which offsets the page shows, from its address. The topic id makes a link permanent.

    Attributes:
        partition: Partition number.
        offset: First offset; 0 without an offset and a time.
        time: Show the offsets from the first record at or after this time on.
        topic_id: Incarnation of the topic; None for the one that the pipeline reads.
    """

    partition: int = Field(default=0, ge=0, le=2**31 - 1)
    offset: int | None = Field(default=None, ge=0, le=2**62)
    time: AwareDatetime | None = None
    topic_id: str | None = Field(default=None, max_length=64)


def page(context: PageContext, name: str, place: RecordPlace) -> Page:
    """The records from a place on. Payloads need the right to read the Kafka connection."""
    pipeline = context.pipeline(name)
    found = result_or_error(name, lambda _: _read(pipeline, place))
    shown = None if isinstance(found, TidemarkError) else found
    return context.page(
        "records.html",
        name=name,
        spec=pipeline.spec,
        place=place,
        found=shown,
        error=found if isinstance(found, TidemarkError) else None,
        has_payloads=context.viewer.may_read_payloads(pipeline.spec),
        first=shown.entries[0].offset if shown else 0,
        count=COUNT,
        payload=_payload,
        parts=_parts,
        decoded=_decoded,
    )


def _read(pipeline: Pipeline, place: RecordPlace) -> RecordPage:
    start = place.offset
    if start is None:
        moment = place.time
        start = 0 if moment is None else pipeline.offset_at(place.partition, moment)
    return pipeline.records(place.partition, start, COUNT, place.topic_id)


def _payload(payload: bytes | None) -> PayloadText | None:
    return None if payload is None else PayloadText.of(payload)


def _parts(record: LogRecord, *, has_names: bool) -> list[tuple[str, bytes | None]]:
    """Return key, value and headers of a record, each with its name."""
    headers = [
        (f"header {name}" if has_names else "header", value) for name, value in record.headers or ()
    ]
    return [("key", record.key), ("value", record.value), *headers]


def _decoded(values: Mapping[str, Any]) -> PayloadText:
    """Return decoded values as JSON."""
    return PayloadText.of(json.dumps(json_value(values), ensure_ascii=False).encode())
