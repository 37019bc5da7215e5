"""Unexpected errors on pages: the kind of the error, without the text of its exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.consoles import console_of
from tests.support.file_lake import home_lake
from tidemark.app.app import App

SECRET = "s3://AKIASECRET:pw@bucket value={'card': '4111'}"
REASON = "card+4111+of+ada"


class Broken:
    """A part whose every method fails with a text of its library."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise ValueError(SECRET)

        return fail


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pipeline `events`, whose Kafka client fails with exceptions of its own."""

    def wrapped(self: App, name: str, part: Any, /) -> Any:
        return Broken() if name in ("watermarks", "log_reader", "cluster") else part

    home_lake(tmp_path)
    monkeypatch.setattr(App, "wrap_adapter", wrapped)
    return tmp_path


@pytest.mark.parametrize(
    "path",
    ["/pipelines/events", "/pipelines/events/records", "/pipelines/events/backfill?retained=true"],
)
def test_a_page_shows_the_kind_of_an_unexpected_error_without_its_text(
    home: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    page = console_of(home, "127.0.0.1:1").get(path).text
    assert "ValueError" in page
    assert "AKIASECRET" not in page
    assert "4111" not in page
    assert SECRET in caplog.text


def test_the_log_of_a_failed_preview_has_no_field_of_the_form(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/pipelines/events/backfill?retained=true&replace=true&reason={REASON}"
    assert "ValueError" in console_of(home, "127.0.0.1:1").get(path).text
    assert "unexpected error item=events" in caplog.text
    assert "of ada" not in caplog.text
