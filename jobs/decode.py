"""Decode recorded plans of typed tables: from the bronze table, without Kafka.

    spark-submit jobs/decode.py --plan prices@typed=7

A plan that fails does not stop the others. `tidemark.core.errors.ExitCode` defines the exit codes;
docs/reference/cli.md lists them.
"""

from __future__ import annotations

import sys

from tidemark.app.run import JOBS, main

if __name__ == "__main__":
    sys.exit(main(JOBS["decode"], __doc__))
