"""Tests that the fix of an error and its runbook section agree.

There are two rules. Commands, options, spec keys and SQL statements of a fix occur in the section
outside of warnings. No sentence of a fix contains all substantial words of a warning, unless it is
a warning itself. A warning is a sentence with "Do not" or "must not", or one that begins with
"Never".
"""

from __future__ import annotations

import re

import pytest

from tests.conftest import PROJECT
from tests.core.test_errors import concrete_errors, every_variant
from tidemark.bronze.ingest.errors import LogTruncated
from tidemark.core.errors import TidemarkError
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.silver.typed.errors import SchemaReplaced

_HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
_WARNING = re.compile(r"\bDo not\b|\bmust not\b|^Never\b")
_COMMAND = re.compile(
    r"\btidemark ((?:control|quarantine|suite|schema|publication|broker|spark) [a-z]+|[a-z][a-z-]*)"
)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_FORMALITIES = frozenset({"--plan", "--reason", "--help", "--dry-run"})
"""Options that select a plan, give a reason, or change nothing."""
_KEY = re.compile(r"\b(?:limits|alarms|decode|quality|start)\.(?!md\b)[a-z_.]*[a-z_]")
_STATEMENT = re.compile(r"\b(?:RESTORE|DELETE|VACUUM|ALTER TABLE|DESCRIBE HISTORY)\b")
_PLAIN = re.compile(
    r"about|again|also|before|give|have|into|just|like|must|only|same|some|such|than|that|them|then"
    r"|there|they|this|those|when|where|which|with"
)


def sections() -> dict[str, str]:
    page = (PROJECT / "docs" / "runbook.md").read_text(encoding="utf-8")
    parts = _HEADING.split(page)[1:]
    return {
        name: text
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
        for name in heading.split(", ")
    }


def sentences(text: str) -> list[str]:
    one_line = re.sub(r"\s+", " ", re.sub(r"\n\s*(?:\d+\.|[-|]) ", ". ", text))
    return [each for each in re.split(r"(?<=[.:;!?])\s+", one_line) if each.strip()]


def instructions(text: str) -> set[str]:
    """Return the commands, options, spec keys and SQL statements of a text."""
    found = {f"tidemark {command}" for command in _COMMAND.findall(text)}
    others = (pattern.findall(text) for pattern in (_OPTION, _KEY, _STATEMENT))
    return found.union(*others) - _FORMALITIES


def substance(text: str) -> set[str]:
    """Return the starts of the substantial words of a sentence."""
    words = re.findall(r"[a-z]{4,}", _WARNING.sub("", text).lower())
    return {word[:5] for word in words if not _PLAIN.fullmatch(word)}


def contradictions(remedy: str, section: str) -> list[str]:
    """Return the parts of a fix that its runbook section lacks or warns against."""
    warnings = [each for each in sentences(section) if _WARNING.search(each)]
    advice = " ".join(each for each in sentences(section) if each not in warnings)
    found = [
        f"not in the section: {thing}"
        for thing in sorted(instructions(remedy) - instructions(advice))
    ]
    for sentence in sentences(remedy):
        if _WARNING.search(sentence):
            continue
        against = [each for each in warnings if substance(each) <= substance(sentence)]
        found += [f"warned against: {each}" for each in against]
    return found


@pytest.mark.parametrize("error", every_variant().values(), ids=every_variant())
def test_a_fix_does_not_contradict_its_runbook_section(error: TidemarkError) -> None:
    kind = type(error)
    assert kind.__name__ in sections(), f"docs/runbook.md has no section {kind.__name__}"
    assert contradictions(error.rendered("fix"), sections()[kind.__name__]) == []


def test_the_runbook_begins_with_a_link_to_the_section_of_each_error() -> None:
    page = (PROJECT / "docs" / "runbook.md").read_text(encoding="utf-8")
    introduction = page.partition("\n## ")[0]
    rows = re.findall(r"^\| [A-Z] \| (.+) \|$", introduction, re.MULTILINE)
    links = re.findall(r"\[(\w+)\]\(#([\w-]+)\)", " ".join(rows))
    assert [name for name, _ in links] == [kind.__name__ for kind in concrete_errors()]
    assert [name for name, anchor in links if name.lower() not in anchor.split("-")] == []


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (
            LogTruncated(pipeline="events", topic="events", partition=0, offset=5, undo=(1,)),
            "--replace",
        ),
        (KafkaUnavailable(operation="a read", reason="no answer"), "the same command"),
    ],
)
def test_the_fix_without_an_optional_field_does_not_contradict_its_runbook_section(
    error: TidemarkError, part: str
) -> None:
    assert part in error.rendered("fix")
    assert contradictions(error.rendered("fix"), sections()[type(error).__name__]) == []


@pytest.mark.parametrize(
    "remedy",
    [
        # The runbook forbids it, because old records would be decoded with unrelated schemas.
        "If the registry was recreated, call its connection by another name",
        "If the registry was recreated, set decode.registry to a new connection",
        "Decode again with `tidemark decode PIPELINE`",
        "RESTORE the typed table",
    ],
)
def test_advice_that_the_section_lacks_or_warns_against_is_found(remedy: str) -> None:
    section = sections()[SchemaReplaced.__name__]
    assert contradictions(remedy, section)
    assert not contradictions("Do not give the connection another name", section)


def test_a_command_that_occurs_only_in_a_warning_is_found() -> None:
    section = "Wait. Do not run `tidemark control rebuild PIPELINE --apply` meanwhile."
    assert contradictions("`tidemark control rebuild prices --apply`", section)
    assert not contradictions("wait", section)
