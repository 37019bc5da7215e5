"""References to a pipeline, to one of its tables, and to work on a table without a plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from tidemark.core.errors import InvalidReference
from tidemark.core.plan import PlanRef
from tidemark.spec.decode import QuarantineReason


class PipelineKind(StrEnum):
    """The tables of a pipeline."""

    LIVE = "live"
    """The bronze table, which follows the topic."""
    TYPED = "typed"
    """The decoded records of the live bronze table."""
    QUARANTINE = "quarantine"
    """The records that could not be decoded."""
    UPSERT = "upsert"
    """The newest decoded record of each key."""


_NAMED = {str(kind): kind for kind in PipelineKind if kind is not PipelineKind.LIVE}


@dataclass(frozen=True, slots=True, order=True)
class PipelineRef:
    """One table of a pipeline. Its text is `prices` or `prices@typed`.

    Attributes:
        name: Name of the pipeline.
        kind: The table.
    """

    name: str
    kind: PipelineKind = PipelineKind.LIVE

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the reference of a text. Raise `InvalidReference` for an unknown kind of table."""
        name, at, table = text.partition("@")
        if not at:
            return cls(name)
        if table not in _NAMED:
            raise InvalidReference.of_name(
                rule=f"one of {', '.join(_NAMED)} after @", seen=repr(table)
            )
        return cls(name, _NAMED[table])

    def __str__(self) -> str:
        return self.name if self.kind is PipelineKind.LIVE else f"{self.name}@{self.kind}"

    @property
    def live(self) -> PipelineRef:
        """The live bronze table of the same pipeline."""
        return PipelineRef(self.name)

    def of_kind(self, kind: PipelineKind) -> PipelineRef:
        """Return the table of this kind of the same pipeline."""
        return PipelineRef(self.name, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRef:
    """A merge of an upsert table. Its text is `prices=57`.

    Attributes:
        pipeline: Name of the pipeline.
        version: The upsert table contains at least this version of the typed table afterwards.
    """

    pipeline: str
    version: int

    def __str__(self) -> str:
        return f"{self.pipeline}={self.version}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the merge of a text; raises ValueError unless it is PIPELINE=NUMBER."""
        numbered = PlanRef.parse(text)
        return cls(pipeline=numbered.pipeline, version=numbered.sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Records in quarantine to decode again. Its text is `3/malformed`, with `*` for all.

    Attributes:
        partition: Only records of this partition; None for all.
        reason: Only records with this reason; None for all.
    """

    partition: int | None = None
    reason: QuarantineReason | None = None

    def __str__(self) -> str:
        partition = "*" if self.partition is None else self.partition
        return f"{partition}/{self.reason or '*'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRef:
    """A decode of a pipeline. Its text is `prices`, or `prices=3/malformed` with a replay.

    Attributes:
        pipeline: Name of the pipeline.
        replay: The records in quarantine to decode again first; None for no replay.
    """

    pipeline: str
    replay: Replay | None = None

    def __str__(self) -> str:
        return self.pipeline if self.replay is None else f"{self.pipeline}={self.replay}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the decode of a text; raises ValueError unless it is in one of the forms above."""
        found = re.fullmatch(r"([^=]+)(?:=(\*|[0-9]+)/(\*|[a-z0-9_]+))?", text)
        if found is None:
            raise ValueError(f"PIPELINE or PIPELINE=PARTITION/REASON, not {text!r}")
        pipeline, partition, reason = found.groups()
        if partition is None:
            return cls(pipeline=pipeline)
        replay = Replay(
            partition=None if partition == "*" else int(partition),
            reason=None if reason == "*" else QuarantineReason(reason),
        )
        return cls(pipeline=pipeline, replay=replay)
