"""Errors of decoding, quarantine and schemas."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class TooManyQuarantined(TerminalError):
    """More of a plan's records cannot be decoded than its spec allows. Nothing was written."""

    pipeline: str
    sequence: int
    quarantined: int
    records: int
    allowed: int
    reasons: tuple[str, ...]

    problem = "Too many records of plan {sequence} of {pipeline!r} cannot be decoded."
    expected = (
        "at most {allowed:,} of {records:,} (decode.quarantine of the spec: records, or percent "
        "where that is more)"
    )
    actual = "{_actual}"
    fix = (
        "Mend the schema or the rules in the spec, or allow more, and decode again. Nothing was "
        "written, and the bronze table has every record."
    )

    @property
    def _actual(self) -> str:
        return f"{self.quarantined:,}: {'; '.join(self.reasons)}"


@dataclass(kw_only=True, eq=False)
class DecoderChanged(TerminalError):
    """A plan was made for another decoder than the spec has now."""

    pipeline: str
    sequence: int
    planned: str
    current: str

    problem = "Plan {sequence} of {pipeline!r} is to be decoded as the spec was before."
    expected = "the section `decode` with the fingerprint {planned}"
    actual = "{current}"
    fix = "Decode again: a plan that has not landed is given up, and made anew."


@dataclass(kw_only=True, eq=False)
class InvalidRule(TerminalError):
    """A row rule that Spark cannot use."""

    pipeline: str
    rule: str
    sql: str
    seen: str

    problem = "The row rule {rule!r} of pipeline {pipeline!r} cannot be used: {sql}."
    expected = "a condition in Spark SQL over the decoded columns, such as value.price > 0"
    actual = "{seen}"
    fix = "Mend decode.rules in the spec; nothing was written."


@dataclass(kw_only=True, eq=False)
class DecodedDifferently(TerminalError):
    """Two drivers of one plan do not agree on what can be decoded; the typed table has neither."""

    pipeline: str
    sequence: int
    quarantined: int
    now: int

    problem = "Plan {sequence} of {pipeline!r} does not decode to the same twice."
    expected = "the {quarantined:,} record(s) in quarantine that another driver put there"
    actual = "{now:,} record(s), or others; a row rule may look at a clock"
    fix = (
        "Mend such a rule; then give the plan up with `tidemark abandon {pipeline} --plan "
        "{sequence} --reason WHY`, and decode again."
    )


@dataclass(kw_only=True, eq=False)
class QuarantineRestored(TerminalError):
    """A RESTORE took out of a quarantine table what landed plans had done to it."""

    pipeline: str
    sequence: int
    table: str
    at: int

    problem = "The quarantine of {pipeline!r} was restored, by version {at} of its table."
    expected = "a table with what plan {sequence} has done to it, which has landed"
    actual = "a RESTORE to a version before it: records are in neither table, or in both"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
        return (
            f"restore {self.table} to version {self.at - 1}, which had all of it "
            "(docs/runbook.md, QuarantineRestored)"
        )


@dataclass(kw_only=True, eq=False)
class SchemaConflict(TerminalError):
    """Records are written with a schema that the typed table's columns cannot take."""

    pipeline: str
    part: str
    schema_id: int
    partition: int
    offset: int
    differences: tuple[str, ...]

    problem = (
        "{pipeline!r} stops at offset {offset} of partition {partition}: its {part} is written "
        "with schema {schema_id}."
    )
    expected = "a schema that differs from those before by fields that are new or gone"
    actual = "{_actual}"
    fix = (
        "What comes before is decoded, and other partitions go on. Begin another table, without "
        "the old records (docs/typed.md, Another schema), or have these quarantined: "
        "decode.quarantine.schemas: [{schema_id}]."
    )

    @property
    def _actual(self) -> str:
        return "; ".join(self.differences)


@dataclass(kw_only=True, eq=False)
class RegistryUnavailable(TransientError):
    """The schema registry gave no answer, or none that says anything."""

    connection: str
    schema_id: int
    reason: str

    problem = "The schema registry of connection {connection!r} did not answer."
    expected = "schema {schema_id}, with which records to be decoded are written"
    actual = "{reason}"
    fix = (
        "Check that the registry is up and that its url can be reached from here, then run the "
        "same command again; nothing was planned."
    )


@dataclass(kw_only=True, eq=False)
class RegistryRefused(TerminalError):
    """The schema registry answered no."""

    connection: str
    schema_id: int
    reason: str

    problem = "The schema registry of connection {connection!r} refused to be asked."
    expected = "schema {schema_id}, with which records to be decoded are written"
    actual = "{reason}"
    fix = (
        "Correct the url and the credentials of the connection (docs/connections.md); nothing was "
        "planned."
    )


@dataclass(kw_only=True, eq=False)
class SchemaReplaced(TerminalError):
    """A schema registry says something else of an id than it did before."""

    connection: str
    schema_id: int

    problem = "The registry of connection {connection!r} is not the one that it was."
    expected = "under id {schema_id} the schema that the table control/schemas has"
    actual = "another one"
    fix = (
        "Correct the connection if it leads to a wrong registry. If the registry was rebuilt, "
        "register the old schemas under their old ids again; for schemas that are lost see "
        "docs/runbook.md, SchemaReplaced. Nothing was planned."
    )


@dataclass(kw_only=True, eq=False)
class NothingToProfile(TerminalError):
    """A pipeline has no records to look at."""

    pipeline: str

    problem = "There is nothing to draft a suite of pipeline {pipeline!r} from."
    expected = "a record that has landed"
    actual = "none in its data table"
    fix = "Land some: tidemark ingest {pipeline}."
