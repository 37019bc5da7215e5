"""Rights of users of Airflow in the console: teams of the simple auth manager, in a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import Probe
from tests.support.file_lake import home_lake
from tidemark.connections import kafka_connection

pytestmark = pytest.mark.airflow

TEAMS = {"tidemark_events": "water", "tidemark_idle": "sea"}
PAGES = (
    *("", "/plans", "/plans/1", "/records?offset=9", "/quarantine", "/backfill", "/backfills"),
    *("/quality", "/quality/report", "/quality/docs/index.html"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Pipelines `events` and `idle` of two teams, and an invalid spec."""
    home = tmp_path / "home"
    home.mkdir()
    lake = home_lake(home)
    lake.land_payloads([(b"alice", b"card 4111")], 0)
    (home / "pipelines" / "broken.yaml").write_text("name: broken\n")
    return home


def user(role: str, *teams: str) -> dict[str, Any]:
    """Return a user of the simple auth manager."""
    return {"username": "ada", "role": role, "teams": teams}


def pages(
    probe: Probe, home: Path, users: list[dict[str, Any]], paths: list[str]
) -> list[dict[str, dict[str, Any]]]:
    """Return pages of the console as each user sees them. The Kafka connection has no team."""
    environ = {
        "TIDEMARK_HOME": str(home),
        "TIDEMARK_LAKEHOUSE": str(home / "lakehouse"),
        "TIDEMARK_PIPELINES": str(home / "pipelines"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": kafka_connection("127.0.0.1:1"),
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__API_AUTH__JWT_SECRET": "secret-of-the-test" * 4,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home.parent / 'airflow.db'}",
    }
    answer = probe.ask("console_pages", environ=environ, teams=TEAMS, users=users, paths=paths)
    found: list[dict[str, dict[str, Any]]] = answer.value
    return found


def test_a_pipeline_of_another_team_is_hidden(probe: Probe, home: Path) -> None:
    """The right to read the connection alone does not open the records."""
    tables = ("events", "events@july", "events@typed")
    paths = [f"/pipelines/{name}{path}" for name in tables for path in PAGES]
    paths += ["/dags/tidemark_events", "/dags/tidemark_events/runs/x"]
    (seen,) = pages(probe, home, [user("OP", "sea")], paths)
    assert {path: page["status"] for path, page in seen.items()} == dict.fromkeys(paths, 404)
    assert "card 4111" not in str(seen)


def test_a_user_sees_only_the_pipelines_of_the_users_teams(probe: Probe, home: Path) -> None:
    """Payloads need the connection as well, which an operator may read and a viewer may not."""
    users = [user("OP", "sea"), user("OP", "water"), user("VIEWER", "water")]
    records = "/pipelines/events/records?offset=9"
    sea, operator, viewer = pages(probe, home, users, ["/", "/pipelines/idle", records])
    assert [sea[path]["status"] for path in ("/", "/pipelines/idle", records)] == [200, 200, 404]
    assert "/pipelines/idle" in sea["/"]["text"]
    assert "/pipelines/events" not in sea["/"]["text"]
    for own in (operator, viewer):
        assert "/pipelines/events" in own["/"]["text"]
        assert "/pipelines/idle" not in own["/"]["text"]
    assert "card 4111" in operator[records]["text"]
    assert viewer[records]["status"] == 200
    assert "card 4111" not in viewer[records]["text"]


def test_invalid_specs_are_shown_to_members_of_every_team_only(probe: Probe, home: Path) -> None:
    """The team of an invalid spec is unknown. Here, one team has no valid spec."""
    (home / "pipelines" / "events.yaml").write_text("name: events\nsecret: x\n")
    users = [user("OP", "sea"), user("VIEWER", "sea", "water"), user("ADMIN")]
    paths = ["/", "/pipelines/events", "/pipelines/broken", "/pipelines/unknown"]
    some, *all_of_them = pages(probe, home, users, paths)
    assert [some[path]["status"] for path in paths] == [200, 404, 404, 404]
    assert not any(word in some["/"]["text"] for word in ("secret", "events", "broken"))
    for each in all_of_them:
        assert all(word in each["/"]["text"] for word in ("secret", "events", "broken"))
        assert [each[path]["status"] for path in paths[1:3]] == [422, 422]


def test_a_page_of_one_pipeline_needs_one_decision(probe: Probe, home: Path) -> None:
    paths = ["/pipelines/events/plans/1", "/dags/tidemark_events/runs/x", "/"]
    (seen,) = pages(probe, home, [user("OP", "water")], paths)
    # The page of a run also needs the right to read the tasks of the DAG.
    assert [seen[path]["asked"] for path in paths] == [1, 2, 2]
