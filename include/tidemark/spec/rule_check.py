"""Checks Spark SQL of specs and suites without Spark: syntax, columns and fields.

sqlglot parses the texts. It does not parse `>>>`, `column:path`, and some keywords that are names
without backticks. Both parse another form of each: a function, or a name in backticks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tidemark.core.texts import did_you_mean
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct
from tidemark.spec.flattening import OWN_COLUMNS, TOMBSTONE

if TYPE_CHECKING:
    from sqlglot.expressions import Condition, Expr

_NOT_OF_ROWS = {TOMBSTONE, "deleted", *(part.schema_id for part in Part)}
"""Columns of some typed tables and of upsert tables, which row rules cannot name."""

# Spark's functions that no single row decides. sqlglot knows further aggregates and generators.
_AGGREGATES = {
    *("bitmap_and_agg", "count_min_sketch", "every", "histogram_numeric", "hll_sketch_agg"),
    *("hll_union_agg", "kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float"),
    *("product", "schema_of_variant_agg", "some", "std", "theta_intersection_agg"),
    *("theta_sketch_agg", "theta_union_agg", "try_avg", "try_sum"),
}
_GENERATORS = {
    *("inline_outer", "json_tuple", "variant_explode", "variant_explode_outer"),
    *("session_window", "window"),
}
_CHANGING = {
    *("current_time", "input_file_block_length", "input_file_block_start", "input_file_name"),
    *("java_method", "monotonically_increasing_id", "rand", "randn", "randstr", "reflect"),
    *("shuffle", "spark_partition_id", "try_reflect", "uniform", "uuid"),
}
"""Functions whose result differs in each query. A decode writes typed rows and quarantined records
in two queries, so a record could be in both tables or in neither."""
_CHANGING_TEXTS = {"now", "today", "tomorrow", "yesterday"}
"""Texts that Spark casts to the time of a query."""
_CURRENT = {
    "current_date": "CAST({} AS DATE)",
    "current_timestamp": "{}",
    "curdate": "CAST({} AS DATE)",
    "localtimestamp": "CAST({} AS TIMESTAMP_NTZ)",
    "now": "{}",
    "unix_timestamp": "unix_seconds({})",
}
"""Functions of the current time, without arguments, and their results at a given time."""
_WITHOUT_PARENTHESES = {"current_date", "current_timestamp"}
_MAY_BE_CURRENT = re.compile("|".join(_CURRENT), re.IGNORECASE)


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

    Reasons are wrong syntax, unknown columns or fields, a type other than boolean, and functions
    that do not depend on the row alone. Fields are known if the spec has the schema. Fields of
    maps, of function results and of lambda arguments are not checked. A function counts as a
    condition.
    """
    try:
        parsed = _parsed(sql)
    except _InvalidSql as invalid:
        return str(invalid)
    from sqlglot import expressions

    for each in parsed.walk():
        if problem := _problem_of_part(each):
            return problem
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


def _problem_of_part(part: Expr) -> str | None:
    """Return why no row rule may contain a part of an expression."""
    from sqlglot import expressions

    if isinstance(part, expressions.Query):
        return "a subquery reads other rows, and a rule sees one row"
    if isinstance(part, expressions.Window):
        return "OVER reads other rows, and a rule sees one row"
    is_moment = isinstance(part, expressions.TsOrDsToDate) or (
        isinstance(part, expressions.Cast) and part.is_type(*expressions.DataType.TEMPORAL_TYPES)
    )
    if is_moment:
        text = part.this.name if isinstance(part.this, expressions.Literal) else ""
        if text.strip().lower() in _CHANGING_TEXTS:
            return f"{text!r} is another time in each query: use current_timestamp()"
    if isinstance(part, expressions.Any):
        # Otherwise `LIKE ANY (...)`
        is_like = isinstance(part.parent, (expressions.Like, expressions.ILike))
        return None if is_like else "any needs several rows, and a rule sees one row"
    if not isinstance(part, expressions.Func):
        return None
    is_unknown = isinstance(part, expressions.Anonymous)
    name = part.name.lower() if is_unknown else part.sql_name().lower()
    if isinstance(part, expressions.AggFunc) or name in _AGGREGATES:
        shown = name if is_unknown else part.sql("spark").partition("(")[0].lower()
        return f"{shown} needs several rows, and a rule sees one row"
    if isinstance(part, expressions.UDTF) or name in _GENERATORS:
        return f"{name.removeprefix('_')} makes several rows of one"
    return f"{name} has another result in each query" if name in _CHANGING else None


def at_time(sql: str, now: datetime) -> str:
    """Return a row rule whose current time is fixed, so that several queries have one result.

    Args:
        sql: The rule.
        now: The time, in UTC.
    """
    if not _MAY_BE_CURRENT.search(sql):
        return sql
    import sqlglot
    from sqlglot import TokenType
    from sqlglot.errors import SqlglotError

    try:
        tokens = sqlglot.tokenize(sql, read="spark")
    except SqlglotError:
        # Spark refuses the rule, or sqlglot does not know a form of Spark.
        return sql
    moment = f"TIMESTAMP '{now.isoformat()}'"
    fixed, end = "", 0
    for number, each in enumerate(tokens):
        name = each.text.lower()
        is_field = number > 0 and tokens[number - 1].token_type is TokenType.DOT
        is_quoted = each.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        if name not in _CURRENT or is_field or is_quoted:
            continue
        after = tokens[number + 1 : number + 3]
        kinds = [token.token_type for token in after]
        last = each
        if kinds == [TokenType.L_PAREN, TokenType.R_PAREN]:
            last = after[1]
        elif name not in _WITHOUT_PARENTHESES or kinds[:1] == [TokenType.L_PAREN]:
            continue
        fixed += sql[end : each.start] + _CURRENT[name].format(moment)
        end = last.end + 1
    return fixed + sql[end:]


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
