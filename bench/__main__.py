"""Run benchmarks: `python -m bench [NAME ...] [--records N] [--repetitions R] [--full]`.

JSON on standard output, progress and a table for people on standard error.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench.context import HOME, opened
from bench.frame import Outcome, measure
from bench.machine import machine_record
from bench.measures import all_benchmarks
from bench.report import print_outcome


def _print_progress(line: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {line}\n")
    sys.stderr.flush()


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    known = all_benchmarks()
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Compare Tidemark with what a user would pick instead, as ratios.",
        epilog="\n".join(f"  {each.name:<10} {each.title}" for each in known.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="benchmarks; by default all of the short form"
    )
    parser.add_argument("--full", action="store_true", help="run the sizes of published results")
    parser.add_argument("--records", type=_positive, help="size, instead of that of the form")
    parser.add_argument("--repetitions", type=_positive, help="number of repetitions")
    parser.add_argument("--master", default="local[2]", help="Spark master (default local[2])")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="Spark setting for Tidemark's side; overrides the shipped value",
    )
    parser.add_argument("--home", type=Path, default=HOME, help="parent folder of all runs")
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; the benchmarks are {', '.join(known)}")
    options.chosen = [
        each
        for each in known.values()
        if each.name in options.names or (not options.names and each.in_short_form)
    ]
    return options


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"expected spark.some.key=value, got {text!r}")
    return key, value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def main(argv: list[str] | None = None) -> int:
    """Run the selected benchmarks, one after the other on one broker."""
    options = _parsed(argv)
    # On SIGTERM, leave the block below, which stops the broker and the workers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    machine = machine_record()
    outcomes: list[Outcome] = []
    with opened(
        options.home.resolve(),
        master=options.master,
        progress=_print_progress,
        conf=dict(options.conf),
    ) as context:
        for benchmark in options.chosen:
            _print_progress(benchmark.title)
            sized = context.sized_for(
                benchmark,
                full=options.full,
                records=options.records,
                repetitions=options.repetitions,
            )
            outcomes.append(measure(benchmark, sized, _print_progress))
            print_outcome(outcomes[-1])
    record = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "form": "full" if options.full else "short",
        "master": options.master,
        "conf": dict(options.conf),
        "machine": machine,
        "benchmarks": [outcome.as_record() for outcome in outcomes],
    }
    print(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
