"""Finds words, phrases, sentences and lines that break the language rules of a source tree.

`python -m tests.support.language FOLDER` prints the findings of a tree and their numbers.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support import PROJECT
from tests.support.prose import Kind, Passage, pages, passages

LONGEST_SENTENCE = 25
"""Words of a sentence. A code span is one word."""
LONGEST_LINE = 100
"""Columns of a line of a page that can be broken."""

RULES_FILE = PROJECT / "tests" / "language.yaml"
_GROUPS = ("words", "phrases")
_SENTENCE_END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<=[.!?])[\"')\]*]*\s+")
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]])*\]|.")
"""An escape, a set of characters, or another character of a regular expression."""
_WORD = re.compile(r"\S*\w\S*")
_ONE_LINK = re.compile(r"(?::? *!?\[[^\]]*\]\([^)]*\)|\[[^\]]*\]:.*)[.,;]?")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A refused expression.

    Attributes:
        group: The section of the rules file, `words` or `phrases`.
        pattern: Matches the expression in the text of a passage.
        use: The plain expression.
        refuses: A text that the pattern matches.
    """

    group: str
    pattern: re.Pattern[str]
    use: str
    refuses: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A text that breaks a rule.

    Attributes:
        group: `words`, `phrases`, `sentences` or `lines`.
        path: The file, relative to the root.
        line: Line number.
        found: The refused text.
        use: What to write instead.
    """

    group: str
    path: str
    line: int
    found: str
    use: str

    @property
    def area(self) -> str:
        """`docs`, `tests` or `product`; benchmarks count as product."""
        if self.path.endswith(".md"):
            return "docs"
        return "tests" if self.path.startswith("tests/") else "product"

    def __str__(self) -> str:
        """Return one line for the report of a test."""
        return f"{self.path}:{self.line}: {self.found!r}; use: {self.use}"


@cache
def rules() -> Sequence[Rule]:
    """Return the rules of the rules file."""
    return [
        Rule(
            group=group,
            pattern=re.compile(entry["pattern"], flags=re.IGNORECASE),
            use=entry["use"],
            refuses=entry["refuses"],
        )
        for group in _GROUPS
        for entry in _rules_file()[group]
    ]


@cache
def _any_rule() -> re.Pattern[str]:
    """Return a pattern that matches a text if the pattern of at least one rule does.

    Alternatives that begin with a boundary of a word share it. So one search takes less than a
    tenth of the time of a search for each rule.
    """
    every = [each for rule in rules() for each in alternatives(rule.pattern.pattern)]
    at_words = [each.removeprefix(r"\b") for each in every if each.startswith(r"\b")]
    others = [each for each in every if not each.startswith(r"\b")]
    return re.compile("|".join([rf"\b(?:{'|'.join(at_words)})", *others]), flags=re.IGNORECASE)


def alternatives(pattern: str) -> Sequence[str]:
    """Return the alternatives of a pattern, without those inside of groups."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(pattern):
        depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def examples(key: str) -> Sequence[str]:
    """Return sentences of the rules file.

    Args:
        key: `accepted` for sentences without a finding, `refused` for sentences with findings.
    """
    sentences: Sequence[str] = _rules_file()[key]
    return sentences


@cache
def _rules_file() -> Mapping[str, Any]:
    content: Mapping[str, Any] = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))
    return content


def findings(root: Path) -> Iterator[Finding]:
    """Yield the findings of a source tree."""
    for passage in passages(root):
        yield from passage_findings(passage)
    for name, text in pages(root):
        yield from long_lines(name, text)


def passage_findings(passage: Passage) -> Iterator[Finding]:
    """Yield the refused words, phrases and sentences of a passage."""
    for rule in rules() if _any_rule().search(passage.text) else ():
        for match in rule.pattern.finditer(passage.text):
            found = match.group().strip()
            yield Finding(
                group=rule.group,
                path=passage.path,
                line=passage.line_at(match.start()),
                found=found,
                use=rule.use,
            )
    yield from _long_sentences(passage)


def _long_sentences(passage: Passage) -> Iterator[Finding]:
    start = 0
    for sentence in _SENTENCE_END.split(passage.text):
        index = passage.text.index(sentence, start)
        start = index + len(sentence)
        # A string may be code, such as SQL: only a text with a full stop is a sentence.
        if passage.kind is Kind.STRING and not sentence.endswith("."):
            continue
        words = len(_WORD.findall(sentence))
        if words > LONGEST_SENTENCE:
            yield Finding(
                group="sentences",
                path=passage.path,
                line=passage.line_at(index),
                found=f"{sentence[:60]}...",
                use=f"sentences of at most {LONGEST_SENTENCE} words; this one has {words}",
            )


def long_lines(name: str, text: str) -> Iterator[Finding]:
    """Yield the lines of a page that are too long and can be broken.

    Lines of code blocks and tables, headings, and lines with one link or picture alone cannot.
    """
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.lstrip(" -*>0123456789.")
        if content.startswith("```"):
            in_code = not in_code
        first_break = len(line) - len(content) + len(content.split(" ")[0])
        if (
            len(line) > LONGEST_LINE
            and not in_code
            and not content.startswith(("|", "#"))
            and not _ONE_LINK.fullmatch(content)
            and first_break <= LONGEST_LINE
            and " " in content
        ):
            yield Finding(
                group="lines",
                path=name,
                line=number,
                found=f"{content[:60]}...",
                use=f"lines of at most {LONGEST_LINE} columns; this one has {len(line)}",
            )


def main(root: Path) -> None:
    """Print the findings of a tree, and their numbers by group and area."""
    found = list(findings(root))
    for finding in found:
        print(finding)
    numbers = Counter((finding.group, finding.area) for finding in found)
    areas = ("product", "docs", "tests")
    print(f"{'':10}" + "".join(f"{area:>9}" for area in areas))
    for group in (*_GROUPS, "sentences", "lines"):
        print(f"{group:10}" + "".join(f"{numbers[group, area]:9}" for area in areas))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
