"""Decode records in quarantine with the current specs, and write nothing.

spark-submit jobs/replay_preview.py --pipeline 'prices=*/malformed'
"""

import sys

from tidemark.app.run import main

if __name__ == "__main__":
    sys.exit(main("replay_preview", __doc__))
