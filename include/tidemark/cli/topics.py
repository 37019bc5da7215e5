"""`tidemark topics`: the topics of a Kafka cluster, their records, and their pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.app.app import App
from tidemark.app.connections import LOCAL_CONNECTION
from tidemark.cli.arguments import AsJson, DryRun, KafkaConnection, Partition, Topic
from tidemark.cli.output import note, out, print_error_record, print_json, print_table
from tidemark.cli.payloads import note_undecoded, payload_lines
from tidemark.core.cluster import ClusterDescription, Setting, Settings, TopicDescription
from tidemark.core.texts import counted
from tidemark.ops.report.cluster import ReadingPipeline
from tidemark.ops.report.record_page import record_values
from tidemark.spec.decode import DEFAULT_REGISTRY

if TYPE_CHECKING:
    from tidemark.core.record import LogRecord
    from tidemark.silver.typed.decoded_payloads import PayloadDecoder

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, describe and create the topics of a Kafka cluster, and show their records.",
    short_help="List, describe and create topics of Kafka, and show their records.",
)

_PEEK_SECONDS = 10.0
_PEEK_BYTES = 8 * 2**20


@app.command("list", short_help="List the topics, and which pipelines read them.")
def list_topics(
    connection: KafkaConnection = LOCAL_CONNECTION,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also list the topics that Kafka itself uses.")
    ] = False,
    matching: Annotated[
        str,
        typer.Option(
            help="Only topics whose whole name matches this pattern, such as 'payments-*'. * is "
            "any text, ? one character, [ab] one of some characters. Upper and lower case differ.",
            metavar="PATTERN",
            show_default=False,
        ),
    ] = "*",
    as_json: AsJson = False,
) -> None:
    """List the topics of a cluster, with partitions, records and the pipelines that read them.

    `records` is the number of offsets in the log, an upper bound of the records: gaps count too.
    `under-replicated` counts partitions with a replica that is not in sync. The command
    only reads: it creates no topic and no consumer group.

    \b
    tidemark topics list --matching 'payments-*'

    With --matching, the offsets of other topics are not read.
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    cluster = App.from_environment().cluster(connection)
    view = cluster.topics(internal=internal, pattern=matching)
    if as_json:
        print_json(view.as_record())
        return
    _print_cluster(view.cluster)
    print_table(
        f"Topics of {connection}",
        ("topic", "partitions", "records", "under-replicated", "pipelines"),
        [
            (
                topic.name,
                len(topic.partitions),
                topic.records,
                topic.under_replicated,
                _pipelines(view.readers(topic.name), connection),
            )
            for topic in view.cluster.topics
        ],
    )
    for name in view.missing_topics:
        readers = _pipelines(view.readers(name), connection)
        out.print(f"missing: {name}, which {', '.join(readers)} should read")
    if view.other_connections:
        others = " or ".join(view.other_connections)
        out.print(f"other pipelines use another cluster: --connection {others}")
    _print_problems(view.cluster.topics)


@app.command(short_help="Show the partitions and settings of a topic.")
def describe(
    topic: Topic,
    connection: KafkaConnection = LOCAL_CONNECTION,
    all_settings: Annotated[
        bool,
        typer.Option("--all-settings", help="Show all settings, also those with Kafka's default."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the partitions of a topic, its settings, and the pipelines that read it.

    The log of a partition is the offsets from `first` to before `end`. Settings are those that
    differ from Kafka's defaults. Sensitive values are hidden. Without the right DescribeConfigs,
    the command shows the rest.
    """
    view = App.from_environment().cluster(connection).topic(topic)
    if as_json:
        print_json(view.as_record(all_settings=all_settings))
        return
    _print_cluster(view.cluster)
    out.print(f"topic id {view.topic.topic_id or '-'}")
    print_table(
        f"Partitions of {topic}",
        ("partition", "first", "end", "records", "leader", "replicas", "in sync"),
        [
            (
                each.number,
                each.first,
                each.end,
                each.records,
                "none" if each.leader is None else each.leader,
                each.replicas,
                each.isr,
            )
            for each in view.topic.partitions
        ],
    )
    _print_settings(topic, view.settings, all_settings=all_settings)
    out.print(f"read by {', '.join(_pipelines(view.pipelines, connection)) or 'no pipeline'}")
    _print_problems(view.cluster.topics)


@app.command(short_help="Create a topic.")
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")],
    config: Annotated[
        list[str] | None,
        typer.Option(
            help="Setting of the topic, such as retention.ms=86400000. May be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    connection: KafkaConnection = LOCAL_CONNECTION,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Create a topic, and wait until its partitions have leaders.

    The brokers' defaults apply to the replication factor and to all other settings. An existing
    topic is refused. With --dry-run, the brokers check the request.

    \b
    tidemark topics create payments --partitions 6 --config retention.ms=604800000
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    settings = dict(_setting(each) for each in config or ())
    kafka = App.from_environment().topics(connection)
    kafka.create(topic, partitions, settings, dry_run=dry_run)
    if as_json:
        made = {
            "topic": topic,
            "partitions": partitions,
            "config": settings,
            "created": not dry_run,
        }
        print_json({"connection": connection, **made})
        return
    verb = "the brokers accept" if dry_run else "created"
    out.print(f"{verb} {topic} with {counted(partitions, 'partition')}")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--config needs NAME=VALUE, not {text!r}")
    return name, value


@app.command(short_help="Show the newest records of a topic.")
def peek(
    topic: Topic,
    partition: Partition = None,
    key: Annotated[
        str | None, typer.Option(help="Only records whose key is this text in UTF-8.")
    ] = None,
    records: Annotated[int, typer.Option(min=1, max=500, help="Number of records to show.")] = 10,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Show the oldest records instead.")
    ] = False,
    connection: KafkaConnection = LOCAL_CONNECTION,
    as_json: AsJson = False,
) -> None:
    """Show the newest records of a topic, by timestamp, or the oldest ones.

    JSON is indented, bytes that are not UTF-8 are hexadecimal, and invisible characters are
    escapes. Keys and values that begin with a schema id are decoded with the registry of the
    connection schema_registry_default, if it is defined. The command reads committed records, for
    ten seconds and 8 MB at most. It uses no consumer group, creates no topic, and changes nothing.

    With --key, the command searches the log from its end, or from its start for the oldest
    records. The whole key must match. The search stops at the same limits, and the command then
    reports that other records with the key may be missing.

    \b
    tidemark topics peek payments --records 20
    tidemark topics peek payments --key A12 --from-beginning

    With --json, payloads are complete: as text if they are UTF-8, otherwise in base64. The field
    `decoded` has keys and values that were decoded.
    """  # noqa: D301  click does not rewrap a paragraph that begins with \b
    from tidemark.silver.typed.decoded_payloads import PayloadDecoder

    app = App.from_environment()
    found = app.topics(connection).peek(
        topic,
        records,
        partition=partition,
        key=None if key is None else _utf8(key),
        oldest=from_beginning,
        seconds=_PEEK_SECONDS,
        size=_PEEK_BYTES,
    )
    registry = app.connections.registry_answers(DEFAULT_REGISTRY)
    decoder = PayloadDecoder.of(found.records, registry)
    if as_json:
        shown = [
            {
                "partition": each.partition,
                "offset": each.offset,
                **record_values(each),
                "decoded": _decoded(each, decoder),
            }
            for each in found.records
        ]
        print_json({"connection": connection, **found.as_record(), "records": shown})
        return
    place = f"{topic}, {counted(found.partitions, 'partition')}"
    place += "" if partition is None else f", partition {partition}"
    out.print(f"{place}: {counted(found.offsets, 'offset')}")
    for each in found.records:
        out.print(f"partition {each.partition} offset {each.offset:,}  {each.timestamp_text}")
        for line in payload_lines(each, decoder=decoder):
            out.print(line)
    note_undecoded(decoder)
    with_key = "" if key is None else " with this key"
    if not found.records:
        out.print(f"no records{with_key}")
    age = "oldest" if from_beginning else "newest"
    note(f"{counted(len(found.records), f'{age} record')}{with_key}, by timestamp")
    if not found.is_complete:
        note(
            f"other records{with_key} may be missing; "
            "ask for fewer --records, or for one --partition"
        )
        note(f"reading stopped after {_PEEK_SECONDS:.0f} seconds or {_PEEK_BYTES >> 20} MB")


def _decoded(record: LogRecord, decoder: PayloadDecoder) -> dict[str, Any]:
    """Return the decoded key and value of a record; empty if neither has a known schema."""
    parts = {"key": decoder.decode(record.key), "value": decoder.decode(record.value)}
    return {name: part.as_record() for name, part in parts.items() if part is not None}


def _utf8(text: str) -> bytes:
    """Return the UTF-8 bytes of an argument, which has surrogates if it was not UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"--key needs UTF-8 text, not {text!r}") from error


def _print_cluster(cluster: ClusterDescription) -> None:
    out.print(f"cluster {cluster.cluster_id or '-'}")
    for broker in cluster.brokers:
        rack = f" rack {broker.rack}" if broker.rack else ""
        out.print(f"broker {broker.id} {broker.host}:{broker.port}{rack}")


def _print_settings(topic: str, settings: Settings, *, all_settings: bool) -> None:
    if settings.problem:
        print_error_record(settings.problem.as_record())
        return
    shown = settings.values if all_settings else settings.changed
    if not shown:
        out.print("every setting has Kafka's default")
        return
    print_table(
        f"Settings of {topic}",
        ("setting", "value", "source"),
        [(each.name, _value(each), each.source) for each in shown],
    )


def _value(setting: Setting) -> str | None:
    return "(sensitive)" if setting.is_sensitive else setting.value


def _pipelines(readers: Iterable[ReadingPipeline], connection: str) -> list[str]:
    """Return the names of pipelines, with the connection if it is another one."""
    return [
        each.pipeline if each.connection == connection else f"{each.pipeline} ({each.connection})"
        for each in readers
    ]


def _print_problems(topics: Iterable[TopicDescription]) -> None:
    """Print the first error of some topics, and the number of the other errors."""
    problems = [each.problem for each in topics if each.problem]
    for problem in problems[:1]:
        print_error_record(problem.as_record())
    if problems[1:]:
        others = counted(len(problems) - 1, "more topic")
        note(f"{others} without parts of the description; see --json")
