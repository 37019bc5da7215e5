"""Fixtures of model tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tenacity import wait_none

from tidemark.delta import conflicts


@pytest.fixture(autouse=True, scope="package")
def no_pauses() -> Iterator[None]:
    """Retry without a pause, because an actor repeats its retries at every step."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(conflicts, "_PAUSE", wait_none())
        yield
