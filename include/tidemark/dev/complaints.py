"""What Kafka says when it gives up, out of all that it prints."""

from __future__ import annotations

import re

_ERROR = re.compile(r" (ERROR|FATAL) |^Exception in |^Error|^Terminating")
_STACK_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


def complaint(text: str, *, lines: int = 3) -> str:
    """The lines of Kafka's output that say why it gave up: the first error, else the end."""
    told = [line for line in text.splitlines() if line.strip() and not _STACK_FRAME.match(line)]
    wrong = (number for number, line in enumerate(told) if _ERROR.search(line))
    first = next(wrong, max(0, len(told) - lines))
    return "; ".join(told[first : first + lines]) or "no word about it"
