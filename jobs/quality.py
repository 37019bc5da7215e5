"""Check what one plan landed against the pipeline's quality suite.

    spark-submit jobs/quality.py --pipeline prices --plan 7

Exit codes are those of `tidemark.errors.ExitCode`; a failed critical check is 66.
"""

from __future__ import annotations

import sys

from tidemark.jobs import Arguments, run_job
from tidemark.services.quality import raise_if_failed
from tidemark.wiring import App


def quality(app: App, arguments: Arguments) -> dict[str, object]:
    """Run the suite, keep the results, and fail on a critical one."""
    report = app.quality(arguments.pipeline).check(arguments.plan)
    raise_if_failed(report)
    return {
        "pipeline": report.pipeline,
        "plan": report.plan_sequence,
        "verdict": report.verdict.value,
        "checks": len(report.results),
        "data_docs": report.data_docs,
    }


if __name__ == "__main__":
    sys.exit(run_job(__doc__, quality))
