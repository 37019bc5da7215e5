"""Tests that the object store of the tests makes one write at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from tests.support.moto_in_turn import WritesInTurn

LONGEST_S = 30.0


def ignore(*_: object) -> None:
    """Take the head of an answer."""


@pytest.mark.parametrize(("method", "runs_beside_a_write"), [("PUT", False), ("GET", True)])
def test_only_a_read_runs_beside_a_write(method: str, runs_beside_a_write: bool) -> None:
    entered, second = Event(), Event()

    def answer(environ: dict[str, Any], _: Callable[..., Any]) -> Iterable[bytes]:
        if environ["number"] == 1:
            entered.set()
            # A write that has to wait shows itself only by not beginning.
            second.wait(LONGEST_S if runs_beside_a_write else 0.2)
            yield str(second.is_set()).encode()
        second.set()

    served = WritesInTurn(answer)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: list(served({"REQUEST_METHOD": "PUT", "number": 1}, ignore)))
        assert entered.wait(LONGEST_S)
        threads.submit(lambda: list(served({"REQUEST_METHOD": method, "number": 2}, ignore)))
        assert first.result() == [str(runs_beside_a_write).encode()]
