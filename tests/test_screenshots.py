"""Tests of the pictures of the console, and of the records that their script adds."""

from __future__ import annotations

import json

from docs.screenshots.__main__ import FOLDER, PAGES, TALLEST, pictures
from docs.screenshots.scene import GAP, PARTITION, quotes

from tests.conftest import PROJECT

LARGEST = 300_000
"""Largest size of a picture, in bytes."""


def test_the_folder_contains_exactly_the_pictures_of_the_script() -> None:
    expected = [file for name in PAGES for file, _, _ in pictures(name)]
    assert sorted(FOLDER.glob("*")) == sorted(expected)


def test_each_picture_is_small_and_has_the_dimensions_of_its_name() -> None:
    for name in PAGES:
        for file, width, _ in pictures(name):
            content = file.read_bytes()
            # The header of a PNG file.
            seen = int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
            assert seen[0] == width, file.name
            assert seen[1] <= TALLEST[width], file.name
            assert len(content) < LARGEST, file.name


def test_a_page_of_the_documentation_shows_each_picture() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [
        file.name for file in FOLDER.glob("*.png") if f"screenshots/{file.name}" not in text
    ] == []


def test_quotes_fill_the_partition_of_the_scene_with_the_given_count() -> None:
    records = quotes(GAP.size)
    assert {record.partition for record in records} == {PARTITION}
    assert len(records) == GAP.size


def test_a_sign_makes_every_price_negative() -> None:
    values = [json.loads(record.value) for record in quotes(20, sign=b"-") if record.value]
    assert values
    assert [value for value in values if value["price"] >= 0] == []
