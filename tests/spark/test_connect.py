"""Tests of the errors of lost sessions."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException, PySparkRuntimeError

from tidemark.spark.connect import server_error
from tidemark.spark.engine import Server
from tidemark.spark.errors import EngineUnavailable


@pytest.mark.parametrize(
    ("condition", "parameters"),
    [
        ("NO_ACTIVE_SESSION", {}),
        # An operation that had answered is lost: the client slept longer than the server waited.
        ("RESPONSE_ALREADY_RECEIVED", {"error_type": "INVALID_HANDLE.OPERATION_NOT_FOUND"}),
    ],
)
def test_a_lost_session_is_an_unavailable_engine(
    condition: str, parameters: dict[str, str]
) -> None:
    """Airflow then repeats the run."""
    lost = PySparkRuntimeError(errorClass=condition, messageParameters=parameters)
    error = server_error(Server(host="127.0.0.1", port=1, token=""), lost)
    assert isinstance(error, EngineUnavailable)
    assert condition in str(error)


def test_another_error_of_pyspark_stays_unchanged() -> None:
    other: PySparkException = PySparkRuntimeError(
        errorClass="NO_ACTIVE_EXCEPTION", messageParameters={}
    )
    assert server_error(Server(host="127.0.0.1", port=1, token=""), other) is other
