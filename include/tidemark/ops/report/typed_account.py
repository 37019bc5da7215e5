"""Accounts for landed records: each is a typed row, or is in quarantine, or waits for a decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from tidemark.core.plain import record_of
from tidemark.core.texts import counted
from tidemark.silver.typed.state import DecodeBacklog, TypedState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAccount:
    """The records of one published plan in the typed table and the quarantine.

    Attributes:
        plan: Plan number.
        records: Landed records.
        typed_rows: Rows of the typed table.
        quarantined: Records in quarantine.
    """

    plan: int
    records: int
    typed_rows: int
    quarantined: int

    @property
    def difference(self) -> int:
        """Number of landed records without a typed row and outside the quarantine.

        Negative if both tables have more records than landed.
        """
        return self.records - self.typed_rows - self.quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedAccount:
    """The landed records of a pipeline in its typed table and its quarantine.

    Attributes:
        pipeline: Pipeline name.
        records: Records that all plans landed. Offsets without a record do not count.
        typed_rows: Rows of the typed table.
        quarantined: Records in quarantine.
        missing_rows: Landed rows that another program removed from the data table; None if unknown.
            A decode cannot read them.
        backlog: The offsets that wait, or that are not published.
        is_refused: Whether an error would refuse the next decode. The numbers of the backlog may
            then be too high.
    """

    pipeline: str
    records: int
    typed_rows: int
    quarantined: int
    missing_rows: int | None
    backlog: DecodeBacklog
    is_refused: bool

    @classmethod
    def of(
        cls, pipeline: str, records: int, missing_rows: int | None, state: TypedState
    ) -> Self | None:
        """Return the account of a pipeline.

        Args:
            pipeline: Pipeline name.
            records: As in the class.
            missing_rows: As in the class.
            state: The state of the typed table.

        Returns:
            None without a typed table, or if its rows or the quarantine cannot be counted.
        """
        if state.rows is None or state.quarantined is None:
            return None
        return cls(
            pipeline=pipeline,
            records=records,
            typed_rows=state.rows,
            quarantined=state.quarantined,
            missing_rows=missing_rows,
            backlog=state.backlog,
            is_refused=state.error is not None,
        )

    @property
    def difference(self) -> int:
        """As for `PlanAccount`, also if it is expected."""
        return self.records - self.typed_rows - self.quarantined

    @property
    def is_followed(self) -> bool:
        """Whether the tables have followed every published plan, so that each plan must add up."""
        work = self.backlog.offsets or self.backlog.quarantine_behind
        return not (work or self.missing_rows != 0 or self.is_refused)

    @property
    def unaccounted(self) -> int | None:
        """The part of `difference` that no waiting, hidden or missing offset can explain.

        Some offsets have no record, so a part of it may be explained wrongly while offsets wait.
        None if it is unknown: the next decode is refused or first completes the quarantine, or the
        rows of the data table are not counted.
        """
        backlog, difference = self.backlog, self.difference
        if self.missing_rows is None or backlog.quarantine_behind or self.is_refused:
            return None
        explained = backlog.missing + backlog.unchecked + backlog.refused + self.missing_rows
        return max(difference - explained, 0) + min(difference + backlog.surplus, 0)

    def equation(self) -> str:
        """Return the equation of all plans as text."""
        total, difference = counted(self.records, "landed record"), self.difference
        rows = counted(self.typed_rows, "typed row")
        terms = [f"{total} = {rows} + {counted(self.quarantined, 'record')} in quarantine"]
        if difference > 0:
            terms.append(f" + {counted(difference, 'record')} in neither")
        if difference < 0:
            terms.append(f" - {counted(-difference, 'record')} too many")
        return "".join([*terms, self._waiting()])

    def _waiting(self) -> str:
        backlog = self.backlog
        parts = [
            (backlog.missing, "offset", "to decode"),
            (backlog.unchecked, "offset", "unchecked"),
            (backlog.refused, "offset", "not published"),
            (backlog.surplus, "offset", "to remove"),
            (self.missing_rows or 0, "row", "missing in the data table"),
        ]
        texts = [f"{counted(number, noun)} {state}" for number, noun, state in parts if number]
        texts += ["the quarantine is behind"] if backlog.quarantine_behind else []
        return f" ({', '.join(texts)})" if texts else ""

    def problem(self, differing: Sequence[PlanAccount] = ()) -> str | None:
        """Return the problem as text; None without one.

        Args:
            differing: Plans whose records do not add up, if they were counted.
        """
        number = self.unaccounted or 0
        if number > 0:
            be = "is" if number == 1 else "are"
            records = counted(number, "landed record")
            return f"{records} {be} neither in the typed table nor in quarantine"
        if number < 0:
            records = counted(-number, "record")
            return f"the typed table and the quarantine have {records} more than landed"
        if differing:
            plans = counted(len(differing), "plan")
            return f"typed rows and quarantine differ from the landed records of {plans}"
        return None

    @property
    def remedy(self) -> str:
        """How to find the cause of a problem."""
        return f"`tidemark verify {self.pipeline}` finds the difference"

    def as_record(self) -> dict[str, Any]:
        """Return the account as plain values, for `--json`, by the names of `tidemark status`."""
        backlog = self.backlog
        return record_of(
            self,
            without=["pipeline", "missing_rows", "backlog", "is_refused"],
            undecoded=backlog.missing,
            unchecked=backlog.unchecked,
            refused=backlog.refused,
            to_withdraw=backlog.surplus,
            quarantine_behind=backlog.quarantine_behind,
            unaccounted=self.unaccounted,
        )
