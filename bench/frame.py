"""What every benchmark shares: sides that take turns, and ratios with their spread.

Pure arithmetic and the order of things; what is measured lives in `bench/measures`, one file each.
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
"""What one side did in one repetition, by metric: `seconds`, `cpu_seconds`, `records` ..."""

Say = Callable[[str], None]
"""Told one line of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to do the work.

    Attributes:
        name: Short name, the same in every run.
        what: What it is, in a few words.
        run: Does the work of one repetition, numbered from 0, and says what it took. Preparation
            and verification happen inside it and outside its own clock. Repetitions below 0 warm
            up and are thrown away.
    """

    name: str
    what: str
    run: Callable[[int], Metrics]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A comparison of two sides by one metric, and what it should reach.

    Attributes:
        over: The side above the fraction line.
        under: The side below it; None where the metric itself has a reach.
        metric: What is compared.
        at_least: The reach, where more is better.
        at_most: The reach, where less is better.
    """

    over: str
    under: str | None
    metric: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def name(self) -> str:
        """How results call it."""
        return ", ".join((" / ".join(filter(None, (self.over, self.under))), self.metric))

    def is_reached(self, value: float) -> bool | None:
        """Whether a ratio is as good as it should be; None where nothing is asked."""
        if self.at_least is not None:
            return value >= self.at_least
        if self.at_most is not None:
            return value <= self.at_most
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The least, the middle and the greatest of some values."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(min=min(values), median=statistics.median(values), max=max(values))

    def as_record(self) -> dict[str, float]:
        """Plain values, to four significant digits."""
        return {name: significant(getattr(self, name)) for name in ("min", "median", "max")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A benchmark that is ready to run.

    Attributes:
        sides: Who takes turns.
        data: What they work on, for the reader of the result.
        warm_ups: Repetitions before the first one that counts.
    """

    sides: Sequence[Side]
    data: Mapping[str, Any]
    warm_ups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One file of `bench/measures`.

    Attributes:
        name: What `python -m bench NAME` takes.
        title: One line for people.
        ratios: What the result says.
        open: Prepares, yields the sides, and cleans up whatever happens.
        records: Size of the short form; 0 where size means nothing.
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
    """All that one benchmark measured.

    Attributes:
        benchmark: Which one.
        data: What it worked on.
        whats: What each side is, by name.
        measured: By side, the metrics of each repetition in order.
    """

    benchmark: Benchmark
    data: Mapping[str, Any]
    whats: Mapping[str, str]
    measured: Mapping[str, Sequence[Metrics]] = field(default_factory=dict)

    def metric_spreads(self, side: str) -> dict[str, Spread]:
        """The spread of each metric that every repetition of a side has."""
        runs = self.measured[side]
        shared = [name for name in runs[0] if all(name in run for run in runs)]
        return {name: Spread.of([run[name] for run in runs]) for name in shared}

    def ratio_spread(self, ratio: Ratio) -> Spread:
        """The spread of a ratio over pairs: each repetition's sides ran next to each other."""
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
    """Ratios of values measured next to each other.

    Raises:
        ValueError: The sides have not been measured equally often.
    """
    return [above / below for above, below in zip(over, under, strict=True)]


def order(names: Sequence[str], repetition: int) -> list[str]:
    """Who runs when: A B C, then C B A, so that no side always has the better moment."""
    return list(names) if repetition % 2 == 0 else list(reversed(names))


def measure(benchmark: Benchmark, context: Context, say: Say) -> Outcome:
    """Run a benchmark: prepare, warm up, let the sides take turns, clean up."""
    with benchmark.open(context) as setup:
        sides = {side.name: side for side in setup.sides}
        measured: dict[str, list[Metrics]] = {name: [] for name in sides}
        for repetition in range(-setup.warm_ups, context.repetitions):
            for name in order(list(sides), repetition):
                metrics = sides[name].run(repetition)
                say(_progress(benchmark, name, repetition, metrics))
                if repetition >= 0:
                    measured[name].append(metrics)
    return Outcome(
        benchmark=benchmark,
        data=setup.data,
        whats={name: side.what for name, side in sides.items()},
        measured=measured,
    )


def _progress(benchmark: Benchmark, side: str, repetition: int, metrics: Metrics) -> str:
    turn = "warm-up" if repetition < 0 else f"repetition {repetition + 1}"
    figures = "  ".join(f"{name} {significant(value):g}" for name, value in metrics.items())
    return f"  {benchmark.name}  {turn}  {side}: {figures}"
