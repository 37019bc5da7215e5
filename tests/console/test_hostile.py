"""Hostile texts and payloads appear as text on every page, and add no element or attribute."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.consoles import SomeRights, console_of
from tests.support.file_lake import FileLake, home_lake
from tests.support.hostile import PAYLOADS, TEXTS
from tidemark.console.records import COUNT
from tidemark.core.visible_text import visible

pytestmark = pytest.mark.slow


class Structure(HTMLParser):
    """Counts the elements of a page with the names of their attributes.

    Attributes:
        elements: Number of each element.
        texts: All texts and values of attributes.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, ...]] = Counter()
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag, *sorted(name for name, _ in attrs)] += 1
        self.texts += [value for _, value in attrs if value]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def test_the_corpus_is_large_enough() -> None:
    assert len(set(PAYLOADS)) >= 200


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events` with three landed plans."""
    return home_lake(tmp_path)


def test_hostile_reasons_and_descriptions_are_text(lake: FileLake, tmp_path: Path) -> None:
    """YAML refuses some control characters, so the description has the others."""
    lake.undo.undo(2, "cli:ada:1", "benign")
    pages = ("/", "/pipelines/events", "/pipelines/events/plans", "/pipelines/events/plans/2")
    benign = [Structure(console_of(tmp_path).get(page).text) for page in pages]
    printable = "".join(text for text in TEXTS if all(map(_is_printable, text)))
    spec = tmp_path / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text() + f"description: {json.dumps(printable)}\n")
    lake.plan(1)
    lake.abandon.abandon(4, "cli:ada:<script>alert(1)</script>", "".join(TEXTS))
    hostile = [Structure(console_of(tmp_path).get(page).text) for page in pages]
    assert visible(printable) in " ".join(hostile[1].texts)
    for before, after in zip(benign, hostile, strict=True):
        assert set(after.elements) <= set(before.elements)
    plan = Structure(console_of(tmp_path).get("/pipelines/events/plans/4").text)
    assert "<script>alert(1)</script>" in "".join(plan.texts)
    assert all(each.isprintable() or each in "\n\t" for text in plan.texts for each in text)
    assert set(plan.elements) <= set(benign[3].elements)


def _is_printable(character: str) -> bool:
    return not unicodedata.category(character).startswith("C")


def test_hostile_payloads_are_text_in_keys_values_and_headers(
    lake: FileLake, tmp_path: Path
) -> None:
    """The records are read from the table, because no Kafka connection is defined."""
    headers = tuple((name, name.encode()) for name in TEXTS[::7])
    lake.land_payloads([(b"key", b"value" * 20_000)], 0, headers=headers[:1])
    lake.land_payloads([(payload, payload) for payload in PAYLOADS], 1, headers=headers)
    client = console_of(tmp_path)
    elements: set[tuple[str, ...]] = set()
    # A page leaves out what follows large payloads, so each of these comes first on one page.
    large = [offset for offset, payload in enumerate(PAYLOADS) if len(payload) > 10_000]
    for first in (*range(0, len(PAYLOADS), COUNT), *large):
        response = client.get(f"/pipelines/events/records?partition=1&offset={first}")
        assert response.status_code == 200
        page = Structure(response.text)
        assert all(each.isprintable() or each in "\n\t" for text in page.texts for each in text)
        elements |= set(page.elements)
    usual = Structure(client.get("/pipelines/events/records?partition=0").text)
    assert elements <= set(usual.elements)
    without = console_of(tmp_path, viewer=SomeRights(payloads=False))
    hidden = Structure(without.get("/pipelines/events/records?partition=1").text)
    assert not any(element[0] == "pre" for element in hidden.elements)
