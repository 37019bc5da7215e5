"""`tidemark verdict`: what of a table is published, and who decided otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, DryRun, Pipeline, Reason, requester
from tidemark.cli.console import out, print_json, print_table
from tidemark.core.offsets import size_of
from tidemark.quality.publication_service import Judged, Verdicts
from tidemark.quality.publication_table import Engine, published_view

app = typer.Typer(
    help="What of a pipeline's table is published: what checks said, and what people decided.",
    short_help="What of a table is published.",
    no_args_is_help=True,
)

_Landed = Annotated[int, typer.Option("--plan", min=1, help="A plan that has landed.")]


@app.command("list", short_help="What is kept back, and why.")
def list_verdicts(
    pipeline: Pipeline,
    everything: Annotated[
        bool, typer.Option("--all", help="Published plans as well, not only what is kept back.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which landed plans are not published, with their ranges, and why.

    A plan is published once a check found no critical fault in it, or a person released it. Until
    somebody has checked it, it is not.
    """
    judged = App.from_environment().verdicts(pipeline).judged()
    shown = [each for each in judged if everything or not each.is_visible]
    if as_json:
        print_json([each.as_record() for each in shown])
        return
    published = sum(each.is_visible for each in judged)
    out.print(f"{published:,} of {len(judged):,} landed plan(s) of {pipeline} are published")
    if shown:
        print_table(
            "Plans",
            ("plan", "standing", "records", "ranges", "said at", "said by", "why"),
            [_row(each) for each in shown],
        )


@app.command(short_help="Publish what a check has blocked.")
def release(
    pipeline: Pipeline,
    plan_number: _Landed,
    reason: Reason,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Publish what a check has blocked, or somebody rejected, with your name and your reason.

    It stays published whatever later checks say of it. No row changes, and no asset event is sent:
    who waits for one reads it with the next run's.
    """
    _decide(pipeline, Verdicts.release, plan_number, reason, dry_run=dry_run, as_json=as_json)


@app.command(short_help="Keep a plan from being published.")
def reject(
    pipeline: Pipeline,
    plan_number: _Landed,
    reason: Reason,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Keep a plan out of the published view, with your name and your reason.

    It stays out whatever later checks say of it, until somebody releases it. No row changes: to
    take the rows out of the table, see `tidemark undo`; to land them again, `tidemark backfill`.
    """
    _decide(pipeline, Verdicts.reject, plan_number, reason, dry_run=dry_run, as_json=as_json)


@app.command(short_help="Print the published view as a query.")
def view(
    pipeline: Pipeline,
    engine: Annotated[Engine, typer.Option(help="Who is to read it.")] = Engine.SPARK,
    as_json: AsJson = False,
) -> None:
    """Print a query for the rows that are published, to be made a view of.

    It asks the verdict table whenever it is asked itself: what is released appears, what is
    rejected goes, and nothing is copied.
    """
    tidemark = App.from_environment()
    spec = tidemark.kafka_spec(pipeline)
    table = tidemark.layout.data_table(spec.target)
    sql = published_view(spec.name, table, tidemark.layout.verdict_table, engine)
    if as_json:
        print_json({"engine": engine.value, "sql": sql})
    else:
        out.print(sql, markup=False, highlight=False, soft_wrap=True)


def _decide(
    pipeline: str,
    decision: Callable[..., Judged],
    plan_number: int,
    reason: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    verdicts = App.from_environment().verdicts(pipeline)
    judged = decision(verdicts, plan_number, requester(), reason, dry_run=dry_run)
    if as_json:
        print_json({**judged.as_record(), "outcome": "draft" if dry_run else "decided"})
        return
    how = "would be" if dry_run else "is"
    standing = judged.word.standing if judged.word else ""
    out.print(
        f"plan {plan_number} of {pipeline} {how} {standing}: {judged.landing.records:,} record(s)",
        markup=False,
    )


def _row(judged: Judged) -> tuple[object, ...]:
    word = judged.word
    standing = word.standing.value if word else "not checked"
    if word and (unjudged := size_of(judged.unjudged)):
        standing += f", {unjudged:,} offset(s) not checked"
    ranges = ", ".join(f"{c.partition}:{c.start}-{c.end}" for c in judged.landing.counts)
    return (
        judged.plan.sequence,
        standing,
        judged.landing.records,
        ranges,
        word.said_at if word else None,
        word.said_by or "check" if word else None,
        word.reason if word else None,
    )
