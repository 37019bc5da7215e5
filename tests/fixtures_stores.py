"""Object stores for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from tests.support.stores import Store, honouring_store, ignoring_store
from tidemark.delta import log_copies
from tidemark.spec.layout import Layout

PlaceIn = Callable[[Store], str]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that runs the code for tables in object stores on tables in folders."""
    parser.addoption(
        "--copied-logs",
        action="store_true",
        help="open and change tables in folders as tables in object stores",
    )


@pytest.fixture(autouse=True)
def _copied_logs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.config.getoption("--copied-logs"):
        monkeypatch.setattr(log_copies, "is_copied", lambda _: True)


@pytest.fixture(scope="session")
def conditional_store(layout: Layout) -> Iterator[Store]:
    """One store for the whole test run that honours conditional writes."""
    with honouring_store(layout.home / "stores" / "honouring") as running:
        yield running


@pytest.fixture(scope="session")
def unconditional_store(layout: Layout) -> Iterator[Store]:
    """One store for the whole test run that ignores conditional writes."""
    with ignoring_store(layout.home / "stores" / "ignoring") as running:
        yield running


@pytest.fixture
def place_in(monkeypatch: pytest.MonkeyPatch) -> PlaceIn:
    """Return a function that points delta-rs to a store and returns a folder of this test."""
    folder = uuid4().hex

    def place(store: Store) -> str:
        for name, value in store.environ.items():
            monkeypatch.setenv(name, value)
        return f"{store.uri}/{folder}"

    return place
