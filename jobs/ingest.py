"""Land one recorded plan: Kafka to Delta, exactly its ranges, once.

    spark-submit jobs/ingest.py --pipeline prices --plan 7

Exit codes are those of `tidemark.errors.ExitCode`; docs/cli.md lists them.
"""

from __future__ import annotations

import sys

from tidemark.jobs import Arguments, run_job
from tidemark.wiring import App


def ingest(app: App, arguments: Arguments) -> dict[str, object]:
    """Execute the plan and say what landed."""
    done = app.ingest(arguments.pipeline).execute(arguments.plan)
    return {
        "pipeline": done.plan.pipeline,
        "plan": done.plan.sequence,
        "wrote": done.wrote,
        "records": done.landing.records,
        "table_version": done.landing.table_version,
        "partitions": done.landing.by_partition(),
    }


if __name__ == "__main__":
    sys.exit(run_job(__doc__, ingest))
