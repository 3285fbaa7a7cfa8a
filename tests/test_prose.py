"""Spelling, grammar and the length of sentences in the documents, as Harper judges them
(https://writewithharper.com). ``tests/prose_words.txt`` has the names and terms that it does not
know."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.test_style import ROOT

HARPER = Path(sys.executable).with_name("harper")
WORDS = ROOT / "tests" / "prose_words.txt"
RULES = (
    "SpellCheck",
    "LongSentences",  # more than 40 words
    "RepeatedWords",
    "DoubleModal",
    "InflectedVerbAfterTo",
    "ModalOf",
    "NounVerbConfusion",
    "PronounVerbAgreement",
    "ThenThan",
    "UnclosedQuotes",
)
"""The rules that find real mistakes here. Most others of Harper's 900 take terms and commands for
mistakes, or correct idioms that no document uses."""

WORD = re.compile(r"[A-Za-z']{3,}")
"""What is checked for spelling: no initials, units or ids."""


def mistakes(pages: list[Path], place: Path) -> list[str]:
    """Return the mistakes in Markdown pages, as file, line, rule and text.

    Args:
        pages: The pages; their code is not checked.
        place: A directory without dictionaries of Harper's.
    """
    rules = ("--only", ",".join(RULES), "--dialect", "gb")
    dictionaries = ("--user-dict-path", WORDS, "--file-dict-path", place)
    found = subprocess.run(
        [HARPER, "lint", "--format", "json", *rules, *dictionaries, *pages],
        capture_output=True,
        text=True,
        check=False,  # it ends with 1 if there are mistakes
    )
    assert found.stdout, found.stderr
    lines = {page.name: page.read_text(encoding="utf-8").splitlines() for page in pages}
    return [
        f"{page['file']}:{lint['line']} {lint['rule']}: {lint['matched_text']}"
        for page in json.loads(found.stdout)
        for lint in page["lints"]
        if not (lint["rule"] == "SpellCheck" and not WORD.fullmatch(lint["matched_text"]))
        # The cells of a table of measurements are no sentences.
        if not (
            lint["rule"] == "LongSentences"
            and lines[page["file"]][lint["line"] - 1].startswith("| ")
        )
    ]


def test_the_documents_are_spelled_right_and_their_sentences_end(tmp_path: Path) -> None:
    """Of all pages, the README and CONTRIBUTING."""
    pages = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert mistakes(pages, tmp_path) == []


def test_mistakes_are_found(tmp_path: Path) -> None:
    """A misspelled word, a repeated one, and a sentence that does not end; not those in code."""
    page = tmp_path / "page.md"
    page.write_text(
        f"A proces stops the the system.\n\nIt runs {'and runs ' * 21}.\n"
        "\n`proces`\n\n```\nproces\n```\n"
    )
    assert sorted(line.split(": ")[0] for line in mistakes([page], tmp_path)) == [
        "page.md:1 RepeatedWords",
        "page.md:1 SpellCheck",
        "page.md:3 LongSentences",
    ]
