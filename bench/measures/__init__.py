"""The benchmarks. `all_benchmarks` finds the list `BENCHMARKS` of each module in this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from bench.frame import Benchmark


def all_benchmarks() -> Mapping[str, Benchmark]:
    """Return every benchmark by name, in the order of the modules' names."""
    modules = (
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    )
    benchmarks = (each for module in modules for each in getattr(module, "BENCHMARKS", ()))
    return {benchmark.name: benchmark for benchmark in benchmarks}
