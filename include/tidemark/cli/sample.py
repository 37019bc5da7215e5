"""`tidemark sample`: topics with sample records."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, DryRun, Seed
from tidemark.cli.output import out, print_json, print_table
from tidemark.cli.progress import SHORT_S, phase
from tidemark.core.texts import counted, did_you_mean, some_of
from tidemark.local.samples import SAMPLES

app = typer.Typer(
    help="List and produce sample records: the same for the same seed, written with acks=all.",
    short_help="List and produce sample records.",
    no_args_is_help=True,
)


@app.command("list")
def list_samples(as_json: AsJson = False) -> None:
    """List the samples."""
    if as_json:
        print_json(
            [
                {"name": s.name, "partitions": s.partitions, "records": s.default_records}
                for s in SAMPLES.values()
            ]
        )
        return
    print_table(
        "Samples",
        ("name", "partitions", "default records", "content"),
        [(s.name, s.partitions, s.default_records, s.summary) for s in SAMPLES.values()],
    )


@app.command(short_help="Produce records of one sample.")
def produce(
    name: Annotated[str, typer.Argument(help="One of `tidemark sample list`.")],
    records: Annotated[
        int | None, typer.Option(help="Number of records; by default the sample's own.", min=1)
    ] = None,
    seed: Seed = 1,
    connection: Annotated[
        str | None,
        typer.Option(
            help="Connection id of the Kafka cluster. Default: the embedded broker of this home. "
            "Required if kafka_default is another cluster."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Produce records of one sample; create its topic if it does not exist.

    The next call continues the ids of this one, so no record is repeated.
    """
    if name not in SAMPLES:
        similar = did_you_mean(name, SAMPLES)
        raise typer.BadParameter(f"{name!r} is not a sample{similar}; samples: {some_of(SAMPLES)}")
    connections = App.from_environment().connections
    if connection is None:
        config = connections.embedded_broker_config()
    else:
        config = connections.kafka_config(connection)
    bootstrap = config["bootstrap.servers"]
    if dry_run:
        number = records or SAMPLES[name].default_records
        if as_json:
            draft = {"outcome": "draft", "sample": name, "topic": name, "records": number}
            print_json({**draft, "bootstrap": bootstrap})
        else:
            out.print(
                f"{counted(number, 'record')} would be produced to topic {name} at {bootstrap}"
            )
        return
    from tidemark.local.producer import produce as write

    with phase(f"producing {name}", quiet_s=SHORT_S, unit="records") as show_done:
        counts = write(config, name, records=records, seed=seed, progress=show_done)
    if as_json:
        total = {"sample": name, "records": sum(counts.values()), "partitions": counts}
        print_json({**total, "bootstrap": bootstrap})
        return
    out.print(f"{counted(sum(counts.values()), 'record')} to topic {name} at {bootstrap}")
    print_table("", ("partition", "records"), sorted(counts.items()))
