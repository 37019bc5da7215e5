"""The documentation builds as a site: every link works, and it can be searched without a server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree
from urllib.parse import quote

import pytest
import typer

from tests.conftest import PROJECT
from tests.support.browser import document_of
from tidemark.app.pipeline import Pipeline
from tidemark.cli import app

pytestmark = pytest.mark.e2e


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    return subprocess.run(
        [*command, str(source), str(site)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning: Sphinx warns of dead links and of pages in no list."""
    folder = tmp_path_factory.mktemp("site")
    built = build(PROJECT / "docs", folder)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


@pytest.mark.parametrize("link", ["page.md#nowhere", "nowhere.md"])
def test_a_dead_link_fails_the_build(link: str, tmp_path: Path) -> None:
    docs = tmp_path / "project" / "docs"
    docs.mkdir(parents=True)
    copy(PROJECT / "docs" / "conf.py", docs)
    copytree(PROJECT / "docs" / "_static", docs / "_static")
    (docs.parent / "README.md").write_text("# Title\n")
    (docs / "index.md").write_text("# Title\n\n```{toctree}\npage\n```\n")
    (docs / "page.md").write_text("# Page\n\n[a link](page.md#page)\n")
    assert build(docs, tmp_path / "site").returncode == 0
    (docs / "page.md").write_text(f"# Page\n\n[a link]({link})\n")
    built = build(docs, tmp_path / "site")
    assert built.returncode != 0
    assert "nowhere" in built.stderr


def test_the_reference_of_commands_has_every_command_and_option(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]*>", "", page)

    def check(name: str, command: object) -> None:
        assert name in text
        for option in (each for param in command.params for each in param.opts):  # type: ignore[attr-defined]
            assert option in text
        for part, below in getattr(command, "commands", {}).items():
            check(f"{name} {part}", below)

    check("tidemark", typer.main.get_command(app))


def test_the_reference_of_python_has_every_public_method_of_a_pipeline(site: Path) -> None:
    page = (site / "reference" / "python-api.html").read_text(encoding="utf-8")
    names = [name for name in vars(Pipeline) if not name.startswith("_")]
    assert [
        name for name in names if f'id="tidemark.app.pipeline.Pipeline.{name}"' not in page
    ] == []


def test_pages_load_only_files_of_the_site(site: Path) -> None:
    loaded = re.compile(r'<(?:script|link|img)\b[^>]*\b(?:src|href)="([a-z]+:[^"]*)"')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [url for page in pages for url in loaded.findall(page.read_text("utf-8"))] == []


def test_each_picture_of_a_page_is_a_file_of_the_site(site: Path) -> None:
    picture = re.compile(r'\b(?:src|srcset|href)="([^":?]+\.(?:png|svg))"')
    found = [
        (page.relative_to(site), path)
        for page in site.rglob("*.html")
        for path in picture.findall(page.read_text("utf-8"))
    ]
    assert len([page for page, _ in found if page == Path("index.html")]) > 1
    assert [(page, path) for page, path in found if not (site / page.parent / path).is_file()] == []


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("TableBehindLedger", "runbook.html#tablebehindledger"),
        ("exit codes", "reference/cli.html#exit-codes"),
        ("retention", "runbook.html#retentiontooshort"),
    ],
)
def test_a_search_without_a_server_finds_the_section_first(
    words: str, page: str, site: Path, tmp_path: Path
) -> None:
    found = document_of(f"{(site / 'search.html').as_uri()}?q={quote(words)}", tmp_path)
    results = re.findall(r'<li[^>]*><a href="([^"?]+)[^"#]*(#[^"]*)?"', found)
    assert "".join(results[0]) == page
