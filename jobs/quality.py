"""Check what plans landed against their pipelines' quality suites, one after the other.

    spark-submit jobs/quality.py --plan prices=7 --plan orders=3

Exit codes are those of `tidemark.errors.ExitCode`; a failed critical check is 66.
"""

from __future__ import annotations

import sys

from tidemark.core.plan import PlanRef
from tidemark.jobs import run_job
from tidemark.services.quality import raise_if_failed
from tidemark.wiring import App


def quality(app: App, plan: PlanRef) -> dict[str, object]:
    """Run the suite, keep the results, and fail on a critical one."""
    report = app.quality(plan.pipeline).check(plan.sequence)
    raise_if_failed(report)
    return {
        "verdict": report.verdict.value,
        "checks": len(report.results),
        "data_docs": report.data_docs,
    }


if __name__ == "__main__":
    sys.exit(run_job(__doc__, quality))
