"""Quality suites: files in the suite format of Great Expectations.

This module validates expectations against the JSON schema files of Great Expectations. It does not
import the library, which takes seconds.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema

from tidemark.core.errors import SetupError
from tidemark.core.texts import did_you_mean, some_of
from tidemark.quality.check_results import Severity
from tidemark.quality.checks import BUILT_IN_CHECKS, BuiltInCheck
from tidemark.spec.errors import Problem, SpecError
from tidemark.spec.rule_check import syntax_problem
from tidemark.spec.schema_limits import load_json

BATCH_COLUMNS = (
    "key",
    "value",
    "headers",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_out_of_range_ms",
    "timestamp_type",
    "topic_id",
    "plan_sequence",
    "ingested_at",
    "key_text",
    "value_text",
)
"""Columns of every batch: the bronze columns, and key and value decoded as UTF-8."""
_PAYLOADS = frozenset({"key", "value", "headers"})

_FILE_KEYS = ("name", "notes", "meta", "expectations")
_META_KEYS = ("great_expectations_version", "tidemark")
_TIDEMARK_KEYS = ("columns", "checks", "masked")
_CHECK_KEYS = ("limit", "severity")
_EXPECTATION_KEYS = ("type", "kwargs", "severity", "description", "notes", "meta")
_RESERVED_KWARGS = ("id", "batch_id", "result_format", "catch_exceptions", "rendered_content")
_SEVERITIES = tuple(str(severity) for severity in Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The checks of every batch of a pipeline.

    Attributes:
        name: Name of the suite and its file; empty for a pipeline without a suite.
        file: Path of the file, for messages.
        notes: A sentence about the suite, for Data Docs.
        expectations: Expectation configurations of Great Expectations, as in the file.
        columns: Spark SQL expressions of the columns that the suite adds to a batch, in order.
        checks: The built-in checks with the suite's limits and severities.
        masked: Columns whose values no report shows.
    """

    name: str
    file: str = ""
    notes: str = ""
    expectations: tuple[Mapping[str, Any], ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, BuiltInCheck] = field(default_factory=lambda: BUILT_IN_CHECKS)
    masked: frozenset[str] = frozenset()


BUILT_IN_SUITE = Suite(name="")
"""The suite of a pipeline whose spec names none: only the built-in checks."""


def load_suite(path: Path) -> Suite:
    """Return the suite of a file.

    Raises:
        SpecError: The file is invalid. The error contains every problem.
    """
    file = str(path)
    try:
        content = load_json(path.read_text(encoding="utf-8"), "the suite")
    except OSError as error:
        raise _suite_error(file, "a readable file", error.strerror or "none") from error
    except ValueError as error:
        raise _suite_error(file, "JSON", str(error)) from error
    if not isinstance(content, dict):
        raise _suite_error(file, "an object", _kind(content))
    problems = [
        Problem(file=file, key=key, expected=expected, found=found)
        for key, expected, found in _problems(content, path.stem)
    ]
    if problems:
        raise SpecError.of_suite(tuple(problems))
    settings = content.get("meta", {}).get("tidemark", {})
    return Suite(
        name=content["name"],
        file=file,
        notes=content.get("notes", ""),
        expectations=tuple(content["expectations"]),
        columns=MappingProxyType(settings.get("columns", {})),
        checks=MappingProxyType(
            {
                name: _with_override(check, settings.get("checks", {}).get(name, {}))
                for name, check in BUILT_IN_CHECKS.items()
            }
        ),
        masked=_with_text_columns(settings.get("masked", ())),
    )


def _with_text_columns(masked: Sequence[str]) -> frozenset[str]:
    """Return masked columns; a column of bytes and its text are masked together."""
    pairs = (frozenset({"key", "key_text"}), frozenset({"value", "value_text"}))
    return frozenset(masked).union(*(pair for pair in pairs if pair.intersection(masked)))


def masked_payloads(masked: Collection[str]) -> frozenset[str]:
    """Return the parts of a record that masked columns hide: `key`, `value`, `headers`.

    A column of the suite may depend on each of these parts, so it hides all three.
    """
    return _PAYLOADS & set(masked) if set(masked) <= set(BATCH_COLUMNS) else _PAYLOADS


def _suite_error(file: str, expected: str, found: str) -> SpecError:
    problem = Problem(file=file, key="(file)", expected=expected, found=found)
    return SpecError.of_suite((problem,))


def _with_override(check: BuiltInCheck, override: Mapping[str, Any]) -> BuiltInCheck:
    return replace(
        check,
        limit=override.get("limit", check.limit),
        severity=Severity(override.get("severity", check.severity)),
    )


# -- validation ----------------------------------------------------------------------------------
# Each function yields the key, the expected value and the actual value of each problem.

_Problems = Iterator[tuple[str, str, str]]


def _problems(content: Mapping[str, Any], stem: str) -> _Problems:
    yield from _unknown(content, _FILE_KEYS, "")
    if content.get("name") != stem:
        yield "name", f"{stem!r}, the file's name", repr(content.get("name"))
    if not isinstance(content.get("notes", ""), str):
        yield "notes", "a string", _kind(content["notes"])
    columns: set[str] = set(BATCH_COLUMNS)
    meta = content.get("meta", {})
    if not isinstance(meta, dict):
        yield "meta", "an object", _kind(meta)
    else:
        yield from _meta(meta, columns)
    expectations = content.get("expectations")
    if not isinstance(expectations, list):
        yield "expectations", "a list", _kind(expectations)
        return
    for position, expectation in enumerate(expectations):
        yield from _expectation(expectation, f"expectations[{position}]", columns)


def _meta(meta: Mapping[str, Any], columns: set[str]) -> _Problems:
    yield from _unknown(meta, _META_KEYS, "meta.")
    settings = meta.get("tidemark", {})
    if not isinstance(settings, dict):
        yield "meta.tidemark", "an object", _kind(settings)
        return
    yield from _unknown(settings, _TIDEMARK_KEYS, "meta.tidemark.")
    yield from _columns(settings.get("columns", {}), columns)
    checks = settings.get("checks", {})
    if not isinstance(checks, dict):
        yield "meta.tidemark.checks", "an object", _kind(checks)
        return
    for name, override in checks.items():
        yield from _check(name, override, f"meta.tidemark.checks.{name}")
    masked = settings.get("masked", [])
    if not isinstance(masked, list):
        yield "meta.tidemark.masked", "a list of columns", _kind(masked)
        return
    for name in masked:
        if not isinstance(name, str) or name not in columns:
            known = some_of(sorted(columns))
            found = f"{name!r}{did_you_mean(name, columns)}"
            yield "meta.tidemark.masked", f"one of the columns {known}", found


def _columns(added: Any, columns: set[str]) -> _Problems:
    """Validate columns of the suite, and add their names to `columns`."""
    key = "meta.tidemark.columns"
    if not isinstance(added, dict):
        yield key, "an object", _kind(added)
        return
    for name, expression in added.items():
        if name in BATCH_COLUMNS:
            yield f"{key}.{name}", "a name that no column of a batch has", repr(name)
        if not isinstance(expression, str) or not expression.strip():
            yield f"{key}.{name}", "a Spark SQL expression", _kind(expression)
        elif problem := syntax_problem(expression):
            yield f"{key}.{name}", "a Spark SQL expression", f"{problem}, in {expression!r}"
        columns.add(name)


def _check(name: str, override: Any, key: str) -> _Problems:
    check = BUILT_IN_CHECKS.get(name)
    if check is None or check.fixed:
        adjustable = [each.name for each in BUILT_IN_CHECKS.values() if not each.fixed]
        found = "a check with a fixed limit"
        if check is None:
            found = f"an unknown check{did_you_mean(name, adjustable)}"
        yield key, f"one of {some_of(adjustable)}", found
        return
    if not isinstance(override, dict):
        yield key, "an object", _kind(override)
        return
    yield from _unknown(override, _CHECK_KEYS, f"{key}.")
    limit = override.get("limit", check.limit)
    if limit is None:
        yield f"{key}.limit", "a number >= 0, because this check has no default limit", "none"
    elif isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < inf:
        yield f"{key}.limit", "a number >= 0", repr(limit)
    yield from _severity(override, key)


def _expectation(expectation: Any, key: str, columns: set[str]) -> _Problems:
    if not isinstance(expectation, dict):
        yield key, "an object", _kind(expectation)
        return
    yield from _unknown(expectation, _EXPECTATION_KEYS, f"{key}.")
    yield from _severity(expectation, key)
    kwargs = expectation.get("kwargs", {})
    if not isinstance(kwargs, dict):
        yield f"{key}.kwargs", "an object", _kind(kwargs)
        return
    schemas = expectation_schemas()
    schema = schemas.get(str(expectation.get("type")))
    if schema is None:
        kind = expectation.get("type")
        found = f"{kind!r}{did_you_mean(kind, schemas)}"
        yield f"{key}.type", f"one of {some_of(sorted(schemas))}", found
        return
    yield from _kwargs(kwargs, schema, f"{key}.kwargs")
    condition = kwargs.get("row_condition")
    is_sql = kwargs.get("condition_parser", "spark") == "spark"
    if is_sql and isinstance(condition, str) and (problem := syntax_problem(condition)):
        found = f"{problem}, in {condition!r}"
        yield f"{key}.kwargs.row_condition", "a condition in Spark SQL", found
    for argument, value in named_columns(kwargs):
        if value not in columns:
            known = some_of(sorted(columns))
            found = f"{value!r}{did_you_mean(value, columns)}"
            yield f"{key}.kwargs.{argument}", f"one of the columns {known}", found


def _kwargs(kwargs: Mapping[str, Any], schema: Mapping[str, Any], key: str) -> _Problems:
    reserved = (*_RESERVED_KWARGS, *_EXPECTATION_KEYS, "metadata", "windows")
    known = [name for name in schema["properties"] if name not in reserved]
    yield from _unknown(kwargs, tuple(known), f"{key}.")
    for name in schema.get("required", ()):
        if name not in kwargs:
            yield f"{key}.{name}", "a value", "none"
    for name in kwargs:
        if name in known:
            part = {**schema["properties"][name], "definitions": schema.get("definitions", {})}
            part.pop("multipleOf", None)  # refuses a `mostly` of 0.999, which the library accepts
            for error in jsonschema.Draft7Validator(part).iter_errors(kwargs[name]):
                yield f"{key}.{name}", f"a value that {schema['title']} accepts", error.message


def named_columns(kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the columns in the arguments of an expectation, as (argument, column)."""
    for argument in ("column", "column_A", "column_B"):
        if argument in kwargs:
            yield argument, kwargs[argument]
    listed = kwargs.get("column_list", ())
    for value in listed if isinstance(listed, list) else ():
        yield "column_list", value


def _severity(item: Mapping[str, Any], key: str) -> _Problems:
    if item.get("severity", _SEVERITIES[0]) not in _SEVERITIES:
        found = f"{item['severity']!r}{did_you_mean(item['severity'], _SEVERITIES)}"
        yield f"{key}.severity", f"one of {', '.join(_SEVERITIES)}", found


def _unknown(item: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> _Problems:
    for name in item:
        if name not in known:
            found = f"an unknown key{did_you_mean(name, known)}"
            yield f"{prefix}{name}", f"one of the keys {some_of(known)}", found


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r}"


@cache
def expectation_schemas() -> Mapping[str, Mapping[str, Any]]:
    """Return the schemas of all expectations that support Spark, by expectation type."""
    package = importlib.util.find_spec("great_expectations")
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            finding="The quality check cannot read suites.",
            needed="the package great_expectations in this environment",
            advice="Install requirements.txt.",
        )
    folder = Path(package.submodule_search_locations[0], "expectations", "core", "schemas")
    schemas: dict[str, Mapping[str, Any]] = {}
    for file in sorted(folder.glob("*.json")):
        schema = json.loads(file.read_text(encoding="utf-8"))
        metadata = schema.get("properties", {}).get("metadata", {}).get("properties", {})
        if "Spark" in metadata.get("supported_data_sources", {}).get("const", ()):
            schemas[metadata["expectation_type"]["const"]] = schema
    return MappingProxyType(schemas)
