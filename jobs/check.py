"""Check the rows of landed plans with their pipelines' quality suites, one plan after the other.

    spark-submit jobs/check.py --plan prices=7 --plan orders=3

If a critical check fails, the exit code is 66.
"""

import sys

from tidemark.app.run import main

if __name__ == "__main__":
    sys.exit(main("check", __doc__))
