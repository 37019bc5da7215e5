"""Bring tables of latest rows up to date: what typed tables have, merged by key.

    spark-submit jobs/upsert.py --plan prices=57

The number is the version of the typed table that the table will show at least; it shows the newest
one when the job gets to it. `tidemark.core.errors.ExitCode` defines the exit
codes; docs/cli.md lists them.
"""

from __future__ import annotations

import sys

from tidemark.run import JOBS, main

if __name__ == "__main__":
    sys.exit(main(JOBS["upsert"], __doc__))
