"""Tests of the times that a run of many tests prints."""

from __future__ import annotations

from tests.timings import SLOWEST, summary


def test_times_are_summed_per_folder_and_per_file_outside_of_folders() -> None:
    tests = {
        "tests/core/test_a.py::test_x[1]": 1.0,
        "tests/core/deep/test_b.py::test_y": 2.0,
        "tests/test_c.py::test_z": 4.0,
        "tests/test_d.py::test_z": 0.5,
    }
    assert list(summary(tests))[:4] == [
        "seconds per folder, of 8 seconds in 4 tests",
        "     4.0  tests/test_c.py (1 tests)",
        "     3.0  tests/core (2 tests)",
        "     0.5  tests/test_d.py (1 tests)",
    ]


def test_only_the_slowest_tests_are_listed_slowest_first() -> None:
    tests = {f"tests/core/test_a.py::test_{n}": float(n) for n in range(SLOWEST + 5)}
    listed = list(summary(tests))
    assert listed[3] == f"{SLOWEST + 4:8.1f}  tests/core/test_a.py::test_{SLOWEST + 4}"
    assert listed[-1] == "     5.0  tests/core/test_a.py::test_5"
