"""A lost Spark session during a check is no error of the suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from tidemark.quality.suite import load_suite
from tidemark.spark.connect import connect_sessions, session_loss
from tidemark.spark.engine import Server

pytestmark = pytest.mark.spark


def test_a_lost_session_is_not_an_error_of_the_suite(
    connect_server: Server, tmp_path: Path
) -> None:
    """A suite error is final; the error of a lost session is retryable."""
    from tidemark.quality.gx.context import open_context
    from tidemark.quality.gx.validation import validate_rows

    file = tmp_path / "rules.json"
    rule = {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "partition"},
        "severity": "critical",
        "description": "every row has a partition",
    }
    file.write_text(json.dumps({"name": "rules", "expectations": [rule]}))
    with connect_sessions(connect_server, {}) as sessions:
        session = sessions.shared()
        rows = session.sql("SELECT 0 AS partition, id AS offset FROM range(3)")
        context = open_context(tmp_path / "site")
        assert validate_rows(context, "events", load_suite(file), rows).success
        session.client.release_session()
        with pytest.raises(PySparkException) as lost:
            validate_rows(open_context(tmp_path / "other"), "events", load_suite(file), rows)
    assert session_loss(lost.value)
