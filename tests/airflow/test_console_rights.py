"""Rights of users of Airflow in the console: teams of the simple auth manager, in a database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import Probe
from tests.support.file_lake import home_lake
from tests.support.page_text import text_of
from tidemark.app.connections import kafka_connection

pytestmark = pytest.mark.airflow

TEAMS: Mapping[str, str | None] = {"tidemark_events": "water", "tidemark_idle": "sea"}
SEA = json.dumps({"bootstrap.servers": "sea:2"})
PAGES = (
    *("", "/plans", "/plans/1", "/records?offset=9", "/quarantine", "/backfill", "/backfills"),
    *("/quality", "/quality/report", "/quality/docs/page.html"),
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


def environment(home: Path) -> dict[str, str]:
    return {
        "TIDEMARK_HOME": str(home),
        "TIDEMARK_LAKEHOUSE": str(home / "lakehouse"),
        "TIDEMARK_PIPELINES": str(home / "pipelines"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": kafka_connection("127.0.0.1:1"),
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__API_AUTH__JWT_SECRET": "secret-of-the-test" * 4,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home.parent / 'airflow.db'}",
    }


def pages(
    probe: Probe,
    home: Path,
    users: list[dict[str, Any]],
    paths: list[str],
    *,
    multi_team: bool = True,
    **given: Any,
) -> list[dict[str, dict[str, Any]]]:
    """Return pages of the console as each user sees them. The Kafka connection has no team."""
    environ = {**environment(home), "AIRFLOW__CORE__MULTI_TEAM": str(multi_team)}
    arguments = {"teams": TEAMS, "users": users, "paths": paths, **given}
    found: list[dict[str, dict[str, Any]]] = probe.ask(
        "console_pages", environ=environ, **arguments
    ).value
    return found


def test_a_pipeline_of_another_team_is_hidden(probe: Probe, home: Path) -> None:
    """The right to read the connection alone does not open the records."""
    tables = ("events", "events@typed")
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


def add_pipeline(home: Path, name: str, connection: str = "kafka_default") -> None:
    text = f"name: {name}\ntopic: {name}\nschedule: '@daily'\nconnection: {connection}\n"
    (home / "pipelines" / f"{name}.yaml").write_text(text)


def test_a_pipeline_of_an_unknown_team_is_shown_to_members_of_every_team_only(
    probe: Probe, home: Path
) -> None:
    """The team is unknown before the first parse of a DAG, and without its bundle.

    Airflow lacks the DAG of `events`. The bundle with the DAG of `idle` is no longer configured.
    Every user sees `shared`, whose bundle has no team.
    """
    add_pipeline(home, "shared")
    teams = {"other": "sea", "tidemark_idle": "water", "tidemark_shared": None}
    users = [user("OP", "sea"), user("OP", "sea", "water")]
    records = "/pipelines/events/records?offset=9"
    some, every = pages(probe, home, users, ["/", records], teams=teams, closed=["water"])
    assert some[records]["status"] == 404
    assert "card 4111" not in some[records]["text"]
    assert "card 4111" in every[records]["text"]
    for seen, shown in ((some, False), (every, True)):
        assert ("/pipelines/events" in seen["/"]["text"]) is shown
        assert ("/pipelines/idle" in seen["/"]["text"]) is shown
        assert "/pipelines/shared" in seen["/"]["text"]


def test_without_teams_airflow_decides_about_unknown_dags_by_their_ids(
    probe: Probe, home: Path
) -> None:
    """Airflow ignores teams that its database still contains."""
    teams = {"other": "sea", "tidemark_idle": "water"}
    (seen,) = pages(probe, home, [user("VIEWER")], ["/"], multi_team=False, teams=teams)
    assert "/pipelines/events" in seen["/"]["text"]
    assert "/pipelines/idle" in seen["/"]["text"]


def test_the_console_has_the_connections_of_the_tasks(probe: Probe, home: Path) -> None:
    """Tasks get connections of their team before global ones. Two teams share `kafka_both`.

    The console has no connection that differs between teams, so that it never reads the cluster of
    another team.
    """
    dags = {
        "a": ("sea", "kafka_sea"),
        "b": ("sea", "kafka_one"),
        "c": ("sea", "kafka_both"),
        "d": ("water", "kafka_both"),
        "e": (None, "kafka_none"),
    }
    for name, (_, connection) in dags.items():
        add_pipeline(home, name, connection)
    add_pipeline(home, "unknown", "kafka_one")
    names = ("KAFKA_ONE", "KAFKA_BOTH", "KAFKA_NONE")
    environ = environment(home)
    environ |= {f"AIRFLOW_CONN_{name}": kafka_connection("global:1") for name in names}
    environ |= {f"AIRFLOW_CONN__SEA___{name}": kafka_connection("sea:1") for name in names}
    answer = probe.ask(
        "console_connections",
        environ=environ,
        teams={f"tidemark_{name}": team for name, (team, _) in dags.items()},
        connections={"kafka_sea": {"extra": SEA, "team_name": "sea"}},
    )
    assert answer.value == {
        "kafka_default": ["127.0.0.1:1"],
        "kafka_sea": ["sea:2"],
        "kafka_one": ["sea:1"],
        "kafka_both": "InvalidConnection",
        "kafka_none": ["global:1"],
    }


def test_the_console_shows_paused_dags_and_the_last_run(probe: Probe, home: Path) -> None:
    """The last run is the newest one, also if it read older data. Its task `plan` failed."""
    now = datetime.now(UTC)
    three, two, one = ((now - timedelta(hours=hours)).isoformat() for hours in (3, 2, 1))
    dag = {"dag_id": "tidemark_events"}
    runs = [
        {**dag, "run_id": "first", "state": "success", "run_after": one},
        {**dag, "run_id": "last", "state": "failed", "start_date": three, "end_date": two},
        {"dag_id": "tidemark_idle", "run_id": "other", "state": "running", "start_date": three},
    ]
    paths = ["/", "/pipelines/events", "/pipelines/idle"]
    every, some = pages(
        probe,
        home,
        [user("VIEWER", "sea", "water"), user("VIEWER", "sea")],
        paths,
        paused=["tidemark_events"],
        runs=runs,
    )
    events, idle = text_of(every[paths[1]]["text"]), text_of(every[paths[2]]["text"])
    paused = "DAG tidemark_events is paused: no scheduled run lands records of its pipelines."
    assert paused in events
    assert paused in text_of(every["/"]["text"])
    assert "Last run of DAG tidemark_events: last failed 2 h" in events
    assert "/dags/tidemark_events/runs/last" in every[paths[1]]["text"]
    assert "Last run of DAG tidemark_idle: other running 3 h" in idle
    assert "is paused:" not in idle
    assert "tidemark_events" not in some["/"]["text"]


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
