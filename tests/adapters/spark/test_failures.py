"""What is told of Spark's failures, and what is not."""

from __future__ import annotations

from tidemark.adapters.spark.failures import condition_of


def test_a_failed_computation_is_named_without_the_value() -> None:
    """Spark's message has a record's content, which nobody but the tables may keep."""
    failure = RuntimeError(
        "Job aborted due to stage failure\nCaused by: org.apache.spark.SparkNumberFormatException: "
        "[CAST_INVALID_INPUT] The value 'secret' of the type \"STRING\" cannot be cast"
    )
    assert condition_of(failure) == "Spark's error [CAST_INVALID_INPUT], perhaps of a row rule"


def test_all_else_is_told_as_it_is() -> None:
    """A full disk has no name of Spark's."""
    failure = RuntimeError("aborted\nCaused by: java.io.IOException: No space left on device")
    assert "No space left on device" in condition_of(failure)
