"""Errors of repairs: abandon, undo, accepted loss, recreated topic, rewind and rebuild."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tidemark.core.errors import PipelineError, TerminalError, TransientError
from tidemark.core.ledger import Ledger


@dataclass(kw_only=True, eq=False)
class UndoUnfinished(PipelineError, TransientError):
    """A plan is being undone, or its undo was interrupted."""

    sequence: int

    problem = "The undo of plan {sequence} of pipeline {pipeline!r} is not complete."
    fix = (
        "If no process is running the undo, continue it with "
        "`tidemark undo {pipeline} --plan {sequence} --reason TEXT`."
    )

    @classmethod
    def first_of(cls, ledger: Ledger) -> Self | None:
        """Return the error about the first undo of a ledger that has not ended, if any."""
        undoing = (number for number, record in ledger.plans.items() if record.undoing)
        first = next(undoing, None)
        return None if first is None else cls(pipeline=ledger.pipeline, sequence=first)


@dataclass(kw_only=True, eq=False)
class RowsInDoubt(PipelineError, TerminalError):
    """A plan landed while its topic was recreated: its rows may be of either topic."""

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
class NothingToDo(PipelineError, TerminalError):
    """The decision or repair is not needed.

    Attributes:
        finding: Why nothing is to be done, as a clause.
        advice: What the operator may look for or do instead, in one sentence.
    """

    finding: str
    advice: str = (
        "If an earlier attempt lost its answer, its decision is recorded: see "
        "docs/reference/control-table.md, What did operators decide?"
    )

    problem = "Nothing to do for pipeline {pipeline!r}: {finding}."
    fix = "{advice}"

    @classmethod
    def of_landed_plan(cls, pipeline: str, sequence: int) -> Self:
        """The plan to abandon has landed, and the landing is recorded."""
        return cls(
            pipeline=pipeline,
            finding=f"plan {sequence} has landed, so it cannot be abandoned",
            advice=(
                f"To remove its rows, run `tidemark undo {pipeline} --plan {sequence} --reason "
                "TEXT`."
            ),
        )


@dataclass(kw_only=True, eq=False)
class UnexplainedRows(PipelineError, TerminalError):
    """A plan has more rows than it landed, or two plans landed the same offset."""

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
        "RESTORE the table to the version before it."
    )
