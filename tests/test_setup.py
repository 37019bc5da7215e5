"""Tests of `make setup`: checked machine, checked jars, no repeated work."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support.scripts import load_script
from tidemark.spec.layout import Layout

JVM = PROJECT / "include" / "jvm"

IVY_FILE = """<ivy-module version="2.0">
  <info organisation="io.tidemark" module="test"/>
  <configurations><conf name="spark"/><conf name="kafka"/></configurations>
  <dependencies/>
</ivy-module>
"""


fetch = load_script("fetch")


def _write_jars(folder: Path, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


JARS = {"spark/a-1.jar": "a", "kafka/b-2.jar": "b"}


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return two required jars on a machine without Java, so that Ivy cannot start."""
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(fetch, "IVY_CACHE", tmp_path / "cache")
    (tmp_path / "ivy.xml").write_text(IVY_FILE)
    (tmp_path / "checksums").write_text(
        "".join(f"{hashlib.sha256(c.encode()).hexdigest()}  {name}\n" for name, c in JARS.items())
    )
    return fetch.Parts(
        ivy_file=tmp_path / "ivy.xml", checksums=tmp_path / "checksums", folder=tmp_path / "jvm"
    )


@pytest.fixture
def installed(parts: object, tmp_path: Path) -> Path:
    _write_jars(tmp_path / "incoming", JARS)
    fetch.install(parts, tmp_path / "incoming")
    return tmp_path / "jvm"


# -- jars ----------------------------------------------------------------------------------------


def test_a_complete_set_of_jars_needs_no_ivy(parts: object, installed: Path) -> None:
    fetch.ensure(parts, "heading")

    assert {str(p.relative_to(installed)) for p in installed.glob("*/*")} == set(JARS)


def test_a_missing_jar_starts_a_download(parts: object, installed: Path) -> None:
    (installed / "spark/a-1.jar").unlink()

    with pytest.raises(fetch.FetchFailed, match="no java on PATH"):
        fetch.ensure(parts, "heading")


def test_a_changed_jar_is_removed_and_named(
    parts: object, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (installed / "kafka/b-2.jar").write_text("something else")

    with pytest.raises(fetch.FetchFailed):
        fetch.ensure(parts, "heading")

    assert not (installed / "kafka/b-2.jar").exists()
    assert (installed / "spark/a-1.jar").exists()
    assert "not of the recorded SHA-256: kafka/b-2.jar" in capsys.readouterr().out


def test_an_unlisted_jar_is_removed_without_a_download(parts: object, installed: Path) -> None:
    (installed / "spark/other-1.jar").write_text("x")

    fetch.ensure(parts, "heading")

    assert {str(p.relative_to(installed)) for p in installed.glob("*/*")} == set(JARS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kafka/b-2.jar": "tampered"}, "not of the recorded SHA-256: kafka/b-2.jar"),
        ({"kafka/c-3.jar": "c"}, "not in the checksums: kafka/c-3.jar"),
        ({"kafka/b-2.jar": None}, "missing: kafka/b-2.jar"),
    ],
    ids=["tampered", "extra", "missing"],
)
def test_a_download_that_differs_from_the_checksums_is_discarded(
    parts: object, tmp_path: Path, change: dict[str, str | None], message: str
) -> None:
    contents = {n: c for n, c in {**JARS, **change}.items() if c is not None}
    _write_jars(tmp_path / "incoming", contents)
    bad = {name: content for name, content in change.items() if content is not None}
    cached = {f"organisation/module/jars/{Path(n).name}": c for n, c in bad.items()}
    _write_jars(tmp_path / "cache", cached)

    with pytest.raises(fetch.FetchFailed, match=re.escape(message)):
        fetch.install(parts, tmp_path / "incoming")

    assert not list((tmp_path / "jvm").glob("*"))
    assert not [name for name in bad if (tmp_path / "incoming" / name).exists()]
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_a_changed_ivy_xml_invalidates_the_installed_jars(parts: object, installed: Path) -> None:
    ivy_file = installed.parent / "ivy.xml"
    ivy_file.write_text(IVY_FILE.replace("test", "changed"))

    assert not fetch.keep_verified(parts)


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [
        (False, "      10 of 25 jars downloaded\n      20 of 25 jars downloaded\n"),
        (True, "".join(f"\r      {number} of 25 jars downloaded" for number in range(1, 26))),
    ],
)
def test_a_download_shows_its_progress_in_place_on_a_terminal(
    is_terminal: bool,
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    for downloaded in range(1, 26):
        fetch._show_downloaded(downloaded, 25)
    assert capsys.readouterr().out == shown


def test_the_error_of_a_failed_ivy_contains_its_reason(tmp_path: Path) -> None:
    ivy_file = tmp_path / "ivy.xml"
    broken = '<dependency org="o" name="n" rev="1" conf="absent->default"/>'
    ivy_file.write_text(
        IVY_FILE.replace("<dependencies/>", f"<dependencies>{broken}</dependencies>")
    )
    parts = fetch.Parts(ivy_file=ivy_file, checksums=tmp_path / "none", folder=tmp_path)

    with pytest.raises(fetch.FetchFailed, match=r"(?s)Ivy's last lines.*absent"):
        fetch.retrieve(parts, tmp_path / "incoming")


@pytest.mark.parametrize(
    ("folder", "fewer"), [(JVM, 10), (JVM / "stores" / "s3", 5)], ids=["jvm", "s3"]
)
def test_the_checksums_contain_every_jar_of_ivy_xml(folder: Path, fewer: int) -> None:
    sums = fetch.read_checksums(folder / "checksums.sha256")
    pinned = {
        f"{d.attrib['conf'].split('->')[0]}/{d.attrib['name']}-{d.attrib['rev']}.jar"
        for d in ElementTree.parse(folder / "ivy.xml").getroot().iter("dependency")
    }

    assert len(pinned) > fewer
    assert pinned <= sums.keys()
    assert {name for name in sums if name.startswith("spark/")} <= pinned


# -- machine -------------------------------------------------------------------------------------


def _program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _java(folder: Path, version: str) -> None:
    _program(folder, "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")


def _environment(first: Path, **variables: str) -> dict[str, str]:
    variables_ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    # CI's make runs this test, and its flags must not affect the tested make.
    variables_ = {name: value for name, value in variables_.items() if not name.startswith("MAKE")}
    return {**variables_, "PATH": f"{first}:{os.environ['PATH']}", **variables}


def _preflight(
    first: Path, free_gb: int = 0, ports: tuple[int, ...] = (), **variables: str
) -> tuple[int, list[str]]:
    done = subprocess.run(
        ["sh", str(JVM / "preflight.sh"), str(free_gb), *map(str, ports)],
        env=_environment(first, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("version", ["17", "17.0.15", "17-ea"])
def test_any_java_17_passes_without_output(tmp_path: Path, version: str) -> None:
    _java(tmp_path / "bin", version)

    assert _preflight(tmp_path / "bin") == (0, [])


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", "8"), ("25", "25"), ("21.0.2", "21")])
def test_another_java_is_refused_in_one_line(tmp_path: Path, version: str, major: str) -> None:
    _java(tmp_path / "bin", version)

    code, lines = _preflight(tmp_path / "bin")

    assert code == 1
    assert len(lines) == 1
    assert f"found {major} ({tmp_path}/bin/java), need 17; install a Java 17" in lines[0]


def test_java_home_overrides_path(tmp_path: Path) -> None:
    _java(tmp_path / "bin", "17.0.1")
    (tmp_path / "home").mkdir()
    _java(tmp_path / "home" / "bin", "25")

    code, lines = _preflight(tmp_path / "bin", JAVA_HOME=str(tmp_path / "home"))

    assert code == 1
    assert f"found 25 (JAVA_HOME={tmp_path}/home)" in lines[0]
    code, lines = _preflight(tmp_path / "bin", JAVA_HOME=str(tmp_path / "absent"))
    assert code == 1
    assert f"found no bin/java in JAVA_HOME={tmp_path}/absent" in lines[0]


def test_another_python_is_refused_in_one_line(tmp_path: Path) -> None:
    """The launcher `python3.11` fails, and `python3` has another version."""
    _java(tmp_path / "bin", "17")
    _program(tmp_path / "bin", "python3.11", "echo 'not installed' >&2; exit 127")
    _program(tmp_path / "bin", "python3", "echo 3.12.1")

    code, lines = _preflight(tmp_path / "bin")

    assert code == 1
    assert len(lines) == 1
    assert f"found 3.12.1 ({tmp_path}/bin/python3), need 3.11; install Python 3.11" in lines[0]


def test_too_little_disk_space_is_refused_in_one_line(tmp_path: Path) -> None:
    _java(tmp_path / "bin", "17")
    _program(tmp_path / "bin", "df", "printf 'head\\nfs 9 9 2097152 1%% /\\n'")

    assert _preflight(tmp_path / "bin", free_gb=2) == (0, [])
    code, lines = _preflight(tmp_path / "bin", free_gb=5)
    assert code == 1
    assert len(lines) == 1
    assert "found 2048 MB free" in lines[0]
    assert "need 5000 MB" in lines[0]


def test_all_missing_requirements_are_reported_at_once(tmp_path: Path) -> None:
    _java(tmp_path / "bin", "8")
    _program(tmp_path / "bin", "df", "printf 'head\\nfs 9 9 5 1%% /\\n'")

    code, lines = _preflight(tmp_path / "bin", free_gb=1)

    assert code == 1
    assert [line.split(":")[1].strip() for line in lines] == ["Java", "Disk"]


def test_a_port_of_make_up_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    """After a first start, the port may belong to the part itself, which `tidemark up` checks."""
    _java(tmp_path / "bin", "17")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        used = holder.getsockname()[1]
        ports = (used, 0)

        code, lines = _preflight(tmp_path / "bin", ports=ports, TIDEMARK_HOME=str(tmp_path))

        assert (code, len(lines)) == (1, 1)
        assert f"found {used} in use, need a free port for the embedded broker" in lines[0]
        assert "make up KAFKA_PORT=N" in lines[0]
        (tmp_path / "broker").mkdir()
        (tmp_path / "broker" / "broker.json").touch()
        found = _preflight(tmp_path / "bin", ports=ports, TIDEMARK_HOME=str(tmp_path))
        assert found == (0, [])


def test_the_virtual_environment_is_not_created_from_itself(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    _program(tmp_path / ".venv" / "bin", "python3.11", "echo 3.11.0")

    done = subprocess.run(
        ["sh", str(JVM / "preflight.sh"), "--python"],
        env=_environment(tmp_path / ".venv" / "bin"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert str(tmp_path) not in done.stdout
    assert Path(done.stdout.strip()).is_file()


# -- make ----------------------------------------------------------------------------------------


def _make(
    folder: Path, target: str, first: Path, *variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *([target] if target else []), *variables],
        env=_environment(first),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with the files of a new clone that the set-up needs."""
    folder = tmp_path / "clone"
    (folder / "include").mkdir(parents=True)
    shutil.copytree(JVM, folder / "include" / "jvm")
    for name in ("Makefile", "pyproject.toml", "requirements.txt", "requirements-dev.txt"):
        shutil.copy(PROJECT / name, folder)
    return folder


def test_make_without_a_target_lists_the_targets(clone: Path, tmp_path: Path) -> None:
    done = _make(clone, "", tmp_path)

    listed = set(re.findall(r"^  make ([a-z-]+) +\S", done.stdout, flags=re.MULTILINE))
    assert done.returncode == 0
    assert listed >= {"setup", "setup-dev", "lock", "demo", "check", "test", "bench", "up", "down"}
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("target", ["setup", "demo", "test"])
def test_make_stops_before_any_work_if_a_requirement_is_missing(
    clone: Path, tmp_path: Path, target: str
) -> None:
    _java(tmp_path / "bin", "1.8.0_402")

    done = _make(clone, target, tmp_path / "bin")

    lines = done.stderr.splitlines()
    assert done.returncode != 0
    assert done.stdout == ""
    assert "tidemark: Java: found 8" in lines[0]
    assert [line for line in lines[1:] if not line.startswith("make: ***")] == []
    assert not (clone / ".venv").exists()


def test_make_up_refuses_a_port_in_use_before_the_set_up(clone: Path, tmp_path: Path) -> None:
    _java(tmp_path / "bin", "17")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        used = holder.getsockname()[1]

        done = _make(clone, "up", tmp_path / "bin", f"PORT={used}", "KAFKA_PORT=0")

    assert done.returncode != 0
    assert f"Port: found {used} in use" in done.stderr
    assert not (clone / ".venv").exists()


def test_make_up_passes_the_ports_to_the_command(clone: Path, tmp_path: Path) -> None:
    """Without them, the command takes those of the last start."""
    _program(clone / ".venv" / "bin", "tidemark", 'echo "$*"')

    chosen = _make(clone, "up", tmp_path, "-o", "setup", "KAFKA_PORT=9192", "PORT=8180")
    default = _make(clone, "up", tmp_path, "-o", "setup")

    assert chosen.stdout == "up --kafka-port 9192 --port 8180\n"
    assert default.stdout == "up\n"


def test_ci_runs_make_test_in_the_checkout(tmp_path: Path) -> None:
    _program(tmp_path / "bin", "make", f'echo "$(pwd) $*" > {tmp_path}/called; exit 7')

    done = subprocess.run(
        ["bash", str(PROJECT / ".ci" / "run")],
        env=_environment(tmp_path / "bin"),
        cwd=tmp_path,
        check=False,
    )

    assert (tmp_path / "called").read_text() == f"{PROJECT} test\n"
    assert done.returncode == 7


def test_make_unsets_pythondontwritebytecode() -> None:
    """Images and CI set it, and every process would compile its imports."""
    done = subprocess.run(
        ["make", "--eval", "probe: ; @env", "probe"],
        cwd=PROJECT,
        # CI's make runs this test, and its flags must not affect the tested make.
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED=False" in done.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in done.stdout


def test_the_airflow_plugin_is_registered_once() -> None:
    """Airflow reports a second one as an import error."""
    assert [each.name for each in entry_points(group="airflow.plugins")].count("tidemark") == 1


@pytest.mark.spark
def test_the_set_up_has_created_the_class_archive() -> None:
    """A failure to create it is only a warning, and makes every job start slower."""
    assert Layout(project=PROJECT, home=PROJECT / ".tidemark").class_archive.exists()
