"""The shared parts of all benchmarks: sides that take turns, and ratios with their spread.

This module has only arithmetic and the order of runs. `bench/measures` has the measured work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.context import Context

Metrics = Mapping[str, float]
"""Values of one side in one repetition, by metric: `seconds`, `cpu_seconds`, `records` etc."""

Progress = Callable[[str], None]
"""Called with each line of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to do the work.

    Attributes:
        name: Short name, the same in every run.
        what: Description in a few words.
        run: Does the work of one repetition, numbered from 0, and returns the metrics. They exclude
            preparation and verification. Repetitions below 0 are warm-ups, whose metrics are
            discarded.
    """

    name: str
    what: str
    run: Callable[[int], Metrics]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A comparison of two sides by one metric, and its target.

    Attributes:
        over: Side of the numerator.
        under: Side of the denominator; None if the target is for the metric of `over` itself.
        metric: Name of the compared metric.
        at_least: The target, if more is better.
        at_most: The target, if less is better.
    """

    over: str
    under: str | None
    metric: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def name(self) -> str:
        """Name of the ratio in results."""
        return ", ".join((" / ".join(filter(None, (self.over, self.under))), self.metric))

    def is_reached(self, value: float) -> bool | None:
        """Return whether a value reaches the target; None without a target."""
        if self.at_least is not None:
            return value >= self.at_least
        if self.at_most is not None:
            return value <= self.at_most
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Minimum, median and maximum of some values."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of one or more values."""
        return cls(min=min(values), median=statistics.median(values), max=max(values))

    def as_record(self) -> dict[str, float]:
        """Plain values, to four significant digits."""
        return {name: significant(getattr(self, name)) for name in ("min", "median", "max")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A benchmark that is ready to run.

    Attributes:
        sides: Sides that take turns.
        data: Description of the input, for the result.
        warm_ups: Number of repetitions before the measured repetitions.
    """

    sides: Sequence[Side]
    data: Mapping[str, Any]
    warm_ups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark, defined by a module of `bench/measures`.

    Attributes:
        name: Name for `python -m bench NAME`.
        title: Title of the result, in one line.
        ratios: Ratios of the result.
        open: Prepares the benchmark, yields its sides, and always cleans up.
        records: Size of the short form; 0 for a benchmark without a size.
        full_records: Size with `--full`.
        repetitions: Repetitions of the short form.
        full_repetitions: Repetitions with `--full`.
        in_short_form: Whether `python -m bench` without names runs it.
    """

    name: str
    title: str
    ratios: Sequence[Ratio]
    open: Callable[[Context], AbstractContextManager[Setup]]
    records: int
    full_records: int
    repetitions: int = 3
    full_repetitions: int = 5
    in_short_form: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The measurements of one benchmark.

    Attributes:
        benchmark: The benchmark.
        data: Description of the input.
        whats: Descriptions of the sides, by name.
        measured: Metrics of each repetition in order, by side.
    """

    benchmark: Benchmark
    data: Mapping[str, Any]
    whats: Mapping[str, str]
    measured: Mapping[str, Sequence[Metrics]] = field(default_factory=dict)

    def metric_spreads(self, side: str) -> dict[str, Spread]:
        """Return the spread of each metric that every repetition of a side has."""
        runs = self.measured[side]
        shared = [name for name in runs[0] if all(name in run for run in runs)]
        return {name: Spread.of([run[name] for run in runs]) for name in shared}

    def ratio_spread(self, ratio: Ratio) -> Spread:
        """Return the spread of a ratio over the repetitions, each with a ratio of its own."""
        over = [run[ratio.metric] for run in self.measured[ratio.over]]
        if ratio.under is None:
            return Spread.of(over)
        return Spread.of(pairwise(over, [run[ratio.metric] for run in self.measured[ratio.under]]))

    def as_record(self) -> dict[str, Any]:
        """The outcome as plain values, for JSON."""
        return {
            "benchmark": self.benchmark.name,
            "title": self.benchmark.title,
            "data": dict(self.data),
            "repetitions": len(next(iter(self.measured.values()))),
            "sides": {
                side: {
                    "what": self.whats[side],
                    "metrics": {
                        name: spread.as_record()
                        for name, spread in self.metric_spreads(side).items()
                    },
                    "runs": [dict(run) for run in runs],
                }
                for side, runs in self.measured.items()
            },
            "ratios": [self._ratio_record(ratio) for ratio in self.benchmark.ratios],
        }

    def _ratio_record(self, ratio: Ratio) -> dict[str, Any]:
        spread = self.ratio_spread(ratio)
        return {
            "ratio": ratio.name,
            **spread.as_record(),
            "at_least": ratio.at_least,
            "at_most": ratio.at_most,
            "reached": ratio.is_reached(spread.median),
        }


def significant(value: float) -> float:
    """A value to four significant digits."""
    return float(f"{value:.4g}")


def pairwise(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratios of the values of each repetition.

    Raises:
        ValueError: The sides have different numbers of repetitions.
    """
    return [above / below for above, below in zip(over, under, strict=True)]


def order(names: Sequence[str], repetition: int) -> list[str]:
    """Return the order of the sides: A B C, then C B A, so that no side always runs first."""
    return list(names) if repetition % 2 == 0 else list(reversed(names))


def measure(benchmark: Benchmark, context: Context, progress: Progress) -> Outcome:
    """Run a benchmark: prepare, warm up, let the sides take turns, clean up."""
    with benchmark.open(context) as setup:
        sides = {side.name: side for side in setup.sides}
        measured: dict[str, list[Metrics]] = {name: [] for name in sides}
        for repetition in range(-setup.warm_ups, context.repetitions):
            for name in order(list(sides), repetition):
                metrics = sides[name].run(repetition)
                progress(_progress_line(benchmark, name, repetition, metrics))
                if repetition >= 0:
                    measured[name].append(metrics)
    return Outcome(
        benchmark=benchmark,
        data=setup.data,
        whats={name: side.what for name, side in sides.items()},
        measured=measured,
    )


def _progress_line(benchmark: Benchmark, side: str, repetition: int, metrics: Metrics) -> str:
    turn = "warm-up" if repetition < 0 else f"repetition {repetition + 1}"
    figures = "  ".join(f"{name} {significant(value):g}" for name, value in metrics.items())
    return f"  {benchmark.name}  {turn}  {side}: {figures}"
