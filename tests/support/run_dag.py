"""A program that runs a DAG in its own process, with Airflow's `DAG.test`.

    python run_dag.py tidemark_events 2026-01-01T00:00:00+00:00 [TASKS_TO_SKIP]

The time identifies the run: the same time has the same run id, as after a clear. The command
`airflow dags test` creates a new run id each time.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

DAGS = Path(__file__).resolve().parents[2] / "dags"
_FILES = {"tidemark_maintenance": "maintenance.py"}
"""Files of DAGs that belong to no pipeline."""


def main(dag_id: str, moment: str, skipped: str | None = None) -> int:
    """Run a DAG to its end, and return 0 if it succeeded.

    Args:
        dag_id: The DAG.
        moment: Time of the run, in ISO 8601.
        skipped: Regular expression of tasks that are marked as done without a run.
    """
    from airflow.dag_processing.dagbag import BundleDagBag

    file = DAGS / _FILES.get(dag_id, "pipelines.py")
    bag = BundleDagBag(dag_folder=str(file), bundle_path=DAGS, bundle_name="dags")
    when = datetime.fromisoformat(moment)
    run = bag.dags[dag_id].test(run_after=when, logical_date=when, mark_success_pattern=skipped)
    return 0 if run.state == "success" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
