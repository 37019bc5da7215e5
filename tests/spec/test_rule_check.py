"""Tests of the check of row rules: it refuses invalid rules, and no valid ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from tidemark.spec.decode import DecodeSpec, Format, PayloadSpec
from tidemark.spec.fields import Decimal, ListOf, Struct
from tidemark.spec.rule_check import at_time, rule_problem, syntax_problem

LEG = Struct((("quantity", "long"), ("due", "date")))
DECODE = DecodeSpec(
    key=PayloadSpec(format=Format.STRING),
    value=PayloadSpec(
        format=Format.JSON,
        schema=Struct(
            (
                ("Account", "string"),
                ("amount", Decimal(10, 2)),
                ("paid", "boolean"),
                ("leg", LEG),
                ("legs", ListOf(LEG)),
            )
        ),
        keeps_rest=True,
    ),
    target="silver/payments",
)
VALUE = (
    "struct<Account string, amount decimal(10,2), paid boolean, leg struct<quantity bigint, due "
    "date>, legs array<struct<quantity bigint, due date>>, _rest string>"
)
COLUMNS = (
    f"key string, value {VALUE}, headers array<struct<key string, value binary>>, topic string, "
    "partition int, offset bigint, timestamp timestamp, plan_sequence bigint"
)
VALID = [
    "value.amount > 0",
    "VALUE.AMOUNT <> 0 AND value.account RLIKE '^A'",
    "value IS NULL OR value.leg.due IS NOT NULL",
    "exists(value.legs, leg -> leg.quantity > 0)",
    "size(filter(value.legs, (leg, place) -> leg.quantity > place)) = 0",
    "value.legs[0].quantity > 0 AND array_max(value.legs.quantity) < 9",
    "value['amount'] BETWEEN 0 AND 5",
    "try_cast(value.account AS int) IS NOT NULL",
    "CASE WHEN value.paid THEN value.amount > 0 ELSE true END",
    "value.leg.due >= date'2020-01-01' AND value.leg.quantity DIV 2 = 1",
    "timestamp > current_timestamp() - INTERVAL 1 DAY",
    "timestamp <= now() AND value.leg.due <= current_date AND key <> 'now()'",
    "unix_timestamp() > unix_timestamp(timestamp) AND localtimestamp() > value.leg.due",
    "value.account LIKE ANY ('A%', 'B%') AND value.account NOT IN ('now', 'today')",
    "aggregate(value.legs, 0L, (most, leg) -> greatest(most, leg.quantity)) < 9",
    "key LIKE 'A%' AND offset >= 0 AND headers[0].key = 'a'",
    "value.amount::int <=> 3 OR NOT value.paid OR `key` IN ('a', 'b')",
    "get_json_object(value._rest, '$.venue') IS NULL",
    "(value.paid)",
]
INVALID = {
    "value.amount >": (
        "invalid syntax at '>' (line 1, column 14): a part of the expression is missing"
    ),
    "value.amount => 0": ("invalid syntax at '=>' (line 1, column 14): unexpected text"),
    "value.amount > 0; value.paid": "2 expressions instead of one",
    "value.amont > 0": "value has no field 'amont' (did you mean 'amount'?)",
    "value.leg.quantty > 0": "value.leg has no field 'quantty' (did you mean 'quantity'?)",
    "value.amount.cents > 0": "value.amount of type decimal(10,2) has no field 'cents'",
    "value.account.name = 'a'": "value.account of type string has no field 'name'",
    "amount > 0": "no column 'amount' (did you mean 'value.amount'?)",
    "ofset > 0": "no column 'ofset' (did you mean 'offset'?)",
    "key.id = 'a'": "key of type string has no field 'id'",
    "value.amount": "value.amount of type decimal(10,2) is not a condition",
    "(value.leg.due)": "value.leg.due of type date is not a condition",
    "value.leg": "value.leg is not a condition",
    "value.amount * 2": "a number or a text is not a condition",
    "'paid'": "a number or a text is not a condition",
    "sum(value.amount) > 3": "sum needs several rows, and a rule sees one row",
    "count(*) > 1": "count needs several rows, and a rule sees one row",
    "value.amount > avg(value.amount)": "avg needs several rows, and a rule sees one row",
    "any(value.paid)": "any needs several rows, and a rule sees one row",
    "try_sum(value.amount) > 3": "try_sum needs several rows, and a rule sees one row",
    "NOT (value.paid AND std(value.amount) > 1)": "std needs several rows, and a rule sees one row",
}
REFUSED = {
    "explode(array(value.paid))": "explode makes several rows of one",
    "explode_outer(array(value.paid))": "explode_outer makes several rows of one",
    "inline_outer(value.legs)": "inline_outer makes several rows of one",
    "window(timestamp, '1 day').start > timestamp": "window makes several rows of one",
    "row_number() OVER (PARTITION BY key ORDER BY offset) = 1": (
        "OVER reads other rows, and a rule sees one row"
    ),
    "max(value.amount) OVER () > 1": "OVER reads other rows, and a rule sees one row",
    "value.amount > (SELECT 1)": "a subquery reads other rows, and a rule sees one row",
    "EXISTS (SELECT 1)": "a subquery reads other rows, and a rule sees one row",
    "key IN (SELECT 'a')": "a subquery reads other rows, and a rule sees one row",
    **{
        f"{sql} IS NOT NULL": f"{name} has another result in each query"
        for sql, name in {
            "rand()": "rand",
            "RAND(7)": "rand",
            "random()": "rand",
            "randn()": "randn",
            "randstr(3)": "randstr",
            "uniform(1, 9)": "uniform",
            "uuid()": "uuid",
            "shuffle(value.legs)[0]": "shuffle",
            "monotonically_increasing_id()": "monotonically_increasing_id",
            "spark_partition_id()": "spark_partition_id",
            "input_file_name()": "input_file_name",
            "reflect('java.util.UUID', 'randomUUID')": "reflect",
            "java_method('java.util.UUID', 'randomUUID')": "java_method",
            "current_time()": "current_time",
        }.items()
    },
    **{
        f"{sql} > timestamp": f"{text!r} is another time in each query: use current_timestamp()"
        for sql, text in {
            "timestamp'now'": "now",
            "CAST(' Today' AS DATE)": " Today",
            "to_date('tomorrow')": "tomorrow",
            "to_timestamp('now')": "now",
        }.items()
    },
}
"""Rules that Spark accepts, with results that differ by the query or by other rows."""


@pytest.mark.parametrize("sql", VALID)
def test_a_rule_over_known_columns_has_no_problem(sql: str) -> None:
    assert rule_problem(sql, DECODE) is None


@pytest.mark.parametrize("sql", [*INVALID, *REFUSED])
def test_an_invalid_rule_has_its_problem(sql: str) -> None:
    assert rule_problem(sql, DECODE) == {**INVALID, **REFUSED}[sql]


_NOW = "TIMESTAMP '2026-11-30T08:00:00.000005+00:00'"


@pytest.mark.parametrize(
    ("sql", "fixed"),
    [
        ("value.at <= Current_Timestamp()", f"value.at <= {_NOW}"),
        ("current_timestamp>key AND now ( ) > key", f"{_NOW}>key AND {_NOW} > key"),
        ("current_date = curdate()", f"CAST({_NOW} AS DATE) = CAST({_NOW} AS DATE)"),
        (
            "localtimestamp() > '😀' OR unix_timestamp() > 1",
            f"CAST({_NOW} AS TIMESTAMP_NTZ) > '😀' OR unix_seconds({_NOW}) > 1",
        ),
        ("unix_timestamp(key) > 1 AND key = 'now()'", None),
        ("value.current_date > `current_date` -- now()", None),
        ("value.now > 1 AND value.current_timestamp IS NULL", None),
        ("key = 'now()", None),
        ("key > 0", None),
    ],
)
def test_the_current_time_of_a_rule_can_be_fixed(sql: str, fixed: str | None) -> None:
    assert at_time(sql, datetime(2026, 11, 30, 8, 0, 0, 5, tzinfo=UTC)) == (fixed or sql)


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("a = 'x", "invalid syntax: a quote, a backtick or a comment has no end"),
        ("`a > 0", "invalid syntax: a quote, a backtick or a comment has no end"),
        ("(a > 0", "invalid syntax at '0' (line 1, column 6): Expecting )"),
        (
            "a > 0\n AND b = ) 1",
            "invalid syntax at ')' (line 2, column 10): a part of the expression is missing",
        ),
        ("", "an empty text"),
        (f"{'(' * 3_000}a{')' * 3_000} > 0", "an expression with too many levels"),
        ("-- a > 0", "a text without an expression"),
        (
            "a > 0 b",
            "invalid syntax at 'b' (line 1, column 7): unexpected text",
        ),
        ("select 1", "invalid syntax at 'select' (line 1, column 1): unexpected text"),
        ("drop table a", "invalid syntax at 'drop' (line 1, column 1): unexpected text"),
        (
            "a > 0 and",
            "invalid syntax at 'and' (line 1, column 7): a part of the expression is missing",
        ),
    ],
)
def test_a_problem_of_the_syntax_has_its_place(sql: str, problem: str) -> None:
    assert syntax_problem(sql) == problem


def test_fields_of_a_schema_in_a_registry_are_not_checked() -> None:
    by_id = DecodeSpec(
        key=PayloadSpec(format=Format.BINARY),
        value=PayloadSpec(format=Format.AVRO),
        target="silver/payments",
    )
    assert rule_problem("value.anything.at_all > 0 AND value_schema_id <> 7", by_id) is None
    unknown = "no column 'vallue' (did you mean 'value'?)"
    assert rule_problem("vallue.amount > 0", by_id) == unknown
    unknown = "no column 'km' (a field of the value is value.FIELD)"
    assert rule_problem("km > 0", by_id) == unknown
    assert rule_problem("key_schema_id > 0", by_id) is not None


@pytest.mark.spark
def test_spark_accepts_the_rules_without_a_problem_and_refuses_the_others(
    spark: SparkSession,
) -> None:
    rows = spark.createDataFrame([], COLUMNS)
    valid = [*VALID, *(at_time(sql, datetime.now(UTC)) for sql in VALID)]
    for sql in valid:
        assert rows.select(expr(sql).alias("rule")).schema["rule"].dataType.simpleString() == (
            "boolean"
        ), sql
    for sql in INVALID:
        with pytest.raises((AnalysisException, ParseException)):
            rows.filter(expr(sql))
