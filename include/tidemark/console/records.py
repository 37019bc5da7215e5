"""The page of records: each offset with Kafka's record, the table's rows, and why one is absent."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from tidemark.app.pipeline import Pipeline
from tidemark.console.context import Page, PageContext
from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_or_error
from tidemark.core.payload_text import PayloadText
from tidemark.core.record import Headers, LogRecord
from tidemark.core.texts import parse_time
from tidemark.ops.report.record_page import RecordEntry, RecordPage, decoded_values

COUNT = 50
"""Offsets of a page."""
FEW = 5
"""Maximum number of offsets of a page on which all records are open."""
MAX_OFFSET = 2**62
"""Highest first offset of a page."""
MAX_CHARACTERS = 400_000
"""Characters of payloads on a page. The payload that exceeds this limit is the last with text."""
MAX_HEADERS = 50
"""Headers of a record on a page."""
MAX_NAME = 200
"""Characters of a header's name on a page."""


def _time(text: str) -> datetime:
    """Return the time of an address. The `+` of a pasted UTC offset arrives as a space."""
    return parse_time(text.replace(" ", "+"))


class RecordPlace(BaseModel):
    """Which offsets the page shows, from its address. The topic id makes a link permanent.

    Attributes:
        partition: Partition number.
        offset: First offset; 0 without an offset and a time.
        time: Show the offsets from the first record at or after this time on.
        topic_id: Incarnation of the topic; None for the one that the pipeline reads.
    """

    partition: int = Field(default=0, ge=0, le=2**31 - 1)
    offset: int | None = Field(default=None, ge=0, le=MAX_OFFSET)
    time: Annotated[datetime, BeforeValidator(_time)] | None = None
    topic_id: str | None = Field(default=None, max_length=64)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave out empty values, because a form sends its empty fields."""
        return {name: value for name, value in values.items() if value != ""}


def page(context: PageContext, name: str, place: Annotated[RecordPlace, Query()]) -> Page:
    """The records from a place on. Payloads need the right to read the Kafka connection."""
    pipeline = context.pipeline(name)
    found = result_or_error(name, lambda _: _read(pipeline, place))
    shown = None if isinstance(found, TidemarkError) else found
    has_payloads = context.viewer.may_read_payloads(pipeline.spec)
    texts = _RecordTexts(shown.masked if shown else (), has_payloads=has_payloads)
    return context.page(
        "records.html",
        name=name,
        spec=pipeline.spec,
        place=place,
        found=shown,
        error=found if isinstance(found, TidemarkError) else None,
        has_payloads=has_payloads,
        first=shown.entries[0].offset if shown else place.offset or 0,
        count=COUNT,
        few=FEW,
        first_record=next((each.offset for each in shown.entries if each.shown), None)
        if shown
        else None,
        last=MAX_OFFSET,
        texts=texts,
        command=lambda offset: _command(name, shown, offset) if shown else "",
    )


def _read(pipeline: Pipeline, place: RecordPlace) -> RecordPage:
    start = place.offset or 0
    if place.offset is None and place.time is not None:
        start = pipeline.offsets.at(place.partition, place.time, place.topic_id)
    return pipeline.report.records.page(place.partition, start, COUNT, place.topic_id)


def _command(name: str, page: RecordPage, offset: int) -> str:
    """Return the command that prints one record completely."""
    place = {"--partition": page.partition, "--offset": offset, "--topic-id": page.topic_id}
    words = [str(word) for option in place.items() for word in option]
    return shlex.join(["tidemark", "records", name, *words, "--count", "1", "--json"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPart:
    """Key, value, a header, all headers, or the decoded values of a record.

    Attributes:
        title: Name of the part.
        facts: Its size and form.
        text: Its content; None if it is null, or not shown.
        is_cut: Whether the page lacks some of it because it is large.
    """

    title: str
    facts: str
    text: str | None = None
    is_cut: bool = False


class _RecordTexts:
    """Texts of the records of a page, which together have about `MAX_CHARACTERS`.

    Args:
        masked: Those of `key`, `value` and `headers` that the suite hides.
        has_payloads: Whether the viewer may read payloads.
    """

    def __init__(self, masked: Collection[str], *, has_payloads: bool) -> None:
        self._masked = masked
        self._has_payloads = has_payloads
        self._left = MAX_CHARACTERS

    def parts(self, entry: RecordEntry) -> list[RecordPart]:
        """Return the parts of an offset; none without a record."""
        if entry.shown is None:
            return []
        parts = self.of_record(entry.shown)
        decoding = entry.decoding
        if decoding and decoding.values and self._has_payloads:
            values = json.dumps(decoded_values(decoding, self._masked), ensure_ascii=False)
            parts.append(self._part("decoded", values.encode("utf-8", "replace")))
        return parts

    def of_record(self, record: LogRecord) -> list[RecordPart]:
        """Return the parts of one record, of Kafka or of a row."""
        return [
            self._part("key", record.key, is_masked="key" in self._masked),
            self._part("value", record.value, is_masked="value" in self._masked),
            *self._headers(record.headers or ()),
        ]

    def _headers(self, headers: Headers) -> Sequence[RecordPart]:
        count = f"{len(headers):,}"
        if not headers:
            return ()
        if not self._has_payloads:
            return [RecordPart(title="headers", facts=count)]
        if "headers" in self._masked:
            return [RecordPart(title="headers", facts=f"{count}, masked")]
        if self._left <= 0:
            return [RecordPart(title="headers", facts=f"{count}, not shown", is_cut=True)]
        parts = [self._header(name, value) for name, value in headers[:MAX_HEADERS]]
        more = len(headers) - len(parts)
        if more:
            parts.append(RecordPart(title="headers", facts=f"{more:,} more", is_cut=True))
        return parts

    def _header(self, name: str, value: bytes | None) -> RecordPart:
        is_long = len(name) > MAX_NAME
        shown = f"{name[:MAX_NAME]} …" if is_long else name
        self._left -= len(shown)
        part = self._part(f"header {shown}", value)
        return replace(part, is_cut=part.is_cut or is_long)

    def _part(self, title: str, payload: bytes | None, *, is_masked: bool = False) -> RecordPart:
        if payload is None:
            return RecordPart(title=title, facts="null")
        size = f"{len(payload):,} B"
        if not self._has_payloads:
            return RecordPart(title=title, facts=size)
        if is_masked:
            return RecordPart(title=title, facts=f"{size}, masked")
        if self._left <= 0:
            return RecordPart(title=title, facts=f"{size}, not shown", is_cut=True)
        shown = PayloadText.of(payload)
        self._left -= len(shown.text)
        return RecordPart(
            title=title,
            facts=f"{size}, {shown.encoding}",
            text=f"{shown.text} …" if shown.truncated else shown.text,
            is_cut=shown.truncated,
        )
