"""Architecture: who may import whom, and what planning does without."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import PROJECT, TopicFactory
from tidemark.dev.broker import BrokerStatus
from tidemark.dev.producer import produce

SOURCES = PROJECT / "include" / "tidemark"
HEAVY = {"pyspark", "py4j", "great_expectations", "airflow", "delta"}


def run(code: str, *arguments: str) -> list[str]:
    """Run code in a fresh interpreter; the top-level packages that it has loaded at its end."""
    ending = (
        "import json, sys; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{ending}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


@cache
def imports(file: Path) -> set[str]:
    """Full names of all modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(*folders: str) -> list[Path]:
    """Python files of the package below these folders."""
    return sorted(file for folder in folders for file in (SOURCES / folder).rglob("*.py"))


# -- layers --------------------------------------------------------------------------------------


def test_the_layers_hold() -> None:
    """No module imports a layer above its own (pyproject.toml has the order)."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_core_uses_the_standard_library_alone() -> None:
    """The rules of the protocol need no package and no running service."""
    allowed = set(sys.stdlib_module_names) | {"tidemark"}
    foreign = {
        (file.name, name)
        for file in files("core")
        for name in imports(file)
        if name.partition(".")[0] not in allowed
    }
    assert foreign == set()


LIBRARIES = {
    "airflow": ["airflow/*"],
    "confluent_kafka": ["kafka/*", "dev/*", "typed/registry*"],
    "deltalake": [
        "lake/*",
        "ingest/start_ingested.py",
        "typed/*table.py",
        "typed/columns.py",
        "typed/quarantine.py",
        "typed/spark*.py",
        "upsert/table.py",
        "quality/*",
    ],
    "great_expectations": ["quality/gx/*"],
    "httpx2": ["airflow/alarms.py", "dev/airflow_api.py", "typed/registry.py"],
    "psutil": ["spark/*"],
    "pyspark": [
        "spark/*",
        "*/spark*.py",
        "typed/formats/*",
        "quality/*",
        "jobs.py",
        "run.py",
        "steps.py",
    ],
}
"""The modules that may import each library."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_in_its_folders_only(library: str) -> None:
    """A change of a library concerns the code of these folders."""
    importers = [file for file in files(".") if library in {_.split(".")[0] for _ in imports(file)}]
    names = [str(file.relative_to(SOURCES)) for file in importers]
    allowed = LIBRARIES[library]
    elsewhere = [name for name in names if not any(fnmatch(name, each) for each in allowed)]
    assert elsewhere == []


SERVICES = ["backfill", "core", "ingest", "maintenance", "repair", "report", "typed", "upsert"]


@pytest.mark.parametrize("folder", SERVICES)
def test_no_clock_and_no_random_id_below_the_app(folder: str) -> None:
    """Time and ids are passed in, so that every decision can be repeated."""
    banned = {"now", "utcnow", "today", "uuid4", "uuid1", "time_ns", "monotonic"}
    called = {
        (file.name, node.func.attr)
        for file in files(folder)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in banned
        # `self.now()` is the clock that a service was given.
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id == "self")
    }
    assert called == set()


def test_i6_only_the_command_writes_offsets_to_kafka() -> None:
    """The one exception is made by who types it: no run, job or DAG can come there."""
    everywhere = [
        file
        for folder in (SOURCES, PROJECT / "dags", PROJECT / "jobs")
        for file in folder.rglob("*.py")
    ]

    def naming(text: str) -> set[str]:
        found = (file for file in everywhere if text in file.read_text(encoding="utf-8"))
        return {str(file.relative_to(PROJECT)) for file in found}

    package = "include/tidemark"
    assert naming("alter_consumer_group_offsets") == {f"{package}/kafka/groups.py"}
    assert naming("groups.commit(") == {f"{package}/repair/exports.py"}
    assert naming("repair.exports") == {
        f"{package}/pipeline.py",
        f"{package}/dev/failpoints.py",
    }
    assert naming(".export_offsets(") == {f"{package}/cli/offsets.py"}
    # What runs gets no port that could.
    assert naming("GroupOffsets") == {
        f"{package}/{file}"
        for file in (
            "dev/failpoints.py",
            "kafka/groups.py",
            "pipeline.py",
            "repair/exports.py",
        )
    }


# -- what is loaded ------------------------------------------------------------------------------


def test_a_dag_file_that_asks_for_the_specs_loads_nothing_heavy() -> None:
    """DAG files are parsed every few seconds."""
    loaded = run("from tidemark.app import App\nApp.from_environment().specs")
    assert HEAVY.isdisjoint(loaded)
    assert {"confluent_kafka", "deltalake", "pyarrow", "pandas"}.isdisjoint(loaded)


PLANNER = """
import sys
from tidemark.app import App
app = App.from_environment(dict(item.split("=", 1) for item in sys.argv[1:]))
planner = app.pipeline("architecture").planner
first = planner.plan("test:1")
assert first.plan is not None and first.plan.size == 5, first
assert planner.plan("test:1").plan == first.plan
assert app.pipeline("architecture").status().open_plans == (1,)
"""


@pytest.mark.broker
def test_planning_needs_no_jvm(broker: BrokerStatus, topic: TopicFactory, tmp_path: Path) -> None:
    """A plan is made and recorded, from a real topic, in a process that never loads Spark."""
    name = topic(partitions=3)
    produce({"bootstrap.servers": broker.bootstrap}, "streams-intro", topic=name)
    (tmp_path / "architecture.yaml").write_text(
        f"name: architecture\ntopic: {name}\nschedule: '@daily'\nstart: earliest\n"
    )
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap}}
    loaded = run(
        PLANNER,
        f"TIDEMARK_PIPELINES={tmp_path}",
        f"TIDEMARK_HOME={tmp_path}",
        f"AIRFLOW_CONN_KAFKA_DEFAULT={json.dumps(connection)}",
    )
    assert "confluent_kafka" in loaded
    assert "deltalake" in loaded
    assert HEAVY.isdisjoint(loaded)
