"""Take all remaining steps of some pipelines: ingest, check, decode, upsert, publish.

    spark-submit jobs/run.py --plan prices=7 --plan orders=3

The job lands the plan of each number if it is open. `tidemark run` records the plans first.
"""

import sys

from tidemark.app.run import main

if __name__ == "__main__":
    sys.exit(main("run", __doc__))
