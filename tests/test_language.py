"""Tests that all prose is plain technical English: short sentences, one word for each concept.

The rules are in tests/language.yaml. They apply to docstrings, comments, messages, test names,
templates and pages.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.support import PROJECT
from tests.support.language import (
    LONGEST_SENTENCE,
    Rule,
    alternatives,
    examples,
    findings,
    long_lines,
    passage_findings,
    rules,
)
from tests.support.prose import Passage, module, page, script, template


def texts(found: Iterable[Passage]) -> list[tuple[int, str]]:
    """Return the first line and the text of passages, in the order of the lines."""
    return sorted((each.lines[0][0], each.text) for each in found)


def sentences(found: Iterable[Passage]) -> int:
    """Return the number of sentences that are too long."""
    return sum(each.group == "sentences" for item in found for each in passage_findings(item))


def test_the_project_contains_no_refused_language() -> None:
    found = [str(each) for each in findings(PROJECT)]
    assert found == [], "\n".join(["", *found])


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.refuses)
def test_each_rule_refuses_its_example(rule: Rule) -> None:
    (passage,) = page("p.md", rule.refuses)
    assert rule.use in {found.use for found in passage_findings(passage)}


def test_a_pattern_is_split_into_its_alternatives() -> None:
    """Each alternative is found by one search for all rules."""
    assert alternatives(r"\ba(?:b|c(d|e))|[|)]f|\||g") == [r"\ba(?:b|c(d|e))", "[|)]f", r"\|", "g"]


@pytest.mark.parametrize("sentence", examples("accepted"))
def test_plain_sentences_have_no_finding(sentence: str) -> None:
    (passage,) = page("p.md", sentence)
    assert list(passage_findings(passage)) == []


@pytest.mark.parametrize("sentence", examples("refused"))
def test_sentences_of_the_old_style_have_findings(sentence: str) -> None:
    (passage,) = page("p.md", sentence)
    assert list(passage_findings(passage)) != []


def test_a_finding_names_file_line_text_and_replacement() -> None:
    (rule,) = (rule for rule in rules() if rule.use == "no longer")
    (passage,) = page("docs/p.md", f"Plain text.\n{rule.refuses}")
    (found,) = passage_findings(passage)
    assert str(found) == f"docs/p.md:2: {' '.join(['any', 'more'])!r}; use: no longer"


def test_the_prose_of_a_module_is_read() -> None:
    text = (
        '"""A module."""\n'
        "code = {'key': 'two # words'}  # a comment\n"
        "# A comment of\n"
        "# two lines.\n"
        'message = f"{code} is a value"\n'
        "def test_a_name() -> None:\n"
        '    """Read `some code`.\n'
        "\n"
        "    Args:\n"
        "        first: The first one,\n"
        "            on two lines.\n"
        "        second: The second one.\n"
        "\n"
        "    \\b\n"
        "    tidemark example\n"
        '    """\n'
    )
    assert texts(module("m.py", text)) == [
        (1, "A module."),
        (2, "a comment"),
        (2, "two # words"),
        (3, "A comment of two lines."),
        (5, "CODE is a value"),
        (6, "a name"),
        (7, "Read CODE."),
        (9, "Args:"),
        (10, "first: The first one, on two lines."),
        (12, "second: The second one."),
    ]


def test_the_prose_of_a_page_is_read_without_code_and_targets_of_links() -> None:
    text = (
        "# A title\n\nA `code span`, and [a\nlink](target.md).\n\n"
        "```\ncode\n```\n\n    code\n\n"
        "- an item\n- `code`\n\n"
        "| a | b |\n|---|---|\n| cell | `code` |\n"
    )
    assert texts(page("p.md", text)) == [
        (1, "A title"),
        (3, "A CODE, and a link."),
        (12, "an item"),
        (13, "CODE"),
        (15, "a"),
        (15, "b"),
        (17, "CODE"),
        (17, "cell"),
    ]


def test_the_comments_of_scripts_and_the_texts_of_templates_are_read() -> None:
    yaml = "a: 1  # a comment\nb: text\n# another\n# comment\n"
    assert texts(script("c.yaml", yaml)) == [(1, "a comment"), (3, "another comment")]
    html = (
        "<p class='name'>{{ count }} plans\n{% if rows %}of a table{% else %}in a file{% endif %}"
    )
    assert texts(template("t.html", html)) == [
        (1, "CODE plans"),
        (2, "in a file"),
        (2, "of a table"),
    ]


@pytest.mark.parametrize("words", [LONGEST_SENTENCE, LONGEST_SENTENCE + 1])
def test_a_code_span_is_one_word_of_a_sentence(words: int) -> None:
    text = f"Short. `a b c`{' word' * (words - 1)}. Short."
    assert sentences(page("p.md", text)) == words - LONGEST_SENTENCE


def test_abbreviations_end_no_sentence() -> None:
    half = " ".join(["word"] * 13)
    assert sentences(page("p.md", f"{half}. {half}.")) == 0
    assert sentences(page("p.md", f"{half}, e.g. {half}.")) == 1


def test_a_string_of_code_is_not_a_sentence() -> None:
    long = " ".join(["word"] * (LONGEST_SENTENCE + 1))
    assert sentences(module("m.py", f'query = "SELECT {long}"')) == 0
    assert sentences(module("m.py", f'message = "{long}."')) == 1


def test_only_lines_that_can_be_broken_are_too_long() -> None:
    fits, wide, word, link = "x " * 50, "x " * 51, "x" * 101, f"[a long link]({'x' * 100})"
    lines = [
        fits,
        wide,
        word,
        f"# {wide}",
        f"| {wide} |",
        "```",
        wide,
        "```",
        f"- {link}",
        f"!{link}",
    ]
    assert [each.line for each in long_lines("p.md", "\n".join(lines))] == [2]
