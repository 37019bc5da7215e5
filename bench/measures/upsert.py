"""Merges of about 10,000 changed keys into upsert tables of two sizes, against a plain MERGE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from bench.context import Context
from bench.frame import Benchmark, Metrics, Ratio, Setup, Side
from bench.merges import AppendTyped, Merge, PlainMerge, TidemarkMerge
from bench.worker import Worker, plain_settings, started
from tidemark.spark.settings import submit_settings

PARTITIONS = 6
CHANGED = 10_000
"""Approximate number of keys that each merge changes; more in one partition of a small table."""

_OURS = ("tidemark", "tidemark_vectors")
_SIDES: Sequence[tuple[str, str, Callable[..., Merge]]] = (
    ("tidemark", "Tidemark's merge", partial(TidemarkMerge, deletion_vectors=False)),
    (
        "tidemark_vectors",
        "Tidemark's merge with `deletion_vectors: true`",
        partial(TidemarkMerge, deletion_vectors=True),
    ),
    ("merge", "a plain MERGE", PlainMerge),
    ("vectors", "a plain MERGE, deletion vectors", partial(PlainMerge, deletion_vectors=True)),
    (
        "clustered",
        "a plain MERGE, liquid clustering by key, deletion vectors",
        partial(PlainMerge, deletion_vectors=True, is_clustered=True),
    ),
    (
        "buckets",
        "a plain MERGE, partitions by a hash of the key, deletion vectors",
        partial(PlainMerge, deletion_vectors=True, has_buckets=True),
    ),
)
"""Name, description and merge of each side."""


def _shapes(keys: int) -> Mapping[str, Callable[[int], str]]:
    """Return, for each distribution, a function from the repetition to the SQL of changed keys."""
    tenth, lane = keys // 10, keys // PARTITIONS

    def every(count: int, number: str, repetition: int) -> str:
        step = max(count // CHANGED, 1)
        return f"{number} % {step} = {repetition % step}"

    return {
        "uniform": lambda repetition: every(keys, "id", repetition),
        "newest": lambda repetition: f"id >= {keys - tenth} AND {every(tenth, 'id', repetition)}",
        "one_partition": lambda repetition: (
            f"id % {PARTITIONS} = 0 AND {every(lane, f'(id DIV {PARTITIONS})', repetition)}"
        ),
    }


@dataclass
class _Tables:
    """A typed table of one size, and the upsert tables of all sides.

    Attributes:
        context: Context of the run.
        name: Name of the size.
        keys: Number of keys.
        by: The worker that appends typed rows.
        plans: Plans of the typed table, by repetition and distribution of their keys.
    """

    context: Context
    name: str
    keys: int
    by: Worker
    plans: dict[tuple[int, str], int] = field(default_factory=dict)

    def load(self, by: Worker, side: str, make: Callable[..., Merge]) -> Metrics:
        """Make the upsert table of a side from records of all keys."""
        return self._merge(by, side, make, self._plan(-1, "", "true"))

    def merge(self, by: Worker, side: str, make: Callable[..., Merge], repetition: int) -> Metrics:
        """Merge changes of each distribution; return the metrics of each."""
        found: dict[str, float] = {}
        for shape, chosen in _shapes(self.keys).items():
            plan = self._plan(repetition, shape, chosen(repetition))
            metrics = self._merge(by, side, make, plan)
            found.update({f"{shape}_{name}": value for name, value in metrics.items()})
        return found

    def _plan(self, repetition: int, shape: str, chosen: str) -> int:
        """Return the number of the plan; the first call for a repetition and shape appends it."""
        known = self.plans.get((repetition, shape))
        if known is not None:
            return known
        plan = self.plans[repetition, shape] = len(self.plans) + 1
        self.by.land(
            AppendTyped(
                typed=self._path("typed"),
                keys=self.keys,
                chosen=chosen,
                plan=plan,
                partitions=PARTITIONS,
            )
        )
        return plan

    def _merge(self, by: Worker, side: str, make: Callable[..., Merge], plan: int) -> Metrics:
        typed, upsert = self._path("typed"), self._path(side)
        metrics = by.land(make(typed=typed, upsert=upsert, plan=plan))
        of_plan = f"count(*) FILTER (WHERE plan_sequence = {plan})"
        (changed,) = _row(typed, of_plan)
        found = _row(upsert, f"count(*), count(DISTINCT key), {of_plan}")
        expected = (self.keys, self.keys, changed)
        if found != expected:
            raise RuntimeError(
                f"{upsert} has (rows, keys, rows of plan {plan}) {found}; expected {expected}"
            )
        return metrics

    def _path(self, name: str) -> str:
        return str(self.context.home / "upsert" / self.name / name)


def _row(table: str, columns: str) -> tuple[int, ...]:
    """Return the only row of a query of a table."""
    query = QueryBuilder().register("t", DeltaTable(table))
    found = pa.table(query.execute(f"SELECT {columns} FROM t").read_all())
    return tuple(column[0].as_py() for column in found.columns)


@contextmanager
def _open(context: Context) -> Iterator[Setup]:
    common = {"spark.driver.memory": "3g", "spark.ui.enabled": "false"}
    shipped = submit_settings(context.app(context.home, context.home).layout, context.conf)
    plain = plain_settings(context.master)
    with ExitStack() as stack:
        ours = stack.enter_context(started(context, "tidemark", {**shipped, **common}))
        peers = stack.enter_context(started(context, "plain", {**plain, **common}))
        sides = []
        for name, keys in (("tenth", context.records // 10), ("all", context.records)):
            context.progress(f"making tables of {keys:,} keys")
            tables = _Tables(context, name, keys, peers)
            for side, what, make in _SIDES:
                by = ours if side in _OURS else peers
                took = tables.load(by, side, make)["seconds"]
                context.progress(f"  first load of {side}: {took:.1f} s")
                sides.append(
                    Side(
                        name=f"{side}_{name}",
                        what=f"{what}, {keys:,} keys",
                        run=partial(tables.merge, by, side, make),
                    )
                )
        yield Setup(
            sides=sides,
            data={
                "keys": context.records,
                "changed_keys_of_each_merge": CHANGED,
                "partitions": PARTITIONS,
                "content": "typed rows of about 110 B; three merges in each repetition",
            },
            warm_ups=1,
        )


BENCHMARKS = [
    Benchmark(
        name="upsert",
        title="About 10,000 changed keys into upsert tables of two sizes, each verified after",
        ratios=[
            Ratio(
                over="tidemark_vectors_all",
                under="tidemark_vectors_tenth",
                metric="uniform_seconds",
                at_most=3.0,
            ),
            Ratio(over="tidemark_all", under="tidemark_tenth", metric="uniform_seconds"),
            *(
                Ratio(
                    over="tidemark_vectors_all",
                    under=f"{side}_all",
                    metric=f"{shape}_seconds",
                    at_most=1.0,
                )
                for side, _, _ in _SIDES
                if side != "tidemark_vectors"
                for shape in _shapes(CHANGED)
            ),
        ],
        open=_open,
        records=1_000_000,
        full_records=10_000_000,
        in_short_form=False,
    ),
]
