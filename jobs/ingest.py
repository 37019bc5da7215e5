"""Land recorded plans: Kafka to Delta, or bronze to typed, exactly their ranges, once.

    spark-submit jobs/ingest.py --plan prices=7 --plan orders=3

Several plans share the application and land side by side; one that fails does not stop the
others. Exit codes are those of `tidemark.errors.ExitCode`; docs/cli.md lists them.
"""

from __future__ import annotations

import sys

from tidemark.core.plan import PlanRef
from tidemark.jobs import run_job
from tidemark.wiring import App


def ingest(app: App, plan: PlanRef) -> dict[str, object]:
    """Execute the plan and say what landed."""
    done = app.ingest(plan.pipeline).execute(plan.sequence)
    quarantined = app.quarantined(plan)
    return {
        "wrote": done.wrote,
        "records": done.landing.records,
        **({} if quarantined is None else {"quarantined": quarantined}),
        "table_version": done.landing.table_version,
        "partitions": done.landing.by_partition(),
    }


if __name__ == "__main__":
    sys.exit(run_job(__doc__, ingest, at_once=App.plans_at_once))
