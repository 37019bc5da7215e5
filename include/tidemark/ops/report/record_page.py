"""Records of a partition side by side: Kafka's, the bronze table's, and the decoded ones."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from tidemark.core.errors import TidemarkError
from tidemark.core.plain import payload_value
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import Watermarks
from tidemark.ops.report.absence import AbsenceReason, KafkaState
from tidemark.quality.check_results import MASKED


class PagePart(StrEnum):
    """A part of a page. An error affects only its own part."""

    KAFKA = "Kafka"
    CONTROL = "control table"
    BRONZE = "bronze table"
    TYPED = "typed table"
    QUARANTINE = "quarantine"


class DecodingState(StrEnum):
    """The state of a landed record in the typed table."""

    DECODED = "decoded"
    QUARANTINED = "quarantined"
    NOT_DECODED = "not decoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class BronzeRow:
    """A row of the bronze table.

    Attributes:
        plan: Number of the plan that landed the row.
        record: The record.
        is_recorded: Whether the plan holds rows by the control table. It holds none before its
            landing is recorded, and after its undo, whose effect a RESTORE can revert. None if the
            control table has an error.
    """

    plan: int
    record: LogRecord
    is_recorded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """The record in the typed table or in quarantine.

    Attributes:
        state: Where it is.
        plan: Number of the bronze plan; None if the record is not decoded.
        values: Decoded key and value, and their schema ids.
        reason: Why the record is in quarantine.
    """

    state: DecodingState
    plan: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEntry:
    """One offset.

    Attributes:
        offset: Offset. With the topic id and the partition of the page, it identifies the record.
        kafka: Kafka's answer.
        record: Kafka's record, if Kafka has one.
        rows: Rows of the bronze table: none, one, or duplicates.
        absence: Why there is no row; None with a row, or if a table has an error.
        decoding: The record in the typed table; None without one.
    """

    offset: int
    kafka: KafkaState
    record: LogRecord | None = None
    rows: tuple[BronzeRow, ...] = ()
    absence: AbsenceReason | None = None
    decoding: Decoding | None = None

    @property
    def shown(self) -> LogRecord | None:
        """The record to show: Kafka's, otherwise the first row's."""
        return self.record or (self.rows[0].record if self.rows else None)

    @property
    def differs(self) -> tuple[str, ...]:
        """The fields in which a row differs from Kafka's record.

        Header names that the reader cannot decode are not compared.
        """
        if self.record is None:
            return ()
        return tuple(
            name
            for name in ("key", "value", "headers", "timestamp_ms", "timestamp_type")
            if any(_differs(name, self.record, row.record) for row in self.rows)
        )

    def as_record(self, *, payloads: bool = True, masked: Collection[str] = ()) -> dict[str, Any]:
        """Return the offset as plain values, optionally without keys, values and headers.

        Args:
            payloads: Whether to return keys, values and headers.
            masked: Those of `key`, `value` and `headers` whose contents are replaced by sizes.
        """
        decoding = self.decoding
        absence = self.absence
        of_record = partial(record_values, payloads=payloads, masked=masked)
        return {
            "offset": self.offset,
            "kafka": self.kafka.value,
            "record": self.record and of_record(self.record),
            "rows": [
                {"plan": row.plan, "recorded": row.is_recorded, **of_record(row.record)}
                for row in self.rows
            ],
            "differs": list(self.differs),
            "absence": absence
            and {"state": absence.state.value, "plan": absence.plan, "detail": absence.detail},
            "decoding": decoding
            and {
                "state": decoding.state.value,
                "plan": decoding.plan,
                "reason": decoding.reason,
                **({"values": decoded_values(decoding, masked)} if payloads else {}),
            },
        }


def _differs(name: str, one: LogRecord, other: LogRecord) -> bool:
    if name == "headers":
        return one.headers is not None and _headers(one) != _headers(other)
    return bool(getattr(one, name) != getattr(other, name))


def _headers(record: LogRecord) -> list[tuple[str, bytes | None]]:
    """Return the headers, with the names as librdkafka cuts them."""
    return [(name.partition("\0")[0], value) for name, value in record.headers or ()]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """Consecutive offsets of a partition of one incarnation of a topic.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name. It is the landed topic's name, even if the spec names another topic.
        topic_id: Kafka's id of the incarnation of the topic.
        partition: Partition number.
        watermarks: Watermarks of the partition; None if Kafka's topic is another incarnation, or
            Kafka did not answer.
        entries: The offsets.
        errors: Errors by part. A part with an error is missing, incomplete, or differs from the
            other parts.
        masked: Those of `key`, `value` and `headers` that the suite hides. The entries have them,
            to compare them; no page or command shows them.
    """

    pipeline: str
    topic: str
    topic_id: str
    partition: int
    watermarks: Watermarks | None
    entries: tuple[RecordEntry, ...]
    errors: Mapping[PagePart, TidemarkError]
    masked: frozenset[str] = frozenset()

    def as_record(self, *, payloads: bool = True) -> dict[str, Any]:
        """Return the page as plain values, optionally without keys, values and headers."""
        return {
            "pipeline": self.pipeline,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "low_watermark": self.watermarks and self.watermarks.low,
            "end": self.watermarks and self.watermarks.end,
            "records": [
                each.as_record(payloads=payloads, masked=self.masked) for each in self.entries
            ],
            "errors": {part.value: error.as_record() for part, error in self.errors.items()},
        }


def record_values(
    record: LogRecord,
    *,
    payloads: bool = True,
    masked: Collection[str] = (),
    max_bytes: int | None = None,
) -> dict[str, Any]:
    """Return a record as plain values: payloads as text if they are UTF-8, otherwise in base64.

    Args:
        record: The record.
        payloads: Whether to return keys, values and headers.
        masked: Those of `key`, `value` and `headers` whose contents are replaced by sizes.
        max_bytes: Maximum number of bytes of each payload; longer ones are cut. None for all.
    """
    sizes = {
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": record.timestamp_type.name.lower(),
        "size": record.size,
    }
    if not payloads:
        return sizes
    shown = partial(_payload_values, max_bytes=max_bytes)
    return {
        **sizes,
        "key": shown(record.key, is_masked="key" in masked),
        "value": shown(record.value, is_masked="value" in masked),
        "headers": None
        if record.headers is None
        else [
            {
                "name": MASKED if "headers" in masked else name,
                "value": shown(value, is_masked="headers" in masked),
            }
            for name, value in record.headers
        ],
    }


def _payload_values(
    payload: bytes | None, *, is_masked: bool = False, max_bytes: int | None = None
) -> dict[str, Any] | None:
    if payload is None:
        return None
    if is_masked:
        return {"encoding": None, "text": MASKED, "size": len(payload)}
    start = payload[:max_bytes]
    is_cut = len(start) < len(payload)
    cut = {"truncated": True, "size": len(payload)} if is_cut else {}
    try:
        # The limit may cut the last character.
        text = codecs.getincrementaldecoder("utf-8")().decode(start, not is_cut)
    except UnicodeDecodeError:
        return {"encoding": "base64", "text": base64.b64encode(start).decode(), **cut}
    return {"encoding": "UTF-8", "text": text, **cut}


def decoded_values(decoding: Decoding, masked: Collection[str]) -> dict[str, Any]:
    """Return the decoded values as JSON types; of masked columns only whether they are null."""
    return {
        name: MASKED
        if name in masked and value is not None
        else payload_value(value, _payload_values)
        for name, value in decoding.values.items()
    }
