"""Errors of repairs: abandon, undo, accepted loss, recreated topic, rewind and rebuild."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class PlanLanded(TerminalError):
    """The plan to abandon has landed, and the landing is recorded."""

    pipeline: str
    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} has landed, so it cannot be abandoned."
    fix = (
        "Nothing is left to do for this plan. To remove its rows, run `tidemark undo {pipeline} "
        "--plan {sequence} --reason TEXT`."
    )


@dataclass(kw_only=True, eq=False)
class PlanNotLanded(TerminalError):
    """The command needs a landed plan, and the plan is open."""

    pipeline: str
    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} has not landed."
    fix = "Land it with `tidemark ingest {pipeline} --plan {sequence}` first."


@dataclass(kw_only=True, eq=False)
class OnlyCopy(TerminalError):
    """The rows of the plan to undo are the only copy of records: Kafka no longer has them.

    Attributes:
        pipeline: Pipeline name.
        sequence: The plan.
        offsets: Number of offsets of the plan that Kafka no longer has.
    """

    pipeline: str
    sequence: int
    offsets: int

    problem = (
        "Kafka no longer has {offsets:offset} of plan {sequence} of pipeline {pipeline!r}, so an "
        "undo would remove the only copy of their records. Nothing was changed."
    )
    fix = (
        "Keep the rows: `tidemark publication reject {pipeline} --plan {sequence} --reason TEXT` "
        "hides them. To remove them for ever, run the undo with `--allow-loss`."
    )


@dataclass(kw_only=True, eq=False)
class UndoUnfinished(TransientError):
    """A plan is being undone, or its undo was interrupted."""

    pipeline: str
    sequence: int

    problem = "The undo of plan {sequence} of pipeline {pipeline!r} is not complete."
    fix = (
        "If no process is running the undo, continue it with "
        "`tidemark undo {pipeline} --plan {sequence} --reason TEXT`."
    )


@dataclass(kw_only=True, eq=False)
class PlanStillOpen(TerminalError):
    """The decision is not safe while a plan may still land."""

    pipeline: str
    sequence: int
    decision: str

    problem = "Plan {sequence} of pipeline {pipeline!r} is open, so {decision} is not safe."
    fix = (
        "Abandon the plan with `tidemark abandon {pipeline} --plan {sequence} --reason TEXT`, or "
        "land it with `tidemark ingest {pipeline} --plan {sequence}` if Kafka still has its "
        "offsets. Then repeat the command."
    )


@dataclass(kw_only=True, eq=False)
class RowsInDoubt(TerminalError):
    """A plan landed while its topic was recreated: its rows may be of either topic."""

    pipeline: str
    sequence: int
    rows: int

    problem = (
        "Plan {sequence} of pipeline {pipeline!r} landed {rows:row} while its topic was "
        "recreated; the rows may be of either topic."
    )
    fix = (
        "Copy the rows that you need (column plan_sequence). Then run `tidemark abandon {pipeline} "
        "--plan {sequence} --discard --reason TEXT`, which removes them, and `tidemark "
        "accept-recreation {pipeline} --reason TEXT`."
    )


@dataclass(kw_only=True, eq=False)
class NothingToDo(TerminalError):
    """The decision or repair is not needed.

    Attributes:
        pipeline: Pipeline name.
        finding: Why nothing is to be done, as a clause.
    """

    pipeline: str
    finding: str

    problem = "Nothing to do for pipeline {pipeline!r}: {finding}."
    fix = (
        "If an earlier attempt lost its answer, its decision is recorded: see "
        "docs/reference/control-table.md, What did operators decide?"
    )


@dataclass(kw_only=True, eq=False)
class UnexplainedRows(TerminalError):
    """A plan has more rows than it landed, or two plans landed the same offset."""

    pipeline: str
    sequence: int
    needed: str
    seen: str

    problem = (
        "The rows of plan {sequence} in the data table of pipeline {pipeline!r} do not match the "
        "landed plans."
    )
    expected = "{needed}"
    actual = "{seen}"
    fix = (
        "Nothing was changed. Find the commit of another program with DESCRIBE HISTORY, and "
        "RESTORE the table to the version before it. If an older copy replaced a quarantine, "
        "delete the records there that the typed table has; the runbook has the statement."
    )
