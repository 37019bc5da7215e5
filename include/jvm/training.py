"""Run two jobs in one JVM, so that the class archive has the classes of both.

spark-submit include/jvm/training.py --plan training=1
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def main() -> int:
    """Land and check the plans; return the first exit code that is not 0."""
    for job in ("ingest", "check"):
        try:
            runpy.run_path(str(JOBS / f"{job}.py"), run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                return int(ended.code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
