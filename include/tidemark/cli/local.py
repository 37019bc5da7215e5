"""`tidemark up | down | airflow`: broker, Spark and Airflow on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.app.connections import SPARK_CONNECTION, connection_variable
from tidemark.cli.arguments import AsJson, port_option
from tidemark.cli.output import note, out, print_json
from tidemark.cli.progress import phase
from tidemark.core.plain import plain
from tidemark.local.broker import DEFAULT_PORT, home_broker

if TYPE_CHECKING:
    from tidemark.local.airflow_standalone import AirflowStatus

SHARED_DAGS = ("tidemark_backfill", "tidemark_maintenance", "tidemark_status")
"""The DAGs of all pipelines."""


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Start the embedded broker, the Spark server and Airflow.")(up)
    app.command(short_help="Stop Airflow, the Spark server and the embedded broker.")(down)
    app.command(
        short_help="Run a command of Airflow in the Airflow of `tidemark up`.",
        # The options belong to Airflow, except those before its first argument.
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )(airflow)


def up(
    port: Annotated[
        int | None,
        port_option(f"Port of Airflow's pages on 127.0.0.1. {option_texts.LAST_PORT} 8080."),
    ] = None,
    kafka_port: Annotated[
        int | None,
        port_option(f"Port of the broker on 127.0.0.1. {option_texts.LAST_PORT} {DEFAULT_PORT}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the broker, the Spark server and Airflow, and print how to log in.

    All three listen on 127.0.0.1, except Airflow's two log servers: these listen on every address
    and require a token. The command leaves running parts unchanged, and creates missing sample
    topics. The command unpauses Tidemark's DAGs until one of them has run. DAGs of later specs
    start paused: tidemark airflow dags unpause DAG. `tidemark down` stops all three; data stays.

    The command refuses a port in use before it starts any part.
    """
    from tidemark.local.airflow_standalone import DEFAULT_PORT as AIRFLOW_PORT
    from tidemark.local.producer import ensure_sample_topics

    app = App.from_environment()
    if kafka_port is None:
        kafka_port = home_broker(app.layout).last_port() or DEFAULT_PORT
    if port is None:
        port = app.airflow().last_port() or AIRFLOW_PORT
    broker = home_broker(app.layout, port=kafka_port)
    broker.check_port()
    app.airflow(port=port).check_port()
    with phase("starting Kafka"):
        kafka = broker.start()
    note(f"Kafka at {kafka.bootstrap}")
    ensure_sample_topics({"bootstrap.servers": kafka.bootstrap})
    start_spark(app)
    airflow = app.airflow(port=port)
    dag_ids = [*sorted({spec.dag_id for spec in app.specs.values()}), *SHARED_DAGS]
    with phase("starting Airflow (half a minute)"):
        running = airflow.start(progress=note)
    with phase("waiting for Airflow to read the DAGs"):
        api = airflow.api()
        api.wait_for_dags(dag_ids)
        api.unpause_first(dag_ids)
    spark = app.engines.server().status()
    if as_json:
        records = {"kafka": plain(kafka), "spark": plain(spark)}
        print_json({**records, "airflow": running.as_record()})
    else:
        _print_parts(running, kafka.bootstrap, spark.address)


def _print_parts(airflow: AirflowStatus, bootstrap: str, spark: str) -> None:
    """Print the addresses of the parts, and how to log in to the first two."""
    out.print(f"Console   {airflow.console}")
    out.print(f"Airflow   {airflow.url}")
    out.print(f"login     {airflow.username}")
    out.print(f"password  {airflow.password}")
    out.print(f"Kafka     {bootstrap}")
    out.print(f"Spark     {spark or 'none'}")
    out.print("next      your own topic: docs/how-to/own-topic.md")
    out.print("          the samples:    docs/tutorial.md")


def down(as_json: AsJson = False) -> None:
    """Stop Airflow with its tasks, the Spark server and the embedded broker. Data stays.

    The command also stops a server of `tidemark spark start`. If it stops a run halfway, the plan
    stays open, and the next run takes the plan over.
    """
    app = App.from_environment()
    ran, stopped = stop_all(app)
    if as_json:
        print_json(stopped)
        return
    out.print(f"stopped   {', '.join(ran) or 'nothing: no part was running'}")
    out.print(f"data      {app.layout.home}")


def airflow(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Arguments of the `airflow` command."),
    ] = None,
) -> None:
    """Run Airflow's command line in the Airflow of `tidemark up`.

    The command has Airflow's home, database and connections. Airflow reads all arguments.
    Its output and exit code are those of the command. For example: tidemark airflow dags trigger
    tidemark_prices.
    """
    environ = App.from_environment().airflow().environment()
    environ.setdefault("PYTHONWARNINGS", "ignore:Could not import graphviz")
    os.execvpe("airflow", ["airflow", *(arguments or [])], environ)


def stop_all(app: App) -> tuple[list[str], dict[str, Any]]:
    """Stop all running parts of a home: Airflow first, because its tasks use the others.

    Returns:
        The names of the parts that ran, and the status of each part.
    """
    airflow, spark, kafka = app.airflow(), app.engines.server(), home_broker(app.layout)
    before = (
        ("Airflow", airflow.status().running),
        ("the Spark server", spark.status().running),
        ("Kafka", kafka.status().running),
    )
    with phase("stopping Airflow, Spark and Kafka"):
        stopped = {
            "airflow": airflow.stop().as_record(),
            "spark": plain(spark.stop()),
            "kafka": plain(kafka.stop()),
        }
    return [name for name, running in before if running], stopped


def start_spark(app: App, records: int | None = None) -> None:
    """Start the Spark Connect server of a home, unless Airflow's connection names another Spark.

    Args:
        app: Tidemark of the home.
        records: Largest possible number of records of one job; None if it is unknown.
    """
    variable = connection_variable(SPARK_CONNECTION)
    if variable in app.environ:
        note(f"Airflow uses the Spark of {variable}; no server starts")
        return
    server = app.engines.server(records=records)
    is_running = server.status().running
    with phase("Spark already runs" if is_running else "starting Spark (about ten seconds)"):
        status = server.start(app.engines.check_requirements)
    note(f"Spark at {status.address}: one server for all runs; its log is {status.log}")
