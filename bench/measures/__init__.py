"""The benchmarks, one file each. A module here with a `BENCHMARK` is found by itself."""

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
    benchmarks = (module.BENCHMARK for module in modules if hasattr(module, "BENCHMARK"))
    return {benchmark.name: benchmark for benchmark in benchmarks}
