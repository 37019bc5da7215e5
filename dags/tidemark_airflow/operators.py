"""The operator that runs one of Tidemark's Spark jobs on one plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from tidemark.core.plan import PlanRef
from tidemark.errors import SetupError
from tidemark.wiring import App
from tidemark_airflow.connections import connection, exported, kafka_environment
from tidemark_airflow.failures import airflow_failures, job_failure


class TidemarkJobOperator(SparkSubmitOperator):
    """Submits `jobs/<job>.py` for one plan of one pipeline.

    Settings and credentials are put together when the task runs, so Airflow's database has
    neither: credentials travel in the environment of spark-submit, not in `env_vars`, which
    Airflow stores and which becomes part of the command line on YARN and Kubernetes.

    Args:
        job: Name of the entry point in jobs/, without its ending.
        pipeline: Pipeline name (templated).
        plan: Plan number (templated).
        spark_connection: Airflow connection id of Spark.
    """

    template_fields: ClassVar[Sequence[str]] = ("pipeline", "plan", "name", "application_args")
    ui_color = "#e8f1f8"

    def __init__(
        self,
        *,
        job: str,
        pipeline: str,
        plan: str,
        spark_connection: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            conn_id=spark_connection,
            application=str(App.from_environment().layout.jobs / f"{job}.py"),
            application_args=["--plan", f"{pipeline}={plan}"],
            name=f"tidemark-{job}-{pipeline}",
            # The driver reads credentials from the environment of the machine that submits.
            deploy_mode="client",
            **kwargs,
        )
        self.job = job
        self.pipeline = pipeline
        self.plan = plan
        self.spark_connection = spark_connection

    def execute(self, context: Context) -> None:
        """Submit the job and wait for it.

        Raises:
            AirflowFailException: A retry would fail again, or the quality suite failed.
            AirflowException: A retry can end differently.
        """
        with airflow_failures():
            # Without the connection Airflow's hook would submit to a YARN that is not there.
            connection(self.spark_connection)
            app = App.from_environment()
            plan = PlanRef(pipeline=self.pipeline, sequence=int(self.plan))
            self.conf = app.spark_settings(app.spec(self.pipeline), [plan])
            variables = {**kafka_environment(self.pipeline), **_python_environment()}
            try:
                with exported(variables):
                    super().execute(context)
            except FileNotFoundError as missing:
                raise _no_spark_submit(missing) from missing
            except AirflowException as failure:
                # The job's own lines are in the task's log already.
                raise job_failure(self._exit_code(), str(failure)) from None

    def _exit_code(self) -> int | None:
        # The hook has no public way to ask; its message has the number, but only as text.
        process = self._hook._submit_sp if self._hook else None
        return process.returncode if process else None


def _python_environment() -> dict[str, str]:
    """Let spark-submit be found, and run with the Python and the packages of this process."""
    here = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PATH": os.pathsep.join(path if here in path else [here, *path]),
    }


def _no_spark_submit(missing: FileNotFoundError) -> SetupError:
    return SetupError(
        subject="spark-submit cannot be started",
        needed=f"the program {missing.filename!r} on the PATH of Airflow's workers",
        seen="no such program",
        advice="install requirements.txt in the environment that Airflow runs in",
    )
