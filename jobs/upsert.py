"""Bring upsert tables up to date: merge typed rows by key.

    spark-submit jobs/upsert.py --plan prices=57

The number is a version of the typed table. The job merges at least this version: it merges the
newest one. `tidemark.core.errors.ExitCode` defines the exit
codes; docs/reference/cli.md lists them.
"""

from __future__ import annotations

import sys

from tidemark.app.run import JOBS, main

if __name__ == "__main__":
    sys.exit(main(JOBS["upsert"], __doc__))
