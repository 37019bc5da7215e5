"""The demo, whole: what a newcomer runs first is a test of everything together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.app import App
from tidemark.cli.demo import count_rows
from tidemark.dev.broker import home_broker

pytestmark = [pytest.mark.e2e, pytest.mark.airflow, pytest.mark.spark, pytest.mark.broker]

TIDEMARK = Path(sys.executable).with_name("tidemark")


@pytest.mark.timeout(1_800)
def test_s22_s23_the_demo_holds_all_that_it_checks(tmp_path: Path) -> None:
    """Exit code 0, a last line with the counts, and tables that agree with it."""
    home = tmp_path / "demo"
    log = tmp_path / "demo.log"
    with log.open("w") as file:
        ran = subprocess.run(
            [str(TIDEMARK), "demo", "--home", str(home)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_CONN")},
            check=False,
        )
    text = log.read_text()
    assert ran.returncode == 0, text
    line = next(line for line in text.splitlines() if line.startswith("tidemark-demo"))
    counts = dict(word.split("=") for word in line.split()[1:])
    app = App.from_environment({"TIDEMARK_HOME": str(home)})
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
