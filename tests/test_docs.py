"""Tests that links and commands of the documentation pages work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.conftest import PROJECT
from tidemark.cli import app
from tidemark.quality.checks import BUILT_IN_CHECKS
from tidemark.quality.suite import expectation_schemas
from tidemark.spec.decode import QuarantineReason

PAGES = sorted(
    [*PROJECT.glob("*.md"), *PROJECT.glob("bench/*.md"), *(PROJECT / "docs").rglob("*.md")]
)

_FENCE = re.compile(r"^ *```.*?\n(.*?)^ *```", flags=re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4,}\S.*\n?)+", flags=re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_ON_SITE = re.compile(r"made from .* by\s`make docs`|The site shows|{toctree}")
_AIRFLOW = re.compile(r"(?:\$ )?airflow +[a-z]")
_TYPED = re.compile(r"(?:^|[ /])tidemark +(.*)$")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its own, and those that GitHub derives from headings."""
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    explicit = set(re.findall(r'<a id="([\w-]+)"></a>', prose))
    headings = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading) for heading in headings)
    return explicit | {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain
    }


def code(page: Path) -> Iterator[str]:
    """Yield every line of code of a page, in blocks and in sentences."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in _FENCE.findall(text):
        yield from block.splitlines()
    prose = _FENCE.sub("", text)
    for block in _INDENTED.findall(prose):
        yield from block.splitlines()
    # A span may contain a line break.
    yield from _SPAN.findall(re.sub(r"(?<=\S)\n *(?=\S)", " ", prose).replace("\\|", "|"))


def commands(page: Path) -> Iterator[Sequence[str]]:
    """Yield the words after every `tidemark` that is to be typed."""
    for line in code(page):
        for part in re.split(r" (?:&&|;|\||>) ", line.split(" #")[0]):
            typed = _TYPED.search(part)
            if typed:
                yield [word for word in re.split(r"[\s\[\]();]+", typed.group(1)) if word]


def error_of(words: Sequence[str]) -> str | None:
    """Return the error of these words after `tidemark`; None without one."""
    group = _commands()
    remaining = list(words)
    while remaining and remaining[0].startswith("--") and remaining[0] in _options(group):
        remaining.pop(0)
    while remaining and hasattr(group, "commands"):
        names = remaining.pop(0).split("|")
        unknown = [name for name in names if name not in {*group.commands, "COMMAND", "--help"}]
        if unknown:
            return f"no command {unknown[0]}"
        group = group.commands.get(names[0], group)
        if group.context_settings.get("ignore_unknown_options"):
            return None
        if names[0] in {"COMMAND", "--help"}:
            return None
    for word in remaining:
        for option in word.split("|"):
            name = option.split("=")[0].rstrip(",.:")
            if name.startswith("--") and name not in _options(group):
                return f"no option {name}"
    return None


@cache
def _commands() -> Any:
    return typer.main.get_command(app)


def _options(group: Any) -> set[str]:
    params = (param for param in group.params)
    return {"--help", *(name for each in params for name in [*each.opts, *each.secondary_opts])}


@every_page
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@every_page
def test_commands_of_pages_exist_with_their_options(page: Path) -> None:
    wrong = {" ".join(words): error for words in commands(page) if (error := error_of(words))}
    assert wrong == {}


@every_page
def test_commands_of_airflow_begin_with_tidemark(page: Path) -> None:
    """docs/reference/airflow.md describes the command in an Airflow of the reader's own."""
    lines = (line for line in code(page) if _AIRFLOW.match(line.strip()))
    assert [line for line in lines if line != "airflow standalone"] == []


@every_page
def test_make_targets_of_pages_exist(page: Path) -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    used = {found for line in code(page) for found in re.findall(r"^make ([a-z-]+)", line)}
    assert used - targets == set()


def test_the_list_of_pages_links_every_page() -> None:
    """Links to pages with their content on the site only are optional."""
    docs = PROJECT / "docs"
    links = _LINK.findall((docs / "index.md").read_text(encoding="utf-8"))
    pages = {
        str(page.relative_to(docs))
        for page in docs.rglob("*.md")
        if page.parts[-2] != "adr" and not _ON_SITE.search(page.read_text(encoding="utf-8"))
    }
    assert pages - set(links) == set()


def test_the_readme_links_few_pages_and_the_list_of_all() -> None:
    links = _LINK.findall((PROJECT / "README.md").read_text(encoding="utf-8"))
    assert len(links) <= 8
    assert "docs/index.md" in links


def test_every_decision_is_listed() -> None:
    folder = PROJECT / "docs" / "adr"
    listed = set(re.findall(r"^- \d+: \[(.+)\]\((.+)\)$", (folder / "README.md").read_text(), re.M))
    decisions = {
        (page.read_text(encoding="utf-8").splitlines()[0].partition(". ")[2], page.name)
        for page in folder.glob("0*.md")
    }
    assert listed == decisions


def section(page: str, heading: str) -> str:
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_check_has_a_row_in_the_quality_page() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|", section("reference/quality.md", "Checks of every batch"), re.MULTILINE
    )
    assert rows == list(BUILT_IN_CHECKS)


def test_every_type_of_a_rule_is_in_the_quality_page() -> None:
    """The error for an unknown type lists only some of them."""
    rules = section("reference/quality.md", "Keys of a suite").partition("### Rules\n")[2]
    listed = re.findall(r"`(\w*expect\w*)`", rules.partition("\n### ")[0])
    assert sorted(listed) == sorted(expectation_schemas())


def test_every_quarantine_reason_has_a_row_in_the_typed_page() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|", section("reference/typed.md", "Quarantine reasons"), re.MULTILINE
    )
    assert rows == [reason.value for reason in QuarantineReason]


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("status prices --json", None),
        ("--verbose ingest prices", None),
        ("spark start|stop|status", None),
        ("broker start|stop|status", None),
        ("control rebuild prices --dry-run|--apply", None),
        ("statsu prices", "no command statsu"),
        ("control rebuilt prices", "no command rebuilt"),
        ("status prices --partition 3", "no option --partition"),
    ],
)
def test_unknown_commands_and_options_are_errors(typed: str, error: str | None) -> None:
    assert error_of(typed.split()) == error


def tables(page: Path) -> Iterator[Sequence[Mapping[str, str]]]:
    """Yield the rows of each table of a page, by the names of its columns."""
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
        header, _, *rows = (
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        )
        yield [dict(zip(header, row, strict=True)) for row in rows]


def test_s26_a_page_decides_between_kafka_connect_and_the_other_ways_by_need() -> None:
    """Each need has a decision, and each way is the decision of a need."""
    page = PROJECT / "docs" / "explanation" / "alternatives.md"
    ways = set(re.findall(r"^\| \*\*(.+?)\*\*", page.read_text(encoding="utf-8"), re.MULTILINE))
    decisions = [row["use"] for rows in tables(page) for row in rows if "use" in row]
    assert {"Kafka Connect", "Tidemark"} < ways
    assert "" not in decisions
    undecided = {way for way in ways if not any(way.split()[-1] in each for each in decisions)}
    assert undecided == set()


def test_each_requirement_names_existing_tests_that_carry_its_number() -> None:
    defined = {
        name
        for file in (PROJECT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }
    page = (PROJECT / "docs" / "reference" / "requirements.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| S(\d+) \|(.*)$", page, flags=re.MULTILINE))
    assert list(map(int, rows)) == list(range(1, 29))
    named = {number: re.findall(r"`(test_\w+)`", row) for number, row in rows.items()}
    assert {name for names in named.values() for name in names} <= defined
    assert [
        (number, name)
        for number, names in named.items()
        for name in names
        if f"s{number}" not in name.split("_")
    ] == []
    without = [number for number, names in named.items() if not names]
    assert [number for number in without if "no test yet" not in rows[number]] == []


def test_the_functions_and_tests_of_the_commit_protocol_exist() -> None:
    page = (PROJECT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (`.+?`) \| `([\w/]+)\.py` \| `(tests/.+?)` \|$", page, re.M)
    assert len(rows) == 12
    for step, functions, file, test in rows:
        module = import_module(f"tidemark.{file.replace('/', '.')}")
        first, *others = re.findall(r"[\w.]+", functions)
        owner, name = first.split(".")
        for each in (name, *others):
            assert callable(getattr(getattr(module, owner), each, None)), (step, each)
        assert (PROJECT / test).is_file(), test
