"""Completion of commands, options and names of pipelines by a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import in_process

pytestmark = pytest.mark.slow

PROGRAMS = Path(sys.executable).parent

Completion = Callable[[str], list[str]]


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """Return a folder with two specs and a broken one."""
    (tmp_path / "clicks.yaml").write_text("name: clicks\ntopic: t\nschedule: '@daily'\n")
    (tmp_path / "clocks.yml").write_text("name: clocks\ntopic: t\nschedule: '@daily'\n")
    (tmp_path / "cliffs.yaml").write_text("name: [\x00")
    return tmp_path


@pytest.fixture
def completed(
    specs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Completion:
    """Return a function that returns what bash proposes at the end of a command line."""

    def run(words: str) -> list[str]:
        place = len(words.split()) - (0 if words.endswith(" ") else 1)
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(place))
        monkeypatch.setenv("_TIDEMARK_COMPLETE", "complete_bash")
        ran = in_process({"TIDEMARK_PIPELINES": str(specs)}, monkeypatch, capsys)()
        assert (ran.code, ran.err) == (0, "")
        return ran.out.split()

    return run


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tidemark stat", ["status"]),
        ("tidemark offsets ", ["import", "export"]),
        ("tidemark report --exit", ["--exit-code"]),
        ("tidemark plan cl", ["clicks", "cliffs", "clocks"]),
        ("tidemark control rebuild cli", ["clicks", "cliffs"]),
        ("tidemark run clicks clo", ["clocks"]),
        ("tidemark status cliffs clic", ["clicks"]),
        ("tidemark decode nosuch", []),
    ],
)
def test_a_shell_completes_commands_options_and_pipelines(
    completed: Completion, words: str, expected: list[str]
) -> None:
    """A broken spec has a name too: the command reports its problems."""
    assert completed(words) == expected


def test_a_missing_folder_of_specs_completes_nothing(completed: Completion, specs: Path) -> None:
    for file in specs.iterdir():
        file.unlink()
    specs.rmdir()
    assert completed("tidemark plan ") == []


def test_bash_completes_with_the_printed_script(specs: Path) -> None:
    """The script defines a function that sets bash's array COMPREPLY."""
    script = (
        'eval "$(tidemark --show-completion)"; COMP_WORDS=(tidemark plan clo); COMP_CWORD=2; '
        '_tidemark_completion tidemark; echo "${COMPREPLY[@]}"'
    )
    ran = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={
            **os.environ,
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "TIDEMARK_PIPELINES": str(specs),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.split() == ["clocks"]
