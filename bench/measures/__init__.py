"""The benchmarks, one file each. What a module here has in `BENCHMARKS` is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from bench.frame import Benchmark


def all_benchmarks() -> Mapping[str, Benchmark]:
    """Every benchmark by name, in the order of their modules' names."""
    modules = (
        importlib.import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
    )
    benchmarks = (each for module in modules for each in getattr(module, "BENCHMARKS", ()))
    return {benchmark.name: benchmark for benchmark in benchmarks}
