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
    """Return row rules with wrong syntax, unknown columns or fields, or a type other than boolean.

    Fields are known if the spec has the schema. Fields of maps, of function results and of lambda
    arguments are not checked. A function counts as a condition.
    """
    return tuple(
        RuleWarning(rule=name, sql=sql, problem=problem)
        for name, sql in decode.rules
        if (problem := rule_problem(sql, decode))
    )


def rule_problem(sql: str, decode: DecodeSpec) -> str | None:
    """Return why Spark will probably refuse a row rule; None without a known reason."""
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
    rule = statements[0].unnest()
    lambdas = rule.find_all(expressions.Lambda)
    arguments = {each.name for made in lambdas for each in made.expressions}
    for column in rule.find_all(expressions.Column):
        first, *fields = (part.name for part in column.parts)
        if first not in arguments:
            kind = _type_of(first, fields, decode)
            if isinstance(kind, _PathProblem):
                return kind.problem
            if column is rule and kind not in (None, "boolean"):
                of_type = f" of type {kind}" if isinstance(kind, str | Decimal) else ""
                return f"{column.sql('spark')}{of_type} is not a condition"
    arithmetic = expressions.Add, expressions.Sub, expressions.Mul, expressions.Div, expressions.Neg
    if isinstance(rule, (expressions.Literal, *arithmetic)):
        return "a number or a text is not a condition"
    return None


@dataclass(frozen=True, slots=True)
class _PathProblem:
    """The problem of a path with an unknown column or field."""

    problem: str


def _type_of(
    first: str, fields: Sequence[str], decode: DecodeSpec
) -> FieldType | _PathProblem | None:
    """Return the type or the problem of a column's path; None if not checked. Ignores case."""
    columns: dict[str, FieldType | None] = {field.name: None for field in BRONZE_SCHEMA.fields}
    columns |= {part.value: spec.column for part, spec in decode.parts.items()}
    if first.lower() not in columns:
        value = columns[Part.VALUE.value]
        if isinstance(value, Struct) and first.lower() in _by_lower_case(value):
            return _PathProblem(f"no column {first!r} (did you mean 'value.{first}'?)")
        similar = did_you_mean(first, columns)
        hint = similar or " (a field of the value is value.FIELD)"
        return _PathProblem(f"no column {first!r}{hint}")
    place, kind = first, columns[first.lower()]
    for field in fields:
        while isinstance(kind, ListOf):
            kind = kind.element
        if isinstance(kind, str | Decimal):
            return _PathProblem(f"{place} of type {kind} has no field {field!r}")
        if not isinstance(kind, Struct):
            return None
        known = _by_lower_case(kind)
        if field.lower() not in known:
            names = [name for name, _ in kind.fields]
            return _PathProblem(f"{place} has no field {field!r}{did_you_mean(field, names)}")
        place, kind = f"{place}.{field}", known[field.lower()]
    return kind


def _by_lower_case(kind: Struct) -> Mapping[str, FieldType]:
    return {name.lower(): each for name, each in kind.fields}
