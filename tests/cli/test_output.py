"""What reaches the terminal: no colour in a pipe, no control characters, JSON that is plain."""

import contextlib
import os
import sys
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from stillframe.cli import output
from stillframe.errors import StillframeError
from stillframe.json_values import plain
from stillframe.model import Abandoned, Channel, Reason, SnapshotId
from stillframe.runtime.events import SnapshotAbandoned


def test_words_go_to_stderr_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """No markup is read, nothing is wrapped, nothing is coloured."""
    line = "process P1 [bold]died[/bold]: 'x' = 1 " + "long " * 60
    output.say(line)
    assert capsys.readouterr() == ("", f"{line}\n")


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_words_that_nobody_can_read_are_no_error(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The reader of the pipe has ended, or the terminal was closed: the command continues."""
    reader, writer = os.pipe() if kind == "pipe" else os.openpty()
    os.close(reader)
    with contextlib.suppress(OSError), open(writer, "w") as gone:  # noqa: PTH123 - a descriptor
        with pytest.raises(OSError, match=r"Broken pipe|Input/output error"):
            os.write(writer, b"x")
        monkeypatch.setattr(sys, "stderr", gone)
        console = output.words()
        output.say("the first", console=console)
        output.say("the second", console=console)
        with Live("status", console=console, transient=True):
            output.say("the third", console=console)
        monkeypatch.undo()


def test_control_characters_cannot_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What another program made us say must not move the cursor or set colours."""
    output.say("peer said \x1b[2J\x07")
    assert capsys.readouterr().err == "peer said \\x1b[2J\\x07\n"


def test_a_line_of_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Foreign text within it makes no further lines."""
    output.put_lines(["P1 a\nyes: all is well\x07", "P2\tb"])
    assert capsys.readouterr().out == "P1 a\\nyes: all is well\\x07\nP2\tb\n"


def test_colour_is_only_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets none, and a terminal none either if NO_COLOR is set."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not output.words().is_terminal
    monkeypatch.setenv("NO_COLOR", "1")
    assert Console(force_terminal=True).no_color


def test_tables_in_a_pipe_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads a table gets every row on one line, whole."""
    output.put_table("", ["process", "note"], [("P1", "x" * 500)])
    assert capsys.readouterr().out.splitlines()[-1].split() == ["P1", "x" * 500]


def test_json_has_ids_as_people_write_them() -> None:
    """Structs are objects, ids and channels are text, enums are names, keys are text."""
    abandoned = Abandoned(SnapshotId("P1", 7), Reason.DEADLINE, ("P2",))
    assert plain(SnapshotAbandoned(abandoned)) == {
        "event": "SnapshotAbandoned",
        "abandoned": {"snapshot": "P1-7", "reason": "DEADLINE", "missing": ["P2"], "detail": ""},
        "retried_as": None,
    }
    assert plain({Channel("P1", "P2"): 1, (1, 2): [SnapshotId("A", 1)]}) == {
        "P1->P2": 1,
        "$[1,2]": ["A-1"],
    }


def test_json_of_a_deep_value_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Also if the document around it makes it too deep for the encoder."""
    levels = 850
    value = msgspec.msgpack.decode(b"\x91" * levels + b"\xc0")
    document: Any = {"value": value}
    for _ in range(200):
        document = {"in": document}
    output.put_json(document)
    assert "[" * levels + "null" + "]" * levels in capsys.readouterr().out


def test_json_that_cannot_be_written_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing half-written reaches stdout."""
    with pytest.raises(TypeError):
        output.put_json({"error": StillframeError()})
    assert capsys.readouterr().out == ""


NARROW = ["snapshot", "published", "recorded in", "note", "size", "processes"]


def put_narrow(width: int, *row: str) -> None:
    """Write a table of `row` to a terminal of `width` columns."""
    with pytest.MonkeyPatch.context() as terminal:
        terminal.setenv("FORCE_COLOR", "1")  # rich takes stdout for a terminal then
        terminal.setenv("COLUMNS", str(width))
        output.put_table("", NARROW, [row], texts=2)


def test_a_narrow_terminal_shows_whole_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Texts and headings are broken between words. What does not fit is left out, empty columns
    first, and named."""
    row = ("P1-1", "2026-11-25 15:18:37", "12.5 ms", "", "3.9 kB", "3")
    put_narrow(80, *row)
    assert capsys.readouterr().err == ""
    put_narrow(53, *row)
    shown, told = capsys.readouterr()
    lines = Text.from_ansi(shown).plain.splitlines()
    assert [line.rstrip() for line in lines] == [
        "                        recorded",
        "snapshot   published          in     size   processes",
        "─" * 53,
        "P1-1       2026-11-25    12.5 ms   3.9 kB           3",
        "           15:18:37",
    ]
    assert told == "columns left out: note (widen the terminal, or use --json)\n"


@pytest.mark.parametrize("width", [*range(1, 41), 80, 120])
def test_no_line_of_a_table_is_wider_than_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Down to the narrowest, and with characters that take two columns."""
    put_narrow(width, "長い名前-1", "2026-11-25 15:18:37 UTC", "12.5 ms", "", "3.9 kB", "3")
    shown = Text.from_ansi(capsys.readouterr().out).plain
    assert max(map(cell_len, shown.splitlines())) <= max(width, 2)


def test_a_title_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Also above a table that is narrower."""
    output.put_table("processes: Account", ["a"], [("1",)])
    assert capsys.readouterr().out.splitlines()[0] == "processes: Account"
