"""`tidemark publication`: which plans the published view shows, and operators' decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tidemark.app.app import App
from tidemark.cli.arguments import AsJson, DryRun, LandedPlan, PipelineName, Reason, requester
from tidemark.cli.decode import next_commands, print_next
from tidemark.cli.output import out, print_json, print_table
from tidemark.core.offsets import size_of
from tidemark.core.publication import NOT_CHECKED, PublishRule
from tidemark.core.texts import counted
from tidemark.delta.published_view import Engine, published_view
from tidemark.quality.publication_service import PlanPublication, Publication

app = typer.Typer(
    help="Show which landed plans are published; release or reject a plan.",
    short_help="List, release or reject landed plans.",
    no_args_is_help=True,
)


@app.command("list", short_help="List the plans that are not published.")
def list_plans(
    pipeline: PipelineName,
    everything: Annotated[bool, typer.Option("--all", help="List published plans too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the landed plans that are not published, with their ranges and the reason.

    A plan is published after a check without critical failures, or when an operator releases it.
    An unchecked plan is not published.
    """
    plans = App.from_environment().pipeline(pipeline).publication.plans()
    listed = [each for each in plans if everything or not each.is_published]
    if as_json:
        print_json([each.as_record() for each in listed])
        return
    published = sum(each.is_published for each in plans)
    out.print(f"published: {published:,} of {counted(len(plans), 'landed plan')} of {pipeline}")
    if listed:
        print_table(
            "Plans",
            ("plan", "status", "records", "ranges", "decided at", "decided by", "reason"),
            [_row(each) for each in listed],
        )


@app.command(short_help="Publish a plan that is blocked, rejected or unchecked.")
def release(
    pipeline: PipelineName,
    plan_number: LandedPlan,
    reason: Reason,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Publish a plan that is blocked, rejected or unchecked.

    Your user name and reason are stored. Later checks do not change the decision. No row changes.
    This command sends no asset event: to send the plan's event, clear the task `publish` of the
    DAG run that landed or checked the plan.
    """
    _decide(pipeline, Publication.release, plan_number, reason, dry_run=dry_run, as_json=as_json)


@app.command(short_help="Hide a plan from the published view.")
def reject(
    pipeline: PipelineName,
    plan_number: LandedPlan,
    reason: Reason,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Hide a plan from the published view until an operator releases it.

    Your user name and reason are stored. Later checks do not change the decision. No row changes.
    `tidemark undo` removes the rows from the table; `tidemark backfill` reads the offsets again.
    """
    _decide(pipeline, Publication.reject, plan_number, reason, dry_run=dry_run, as_json=as_json)


@app.command(short_help="Print the published view as a query.")
def view(
    pipeline: PipelineName,
    engine: Annotated[Engine, typer.Option(help="Query engine.")] = Engine.SPARK,
    as_json: AsJson = False,
) -> None:
    """Print a query for the published rows, from which you can create a view.

    The query reads the control table each time it runs: released plans appear, rejected plans
    disappear, and no rows are copied.
    """
    tidemark = App.from_environment()
    spec = tidemark.pipeline(pipeline).spec
    table = tidemark.layout.data_table(spec.target)
    sql = published_view(spec.name, table, tidemark.layout.control_table, engine)
    if as_json:
        print_json({"engine": engine.value, "sql": sql})
    else:
        out.print(sql)


def _decide(
    pipeline: str,
    decide: Callable[..., PlanPublication],
    plan_number: int,
    reason: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    app = App.from_environment()
    owner = app.pipeline(pipeline)
    decided = decide(owner.publication, plan_number, requester(), reason, dry_run=dry_run)
    decode = owner.spec.decode
    is_hidden = decided.decision is not None and not decided.decision.status.is_visible
    follows = decode is not None and decode.publish is PublishRule.CHECKED
    commands = next_commands(app, decided.plan) if is_hidden and follows else []
    if as_json:
        outcome = "draft" if dry_run else "decided"
        print_json({**decided.as_record(), "outcome": outcome, "next": commands})
        return
    verb = "would be" if dry_run else "is"
    status = decided.decision.status if decided.decision else ""
    records = counted(decided.landing.records, "record")
    out.print(f"plan {plan_number} of {pipeline} {verb} {status}: {records}")
    print_next(commands)


def _row(publication: PlanPublication) -> tuple[object, ...]:
    decision = publication.decision
    status = decision.status.value if decision else NOT_CHECKED
    if decision and (unchecked := size_of(publication.unchecked)):
        status += f", {counted(unchecked, 'offset')} not checked"
    if replaced := size_of(publication.replaced):
        status += f", {counted(replaced, 'offset')} replaced by an open plan"
    ranges = ", ".join(f"{c.partition}:{c.start}-{c.end}" for c in publication.landing.counts)
    return (
        publication.plan.sequence,
        status,
        publication.landing.records,
        ranges,
        decision.decided_at if decision else None,
        decision.decided_by or "check" if decision else None,
        decision.reason if decision else None,
    )
