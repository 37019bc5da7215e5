"""Texts of values on pages, and the scripts of other projects that pages load."""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from markupsafe import escape

from tidemark.console.rendering import FOLDER, STATIC, ago, render, setting_value, with_code
from tidemark.core.cluster import Setting

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(hours=3), "3 h ago"),
        (timedelta(), "0 s ago"),
        (-timedelta(hours=3), "3 h in the future"),
    ],
)
def test_a_time_of_a_fast_clock_is_in_the_future(age: timedelta, text: str) -> None:
    assert ago(NOW - age, NOW) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", "604800000", "604800000 (7 d)"),
        ("retention.bytes", "1610612736", "1610612736 (1.5 GiB)"),
        ("retention.bytes", "-1", "-1"),
        ("flush.ms", str(2**63 - 1), str(2**63 - 1)),
        ("linger.ms", "5", "5"),
        ("index.interval.bytes", "1000", "1000"),
        ("flush.messages", "100000", "100000"),
        ("cleanup.policy", "delete", "delete"),
        ("follower.replication.throttled.replicas", None, "-"),
    ],
)
def test_a_setting_of_kafka_has_a_readable_duration_or_size(
    name: str, value: str | None, text: str
) -> None:
    setting = Setting(name=name, value=value, source="", is_default=True, is_sensitive=False)
    assert setting_value(setting) == text
    assert setting_value(replace(setting, is_sensitive=True)) == "(hidden)"


@pytest.mark.parametrize("word", ["a`b", "it's `b`", "`", "'`'", "`<b>`", "plain"])
def test_a_command_on_a_page_is_one_element_with_any_word(word: str) -> None:
    command = shlex.join(["tidemark", "undo", "--reason", word, "--yes"])
    found = with_code(f"Run `{command}` or `tidemark status`, <now>.")
    assert found == (
        f"Run <code>{escape(command)}</code> or <code>tidemark status</code>, &lt;now&gt;."
    )


def test_each_script_of_another_project_has_its_recorded_checksum_and_version() -> None:
    """The file has the format of sha256sum. The name of such a script contains its version."""
    lines = (FOLDER / "checksums.sha256").read_text().splitlines()
    recorded = {name: digest for digest, name in (line.split("  ") for line in lines)}
    vendored = {f"static/{file.name}": file for file in STATIC.glob("*-*.js")}
    assert vendored
    assert recorded == {
        name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in vendored.items()
    }
    frame = {"root": "", "here": "", "refreshes": True, "toggle": "", "status": 404}
    page = render("error.html", {**frame, "text": "", "error": None})
    for file in vendored.values():
        (version,) = re.findall(r"-(\d+\.\d+\.\d+)\.", file.name)
        assert f'version:"{version}"' in file.read_text(encoding="utf-8")
        assert f'src="/static/{file.name}"' in page
