"""Bring upsert tables up to date: merge typed rows by key.

    spark-submit jobs/upsert.py --plan prices=57

The number is a version of the typed table. The job merges the newest version, which is at least
this one.
"""

import sys

from tidemark.app.run import main

if __name__ == "__main__":
    sys.exit(main("upsert", __doc__))
