"""A real Prometheus scrapes metrics of a real run from the console, as metrics.md describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from deltalake import DeltaTable

from tests.conftest import PROJECT, TopicFactory
from tests.ops.report.test_metrics import dashboard_expressions
from tests.support.consoles import served
from tests.support.kafka_file_lake import KafkaFileLake
from tests.support.plans import make_spec
from tests.support.prometheus import RULES, TOKEN, prometheus, promtool
from tests.support.services import NOW
from tidemark.app.app import App
from tidemark.app.statuses import record_status
from tidemark.console.guard import LinkGuard
from tidemark.console.server import build_app
from tidemark.kafka.errors import TopicMissing
from tidemark.local.broker import BrokerStatus
from tidemark.ops.report.metrics import METRICS
from tidemark.spark.sockets import free_ports

pytestmark = [pytest.mark.broker, pytest.mark.e2e]


def scrape_config(folder: Path, target: str) -> str:
    """Return the configuration of the page, with the test's own target, token and interval."""
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n# prometheus.yml\n(.*?)```", page, flags=re.DOTALL)
    (folder / "token").write_text(TOKEN, encoding="utf-8")
    for old, new in (
        ("scrape_interval: 1m", "scrape_interval: 1s"),
        ("/etc/prometheus/tidemark-token", str(folder / "token")),
        ("localhost:8081", target),
        ("- prometheus-alarms.yaml", f"- {RULES}"),
    ):
        assert old in block
        block = block.replace(old, new)
    return f"global: {{evaluation_interval: 1s}}\n{block}"


def test_prometheus_shows_the_values_of_a_run_and_its_alarms(
    broker: BrokerStatus, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    lake = KafkaFileLake(
        root=tmp_path / "lake", spec=make_spec(topic=name), bootstrap=broker.bootstrap
    )
    lake.run(5)
    lake.produce(3, 1)
    (tmp_path / "pipelines").mkdir()
    app = App(
        environ={
            "TIDEMARK_HOME": str(tmp_path),
            "TIDEMARK_LAKEHOUSE": str(tmp_path / "lake"),
            "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
        }
    )
    record_status(app, {"events": lake.status(), "gone": TopicMissing(topic="t")})
    size = sum(DeltaTable(str(lake.uri)).get_add_actions().column("size_bytes").to_pylist())
    folder = tmp_path / "prometheus"
    folder.mkdir()
    (port,) = free_ports("127.0.0.1", 1)
    console = build_app(lambda: app, LinkGuard(bearer=TOKEN))
    with (
        served(console) as address,
        prometheus(folder, scrape_config(folder, urlsplit(address).netloc), port) as running,
    ):

        def value(expression: str) -> list[float]:
            return [each for _, each in running.values(expression)]

        assert value('tidemark_lag_offsets{pipeline="events"}') == [3]
        assert value('tidemark_landed_records{pipeline="events"}') == [5]
        assert value('tidemark_last_landed_bytes{pipeline="events"}') == [size]
        assert value('tidemark_stored_bytes{pipeline="events"}') == [size]
        assert value("tidemark_last_landed_timestamp_seconds") == [NOW.timestamp()]
        assert value(f'tidemark_pipeline_info{{topic="{name}"}}') == [1]
        assert running.values("tidemark_problem")[0][0]["error"] == "TopicMissing"
        described = running.api("metadata")
        assert {each.name: each.text for each in METRICS} == {
            each.name: described[each.name][0]["help"] for each in METRICS
        }
        assert described["tidemark_lag_seconds"][0]["unit"] == "seconds"
        for expression in dashboard_expressions():
            running.values(expression.replace("$pipeline", ".*"))
        wait_for_alarm(running.values)
        (target,) = running.api("targets")["activeTargets"]
        assert target["scrapeUrl"] == f"{address}/metrics"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        scraped = httpx.get(f"{address}/metrics", headers=headers, trust_env=False)
        assert httpx.get(f"{address}/metrics", trust_env=False).status_code == 401
    promtool("check", "metrics", standard_input=scraped.text)


def wait_for_alarm(values: Callable[[str], list[tuple[dict[str, str], float]]]) -> None:
    """Wait until the alarm about the missing topic fires."""
    from tests.support.waiting import wait_until

    firing = 'ALERTS{alertname="TidemarkRunRefused", alertstate="firing", pipeline="gone"}'
    wait_until(lambda: values(firing), 30, 0.1, what="the alarm")
