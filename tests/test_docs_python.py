"""The example of docs/how-to/python.md runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT, TopicFactory
from tests.support.transactions import Record, produce_records
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.local.broker import BrokerStatus
from tidemark.spark.engine import Server
from tidemark.spec.layout import Layout

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.broker
@pytest.mark.spark
def test_the_example_runs_on_a_spark_connect_server(
    broker: BrokerStatus,
    connect_server: Server,
    layout: Layout,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic(partitions=2)
    produce_records(broker.bootstrap, name, [Record(value=b"%d" % n) for n in range(7)])
    (tmp_path / "prices.yaml").write_text(
        f"name: prices\ntopic: {name}\nschedule: '@daily'\nstart: earliest\n"
    )
    # The home of the server, and a lakehouse of this test.
    monkeypatch.setenv("TIDEMARK_HOME", str(layout.home))
    monkeypatch.setenv("TIDEMARK_LAKEHOUSE", str(tmp_path / "lakehouse"))
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path))
    monkeypatch.setenv(connection_variable("kafka_default"), kafka_connection(broker.bootstrap))

    variables: dict[str, Any] = {}
    for block in _BLOCK.findall(
        (PROJECT / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
    ):
        exec(compile(block, "docs/how-to/python.md", "exec"), variables)

    assert variables["app"].engines.select() == connect_server
    assert variables["done"].exit_code == 0
    compared = variables["verification"].partitions
    assert sum(each.records for each in compared) == 7
    assert variables["outcome"].rows == 7
