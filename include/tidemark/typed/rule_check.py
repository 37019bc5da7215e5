"""Checks row rules without Spark: their syntax, and the columns and fields that they name.

Spark decides at decoding whether a rule is valid. sqlglot may not parse all of Spark's syntax, so
the results are warnings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.core.plain import record_of
from tidemark.core.suggestions import did_you_mean
from tidemark.lake.columns import BRONZE_SCHEMA
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleWarning:
    """A row rule that Spark will probably refuse.

    Attributes:
        rule: Name of the rule.
        sql: The rule.
        problem: The reason, with a suggestion if a known name is similar.
    """

    rule: str
    sql: str
    problem: str

    def as_record(self) -> dict[str, str]:
        """Return plain values, for `--json`."""
        return record_of(self)


def rule_warnings(decode: DecodeSpec) -> tuple[RuleWarning, ...]:
    """Return the row rules with a wrong syntax, or with unknown columns or fields.

    Fields are known if the spec has the schema. Fields of maps, of function results and of lambda
    arguments are not checked.
    """
    return tuple(
        RuleWarning(rule=name, sql=sql, problem=problem)
        for name, sql in decode.rules
        if (problem := _problem(sql, decode))
    )


def _problem(sql: str, decode: DecodeSpec) -> str | None:
    import sqlglot
    from sqlglot import expressions
    from sqlglot.errors import SqlglotError

    try:
        statements = sqlglot.parse(sql, read="spark")
    except SqlglotError as wrong:
        # Cut sqlglot's position and class from the message.
        return "invalid syntax: " + re.split(r"\. Line | for <class ", str(wrong))[0]
    if len(statements) != 1 or statements[0] is None:
        return f"a rule must be one condition; this one has {len(statements)} statements"
    lambdas = statements[0].find_all(expressions.Lambda)
    arguments = {each.name for made in lambdas for each in made.expressions}
    for column in statements[0].find_all(expressions.Column):
        first, *fields = (part.name for part in column.parts)
        if first not in arguments and (problem := _unknown(first, fields, decode)):
            return problem
    return None


def _unknown(first: str, fields: Sequence[str], decode: DecodeSpec) -> str | None:
    """Return the problem of a column's path; None if all its parts are known. Ignores case."""
    columns: dict[str, FieldType | None] = {field.name: None for field in BRONZE_SCHEMA.fields}
    columns |= {part.value: spec.column for part, spec in decode.parts.items()}
    if first.lower() not in columns:
        value = columns[Part.VALUE.value]
        if isinstance(value, Struct) and first.lower() in _by_lower_case(value):
            return f"no column {first!r} (did you mean 'value.{first}'?)"
        return f"no column {first!r}{did_you_mean(first, columns)}"
    place, kind = first, columns[first.lower()]
    for field in fields:
        while isinstance(kind, ListOf):
            kind = kind.element
        if isinstance(kind, str | Decimal):
            return f"{place} of type {kind} has no field {field!r}"
        if not isinstance(kind, Struct):
            return None
        known = _by_lower_case(kind)
        if field.lower() not in known:
            names = [name for name, _ in kind.fields]
            return f"{place} has no field {field!r}{did_you_mean(field, names)}"
        place, kind = f"{place}.{field}", known[field.lower()]
    return None


def _by_lower_case(kind: Struct) -> Mapping[str, FieldType]:
    return {name.lower(): each for name, each in kind.fields}
