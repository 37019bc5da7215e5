"""Runs expectations in Great Expectations, and converts its results to check results."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from pyspark.sql import DataFrame

from tidemark.delta.errors import EngineFailed
from tidemark.quality.check_results import (
    MASKED,
    MAX_EXAMPLES,
    NOT_EVALUATED,
    CheckResult,
    Example,
    Severity,
)
from tidemark.quality.gx.context import ExpectationConfiguration, calc_validation_statistics, gx
from tidemark.quality.suite import Suite, named_columns
from tidemark.spec.errors import Problem, SpecError

ROW_ID = ("partition", "offset")
"""Columns that identify a row in examples."""

COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
"""Counts without examples. All expectations of the suite share one Spark aggregation. Spark returns
zero examples without running a job."""

EXAMPLES = {
    "result_format": "SUMMARY",
    "partial_unexpected_count": MAX_EXAMPLES,
    "unexpected_index_column_names": list(ROW_ID),
}
"""Some examples with their partition and offset. Each expectation takes some Spark jobs."""

_CONDITION = re.compile(r"(?:\([\w.$]+\) )?\[(?P<name>[A-Z][A-Z0-9_.]*)\] ")
"""Spark's condition at the start of an error."""
_CAUSED_BY_ROWS = re.compile(r"\bSQLSTATE: (?:21|22|23|38|39|54|P0|42601)")
"""Classes of SQL's conditions that rows cause in a rule that can be evaluated on no rows."""

_POSITION = "tidemark_position"
_MAX_VALUE_LENGTH = 80


def validate_rows(
    context: gx.data_context.EphemeralDataContext, asset: str, suite: Suite, rows: DataFrame
) -> gx.core.ExpectationSuiteValidationResult:
    """Validate a suite on a batch: counts for all rules in one pass, examples for failed rules.

    `persist=False` prevents Great Expectations from caching the batch, which it never releases.
    """
    batch_definition = (
        context.data_sources.add_spark("rows", persist=False)
        .add_dataframe_asset(asset)
        .add_batch_definition_whole_dataframe("batch")
    )
    expectations = dict(enumerate(suite.expectations))
    gx_suite = context.suites.add(_gx_suite(suite, expectations))
    batch = batch_definition.get_batch({"dataframe": rows})
    result = _sorted(batch.validate(gx_suite, result_format=COUNTS))
    if any(_evaluation_error(each) for each in result.results):
        # With a lost session no rule can be evaluated, not even on zero rows.
        rows.sparkSession.range(1).collect()
        empty = batch_definition.get_batch({"dataframe": rows.limit(0)})
        on_no_rows = _sorted(empty.validate(gx_suite, result_format=COUNTS)).results
        _check_rules(suite, result.results, on_no_rows)
        # An error of one rule can be reported for others as well.
        result.results = [
            _alone(batch, suite, each) if _evaluation_error(each) else each
            for each in result.results
        ]
        result.statistics = calc_validation_statistics(result.results)._asdict()
        result.success = result.statistics.pop("success")
    failed = {
        _position(each)
        for each in result.results
        if not each.success and not _is_unevaluated(each.result)
    }
    if failed:
        failed_suite = _gx_suite(suite, {position: expectations[position] for position in failed})
        with_examples = batch.validate(failed_suite, result_format=EXAMPLES).results
        by_position = {
            _position(each): _with_row_ids(each)
            for each in with_examples
            if not _evaluation_error(each)
        }
        result.results = [by_position.get(_position(each), each) for each in result.results]
    for each in result.results:
        # JSON cannot represent NumPy's booleans.
        each.success = bool(each.success)
        is_masked = suite.masked.intersection(_columns(each.expectation_config.kwargs))
        if is_masked and not _is_unevaluated(each.result):
            _mask(each)
        _shorten(each.result)
    return result


def _columns(arguments: Mapping[str, Any]) -> list[str]:
    """Return the columns that an expectation reads."""
    return [column for _, column in named_columns(arguments)]


def _mask(result: Any) -> None:
    """Remove all values from a result; counts, partitions and offsets stay."""
    details, columns = result.result, _columns(result.expectation_config.kwargs)
    for name in ("unexpected_index_list", "partial_unexpected_index_list"):
        for row in details.get(name) or ():
            row.update((column, MASKED) for column in row if column not in ROW_ID)
    if values := details.get("partial_unexpected_list"):
        details["partial_unexpected_list"] = [MASKED] * len(values)
        details["partial_unexpected_counts"] = [{"value": MASKED, "count": len(values)}]
    if isinstance(details.get("observed_value"), dict):
        details["observed_value"] = {"quantiles": [], "values": []}
    elif details.get("observed_value") is not None and columns:
        details["observed_value"] = MASKED
    details.pop("details", None)


def _shorten(details: dict[str, Any]) -> None:
    """Shorten the values of examples: a page is as wide as the longest value."""

    def shortened(value: Any) -> Any:
        return value[:_MAX_VALUE_LENGTH] if isinstance(value, str) else value

    if values := details.get("partial_unexpected_list"):
        details["partial_unexpected_list"] = [shortened(value) for value in values]
    for each in details.get("partial_unexpected_counts") or ():
        each.update(value=shortened(each.get("value")))
    for row in details.get("partial_unexpected_index_list") or ():
        row.update((name, shortened(value)) for name, value in row.items())


def _with_row_ids(result: Any) -> Any:
    """Return a result whose page shows partition and offset of each example.

    Pages take them from the list of *all* unexpected rows. Only a format that collects all these
    rows in the driver fills it. Expectations about nulls omit the column names.
    """
    rows = result.result.get("partial_unexpected_index_list")
    if rows:
        result.result["unexpected_index_list"] = rows
        result.result["unexpected_index_column_names"] = EXAMPLES["unexpected_index_column_names"]
    return result


def _check_rules(suite: Suite, on_rows: Sequence[Any], on_no_rows: Sequence[Any]) -> None:
    """Raise `SpecError` if an expectation cannot be evaluated on any data.

    Args:
        suite: The suite.
        on_rows: The results on the batch, in the order of the suite.
        on_no_rows: The results on the batch without rows, in this order.
    """
    problems = [
        Problem(
            file=suite.file,
            key=f"expectations[{_position(each)}]",
            expected="an expectation that can be evaluated",
            found=_evaluation_error(each),
        )
        for full, each in zip(on_rows, on_no_rows, strict=True)
        if _evaluation_error(full) and _evaluation_error(each)
    ]
    if problems:
        raise SpecError.of_suite(tuple(problems))


def _alone(batch: Any, suite: Suite, failed: Any) -> Any:
    """Evaluate an expectation again, alone. It fails if it cannot be evaluated on these rows.

    Raises:
        EngineFailed: The cause is not in the rows. A repetition may succeed.
    """
    position = _position(failed)
    expectation = suite.expectations[position]
    gx_suite = _gx_suite(suite, {position: expectation})
    (result,) = batch.validate(gx_suite, result_format=COUNTS).results
    error = _exception_message(result)
    if not error:
        return result
    # Without the rest of Spark's message, which contains the value that caused the error.
    condition = _CONDITION.match(error)
    name = condition["name"] if condition else None
    if name is None or not _CAUSED_BY_ROWS.search(error):
        reason = "an error without a condition" if name is None else f"[{name}]"
        raise EngineFailed(operation=f"evaluating {expectation['type']}", reason=reason)
    found = f"{NOT_EVALUATED}: {name}"
    result.exception_info = {
        "raised_exception": True,
        "exception_message": found,
        "exception_traceback": "",
    }
    result.result = {"observed_value": found}
    return result


def _is_unevaluated(details: Mapping[str, Any]) -> bool:
    return str(details.get("observed_value")).startswith(NOT_EVALUATED)


def _gx_suite(suite: Suite, expectations: Mapping[int, Mapping[str, Any]]) -> gx.ExpectationSuite:
    """Return a suite of Great Expectations with some expectations.

    The metadata of an expectation contains its position, because results have another order. The
    description ends with the severity, because pages do not show the severity. The description is
    escaped, because pages do not escape it.

    Args:
        suite: The suite.
        expectations: Expectations by their position in the suite's file.
    """
    configured = []
    for position, expectation in expectations.items():
        severity = _severity(expectation)
        configuration = {
            **expectation,
            "severity": str(severity),
            "meta": {**expectation.get("meta", {}), _POSITION: position},
        }
        if "description" in expectation:
            configuration["description"] = html.escape(f"{expectation['description']} ({severity})")
        configured.append(ExpectationConfiguration(**configuration).to_domain_obj())
    return gx.ExpectationSuite(name=suite.name, notes=suite.notes or None, expectations=configured)


def row_results(
    suite: Suite, validated: gx.core.ExpectationSuiteValidationResult
) -> list[CheckResult]:
    """Return the results of a suite's own expectations, in the order of its file."""
    return [
        _row_result(expectation, result)
        for expectation, result in zip(suite.expectations, validated.results, strict=True)
    ]


def _row_result(expectation: Mapping[str, Any], result: Any) -> CheckResult:
    arguments = expectation.get("kwargs", {})
    argument_text = ", ".join(f"{name} {_words(value)}" for name, value in arguments.items())
    details = result.result or {}
    value: Any = details.get("observed_value", details.get("unexpected_percent"))
    is_number = type(value) in (int, float) and isfinite(value)
    return CheckResult(
        check=expectation["type"],
        column=arguments.get("column"),
        severity=_severity(expectation),
        passed=bool(result.success),
        observed=_observed(details),
        value=float(value) if is_number else None,
        expectation=expectation.get("description") or f"{expectation['type']}: {argument_text}",
        unexpected_count=details.get("unexpected_count"),
        unexpected_percent=details.get("unexpected_percent"),
        examples=tuple(_examples(details, _columns(arguments))),
    )


def _examples(details: Mapping[str, Any], columns: Sequence[str]) -> Iterator[Example]:
    for row in (details.get("partial_unexpected_index_list") or ())[:MAX_EXAMPLES]:
        values = [
            value
            for name, value in row.items()
            if name in columns or (name not in ROW_ID and not columns)
        ]
        text = None if values == [None] else ", ".join(map(_words, values))
        yield Example(
            partition=row["partition"],
            offset=row["offset"],
            value=text and text[:_MAX_VALUE_LENGTH],
        )


def _severity(expectation: Mapping[str, Any]) -> Severity:
    return Severity(expectation.get("severity", Severity.CRITICAL))


def _observed(details: Mapping[str, Any]) -> str | int | float | None:
    if "observed_value" in details:
        value = details["observed_value"]
        if value is None:
            return None
        # Infinity is a text: JSON has no such number.
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            return value
        return _words(value)
    if details.get("unexpected_count") is None:
        return None
    with_value = details["element_count"] - (details.get("missing_count") or 0)
    if not with_value:
        return None
    return f"{details['unexpected_count']:,} of {with_value:,} unexpected"


def _words(value: Any) -> str:
    """Return an argument, an observed value or an example as text for people."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Mapping():
            return ", ".join(f"{name} {_words(each)}" for name, each in value.items())
        case list() | tuple() | set() | frozenset():
            return f"[{', '.join(map(_words, value))}]"
        case _:
            return str(value)


def _evaluation_error(result: Any) -> str:
    """Return in one line why an expectation could not be evaluated; empty if it was evaluated."""
    return next(iter(_exception_message(result).splitlines()), "")


def _exception_message(result: Any) -> str:
    """Return the message of an expectation's exception; empty without one.

    Great Expectations nests several exceptions by metric.
    """
    info = result.exception_info or {}
    nested = [info, *(part for part in info.values() if isinstance(part, Mapping))]
    messages = [
        str(part.get("exception_message") or "").strip() or "an exception without a message"
        for part in nested
        if part.get("exception_message") or part.get("raised_exception")
    ]
    return messages[0] if messages else ""


def _sorted(
    result: gx.core.ExpectationSuiteValidationResult,
) -> gx.core.ExpectationSuiteValidationResult:
    """Return a validation result with its results in the order of the suite's file."""
    result.results = sorted(result.results, key=_position)
    return result


def _position(result: Any) -> int:
    return int(result.expectation_config.meta[_POSITION])
