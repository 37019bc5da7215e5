"""The console shows a new, changed or removed spec at the next request."""

from __future__ import annotations

from pathlib import Path

from tests.support.consoles import app_of, console_of
from tidemark.console.home import RELOAD_S, Home

SPEC = "name: {name}\ntopic: {name}\nschedule: '@daily'\n"


def test_specs_are_read_again_after_a_change(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "one.yaml").write_text(SPEC.format(name="one"))
    client = console_of(tmp_path)
    assert client.get("/pipelines/two").status_code == 404
    (folder / "two.yaml").write_text(SPEC.format(name="two"))
    assert client.get("/pipelines/two").status_code == 200
    (folder / "two.yaml").write_text("name: two\n")
    assert "SpecError" in client.get("/pipelines/two").text
    (folder / "two.yaml").unlink()
    assert client.get("/pipelines/two").status_code == 404


def test_connections_are_read_again_after_a_minute(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    now = 0.0
    home = Home(app_of(tmp_path), clock=lambda: now)
    first = home.app
    now = RELOAD_S
    assert home.app is first
    now += 1
    assert home.app is not first
