"""Errors of decoding, quarantine and schemas."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import PipelineError, TerminalError, TidemarkError, TransientError


@dataclass(kw_only=True, eq=False)
class TooManyQuarantined(PipelineError, TerminalError):
    """More records of a decode's round fail than the spec allows."""

    sequence: int
    quarantined: int
    records: int
    allowed: int
    reasons: tuple[str, ...]

    problem = (
        "Decoding {pipeline!r} from plan {sequence} on would quarantine too many records: "
        "{counted_reasons}."
    )
    expected = "at most {allowed:,} of {records:,} records in quarantine"
    actual = "{quarantined:,} records"
    fix = (
        "Correct the schema or the rules under `decode` in the spec, or raise "
        "`decode.quarantine.percent` (default 10) or `records`; then run `tidemark decode "
        "{pipeline}`. The landed records are unchanged."
    )

    @property
    def counted_reasons(self) -> str:
        """The most frequent reasons, each with its number of records."""
        return "; ".join(self.reasons)


@dataclass(kw_only=True, eq=False)
class SchemaConflict(PipelineError, TerminalError):
    """The columns of the typed table cannot store the records of a schema."""

    part: str
    schema_id: int
    partition: int
    offset: int
    differences: tuple[str, ...]

    problem = (
        "Schema {schema_id} of the {part} at offset {offset} of partition {partition} does not fit "
        "the columns of the typed table of {pipeline!r}: {all_differences}."
    )
    fix = (
        "Quarantine the records of this schema with `decode.quarantine.schemas: [{schema_id}]`. "
        "For an intended change, quarantine the old schemas instead, then run `tidemark decode "
        "{pipeline} --from-scratch --reason TEXT` (docs/how-to/typed.md, Correct a wrong schema). "
        "Other plans are decoded. This one waits with all of its records."
    )

    @property
    def all_differences(self) -> str:
        """The differences between the schema and the columns."""
        return "; ".join(self.differences)


@dataclass(kw_only=True, eq=False)
class SpecOutdated(PipelineError, TerminalError):
    """A typed table was decoded from scratch with another spec since its decode with this one.

    A retry does not help: the spec can also be the newest one, after a revert.
    """

    problem = (
        "The spec of {pipeline!r} is outdated: its typed table was decoded from scratch with "
        "another spec since."
    )
    fix = (
        "Deploy the newer spec wherever this pipeline runs, then clear the failed task or run "
        "`tidemark decode {pipeline}`. To return to this spec, run `tidemark decode {pipeline} "
        "--from-scratch --reason TEXT` with it. No record was decoded."
    )


@dataclass(kw_only=True, eq=False)
class RegistryFailure(TidemarkError):
    """The schema registry did not return a schema, or report its id as unknown."""

    connection: str
    schema_id: int
    reason: str


@dataclass(kw_only=True, eq=False)
class RegistryUnavailable(RegistryFailure, TransientError):
    """The schema registry did not answer, or failed."""

    problem = (
        "The schema registry of connection {connection!r} did not return schema {schema_id}: "
        "{reason}."
    )
    fix = (
        "Check that the registry runs and that this machine can reach the url of the connection, "
        "then run the command again. No spec was written, and no record of this schema was decoded."
    )


@dataclass(kw_only=True, eq=False)
class RegistryRefused(RegistryFailure, TerminalError):
    """The schema registry rejected the request, or is not a schema registry."""

    problem = (
        "The schema registry of connection {connection!r} rejected the request for schema "
        "{schema_id}: {reason}."
    )
    fix = (
        "Correct the url and the credentials of the connection (docs/how-to/connections.md). "
        "No spec was written, and no record of this schema was decoded."
    )


@dataclass(kw_only=True, eq=False)
class SchemaReplaced(TerminalError):
    """A schema registry now returns a different schema for an id."""

    connection: str
    schema_id: int

    problem = (
        "The registry of connection {connection!r} now returns a different schema for id "
        "{schema_id}."
    )
    fix = (
        "Correct the connection if it points to a wrong registry. If the registry was rebuilt, "
        "register the old schemas under their old ids again; for lost schemas see the runbook. "
        "No record of this schema was decoded."
    )
