"""``docs/cli.md`` is the help texts, no older and no newer."""

from pathlib import Path

from stillframe.cli.reference import reference

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"


def test_the_page_is_what_the_help_says() -> None:
    """Whoever changes a help text writes the page again."""
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "run: .venv/bin/python -m stillframe.cli.reference > docs/cli.md"
    )


def test_every_command_has_a_section() -> None:
    """The reference goes down into the groups of commands."""
    assert "## stillframe run\n" in reference()
    assert "## stillframe store audit\n" in reference()
