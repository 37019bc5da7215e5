"""Decode recorded plans of typed tables: from the bronze table, without Kafka.

    spark-submit jobs/decode.py --plan prices@typed=7

A plan that fails does not stop the others.
"""

import sys

from tidemark.app.run import main

if __name__ == "__main__":
    sys.exit(main("decode", __doc__))
