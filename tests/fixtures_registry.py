"""A schema registry for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.registry import Registry, running_registry
from tidemark.core.layout import Layout


@pytest.fixture(scope="session")
def registry(layout: Layout) -> Iterator[Registry]:
    """One schema registry for the whole test run, on a free port."""
    with running_registry(layout.home / "registry") as running:
        yield running
