"""Tests of the start of Spark's Python workers ahead of a decode."""

from __future__ import annotations

import pytest

from tidemark.spark.connect import connect_sessions
from tidemark.spark.engine import Server
from tidemark.spark.errors import EngineUnavailable
from tidemark.spark.workers import start_ahead


def test_a_server_that_is_lost_while_workers_start_is_no_error() -> None:
    """The first decode raises the error. pytest fails a test whose thread raises one."""
    calls = []

    def lost() -> None:
        calls.append("opened")
        raise EngineUnavailable(engine="Spark Connect", reason="it has ended")

    start_ahead(lost).join()
    assert calls == ["opened"]


@pytest.mark.spark
def test_workers_that_start_ahead_have_the_modules_of_a_decode(connect_server: Server) -> None:
    """A session of a server has workers of its own, so no other test has started these."""

    def imported(_):  # type: ignore[no-untyped-def]
        import sys

        return str({"pandas", "tidemark.silver.typed.formats.json_reader"} <= set(sys.modules))

    with connect_sessions(connect_server, {}) as sessions:
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own docs use

        start_ahead(sessions.shared).join()
        rows = sessions.shared().range(0, 2, 1, 2)
        seen = rows.select(F.udf(imported, "string")("id")).collect()
    assert [row[0] for row in seen] == ["True", "True"]
