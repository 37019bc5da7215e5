"""The results of readers in Spark's Python workers: values, or why there are none."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from tidemark.spec.decode import QuarantineReason


def result_type(value: pa.DataType) -> pa.StructType:
    """Return the type of `results` for values of a type."""
    return pa.struct([("value", value), ("reason", pa.string()), ("detail", pa.string())])


def results(
    values: pa.Array, faults: Mapping[int, tuple[QuarantineReason, str | None]]
) -> pa.StructArray:
    """Return values with the reasons and details of faults.

    Args:
        values: The values; null where there is a fault.
        faults: Reason and detail by position.

    Returns:
        A struct for each value: `value`; `reason`, a `QuarantineReason`; and `detail`.
    """
    found = [faults.get(number, (None, None)) for number in range(len(values))]
    reasons, details = (pa.array([each[n] for each in found], pa.string()) for n in (0, 1))
    return pa.StructArray.from_arrays(
        [values, reasons, details], fields=list(result_type(values.type))
    )


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch off garbage collection: it took a third of the time, and a batch has no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
