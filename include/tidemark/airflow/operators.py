"""The operator that runs jobs on Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.sdk import BaseOperator, Context

from tidemark.airflow.connections import airflow_app, check_connections, checked_engine
from tidemark.airflow.failures import airflow_failures, raise_failed
from tidemark.airflow.lineage.collect import collect_lineage
from tidemark.airflow.logs import log_job_line
from tidemark.airflow.metrics import count_landed, timed
from tidemark.app.app import App
from tidemark.app.connections import SPARK_CONNECTION
from tidemark.app.pipelines import Outcomes, Pipelines
from tidemark.app.run import run
from tidemark.app.steps import Ref
from tidemark.spark.engine import JobRun, Stop

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


def with_app(function: Callable[Concatenate[App, P], T]) -> Callable[P, T]:
    """Return the callable of a task without Spark. It builds the app, and converts failures."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with airflow_failures():
            return function(airflow_app(), *args, **kwargs)

    return call


class JobOperator(BaseOperator):
    """Calls a function that runs jobs on Spark. The returned outcomes decide how the task ends.

    The type of the Spark connection decides where they run: `spark` means spark-submit, and
    `spark_connect` means a session on a server, in this process. Settings and credentials are read
    when the task runs, so Airflow's database contains neither.

    Args:
        python_callable: Called with this operator and `op_kwargs`.
        op_kwargs: Arguments of the callable (templated).
        spark_connection: Airflow connection id of Spark.
    """

    ui_color = "#e8f1f8"
    template_fields: Sequence[str] = ("op_kwargs",)

    def __init__(
        self,
        *,
        python_callable: Callable[..., Outcomes],
        op_kwargs: Mapping[str, Any],
        spark_connection: str = SPARK_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.op_kwargs = op_kwargs
        self._spark_connection = spark_connection
        self._stop = Stop()
        self._lineage: OperatorLineage[Any, Any] | None = None

    @cached_property
    def app(self) -> App:
        """The app of the task."""
        return airflow_app()

    def execute(self, context: Context) -> None:  # noqa: ARG002  the signature is Airflow's
        """Call the function, and raise AirflowFailException unless a retry can end differently."""
        with airflow_failures():
            outcomes = self.python_callable(self, **self.op_kwargs)
        count_landed(outcomes)
        self._lineage = collect_lineage(self.app, outcomes)
        raise_failed(outcomes)

    def on(self, *names: str) -> Pipelines:
        """Return some pipelines, after a check of the engine that their jobs run on.

        Call it before a plan is recorded: a plan for an unusable server would stay open.

        Args:
            names: Texts of `PipelineRef`.
        """
        self._stop.check()
        engine = checked_engine(self.app, names, self._spark_connection)
        log.info("Spark selected engine=%s", engine)
        check_connections(self.app, names)

        def run_job(job: str, refs: Sequence[Ref]) -> JobRun:
            log.info("job started job=%s plans=%s", job, ",".join(map(str, refs)))
            with timed(job):
                return run(self.app, engine, job, refs, partial(log_job_line, log), self._stop)

        return Pipelines(app=self.app, names=names, run=run_job, progress=log.info)

    def get_openlineage_facets_on_complete(self, _: object) -> OperatorLineage[Any, Any]:
        """Return the lineage that `execute` collected; Airflow's OpenLineage provider calls this.

        The provider also calls it for a failed or skipped task.
        """
        from airflow.providers.openlineage.extractors import OperatorLineage

        return self._lineage or OperatorLineage()

    def on_kill(self) -> None:
        """End the jobs; Spark commits nothing for them afterwards."""
        self._stop()


class PlanOperator(ShortCircuitOperator):
    """Plans a run, or ends it without work. The task has a link to the console's page of the run.

    Airflow adds links by the class of an operator (`plugin.RunLink`).
    """


class RunOperator(PythonOperator):
    """A step of a run without Spark. The task has a link to the console's page of the run."""
