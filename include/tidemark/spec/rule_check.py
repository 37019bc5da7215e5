"""Checks Spark SQL of specs and suites without Spark: syntax, columns and fields.

sqlglot parses the texts. It does not parse `>>>`, `column:path`, and some keywords that are names
without backticks. Both parse another form of each: a function, or a name in backticks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.core.texts import did_you_mean
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct
from tidemark.spec.flattening import OWN_COLUMNS, TOMBSTONE

if TYPE_CHECKING:
    from sqlglot.expressions import Condition

_NOT_OF_ROWS = {TOMBSTONE, "deleted", *(part.schema_id for part in Part)}
"""Columns of some typed tables and of upsert tables, which row rules cannot name."""


class _InvalidSql(ValueError):
    """A text is not one expression of Spark SQL. The message has the place."""


def syntax_problem(sql: str) -> str | None:
    """Return why a text is not one expression of Spark SQL, with the place; None if it is one."""
    try:
        _parsed(sql)
    except _InvalidSql as invalid:
        return str(invalid)
    return None


def _parsed(sql: str) -> Condition:
    """Return a parsed expression, or raise _InvalidSql."""
    import sqlglot
    from sqlglot import expressions
    from sqlglot.errors import ParseError, SqlglotError

    if not sql.strip():
        raise _InvalidSql("an empty text")
    try:
        parsed = sqlglot.parse_one(sql, read="spark", into=expressions.Condition)
    except ParseError as wrong:
        if not wrong.errors:
            raise _InvalidSql("a text without an expression") from None
        first = wrong.errors[0]
        place = f"line {first['line']}, column {first['col'] - len(first['highlight']) + 1}"
        why = first["description"]
        if why.startswith("Required keyword"):
            why = "a part of the expression is missing"
        elif why.startswith("Invalid expression"):
            why = "unexpected text"
        raise _InvalidSql(f"invalid syntax at {first['highlight']!r} ({place}): {why}") from None
    except SqlglotError:
        rule = "invalid syntax: a quote, a backtick or a comment has no end"
        raise _InvalidSql(rule) from None
    except RecursionError:
        raise _InvalidSql("an expression with too many levels") from None
    if isinstance(parsed, expressions.Block):
        raise _InvalidSql(f"{len(parsed.expressions)} expressions instead of one")
    return parsed


def rule_problem(sql: str, decode: DecodeSpec) -> str | None:
    """Return why Spark would refuse a row rule; None without a known reason.

    Reasons are wrong syntax, unknown columns or fields, and a type other than boolean. Fields are
    known if the spec has the schema. Fields of maps, of function results and of lambda arguments
    are not checked. A function counts as a condition.
    """
    try:
        parsed = _parsed(sql)
    except _InvalidSql as invalid:
        return str(invalid)
    from sqlglot import expressions

    if parsed.find(expressions.Query):
        return None
    rule = parsed.unnest()
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
    columns: dict[str, FieldType | None] = dict.fromkeys(sorted(OWN_COLUMNS - _NOT_OF_ROWS))
    columns |= {part.value: spec.column for part, spec in decode.parts.items()}
    columns |= {part.schema_id: "long" for part in decode.framed_parts}
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
