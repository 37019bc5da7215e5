"""P6: planning very many partitions, against one request for their log end offsets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.context import Context, opened, write_spec
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.kafka import fill_partitions, make_topic
from bench.probes import probe

SHARES = {"hundredth": 100, "tenth": 10, "all": 1}
"""Divisor of the number of partitions, by name of the pair of sides."""


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    sizes = {name: max(1, context.records // divisor) for name, divisor in SHARES.items()}
    # Many partitions slow down a broker, so this benchmark has a separate broker.
    with opened(context.home, master=context.master, progress=context.progress) as own:
        for name, partitions in sizes.items():
            context.progress(f"making {partitions:,} partitions")
            make_topic(own, name, partitions)
            fill_partitions(own, name, partitions, 1)
            write_spec(own.home / "pipelines", name, name, context.conf)
        yield Setup(
            sides=[side for name, size in sizes.items() for side in _pair(own, name, size)],
            data={"partitions": sizes, "records_in_each": 1, "brokers": 1},
            warm_ups=1,
        )


def _pair(own: Context, name: str, partitions: int) -> list[Side]:
    def measured(repetition: int, work: str, *arguments: str) -> Metrics:
        lakehouse = own.home / f"{name}{repetition}"
        environ = own.environ(lakehouse, own.home / "pipelines")
        metrics = probe(own.home, work, [name, *arguments], environ)
        if metrics["ranges"] != partitions:
            raise RuntimeError(f"{work} found {metrics['ranges']:g} of {partitions} partitions")
        return metrics

    return [
        Side(
            name=f"plan_{name}",
            what=f"the first plan of {partitions:,} partitions, with an empty control table",
            run=lambda n: measured(n, "plan"),
        ),
        Side(
            name=f"list_{name}",
            what=f"one list_offsets of the ends of {partitions:,} partitions, by a new client",
            run=lambda n: measured(n, "list_offsets", str(partitions)),
        ),
    ]


BENCHMARKS = [
    Benchmark(
        name="planning",
        title="P6: planning many partitions; `records` are the partitions of `all`",
        ratios=[
            *(
                Ratio(over=f"plan_{name}", under=f"list_{name}", metric="seconds", at_most=2)
                for name in SHARES
            ),
            Ratio(over="plan_all", under="plan_tenth", metric="seconds", at_most=12),
            Ratio(over="list_all", under="list_tenth", metric="seconds"),
            Ratio(over="plan_all", under="list_all", metric="peak_mb"),
        ],
        open=_open,
        records=1_000,
        full_records=10_000,
    ),
]
