"""The console inside a real Airflow: its login, its navigation, and the start of a backfill."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.support.chromium import chromium_tab
from tests.support.parts import Parts
from tests.support.topics import make_topic
from tests.support.transactions import produce_values
from tests.support.waiting import wait_until
from tidemark.app.app import App
from tidemark.delta.local_files import locked
from tidemark.delta.table_io import query_rows
from tidemark.local.airflow_settings import password_file
from tidemark.local.airflow_standalone import AirflowStandalone
from tidemark.local.broker import BrokerStatus

pytestmark = [pytest.mark.airflow, pytest.mark.broker, pytest.mark.e2e, pytest.mark.spark]

# Copies of constants, because each worker would import Airflow, which takes seconds.
LOGIN_COOKIE = "_token"
"""`COOKIE_NAME_JWT_TOKEN` of Airflow."""
PREFIX = "/tidemark"
"""`PREFIX` of `tidemark.airflow.plugin`."""

_OFFSETS = 'SELECT "offset" FROM t ORDER BY "offset"'
SPECS = {"seen": "name: seen\ntopic: seen\nschedule: '@yearly'\nretries: 0\nstart: earliest\n"}


@pytest.fixture
def airflow(parts: Parts, broker: BrokerStatus, admin: AdminClient) -> AirflowStandalone:
    """The shared Airflow with pipeline `seen`, whose topic has three records.

    Two processes can run tests of this module at the same time; the first one makes the topic.
    """
    with locked(parts.home / "seen.lock"):
        if "seen" not in admin.list_topics(timeout=30).topics:
            make_topic(admin, broker.bootstrap, "seen", partitions=1)
            produce_values(broker.bootstrap, "seen", 3)
    return parts.airflow(SPECS)


@pytest.fixture
def client(airflow: AirflowStandalone) -> Iterator[httpx2.Client]:
    """A client without a login."""
    with httpx2.Client(base_url=airflow.status().url, trust_env=False, timeout=30) as client:
        yield client


def token(airflow: AirflowStandalone, client: httpx2.Client, username: str = "admin") -> str:
    """Return a token of a user, with the password that Airflow's file has."""
    passwords = json.loads(password_file(airflow.status().home).read_text())
    login = {"username": username, "password": passwords[username]}
    answer = client.post("/auth/token", json=login)
    return str(answer.json()["access_token"])


def test_airflow_shows_the_console_only_after_a_login(
    airflow: AirflowStandalone, client: httpx2.Client
) -> None:
    for path in ("/", "/static/console.css", "/health", "/pipelines/seen", "/nothing"):
        refused = client.get(f"{PREFIX}{path}")
        assert refused.status_code == 401
        (login,) = re.findall('<a href="([^"]+)" target="_top">Log in to Airflow</a>', refused.text)
        assert client.get(login).status_code == 307
        forged = {"Authorization": "Bearer x.y.z"}
        assert client.get(f"{PREFIX}{path}", headers=forged).status_code in (401, 403)
    good = token(airflow, client)
    cookie = {"Cookie": f"{LOGIN_COOKIE}={good}"}
    for login in ({"Authorization": f"Bearer {good}"}, cookie):
        page = client.get(f"{PREFIX}/", headers=login)
        assert page.status_code == 200
        assert f'href="{PREFIX}/pipelines/seen"' in page.text
        assert page.headers["content-security-policy"]


def test_the_console_reads_kafka_with_airflows_connection(
    airflow: AirflowStandalone, client: httpx2.Client
) -> None:
    login = {"Authorization": f"Bearer {token(airflow, client)}"}
    page = client.get(f"{PREFIX}/dags/tidemark_seen", headers=login).text
    assert 'class="coverage"' in page
    assert "InvalidConnection" not in page
    assert "EmbeddedBrokerStopped" not in page
    airflow.api().wait_for_dags(["tidemark_seen"])
    plugins = client.get("/api/v2/plugins", headers=login).json()["plugins"]
    (plugin,) = [each for each in plugins if each["name"] == "tidemark"]
    assert {view["href"] for view in plugin["external_views"]} == {
        f"{PREFIX}/",
        f"{PREFIX}/dags/{{DAG_ID}}",
        f"{PREFIX}/dags/{{DAG_ID}}/runs/{{RUN_ID}}",
    }


def test_airflows_roles_decide_what_a_user_sees(
    airflow: AirflowStandalone, client: httpx2.Client
) -> None:
    """A viewer may read DAGs but no connection, with which the console reads Kafka."""
    viewer = {"Authorization": f"Bearer {token(airflow, client, 'ada')}"}
    admin = {"Authorization": f"Bearer {token(airflow, client)}"}
    assert client.get(f"{PREFIX}/pipelines/seen", headers=viewer).status_code == 200
    topic = f"{PREFIX}/cluster/kafka_default/topics/seen"
    assert client.get(topic, headers=admin).status_code == 200
    assert client.get(topic, headers=viewer).status_code == 404
    assert "/topics/seen" not in client.get(f"{PREFIX}/cluster", headers=viewer).text


def test_a_person_starts_a_backfill_on_the_page_and_watches_it_land(
    airflow: AirflowStandalone, client: httpx2.Client, tmp_path: Path
) -> None:
    """Airflow shows the console in a frame. The browser starts the run, not the console."""
    api, url = airflow.api(), airflow.status().url
    api.wait_for_dags(["tidemark_backfill"])
    api.set_paused("tidemark_backfill", False)
    with chromium_tab(tmp_path) as tab:
        tab.send("Network.setCookie", name=LOGIN_COOKIE, value=token(airflow, client), url=url)
        tab.open(f"{url}/plugin/tidemark")
        inner = "document.querySelector('iframe')?.contentDocument"
        tab.wait_for(f"{inner}?.querySelector('h1')?.textContent === 'Pipelines'")
        assert tab.value(f"{inner}.querySelector('table.overview').textContent.includes('seen')")

        tab.problems.clear()
        tab.open(f"{url}{PREFIX}/pipelines/seen/backfill?offsets=0:0-2")
        tab.value("document.querySelector('button[data-trigger]').click()")
        tab.wait_for("location.pathname.includes('/dags/tidemark_backfill/runs/')")
        tab.wait_for("document.body.textContent.includes('landed: 1 of 1 chunk')", timeout_s=240)
        assert tab.problems == []

        login = {"Authorization": f"Bearer {token(airflow, client)}"}
        runs = "/api/v2/dags/tidemark_backfill/dagRuns"
        found = client.get(runs, headers=login).json()["dag_runs"]
        # Other tests start backfills in the same Airflow.
        forms = [(run, run["conf"]) for run in found]
        (run,) = [
            run for run, form in forms if form["pipeline"] == "seen" and not form.get("dry_run")
        ]
        task = f"{runs}/{quote(run['dag_run_id'])}/taskInstances/request/links"
        link = client.get(task, headers=login).json()["extra_links"]["Tidemark"]
        tab.open(f"{url}{link}")
        tab.wait_for(f"{inner}?.body.textContent.includes('landed: 1 of 1 chunk')")
        assert "Backfill of seen" in tab.value(f"{inner}.querySelector('h2').textContent")

        # A task that still runs would overwrite the state.
        assert api.wait("tidemark_backfill", run["dag_run_id"]).state == "success"
        publish = f"{runs}/{quote(run['dag_run_id'])}/taskInstances/chunk.publish/0"
        client.patch(publish, headers=login, json={"new_state": "failed"}).raise_for_status()
        links = f"[...{inner}.querySelectorAll('td a[data-airflow]')]"
        failed = f"{links}.find(link => link.textContent.includes('chunk.publish'))"
        tab.wait_for(f"{failed}?.parentElement.textContent.includes('chunk.publish failed')")
        address = f"/runs/{quote(run['dag_run_id'], safe='')}/tasks/chunk.publish/mapped/0"
        assert tab.value(f"{failed}.getAttribute('href')").endswith(address)
    app = App(environ={"TIDEMARK_HOME": str(airflow.status().home.parent)})
    landed = query_rows(DeltaTable(app.layout.data_table("bronze/seen")), _OFFSETS)
    assert [row["offset"] for row in landed] == [0, 1]


def test_the_page_of_a_run_has_the_states_of_its_tasks(
    airflow: AirflowStandalone, client: httpx2.Client
) -> None:
    """A viewer of Airflow may read the DAG and its tasks."""
    api = airflow.api()
    api.wait_for_dags(["tidemark_backfill"])
    api.set_paused("tidemark_backfill", False)
    admin = {"Authorization": f"Bearer {token(airflow, client)}"}
    viewer = {"Authorization": f"Bearer {token(airflow, client, 'ada')}"}
    run_id = "dry+run:1"
    body = {
        "logical_date": None,
        "dag_run_id": run_id,
        "conf": {"pipeline": "seen", "offsets": "0:0-1", "dry_run": True},
    }
    runs = "/api/v2/dags/tidemark_backfill/dagRuns"
    assert client.post(runs, headers=admin, json=body).status_code == 200
    page = f"{PREFIX}/dags/tidemark_backfill/runs/{quote(run_id, safe='')}"
    wait_until(
        lambda: "it was a dry run" in client.get(page, headers=viewer).text,
        timeout_s=120,
        pause_s=0.5,
        what="the end of the task `request`",
    )
    unknown = client.get(f"{PREFIX}/dags/tidemark_backfill/runs/none", headers=viewer)
    assert "the table of the backfill is unknown" in unknown.text
