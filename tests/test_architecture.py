"""Architecture: who may import whom, and what planning does without."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT, TopicFactory
from tidemark.adapters.broker.embedded import BrokerStatus
from tidemark.adapters.kafka.producer import produce

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
    """Layers: errors <- core <- ports <- services, adapters <- wiring <- cli, says the linter."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_errors_core_and_ports_use_the_standard_library_alone() -> None:
    """What decides has nothing to install and nothing to start."""
    allowed = set(sys.stdlib_module_names) | {"tidemark"}
    checked = [SOURCES / "ports.py", *files("core", "errors", "services")]
    foreign = {
        (file.name, name)
        for file in checked
        for name in imports(file)
        if name.partition(".")[0] not in allowed
    }
    assert foreign == set()


def adapter_of(module: str) -> str | None:
    """The adapter that a module of the package belongs to: a file, or a folder of files."""
    parts = module.split(".")
    if parts[:2] != ["tidemark", "adapters"] or len(parts) < 3:
        return None
    return parts[2]


def test_adapters_do_not_know_each_other() -> None:
    """Each wraps one library; a folder is one adapter in several files."""
    crossing = {
        (str(file.relative_to(SOURCES)), name)
        for file in files("adapters")
        for name in imports(file)
        if (other := adapter_of(name)) is not None
        and other != file.relative_to(SOURCES / "adapters").parts[0].removesuffix(".py")
    }
    assert crossing == set()


@pytest.mark.parametrize("folder", ["core", "services"])
def test_no_clock_and_no_chance_in_what_decides(folder: str) -> None:
    """Time and ids are passed in, so every decision can be repeated."""
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


def test_airflow_is_imported_in_dags_only() -> None:
    """The package runs without a scheduler."""
    assert [f for f in files(".") if any(n.split(".")[0] == "airflow" for n in imports(f))] == []


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
    assert naming("alter_consumer_group_offsets") == {f"{package}/adapters/kafka/groups.py"}
    assert naming("groups.commit(") == {f"{package}/services/exports.py"}
    assert naming("services.exports") == {f"{package}/wiring.py"}
    assert naming(".exports(") == {f"{package}/cli/offsets.py"}
    # What runs gets no port that could.
    assert naming("GroupOffsets") == {
        f"{package}/{file}"
        for file in (
            "adapters/kafka/groups.py",
            "adapters/failpoints.py",
            "adapters/memory.py",
            "ports.py",
            "services/exports.py",
            "wiring.py",
        )
    }


# -- what is loaded ------------------------------------------------------------------------------


def test_a_dag_file_that_asks_for_the_specs_loads_nothing_heavy() -> None:
    """DAG files are parsed every few seconds."""
    loaded = run("from tidemark.wiring import App\nApp.from_environment().specs")
    assert HEAVY.isdisjoint(loaded)
    assert {"confluent_kafka", "deltalake", "pyarrow", "pandas"}.isdisjoint(loaded)


PLANNER = """
import sys
from tidemark.wiring import App
app = App.from_environment(dict(item.split("=", 1) for item in sys.argv[1:]))
planner = app.planner("architecture")
first = planner.plan("test:1")
assert first.plan is not None and first.plan.size == 5, first
assert planner.plan("test:1").plan == first.plan
assert app.status("architecture").open_plans == (1,)
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
