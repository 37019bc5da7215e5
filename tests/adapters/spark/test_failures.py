"""What is told of Spark's failures, and what is not."""

from __future__ import annotations

import pytest

from tidemark.adapters.spark.failures import condition_of


def test_a_failed_computation_is_named_without_the_value() -> None:
    """Spark's message has a record's content, which nobody but the tables may keep."""
    failure = RuntimeError(
        "Job aborted due to stage failure\nCaused by: org.apache.spark.SparkNumberFormatException: "
        "[CAST_INVALID_INPUT] The value 'secret' of the type \"STRING\" cannot be cast"
    )
    assert condition_of(failure) == "Spark's error [CAST_INVALID_INPUT], perhaps of a row rule"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("java.lang.NumberFormatException: For input string: secret", "NumberFormatException"),
        ("org.apache.spark.SparkException: [_LEGACY_ERROR_TEMP_2005] secret", "TEMP_2005]"),
        ("org.apache.spark.SparkException: [INVALID_UTF8_STRING] secret", "[INVALID_UTF8_STRING]"),
        ("com.example.Broken$Udf: secret", "com.example.Broken$Udf"),
    ],
)
def test_a_message_that_may_have_a_value_is_kept_back(said: str, told: str) -> None:
    """Of exceptions that nobody here knows the class alone is told."""
    failure = RuntimeError(f"An error occurred while calling o1.parquet.\nCaused by: {said}")
    assert told in condition_of(failure)
    assert "secret" not in condition_of(failure)


def test_all_else_is_told_as_it_is() -> None:
    """A full disk has no name of Spark's."""
    failure = RuntimeError("aborted\nCaused by: java.io.IOException: No space left on device")
    assert "No space left on device" in condition_of(failure)
