"""Architecture: allowed imports, and the libraries that planning does without."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import PROJECT, TopicFactory
from tests.support.sources import calls, statements
from tidemark.local.broker import BrokerStatus
from tidemark.local.producer import produce

SOURCES = PROJECT / "include" / "tidemark"
HEAVY = {"pyspark", "py4j", "great_expectations", "airflow", "delta"}


def run(code: str, *arguments: str) -> list[str]:
    """Run code in a new interpreter; return the top-level packages that it has loaded."""
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
    """Return the full names of all modules that a file imports."""
    found: set[str] = set()
    for node in statements(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (SOURCES / folder).rglob("*.py"))


# -- layers --------------------------------------------------------------------------------------


def test_no_module_imports_a_higher_layer() -> None:
    """pyproject.toml has the order of the layers."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_decisions_of_an_operator_accept_a_loss() -> None:
    """A run never skips offsets (I3)."""
    creators = {
        str(file.relative_to(SOURCES))
        for file, call in calls(SOURCES.rglob("*.py"), ["LossAccepted"])
        if "tidemark.core.events.LossAccepted" in imports(file)
        and ast.unparse(call.func) == "LossAccepted"
    }
    assert creators == {"bronze/repair/decisions.py"}


def test_core_uses_the_standard_library_alone() -> None:
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
    "confluent_kafka": ["kafka/*", "local/*", "silver/typed/registry*"],
    "deltalake": [
        "delta/*",
        "silver/typed/*table.py",
        "silver/typed/columns.py",
        "silver/typed/spark*.py",
        "silver/typed/unnamed.py",
        "silver/upsert/table.py",
        "quality/*",
    ],
    "duckdb": ["sql/session.py", "silver/typed/unnamed.py"],
    "great_expectations": ["quality/gx/*"],
    "httpx2": ["airflow/alarms.py", "local/airflow_api.py", "silver/typed/registry.py"],
    "openlineage": ["airflow/lineage/*"],
    "psutil": ["delta/log_folders.py", "spark/*"],
    "pyspark": [
        "spark/*",
        "*/spark*.py",
        "silver/typed/formats/*",
        "quality/*",
        "app/run.py",
        "app/steps.py",
    ],
}
"""The modules that may import each library."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_in_its_folders_only(library: str) -> None:
    importers = [file for file in files(".") if library in {_.split(".")[0] for _ in imports(file)}]
    names = [str(file.relative_to(SOURCES)) for file in importers]
    allowed = LIBRARIES[library]
    elsewhere = [name for name in names if not any(fnmatch(name, each) for each in allowed)]
    assert elsewhere == []


SERVICES = ["bronze", "core", "draft", "ops", "silver"]


@pytest.mark.parametrize("folder", SERVICES)
def test_no_clock_and_no_random_id_below_the_app(folder: str) -> None:
    """With times and ids as arguments, every decision can be repeated."""
    banned = {"now", "utcnow", "today", "uuid4", "uuid1", "time_ns", "monotonic"}
    called = {
        (file.name, node.func.attr)
        for file, node in calls(files(folder), banned)
        if isinstance(node.func, ast.Attribute)
        and node.func.attr in banned
        # These call the clock that was passed to the service.
        and ast.unparse(node.func) not in ("self.now", "self.ports.now", "ports.now")
    }
    assert called == set()


def test_i6_only_the_export_command_writes_offsets_to_kafka() -> None:
    """No run, job or DAG can reach the write."""
    everywhere = [
        file
        for folder in (SOURCES, PROJECT / "dags", PROJECT / "jobs")
        for file in folder.rglob("*.py")
    ]

    def files_with(text: str) -> set[str]:
        found = (file for file in everywhere if text in file.read_text(encoding="utf-8"))
        return {str(file.relative_to(PROJECT)) for file in found}

    package = "include/tidemark"
    assert files_with("alter_consumer_group_offsets") == {f"{package}/kafka/groups.py"}
    assert files_with("groups.commit(") == {f"{package}/bronze/repair/exports.py"}
    assert files_with("repair.exports") == {
        f"{package}/app/adapters.py",
        f"{package}/app/offsets.py",
        f"{package}/local/failpoints.py",
    }
    assert files_with(".offsets.export(") == {f"{package}/cli/offsets.py"}
    # Runs get no port that can write offsets.
    assert files_with("GroupOffsets") == {
        f"{package}/{file}"
        for file in (
            "local/failpoints.py",
            "kafka/groups.py",
            "app/adapters.py",
            "bronze/repair/exports.py",
        )
    }


WRITES = {
    "include/tidemark/kafka/groups.py": {"alter_consumer_group_offsets"},
    "include/tidemark/kafka/topics.py": {"create_topics"},
    "include/tidemark/local/producer.py": {"Producer", "create_topics"},
}
"""Calls of confluent-kafka that change a cluster, by module."""


def test_i6_only_known_modules_change_a_cluster() -> None:
    """No module calls `subscribe`, which joins a group, or `store_offsets`."""
    writing = {"Producer", "subscribe", "store_offsets", "commit_transaction"}
    admin = {
        name
        for name in dir(AdminClient)
        if re.match("create_|delete_|alter_|incremental_|elect_", name)
    }
    found: dict[str, set[str]] = {}
    for folder in (SOURCES, PROJECT / "dags", PROJECT / "jobs"):
        for file, call in calls(folder.rglob("*.py"), writing | admin):
            name = getattr(call.func, "attr", getattr(call.func, "id", None))
            if name in writing | admin:
                found.setdefault(str(file.relative_to(PROJECT)), set()).add(str(name))
    assert found == WRITES


# -- loaded modules ------------------------------------------------------------------------------


def test_reading_specs_in_a_dag_file_loads_no_heavy_library() -> None:
    """Airflow parses DAG files every few seconds."""
    loaded = run("from tidemark.app.app import App\nApp.from_environment().specs")
    assert HEAVY.isdisjoint(loaded)
    assert {"confluent_kafka", "deltalake", "pyarrow", "pandas"}.isdisjoint(loaded)


PLANNER = """
import sys
from tidemark.app.app import App
app = App.from_environment(dict(item.split("=", 1) for item in sys.argv[1:]))
planner = app.pipeline("architecture").planner
first = planner.plan("test:1")
assert first.plan is not None and first.plan.size == 5, first
assert planner.plan("test:1").plan == first.plan
assert app.pipeline("architecture").report.status().open_plans == (1,)
"""


@pytest.mark.broker
def test_planning_needs_no_jvm(broker: BrokerStatus, topic: TopicFactory, tmp_path: Path) -> None:
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
