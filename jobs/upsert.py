"""Bring tables of latest rows up to date: what typed tables have, merged by key.

    spark-submit jobs/upsert.py --plan prices@upsert=57

The number is the version of the typed table that the table will show at least; it shows the newest
one when the job gets to it. Exit codes are those of `tidemark.errors.ExitCode`; docs/cli.md lists
them.
"""

from __future__ import annotations

import sys

from tidemark.core.plan import PlanRef
from tidemark.jobs import run_job
from tidemark.wiring import App


def upsert(app: App, plan: PlanRef) -> dict[str, object]:
    """Merge what is missing and say what it was."""
    merge = app.merge(plan.pipeline)
    return merge.as_record() if merge else {"how": "nothing to do"}


if __name__ == "__main__":
    sys.exit(run_job(__doc__, upsert))
