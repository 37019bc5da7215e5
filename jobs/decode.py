"""Decode published records into typed tables until none are left, without Kafka.

    spark-submit jobs/decode.py --pipeline prices --pipeline orders

Several pipelines share the application and are decoded concurrently. A pipeline that fails does not
stop the others. PIPELINE=PARTITION/REASON first decodes records in quarantine again.
"""

import sys

from tidemark.app.run import main

if __name__ == "__main__":
    sys.exit(main("decode", __doc__))
