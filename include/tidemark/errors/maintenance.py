"""Keeping tables small."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidemark.errors.base import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class RetentionTooShort(TerminalError):
    """Files would be removed that readers, and time travel, may still need."""

    table: str
    asked_hours: int
    shortest_hours: int

    def what(self) -> str:
        return f"removed files of {self.table} may not go so soon"

    def expected(self) -> str:
        return f"at least {self.shortest_hours} hours"

    def found(self) -> str:
        return f"{self.asked_hours} hours"

    def remedy(self) -> str:
        return (
            "say more with --keep-hours, or set the table property "
            "delta.deletedFileRetentionDuration; see docs/runbook.md, RetentionTooShort"
        )


@dataclass(kw_only=True, eq=False)
class ClockDiffers(TerminalError):
    """This machine's clock differs from the storage's, so the age of files is unknown."""

    subject: str
    local: datetime
    storage: datetime

    def what(self) -> str:
        seconds = abs((self.local - self.storage).total_seconds())
        side = "ahead of" if self.local > self.storage else "behind"
        return (
            f"this machine's clock is {seconds:,.0f} seconds {side} the clock of the storage; "
            f"no file of {self.subject} was removed"
        )

    def expected(self) -> str:
        return f"about {self.storage:%Y-%m-%d %H:%M:%S}Z, the time of a file just written"

    def found(self) -> str:
        return f"{self.local:%Y-%m-%d %H:%M:%S}Z on this machine"

    def remedy(self) -> str:
        return (
            "set this machine's clock (or the storage's), then run the maintenance again; "
            "see docs/runbook.md, ClockDiffers"
        )


@dataclass(kw_only=True, eq=False)
class CompactionConflict(TransientError):
    """Other commits removed the files that a rewrite was about to replace."""

    table: str
    reason: str

    def what(self) -> str:
        return f"files of {self.table} were not replaced, because another commit was first"

    def expected(self) -> str:
        return "no other commit that removes these files during the rewrite"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return "nothing was changed; run the command again"
