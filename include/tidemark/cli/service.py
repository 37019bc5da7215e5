"""`tidemark up | down`: broker and Airflow on this machine, to play with."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.console import note, out, print_json, step
from tidemark.wiring import App

DEFAULT_PORT = 8080


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Start the embedded broker and Airflow.")(up)
    app.command(short_help="Stop Airflow, its jobs, and the embedded broker.")(down)


def up(
    port: Annotated[int, typer.Option(help="Port of Airflow's pages.")] = DEFAULT_PORT,
    kafka_port: Annotated[int, typer.Option(help="Port of the broker.")] = 9092,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Start the embedded broker and Airflow with the pipelines switched on; print where and login.

    Everything listens on this machine only. `tidemark down` stops it; data stays. The sample
    topics are made if they are missing; a topic of your own must exist before its DAG runs.
    Status and maintenance have DAGs that wait to be switched on.
    """
    from tidemark.adapters.kafka.producer import ensure_sample_topics

    app = App.from_environment()
    step("starting Kafka")
    kafka = app.broker(port=kafka_port).start()
    note(f"Kafka at {kafka.bootstrap}")
    ensure_sample_topics({"bootstrap.servers": kafka.bootstrap})
    step("starting Airflow (half a minute)")
    airflow = app.airflow(port=port)
    running = airflow.start(progress=note)
    api = airflow.api()
    dag_ids = [*sorted({spec.dag_id for spec in app.specs.values()}), "tidemark_backfill"]
    api.wait_for_dags(dag_ids)
    for dag_id in dag_ids:
        api.set_paused(dag_id, False)
    if as_json:
        print_json({"kafka": kafka.as_record(), "airflow": running.as_record()})
        return
    out.print(f"Airflow   {running.url}")
    out.print(f"login     {running.username}", markup=False)
    out.print(f"password  {running.password}", markup=False)
    out.print(f"Kafka     {kafka.bootstrap}")
    out.print("next      .venv/bin/tidemark sample produce prices --records 1000", markup=False)


def down(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Stop Airflow, the Spark jobs it runs, and the embedded broker. Data stays.

    A run that is stopped in the middle leaves an open plan; the next run takes it over.
    """
    app = App.from_environment()
    airflow = app.airflow().stop()
    kafka = app.broker().stop()
    if as_json:
        print_json({"kafka": kafka.as_record(), "airflow": airflow.as_record()})
        return
    out.print(f"stopped; data stays in {app.layout.home}")
