"""`tidemark sample`: topics with sample records."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, DryRun, KafkaConnection, Seed
from tidemark.cli.output import out, print_json, print_table
from tidemark.cli.progress import SHORT_S, phase
from tidemark.connections import LOCAL_CONNECTION
from tidemark.core.texts import counted
from tidemark.dev.samples import SAMPLES

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
    connection: KafkaConnection = LOCAL_CONNECTION,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Produce records of one sample; create its topic if it does not exist.

    The next call continues the ids of this one, so no record is repeated.
    """
    if name not in SAMPLES:
        raise typer.BadParameter(f"{name!r} is not a sample; samples: {', '.join(SAMPLES)}")
    if dry_run:
        draft = {"outcome": "draft", "sample": name, "topic": name}
        number = records or SAMPLES[name].default_records
        if as_json:
            print_json({**draft, "records": number})
        else:
            out.print(f"{counted(number, 'record')} would be produced to topic {name}")
        return
    from tidemark.dev.producer import produce as write

    config = App.from_environment().connections.kafka_config(connection)
    with phase(f"producing {name}", quiet_s=SHORT_S, unit="records") as show_done:
        counts = write(config, name, records=records, seed=seed, progress=show_done)
    if as_json:
        print_json({"sample": name, "records": sum(counts.values()), "partitions": counts})
        return
    out.print(f"{counted(sum(counts.values()), 'record')} to topic {name}")
    print_table("", ("partition", "records"), sorted(counts.items()))
