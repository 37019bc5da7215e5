"""Run expectations in Great Expectations and turn its results into ours."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from tidemark.lake.errors import EngineFailed
from tidemark.quality.check_results import MASKED, MOST_EXAMPLES, CheckResult, Example, Severity
from tidemark.quality.errors import SuiteError
from tidemark.quality.gx.context import ExpectationConfiguration, gx
from tidemark.quality.gx.suite import Suite, named_columns
from tidemark.spec.errors import Problem

PLACE = ("partition", "offset")
"""Columns that say where a row is."""

COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
"""Counts without examples. Every expectation of the suite shares one Spark aggregation: Spark
answers the query for no examples at all without running a job."""

EXAMPLES = {
    "result_format": "SUMMARY",
    "partial_unexpected_count": MOST_EXAMPLES,
    "unexpected_index_column_names": list(PLACE),
}
"""Some examples with their partition and offset; some Spark jobs for each expectation."""

_POSITION = "tidemark_position"
_VALUE_SHOWN = 80


def validate_rows(
    context: gx.data_context.EphemeralDataContext, asset: str, suite: Suite, rows: DataFrame
) -> gx.core.ExpectationSuiteValidationResult:
    """Validate a suite on a slice: counts for all in one pass, examples only of what failed.

    Great Expectations would cache the slice and never release it; it is told not to.
    """
    batch_ref = (
        context.data_sources.add_spark("rows", persist=False)
        .add_dataframe_asset(asset)
        .add_batch_definition_whole_dataframe("slice")
    )
    ours = dict(enumerate(suite.expectations))
    added = context.suites.add(_suite_of(suite, ours))
    batch = batch_ref.get_batch({"dataframe": rows})
    result = _in_order(batch.validate(added, result_format=COUNTS))
    if any(_failure(one) for one in result.results):
        # On a lost server no rule can be evaluated on no rows either.
        rows.sparkSession.range(1).collect()
        _refuse(suite, batch_ref.get_batch({"dataframe": rows.limit(0)}), added, result)
    broken = {_position(one) for one in result.results if not one.success}
    if broken:
        again = _suite_of(suite, {position: ours[position] for position in broken})
        shown = batch.validate(again, result_format=EXAMPLES).results
        by_position = {_position(one): _with_places(one) for one in shown if not _failure(one)}
        result.results = [by_position.get(_position(one), one) for one in result.results]
    for one in result.results:
        # NumPy's own truth values are none of JSON's.
        one.success = bool(one.success)
        if suite.masked.intersection(_columns(one.expectation_config.kwargs)):
            _mask(one)
        _shorten(one.result)
    return result


def _columns(arguments: Mapping[str, Any]) -> list[str]:
    """The columns that an expectation looks at."""
    return [column for _, column in named_columns(arguments)]


def _mask(one: Any) -> None:
    """Leave of a result's values nothing but how many and where they are."""
    result, columns = one.result, _columns(one.expectation_config.kwargs)
    for name in ("unexpected_index_list", "partial_unexpected_index_list"):
        for place in result.get(name) or ():
            place.update((column, MASKED) for column in place if column not in PLACE)
    if shown := result.get("partial_unexpected_list"):
        result["partial_unexpected_list"] = [MASKED] * len(shown)
        result["partial_unexpected_counts"] = [{"value": MASKED, "count": len(shown)}]
    if isinstance(result.get("observed_value"), dict):
        result["observed_value"] = {"quantiles": [], "values": []}
    elif result.get("observed_value") is not None and columns:
        result["observed_value"] = MASKED
    result.pop("details", None)


def _shorten(result: dict[str, Any]) -> None:
    """Cut the values of a result's examples: a page is as wide as the longest."""

    def cut(value: Any) -> Any:
        return value[:_VALUE_SHOWN] if isinstance(value, str) else value

    if shown := result.get("partial_unexpected_list"):
        result["partial_unexpected_list"] = [cut(value) for value in shown]
    for each in result.get("partial_unexpected_counts") or ():
        each.update(value=cut(each.get("value")))
    for place in result.get("partial_unexpected_index_list") or ():
        place.update((name, cut(value)) for name, value in place.items())


def _with_places(one: Any) -> Any:
    """A result whose examples are shown with partition and offset.

    Pages look for places in the list of *all* broken rows, which only the format that collects
    them all has: on the driver, however many they are. Expectations of nulls forget the names.
    """
    places = one.result.get("partial_unexpected_index_list")
    if places:
        one.result["unexpected_index_list"] = places
        one.result["unexpected_index_column_names"] = EXAMPLES["unexpected_index_column_names"]
    return one


def _refuse(
    suite: Suite, nothing: Any, added: Any, result: gx.core.ExpectationSuiteValidationResult
) -> None:
    """Raise for expectations that could not be evaluated, which says nothing about the data.

    What cannot be evaluated on no rows either is the suite's fault, and stays so.

    Raises:
        SuiteError: Expectations that cannot be evaluated on any data.
        EngineFailed: Only on this data, or only this time.
    """
    problems = [
        Problem(
            file=suite.file,
            key=f"expectations[{_position(one)}]",
            expected="an expectation that can be evaluated",
            found=_failure(one),
        )
        for one in _in_order(nothing.validate(added, result_format=COUNTS)).results
        if _failure(one)
    ]
    if problems:
        raise SuiteError(problems=tuple(problems))
    one = next(one for one in result.results if _failure(one))
    # Never Spark's whole message, which has the value that it stumbled over.
    named = re.match(r"\[[A-Z0-9_.]+\]", _failure(one))
    reason = f"{named[0] if named else 'an error'} on these rows; the rule can be evaluated on none"
    raise EngineFailed(operation=f"evaluating {one.expectation_config.type}", reason=reason)


def _suite_of(suite: Suite, expectations: Mapping[int, Mapping[str, Any]]) -> gx.ExpectationSuite:
    """A suite for Great Expectations, of some expectations by their position in our suite.

    Expectations remember their position, because results come back in another order. Their
    description ends with the severity, because pages do not show it otherwise. The description is
    escaped, because pages do not escape it.
    """
    made = []
    for position, one in expectations.items():
        shown = {
            **one,
            "severity": str(_severity(one)),
            "meta": {**one.get("meta", {}), _POSITION: position},
        }
        if "description" in one:
            shown["description"] = html.escape(f"{one['description']} ({_severity(one)})")
        made.append(ExpectationConfiguration(**shown).to_domain_obj())
    return gx.ExpectationSuite(name=suite.name, notes=suite.notes or None, expectations=made)


def row_results(
    suite: Suite, validated: gx.core.ExpectationSuiteValidationResult
) -> list[CheckResult]:
    """Results of a suite's own expectations, in the order of its file."""
    return [
        _row_result(expectation, one)
        for expectation, one in zip(suite.expectations, validated.results, strict=True)
    ]


def _row_result(expectation: Mapping[str, Any], one: Any) -> CheckResult:
    arguments = expectation.get("kwargs", {})
    named = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    result = one.result or {}
    observed: Any = result.get("observed_value", result.get("unexpected_percent"))
    return CheckResult(
        check=expectation["type"],
        column=arguments.get("column"),
        severity=_severity(expectation),
        passed=bool(one.success),
        observed=_observed(result),
        value=float(observed) if type(observed) in (int, float) else None,
        expectation=expectation.get("description") or f"{expectation['type']}({named})",
        unexpected_count=result.get("unexpected_count"),
        unexpected_percent=result.get("unexpected_percent"),
        examples=tuple(_examples(result, _columns(arguments))),
    )


def _examples(result: Mapping[str, Any], columns: Sequence[str]) -> Iterator[Example]:
    for row in (result.get("partial_unexpected_index_list") or ())[:MOST_EXAMPLES]:
        values = [
            value
            for name, value in row.items()
            if name in columns or (name not in PLACE and not columns)
        ]
        shown = None if values == [None] else ", ".join(map(str, values))
        yield Example(
            partition=row["partition"],
            offset=row["offset"],
            value=shown and shown[:_VALUE_SHOWN],
        )


def _severity(expectation: Mapping[str, Any]) -> Severity:
    return Severity(expectation.get("severity", Severity.CRITICAL))


def _observed(result: Mapping[str, Any]) -> str | int | float | None:
    if "observed_value" in result:
        value = result["observed_value"]
        return value if value is None or isinstance(value, int | float) else str(value)
    if result.get("unexpected_count") is None:
        return None
    looked_at = result["element_count"] - (result.get("missing_count") or 0)
    return f"{result['unexpected_count']:,} of {looked_at:,} unexpected"


def _failure(one: Any) -> str:
    """Why an expectation could not be evaluated, in one line; empty if it could.

    Great Expectations nests exceptions by metric where there is more than one.
    """
    info = one.exception_info or {}
    nested = [info, *(part for part in info.values() if isinstance(part, Mapping))]
    messages = [str(part["exception_message"]) for part in nested if part.get("exception_message")]
    return messages[0].strip().splitlines()[0] if messages else ""


def _in_order(
    result: gx.core.ExpectationSuiteValidationResult,
) -> gx.core.ExpectationSuiteValidationResult:
    result.results = sorted(result.results, key=_position)
    return result


def _position(one: Any) -> int:
    return int(one.expectation_config.meta[_POSITION])
