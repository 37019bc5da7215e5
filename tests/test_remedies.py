"""A remedy and the runbook section of its error agree.

Two rules. What a remedy names (a command, an option, a key of a spec, an SQL statement) occurs in
the section, and not in a warning alone. And no sentence of a remedy has all substantial words of a
warning, unless it is a warning itself. A warning is a sentence with "Do not" or "must not", or one
that begins with "Never".
"""

from __future__ import annotations

import re

import pytest

from tests.conftest import PROJECT
from tests.core.test_errors import build, every_error
from tidemark.core.errors import TidemarkError
from tidemark.ingest.errors import LogTruncated
from tidemark.typed.errors import SchemaReplaced

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_WARNING = re.compile(r"\bDo not\b|\bmust not\b|^Never\b")
_COMMAND = re.compile(
    r"\btidemark ((?:control|quarantine|suite|schema|publication|broker|spark) [a-z]+|[a-z][a-z-]*)"
)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_FORMALITIES = frozenset({"--plan", "--reason", "--help", "--dry-run"})
"""Options that select a plan, give a reason, or only show."""
_KEY = re.compile(r"\b(?:limits|alarms|decode|quality)\.[a-z_.]*[a-z_]")
_STATEMENT = re.compile(r"\b(?:RESTORE|DELETE|VACUUM|ALTER TABLE|DESCRIBE HISTORY)\b")
_PLAIN = re.compile(
    r"about|again|also|before|give|have|into|just|like|must|only|same|some|such|than|that|them|then"
    r"|there|they|this|those|when|where|which|with"
)


def sections() -> dict[str, str]:
    """The text of every section of the runbook, by each name of its heading."""
    page = (PROJECT / "docs" / "runbook.md").read_text(encoding="utf-8")
    parts = _HEADING.split(page)[1:]
    return {
        name: text
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
        for name in heading.split(", ")
    }


def sentences(text: str) -> list[str]:
    """The sentences of a text, and the items of its lists."""
    one_line = re.sub(r"\s+", " ", re.sub(r"\n\s*(?:\d+\.|[-|]) ", ". ", text))
    return [each for each in re.split(r"(?<=[.:;!?])\s+", one_line) if each.strip()]


def named(text: str) -> set[str]:
    """What a reader is to type or to edit: commands, options, keys of a spec, SQL statements."""
    found = {f"tidemark {command}" for command in _COMMAND.findall(text)}
    others = (pattern.findall(text) for pattern in (_OPTION, _KEY, _STATEMENT))
    return found.union(*others) - _FORMALITIES


def substance(text: str) -> set[str]:
    """The words that carry the meaning of a sentence, without their endings."""
    words = re.findall(r"[a-z]{4,}", _WARNING.sub("", text).lower())
    return {word[:5] for word in words if not _PLAIN.fullmatch(word)}


def contradictions(remedy: str, section: str) -> list[str]:
    """Parts of a remedy that its runbook section lacks, or warns against."""
    warnings = [each for each in sentences(section) if _WARNING.search(each)]
    advice = " ".join(each for each in sentences(section) if each not in warnings)
    found = [f"not in the section: {thing}" for thing in sorted(named(remedy) - named(advice))]
    for sentence in sentences(remedy):
        if _WARNING.search(sentence):
            continue
        against = [each for each in warnings if substance(each) <= substance(sentence)]
        found += [f"warned against: {each}" for each in against]
    return found


@every_error
def test_a_remedy_does_not_contradict_its_runbook_section(kind: type[TidemarkError]) -> None:
    """Both are read by the same person, minutes apart."""
    assert kind.__name__ in sections(), f"docs/runbook.md has no section {kind.__name__}"
    assert contradictions(build(kind).rendered("fix"), sections()[kind.__name__]) == []


def test_the_remedy_without_a_leader_epoch_does_not_contradict_its_runbook_section() -> None:
    """It has a second cause, and a command for it."""
    error = LogTruncated(pipeline="events", topic="events", partition=0, offset=5, undo=(1,))
    assert "--replace" in error.rendered("fix")
    assert contradictions(error.rendered("fix"), sections()["LogTruncated"]) == []


@pytest.mark.parametrize(
    "remedy",
    [
        # The runbook forbids it: records from before would be decoded with unrelated schemas.
        "If the registry was made anew, call its connection by another name",
        "If the registry was made anew, set decode.registry to a new connection",
        "Decode again with `tidemark decode PIPELINE`",
        "RESTORE the typed table",
    ],
)
def test_a_contradiction_is_found(remedy: str) -> None:
    """Advice that the section warns against, and advice that it does not have."""
    section = sections()[SchemaReplaced.__name__]
    assert contradictions(remedy, section)
    assert not contradictions("Do not give the connection another name", section)


def test_a_command_that_only_a_warning_names_is_found() -> None:
    """The section names it, and forbids it."""
    section = "Wait. Do not run `tidemark control rebuild PIPELINE --apply` meanwhile."
    assert contradictions("`tidemark control rebuild prices --apply`", section)
    assert not contradictions("wait", section)
