"""One run of a DAG in this process, by Airflow's own `DAG.test`; a program.

    python run_dag.py tidemark_events 2026-01-01T00:00:00+00:00 [TASKS_TO_SKIP]

The moment names the run: the same moment is the same run id, as when a run is cleared. The command
`airflow dags test` makes a new run id each time.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

DAGS = Path(__file__).resolve().parents[2] / "dags"
_FILES = {"tidemark_maintenance": "maintenance.py"}
"""Where DAGs are that are no pipeline's."""


def main(dag_id: str, moment: str, skipped: str | None = None) -> int:
    """Run it to its end; 0 if it succeeded.

    Args:
        dag_id: The DAG.
        moment: When the run is for.
        skipped: A regular expression: tasks that are marked as done and not run.
    """
    from airflow.dag_processing.dagbag import BundleDagBag

    file = DAGS / _FILES.get(dag_id, "pipelines.py")
    bag = BundleDagBag(dag_folder=str(file), bundle_path=DAGS, bundle_name="dags")
    when = datetime.fromisoformat(moment)
    run = bag.dags[dag_id].test(run_after=when, logical_date=when, mark_success_pattern=skipped)
    return 0 if run.state == "success" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
