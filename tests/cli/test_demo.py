"""The demo, which runs all parts together."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from tests.support import PROJECT
from tidemark.app.app import App
from tidemark.cli.demo import _wait_for_key, count_rows
from tidemark.local.airflow_standalone import AirflowStatus
from tidemark.local.broker import home_broker

TIDEMARK = Path(sys.executable).with_name("tidemark")


def project_with(folder: Path, specs: str) -> Path:
    """Return a project folder that has this checkout's files, but only some of its specs.

    Args:
        folder: The new folder.
        specs: Pattern of the names of the spec files.
    """
    for source, target in ((PROJECT, folder), (PROJECT / "include", folder / "include")):
        target.mkdir()
        for each in source.iterdir():
            if each.name not in ("include", "pipelines"):
                (target / each.name).symlink_to(each)
    (folder / "include" / "pipelines").mkdir()
    for spec in (PROJECT / "include" / "pipelines").glob(specs):
        shutil.copy(spec, folder / "include" / "pipelines")
    return folder


def test_the_demo_waits_for_a_key_or_the_end_of_input_with_the_address_of_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    airflow = AirflowStatus(
        running=True,
        url="http://127.0.0.1:1",
        username="ada",
        password="secret",
        home=tmp_path,
        log=tmp_path / "log",
        processes=(),
    )
    for typed in ("\n", ""):
        monkeypatch.setattr(sys, "stdin", StringIO(typed))
        _wait_for_key(airflow)
        assert capsys.readouterr().out.splitlines() == [
            "console        http://127.0.0.1:1/plugin/tidemark",
            "login          ada, password secret",
            "Press Enter to stop. ",
        ]


@pytest.mark.e2e
@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("shown", ["prices*", pytest.param("*", marks=pytest.mark.faults)])
def test_s22_s23_the_demo_passes_its_checks(tmp_path: Path, shown: str) -> None:
    """The exit code is 0, and the tables agree with the counts of the last line."""
    home = tmp_path / "demo"
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_CONN")},
        "TIDEMARK_PROJECT": str(project_with(tmp_path / "project", f"{shown}.yaml")),
    }
    log = tmp_path / "demo.log"
    with log.open("w") as file:
        ran = subprocess.run(
            [str(TIDEMARK), "demo", "--home", str(home)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environ,
            check=False,
        )
    text = log.read_text()
    assert ran.returncode == 0, text
    line = next(line for line in text.splitlines() if line.startswith("tidemark-demo"))
    counts = dict(word.split("=") for word in line.split()[1:])
    app = App(environ={**environ, "TIDEMARK_HOME": str(home)})
    tables = [count_rows(app.layout.data_table(spec.target)) for spec in app.specs.values()]
    assert counts["result"] == "ok"
    assert [sum(each) for each in zip(*tables, strict=True)] == [int(counts["rows"])] * 2
    decisions = [
        each.decision for name in app.specs for each in app.pipeline(name).publication.plans()
    ]
    assert sum(each is not None for each in decisions) == int(counts["plans"])
    for part in (home_broker(app.layout), app.airflow(), app.engines.server()):
        assert not part.status().running
    logs = list(app.layout.airflow.glob("logs/**/*ingest*/**/*.log"))
    engines = [re.findall(r"engine=([\w ]+)", log.read_text()) for log in logs]
    assert {each[0] for each in engines if each} == {"Spark Connect at localhost"}
    token = (home / "spark" / "token").read_bytes()
    assert [f for f in home.rglob("*") if f.is_file() and token in f.read_bytes()] == [
        home / "spark" / "token"
    ]
