"""One DAG for each pipeline spec in include/pipelines, or for each group of them.

plan -> ingest -> quality -> publish
"""

from __future__ import annotations

from airflow.sdk import DAG

from tidemark.airflow.alarms import deadline
from tidemark.airflow.chain import START_DATE, add_chain, default_args, timetable
from tidemark.airflow.groups import add_group_chain
from tidemark.airflow.texts import group_page, pipeline_page
from tidemark.app import App
from tidemark.spec.model import PipelineSpec

app = App.from_environment()


def pipeline_dag(spec: PipelineSpec) -> DAG:
    """The DAG of one pipeline."""
    with DAG(
        dag_id=spec.dag_id,
        description=f"Kafka topic {spec.topic} to Delta Lake",
        doc_md=pipeline_page(spec, app.layout),
        schedule=timetable(spec.schedule),
        start_date=START_DATE,
        catchup=False,
        max_active_runs=1,
        default_args=default_args(spec.retries),
        deadline=deadline(spec),
        tags=["tidemark", *spec.tags],
    ) as dag:
        add_chain(spec)
    return dag


def group_dag(group: str) -> DAG:
    """The DAG of the pipelines of one group, which have one schedule."""
    members = app.group(group)
    with DAG(
        dag_id=members[0].dag_id,
        description=f"{len(members)} Kafka topics to Delta Lake",
        doc_md=group_page(group, members, app.layout),
        schedule=timetable(members[0].schedule),
        start_date=START_DATE,
        catchup=False,
        max_active_runs=1,
        default_args=default_args(max(spec.retries for spec in members)),
        deadline=[each for spec in members if (each := deadline(spec))],
        tags=["tidemark", *sorted({tag for spec in members for tag in spec.tags})],
    ) as dag:
        add_group_chain(group)
    return dag


# An invalid spec has no DAG; spec_errors.py shows its problems.
for each in app.specs.values():
    if each.group is None:
        pipeline_dag(each)
for each_group in sorted({spec.group for spec in app.specs.values() if spec.group}):
    group_dag(each_group)
