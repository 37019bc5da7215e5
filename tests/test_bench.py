"""Tests of the benchmarks: arithmetic, and small runs on real parts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.clock import CommandFailed, run_process, timed
from bench.context import Context
from bench.frame import (
    Benchmark,
    Metrics,
    Outcome,
    Ratio,
    Setup,
    Side,
    Spread,
    measure,
    order,
    pairwise,
    significant,
)
from bench.kafka import parse_consumer_report
from bench.measures import all_benchmarks
from bench.measures.run import import_seconds
from bench.measures.scheduled import covered
from bench.probes import peak_mb
from bench.tables import decoded, verified
from deltalake import write_deltalake

from tests.conftest import PROJECT


def _context(tmp_path: Path, repetitions: int) -> Context:
    return Context(
        home=tmp_path,
        bootstrap="",
        master="local[2]",
        records=10,
        repetitions=repetitions,
        progress=lambda _: None,
    )


def test_order_is_reversed_in_every_other_repetition() -> None:
    """The warm-up before the first repetition is included."""
    names = ["a", "b", "c"]
    assert [order(names, n) for n in (-1, 0, 1, 2)] == [
        ["c", "b", "a"],
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


def test_a_metric_of_one_side_may_have_a_target(tmp_path: Path) -> None:
    rate = Ratio(over="slow", under=None, metric="rate", at_most=30)
    recorded = replace(_RecordingBenchmark().benchmark(), ratios=[rate])
    outcome = measure(recorded, _context(tmp_path, 2), lambda _: None)
    [record] = outcome.as_record()["ratios"]
    assert (record["ratio"], record["min"], record["max"]) == ("slow, rate", 20, 30)
    assert record["reached"] is True


def test_time_in_tasks_counts_overlaps_once() -> None:
    at = [datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(10)]
    assert covered([]) == 0
    assert covered([(at[4], at[6]), (at[0], at[3]), (at[1], at[2]), (at[5], at[9])]) == 8


def test_import_seconds_exclude_imported_modules(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    code = "import sys; sys.stderr.write('import time: none\\n'); import decimal"
    environ = {"PYTHONPROFILEIMPORTTIME": "1"}
    took = run_process([sys.executable, "-c", code], log, environ)
    assert 0 < import_seconds(log) < took.seconds


def test_ratios_are_taken_within_a_repetition() -> None:
    """A slow moment of the machine affects both sides."""
    assert pairwise([2.0, 20.0], [1.0, 10.0]) == [2.0, 2.0]


def test_sides_with_different_numbers_of_runs_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="shorter"):
        pairwise([1.0, 2.0], [1.0])


def test_spread_has_minimum_median_and_maximum() -> None:
    assert Spread.of([5, 1, 3]) == Spread(min=1, median=3, max=5)
    assert Spread.of([4, 1, 2, 9]).median == 3


@pytest.mark.parametrize(
    ("value", "shown"), [(123456.0, 123500.0), (0.0123456, 0.01235), (0, 0), (2, 2)]
)
def test_figures_have_four_significant_digits(value: float, shown: float) -> None:
    assert significant(value) == shown


@pytest.mark.parametrize(
    ("ratio", "value", "reached"),
    [
        (Ratio(over="a", under="b", metric="m", at_least=1.5), 1.5, True),
        (Ratio(over="a", under="b", metric="m", at_least=1.5), 1.49, False),
        (Ratio(over="a", under="b", metric="m", at_most=0.6), 0.6, True),
        (Ratio(over="a", under="b", metric="m", at_most=0.6), 0.61, False),
        (Ratio(over="a", under="b", metric="m", at_most=0), 0.1, False),
        (Ratio(over="a", under="b", metric="m"), 1.0, None),
    ],
)
def test_a_target_includes_its_limit(ratio: Ratio, value: float, reached: bool | None) -> None:
    """A ratio without a target is neither reached nor missed."""
    assert ratio.is_reached(value) is reached


class _RecordingBenchmark:
    """Benchmark of two sides that records its calls."""

    def __init__(self, fail: bool = False) -> None:
        self.calls: list[tuple[str, int]] = []
        self.closed = False
        self._fail = fail

    def benchmark(self) -> Benchmark:
        return Benchmark(
            name="recorded",
            title="two sides",
            ratios=[Ratio(over="fast", under="slow", metric="rate", at_least=2)],
            open=self._open,
            records=10,
            full_records=100,
        )

    @contextmanager
    def _open(self, context: Context) -> Iterator[Setup]:
        def side(name: str, rate: float) -> Side:
            def run(repetition: int) -> Metrics:
                self.calls.append((name, repetition))
                if self._fail:
                    raise RuntimeError("the table is wrong")
                return {"rate": rate * (repetition + 2), "records": context.records}

            return Side(name=name, what=f"the {name} one", run=run)

        try:
            yield Setup(
                sides=[side("fast", 30), side("slow", 10)], data={"records": 10}, warm_ups=1
            )
        finally:
            self.closed = True


def test_measure_alternates_the_sides_and_excludes_warm_ups(tmp_path: Path) -> None:
    recorded = _RecordingBenchmark()
    outcome = measure(recorded.benchmark(), _context(tmp_path, 2), lambda _: None)
    assert recorded.calls == [
        ("slow", -1),
        ("fast", -1),
        ("fast", 0),
        ("slow", 0),
        ("slow", 1),
        ("fast", 1),
    ]
    assert [run["rate"] for run in outcome.measured["fast"]] == [60, 90]
    assert recorded.closed


def test_a_side_that_fails_ends_the_run_and_cleans_up(tmp_path: Path) -> None:
    recorded = _RecordingBenchmark(fail=True)
    with pytest.raises(RuntimeError, match="the table is wrong"):
        measure(recorded.benchmark(), _context(tmp_path, 2), lambda _: None)
    assert recorded.closed


def test_the_record_of_an_outcome_has_runs_spreads_and_ratios(tmp_path: Path) -> None:
    recorded = _RecordingBenchmark()
    outcome: Outcome = measure(recorded.benchmark(), _context(tmp_path, 3), lambda _: None)
    record = json.loads(json.dumps(outcome.as_record()))
    assert record["repetitions"] == 3
    assert record["sides"]["slow"]["metrics"]["rate"] == {"min": 20, "median": 30, "max": 40}
    assert len(record["sides"]["slow"]["runs"]) == 3
    assert record["ratios"] == [
        {
            "ratio": "fast / slow, rate",
            "min": 3,
            "median": 3,
            "max": 3,
            "at_least": 2,
            "at_most": None,
            "reached": True,
        }
    ]


def test_given_sizes_override_the_short_and_full_form(tmp_path: Path) -> None:
    benchmark = _RecordingBenchmark().benchmark()
    context = _context(tmp_path, 0)

    def sized(**arguments: Any) -> tuple[int, int]:
        wanted = {"full": False, "records": None, "repetitions": None} | arguments
        found = context.sized_for(benchmark, **wanted)
        return found.records, found.repetitions

    assert sized() == (10, 3)
    assert sized(full=True) == (100, 5)
    assert sized(full=True, records=7, repetitions=1) == (7, 1)


def test_every_benchmark_has_ratios_of_different_sides() -> None:
    found = all_benchmarks()
    short = {"bulk", "idle", "planning", "run", "small", "typed", "typed_avro", "typed_protobuf"}
    assert set(found) == {*short, "console", "requests", "scheduled", "typed_nested", "upsert"}
    assert short == {name for name, each in found.items() if each.in_short_form}
    for benchmark in found.values():
        assert benchmark.ratios
        assert all(ratio.over != ratio.under for ratio in benchmark.ratios)


def test_a_consumer_report_is_parsed_by_its_header() -> None:
    """The time of the rebalance does not count."""
    report = """WARNING: something is deprecated
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, \
rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
[main] INFO leaving the group
2026-01-01 10:00:00:000, 2026-01-01 10:00:03:000, 190.7, 63.6, 1000000, 333333.3, 1500, 1500, \
127.2, 666666.7
"""
    assert parse_consumer_report(report) == {
        "records": 1_000_000,
        "seconds": 1.5,
        "records_per_second": 666_666.7,
    }


def test_timed_measures_wall_and_processor_time() -> None:
    readings = iter([10.0, 12.5])
    with timed(lambda: next(readings)) as watch:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass
    assert watch.cpu_seconds == 2.5
    assert 0.02 <= watch.seconds < 5


def test_processor_time_of_a_process_includes_its_children(tmp_path: Path) -> None:
    burn = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    watch = run_process([sys.executable, "-c", parent], tmp_path / "log", {})
    assert watch.cpu_seconds >= 0.3


def test_a_failed_process_raises_an_error_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="no such topic") as failure:
        run_process([sys.executable, "-c", "exit('no such topic')"], tmp_path / "log", {})
    assert failure.value.code == 1


def test_peak_memory_excludes_the_parent_process() -> None:
    big = bytearray(300 * 2**20)
    code = "from bench.probes import peak_mb; print(peak_mb())"
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert 5 < float(output) < len(big) / 2**20 < peak_mb()


def _bronze(path: Path, places: list[tuple[int, int]]) -> str:
    partitions, offsets = zip(*places, strict=True)
    rows = {"partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets, pa.int64())}
    write_deltalake(str(path), pa.table(rows))
    return str(path)


def test_a_table_with_every_record_once_is_accepted(tmp_path: Path) -> None:
    result = verified(_bronze(tmp_path / "t", [(0, 0), (1, 0), (1, 7)]), 3)
    assert (result["records"], result["distinct_records"], result["files"]) == (3, 3, 1)


@pytest.mark.parametrize("places", [[(0, 0), (1, 0), (1, 0)], [(0, 0), (1, 0)]])
def test_a_table_with_doubled_or_missing_records_is_refused(
    tmp_path: Path, places: list[tuple[int, int]]
) -> None:
    with pytest.raises(RuntimeError, match="2 distinct offsets, for 3 records"):
        verified(_bronze(tmp_path / "t", places), 3)


@pytest.mark.parametrize(
    ("values", "nulls"),
    [
        ([{"n": 1, "s": "a"}, {"n": 2, "s": ""}], 0),
        ([{"n": 1, "s": "a"}, {"n": None, "s": "b"}], 1),
        ([{"n": 1, "s": "a"}, None], 2),
        ([None, None], 4),
    ],
)
def test_a_decoded_table_with_nulls_is_refused(
    tmp_path: Path, values: list[dict[str, Any] | None], nulls: int
) -> None:
    """A decoder that reads nothing is fast."""
    kind = pa.struct([("n", pa.int64()), ("s", pa.string())])
    rows = {
        "partition": pa.array([0, 0], pa.int32()),
        "offset": pa.array([0, 1], pa.int64()),
        "value": pa.array(values, kind),
    }
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table(rows))
    assert verified(path, 2)["records"] == 2
    if nulls:
        with pytest.raises(RuntimeError, match=f" {nulls} nulls"):
            decoded(path, 2)
    else:
        assert decoded(path, 2) == verified(path, 2)
    with pytest.raises(RuntimeError, match="2 distinct offsets, for 3 records"):
        decoded(path, 3)


def _run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    log = tmp_path / "stderr"
    with log.open("w") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "bench", *arguments, "--home", str(tmp_path / "bench")],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    assert not list((tmp_path / "bench").iterdir())
    return dict(json.loads(done.stdout))


@pytest.mark.broker
@pytest.mark.faults
def test_planning_measures_the_given_sizes(tmp_path: Path) -> None:
    arguments = ("planning", "--records", "100", "--repetitions", "1")
    [planning] = _run(tmp_path, *arguments)["benchmarks"]
    ranges = {name: side["runs"][0]["ranges"] for name, side in planning["sides"].items()}
    assert ranges == {
        f"{what}_{size}": count
        for what in ("plan", "list")
        for size, count in {"hundredth": 1, "tenth": 10, "all": 100}.items()
    }


@pytest.mark.broker
@pytest.mark.faults
def test_console_requests_every_page_of_each_process(tmp_path: Path) -> None:
    [console] = _run(tmp_path, "console", "--records", "3", "--repetitions", "1")["benchmarks"]
    assert console["data"]["pipelines"] == 3
    whole = console["sides"].pop("all")["runs"][0]
    assert whole["peak_mb"] > 50
    assert len(console["sides"]) == len({side["what"] for side in console["sides"].values()}) == 11
    for side in console["sides"].values():
        measured = side["runs"][0]
        assert 0 < measured["p50_ms"] <= measured["p95_ms"] <= measured["slowest_ms"]


@pytest.mark.faults
@pytest.mark.broker
@pytest.mark.spark
def test_bulk_lands_every_record_on_every_side(tmp_path: Path) -> None:
    records = 20_000
    result = _run(tmp_path, "bulk", "--repetitions", "1", "--records", str(records))
    assert result["machine"]["cores"] >= 1
    [bulk] = result["benchmarks"]
    assert (bulk["benchmark"], bulk["repetitions"]) == ("bulk", 1)
    assert bulk["data"]["records"] == records
    landed = {name: side["runs"][0] for name, side in bulk["sides"].items()}
    assert set(landed) == {"tidemark", "spark_batch", "available_now", "kafka_consumer"}
    for name in ("tidemark", "spark_batch", "available_now"):
        assert landed[name]["records"] == landed[name]["distinct_records"] == records
    assert landed["kafka_consumer"]["records"] == records
    assert len(bulk["ratios"]) == len(all_benchmarks()["bulk"].ratios)
    assert all(ratio["min"] <= ratio["median"] <= ratio["max"] for ratio in bulk["ratios"])


@pytest.mark.faults
@pytest.mark.broker
@pytest.mark.registry
@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("typed", {"tidemark", "two_streams", "foreach_batch"}),
        ("typed_nested", {"tidemark", "two_streams", "foreach_batch"}),
        ("typed_avro", {"tidemark", "two_streams", "foreach_batch", "many_schemas"}),
        ("typed_protobuf", {"tidemark", "avro"}),
    ],
)
def test_every_side_decodes_every_record(tmp_path: Path, name: str, sides: set[str]) -> None:
    [typed] = _run(tmp_path, name, "--repetitions", "1", "--records", "2000")["benchmarks"]
    assert set(typed["sides"]) == sides
    for side in typed["sides"].values():
        assert side["runs"][0]["silver_bytes"] > 0
    assert len(typed["ratios"]) == len(all_benchmarks()[name].ratios)


@pytest.mark.faults
@pytest.mark.spark
def test_upsert_changes_the_same_keys_on_every_side(tmp_path: Path) -> None:
    """Each side checks its table after each merge."""
    context = replace(_context(tmp_path, 1), records=600)
    with all_benchmarks()["upsert"].open(context) as setup:
        assert len(setup.sides) == 12
        for side in setup.sides:
            if side.name.endswith("_tenth"):
                assert set(side.run(1)) == {
                    f"{shape}_{metric}"
                    for shape in ("uniform", "newest", "one_partition")
                    for metric in ("seconds", "cpu_seconds", "bytes_read", "bytes_written")
                }
