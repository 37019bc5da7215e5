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

    def what(self) -> str:
        return f"too many records of plan {self.sequence} of {self.pipeline!r} cannot be decoded"

    def expected(self) -> str:
        return (
            f"at most {self.allowed:,} of {self.records:,} (decode.quarantine of the spec: "
            "records, or percent where that is more)"
        )

    def found(self) -> str:
        return f"{self.quarantined:,}: {'; '.join(self.reasons)}"

    def remedy(self) -> str:
        return (
            "mend the schema or the rules in the spec, or allow more, and decode again. Nothing "
            "was written, and the bronze table has every record"
        )


@dataclass(kw_only=True, eq=False)
class DecoderChanged(TerminalError):
    """A plan was made for another decoder than the spec has now."""

    pipeline: str
    sequence: int
    planned: str
    current: str

    def what(self) -> str:
        return f"plan {self.sequence} of {self.pipeline!r} is to be decoded as the spec was before"

    def expected(self) -> str:
        return f"the section `decode` with the fingerprint {self.planned}"

    def found(self) -> str:
        return self.current

    def remedy(self) -> str:
        return "decode again: a plan that has not landed is given up, and made anew"


@dataclass(kw_only=True, eq=False)
class InvalidRule(TerminalError):
    """A row rule that Spark cannot use."""

    pipeline: str
    rule: str
    sql: str
    seen: str

    def what(self) -> str:
        return (
            f"the row rule {self.rule!r} of pipeline {self.pipeline!r} cannot be used: {self.sql}"
        )

    def expected(self) -> str:
        return "a condition in Spark SQL over the decoded columns, such as value.price > 0"

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return "mend decode.rules in the spec; nothing was written"


@dataclass(kw_only=True, eq=False)
class DecodedDifferently(TerminalError):
    """Two drivers of one plan do not agree on what can be decoded; the typed table has neither."""

    pipeline: str
    sequence: int
    quarantined: int
    now: int

    def what(self) -> str:
        return f"plan {self.sequence} of {self.pipeline!r} does not decode to the same twice"

    def expected(self) -> str:
        return f"the {self.quarantined:,} record(s) in quarantine that another driver put there"

    def found(self) -> str:
        return f"{self.now:,} record(s), or others; a row rule may look at a clock"

    def remedy(self) -> str:
        return (
            "mend such a rule; then give the plan up with `tidemark abandon "
            f"{self.pipeline} --plan {self.sequence} --reason WHY`, and decode again"
        )


@dataclass(kw_only=True, eq=False)
class QuarantineRestored(TerminalError):
    """A RESTORE took out of a quarantine table what landed plans had done to it."""

    pipeline: str
    sequence: int
    table: str
    at: int

    def what(self) -> str:
        return (
            f"the quarantine of {self.pipeline!r} was restored, by version {self.at} of its table"
        )

    def expected(self) -> str:
        return f"a table with what plan {self.sequence} has done to it, which has landed"

    def found(self) -> str:
        return "a RESTORE to a version before it: records are in neither table, or in both"

    def remedy(self) -> str:
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

    def what(self) -> str:
        return (
            f"{self.pipeline!r} stops at offset {self.offset} of partition {self.partition}: its "
            f"{self.part} is written with schema {self.schema_id}"
        )

    def expected(self) -> str:
        return "a schema that differs from those before by fields that are new or gone"

    def found(self) -> str:
        return "; ".join(self.differences)

    def remedy(self) -> str:
        return (
            "what comes before is decoded, and other partitions go on. Begin another table, "
            "without the old records (docs/typed.md, Another schema), or have these quarantined: "
            f"decode.quarantine.schemas: [{self.schema_id}]"
        )


@dataclass(kw_only=True, eq=False)
class RegistryUnavailable(TransientError):
    """The schema registry gave no answer, or none that says anything."""

    connection: str
    schema_id: int
    reason: str

    def what(self) -> str:
        return f"the schema registry of connection {self.connection!r} did not answer"

    def expected(self) -> str:
        return f"schema {self.schema_id}, with which records to be decoded are written"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "check that the registry is up and that its url can be reached from here, then run "
            "the same command again; nothing was planned"
        )


@dataclass(kw_only=True, eq=False)
class RegistryRefused(TerminalError):
    """The schema registry answered no."""

    connection: str
    schema_id: int
    reason: str

    def what(self) -> str:
        return f"the schema registry of connection {self.connection!r} refused to be asked"

    def expected(self) -> str:
        return f"schema {self.schema_id}, with which records to be decoded are written"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "correct the url and the credentials of the connection (docs/connections.md); nothing "
            "was planned"
        )


@dataclass(kw_only=True, eq=False)
class SchemaReplaced(TerminalError):
    """A schema registry says something else of an id than it did before."""

    connection: str
    schema_id: int

    def what(self) -> str:
        return f"the registry of connection {self.connection!r} is not the one that it was"

    def expected(self) -> str:
        return f"under id {self.schema_id} the schema that the table control/schemas has"

    def found(self) -> str:
        return "another one"

    def remedy(self) -> str:
        return (
            "correct the connection if it leads to a wrong registry. If the registry was rebuilt, "
            "register the old schemas under their old ids again; for schemas that are lost see "
            "docs/runbook.md, SchemaReplaced. Nothing was planned"
        )


@dataclass(kw_only=True, eq=False)
class NothingToProfile(TerminalError):
    """A pipeline has no records to look at."""

    pipeline: str

    def what(self) -> str:
        return f"there is nothing to draft a suite of pipeline {self.pipeline!r} from"

    def expected(self) -> str:
        return "a record that has landed"

    def found(self) -> str:
        return "none in its data table"

    def remedy(self) -> str:
        return f"land some: tidemark ingest {self.pipeline}"
