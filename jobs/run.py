"""Take every step that is left for some pipelines: ingest, check, decode, upsert, publish.

    spark-submit jobs/run.py --plan prices=7 --plan orders=3

The number is the plan that is landed if it is open. `tidemark run` makes the plan first. Exit codes
are those of `tidemark.errors.ExitCode`; docs/cli.md lists them.
"""

from __future__ import annotations

import sys

from tidemark.run import JOBS, main

if __name__ == "__main__":
    sys.exit(main(JOBS["run"], __doc__))
