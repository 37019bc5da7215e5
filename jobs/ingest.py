"""Land recorded plans: from Kafka into bronze tables, exactly their ranges, once.

    spark-submit jobs/ingest.py --plan prices=7 --plan orders=3

Several plans share the application and land concurrently. A plan that fails does not stop the
others.
"""

import sys

from tidemark.app.run import main

if __name__ == "__main__":
    sys.exit(main("ingest", __doc__))
