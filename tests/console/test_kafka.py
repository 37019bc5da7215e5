"""Pages of Kafka over a described cluster: which pipelines of a topic a viewer sees."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from starlette.testclient import TestClient

from tests.ops.report.test_cluster import FixedCluster
from tests.support.consoles import SomeRights
from tests.support.file_lake import home_lake
from tests.support.memory_consoles import memory_app, memory_web


def test_a_hidden_pipeline_of_a_visible_topic_is_not_named(tmp_path: Path) -> None:
    """The cluster has topic `prices` and lacks topic `orders`."""
    lake = home_lake(tmp_path)
    topics = {"seen": "prices", "secret": "prices", "late": "orders", "secret_late": "orders"}
    for name, topic in topics.items():
        text = f"name: {name}\ntopic: {topic}\nschedule: '@daily'\n"
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(text)
    app = replace(memory_app(tmp_path, lake)(), cluster_reader=FixedCluster())
    paths = ("/cluster", "/cluster/kafka_default/topics/prices")

    def named(viewer: SomeRights) -> list[set[str]]:
        """Return the pipelines to which each page links."""
        client = TestClient(memory_web(lambda: app, viewer))
        pages = [client.get(path).text for path in paths]
        assert viewer.pipelines is None or "secret" not in "".join(pages)
        return [{*re.findall(r'href="/pipelines/(\w+)"', page)} for page in pages]

    assert named(SomeRights()) == [{*topics, "events", "idle"}, {"seen", "secret"}]
    assert named(SomeRights(pipelines=["seen", "late"])) == [{"seen", "late"}, {"seen"}]
