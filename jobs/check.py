"""Check the rows of landed plans with their pipelines' quality suites, one plan after the other.

    spark-submit jobs/check.py --plan prices=7 --plan orders=3

Exit codes are those of `tidemark.core.errors.ExitCode`; a failed critical check is 66.
"""

from __future__ import annotations

import sys

from tidemark.app.run import JOBS, main

if __name__ == "__main__":
    sys.exit(main(JOBS["check"], __doc__))
