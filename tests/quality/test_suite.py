"""Suite files: loading and validation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tidemark.quality.check_results import Severity
from tidemark.quality.suite import load_suite
from tidemark.spec.errors import SpecError

SHIPPED = PROJECT / "include" / "expectations"


def write(folder: Path, content: Any, name: str = "mine") -> Path:
    """Write a suite's file."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def problems(file: Path) -> dict[str, str]:
    """Return the problems of a file, by key."""
    with pytest.raises(SpecError, match="a quality suite") as caught:
        load_suite(file)
    return {
        problem.key: f"{problem.expected} / {problem.found}" for problem in caught.value.problems
    }


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*.json")), ids=lambda file: file.stem)
def test_shipped_suites_are_valid_and_describe_their_expectations(file: Path) -> None:
    """Covers every suite in the repository."""
    suite = load_suite(file)
    assert suite.name == file.stem
    assert all(one["description"] for one in suite.expectations)


def test_a_suite_with_thousands_of_levels_is_a_problem_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text("[" * 3_000 + "]" * 3_000)
    assert problems(file) == {"(file)": "JSON / the suite has more than 250 levels in its text"}


def test_all_problems_of_a_suite_are_reported_at_once(tmp_path: Path) -> None:
    """Each problem has its key."""
    found = problems(
        write(
            tmp_path,
            {
                "name": "other",
                "owner": "me",
                "meta": {
                    "tidemark": {
                        "columns": {"offset": "1", "price": "", "half": "CAST(value_text AS"},
                        "checks": {
                            "duplicate_records": {"limit": 5},
                            "no_such_check": {"limit": 5},
                            "null_key_percent": {
                                "limit": "many",
                                "severity": "fatal",
                                "max": 1,
                            },
                        },
                        "rows": {},
                        "masked": ["email", ["price"]],
                    }
                },
                "expectations": [
                    {"type": "expect_miracles", "kwargs": {}},
                    {
                        "type": "expect_column_values_to_match_regex",
                        "kwargs": {"column": "nowhere", "regex": 5, "result_format": "COMPLETE"},
                        "severity": "dire",
                        "when": "always",
                    },
                    {
                        "type": "expect_column_values_to_be_in_set",
                        "kwargs": {"row_condition": "offset > 0 AND"},
                    },
                    "expect_nothing",
                ],
            },
        )
    )
    assert set(found) == {
        "owner",
        "name",
        "meta.tidemark.rows",
        "meta.tidemark.masked",
        "meta.tidemark.columns.offset",
        "meta.tidemark.columns.price",
        "meta.tidemark.columns.half",
        "meta.tidemark.checks.duplicate_records",
        "meta.tidemark.checks.no_such_check",
        "meta.tidemark.checks.null_key_percent.max",
        "meta.tidemark.checks.null_key_percent.limit",
        "meta.tidemark.checks.null_key_percent.severity",
        "expectations[0].type",
        "expectations[1].when",
        "expectations[1].severity",
        "expectations[1].kwargs.result_format",
        "expectations[1].kwargs.regex",
        "expectations[1].kwargs.column",
        "expectations[2].kwargs.column",
        "expectations[2].kwargs.value_set",
        "expectations[2].kwargs.row_condition",
        "expectations[3]",
    }
    assert "at 'AND' (line 1, column 12)" in found["expectations[2].kwargs.row_condition"]
    assert "critical, warning, info" in found["expectations[1].severity"]
    assert "expect_column_distinct_values_to_be_in_set" in found["expectations[0].type"]
    assert "more" in found["expectations[0].type"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_a_file_that_is_no_suite_is_a_suite_error(tmp_path: Path, text: str) -> None:
    """Covers files that are not JSON."""
    file = tmp_path / "mine.json"
    file.write_text(text, encoding="utf-8")
    assert problems(file)


def test_a_missing_suite_is_a_suite_error(tmp_path: Path) -> None:
    """A spec names the suite."""
    assert problems(tmp_path / "mine.json") == {
        "(file)": "a readable file / No such file or directory"
    }


@pytest.mark.parametrize(
    "meta",
    [
        [],
        {"tidemark": []},
        {"tidemark": {"columns": []}},
        {"tidemark": {"checks": 1}},
        {"tidemark": {"masked": "key"}},
    ],
)
def test_wrong_types_in_meta_are_problems_with_a_key(tmp_path: Path, meta: Any) -> None:
    """No command crashes."""
    (key,) = problems(write(tmp_path, {"name": "mine", "meta": meta, "expectations": []}))
    assert key.startswith("meta")


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("seconds_behind", {"severity": "critical"}),
        ("records", {}),
        ("null_key_percent", {"limit": float("nan")}),
        ("null_key_percent", {"limit": float("inf")}),
    ],
)
def test_an_override_without_a_finite_limit_is_refused(
    tmp_path: Path, name: str, override: dict[str, Any]
) -> None:
    """Such a check could never fail."""
    meta = {"tidemark": {"checks": {name: override}}}
    (key,) = problems(write(tmp_path, {"name": "mine", "meta": meta, "expectations": []}))
    assert key == f"meta.tidemark.checks.{name}.limit"


def test_a_suite_sets_limits_and_severities_of_built_in_checks(tmp_path: Path) -> None:
    """Other values keep their defaults."""
    checks = {
        "null_key_percent": {"limit": 60, "severity": "warning"},
        "no_timestamp_percent": {},
    }
    suite = load_suite(
        write(
            tmp_path,
            {"name": "mine", "expectations": [], "meta": {"tidemark": {"checks": checks}}},
        )
    )
    top = suite.checks["null_key_percent"]
    assert (top.limit, top.severity) == (60, Severity.WARNING)
    assert suite.checks["no_timestamp_percent"].limit == 0
    assert suite.checks["duplicate_records"].severity is Severity.CRITICAL


def test_expectations_may_name_the_suites_own_columns(tmp_path: Path) -> None:
    """A `mostly` may have three digits, which the library's JSON schema refuses."""
    suite = load_suite(
        write(
            tmp_path,
            {
                "name": "mine",
                "meta": {"tidemark": {"columns": {"price": "CAST(value_text AS DOUBLE)"}}},
                "expectations": [
                    {
                        "type": "expect_column_values_to_be_between",
                        "kwargs": {"column": "price", "min_value": 0, "mostly": 0.999},
                    }
                ],
            },
        )
    )
    assert suite.columns == {"price": "CAST(value_text AS DOUBLE)"}


def test_loading_a_suite_imports_neither_spark_nor_great_expectations() -> None:
    """Each import takes seconds."""
    code = (
        "import sys; from pathlib import Path; from tidemark.quality.suite import load_suite; "
        f"load_suite(Path({str(SHIPPED / 'prices.json')!r})); "
        "print([m for m in ('great_expectations', 'pyspark', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
