"""Decode open records in quarantine with the current specs, and write nothing.

    spark-submit jobs/replay_preview.py --plan 'prices@typed=*/malformed'

`tidemark.core.errors.ExitCode` defines the exit codes; docs/reference/cli.md lists them.
"""

from __future__ import annotations

import sys

from tidemark.app.run import JOBS, main

if __name__ == "__main__":
    sys.exit(main(JOBS["replay_preview"], __doc__))
