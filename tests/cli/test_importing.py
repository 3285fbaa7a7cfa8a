"""``stillframe trace import``: yes, no with line and host, or what is wrong with the request."""

import json
from pathlib import Path

import pytest

from stillframe import tracefile
from tests.cli.conftest import Call, rows_and_words

LOG = """starting
42[main] {"42[main]":1}
got it
b {"42[main]":1, "b":1}
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two hosts, one of which cannot keep its name."""
    path = tmp_path / "a.log"
    path.write_text(LOG, encoding="utf-8")
    return path


def test_a_log_becomes_a_trace_file(call: Call, log: Path) -> None:
    """What was found is data, what was renamed and where it went is said."""
    out = log.with_name("a.trace")
    result = call("trace", "import", log, "--out", out)
    assert result.exit_code == 0
    assert rows_and_words(result.stdout) == (
        ["1 2 2 at least 1 unknown".split()],
        [f"written: {out}", "PASS: the clocks of 1 execution do not contradict each other"],
    )
    assert result.stderr == "host '42[main]' is process P42-main\n"
    assert tracefile.read(out).processes == ("P42-main", "b")


def test_a_contradiction_is_a_no(call: Call, log: Path) -> None:
    """Exit 1, with line and host on stderr, and as JSON if that is wanted; no file is written."""
    log.write_text(LOG + 'lost\nb {"42[main]":1, "b":3}\n', encoding="utf-8")
    out = log.with_name("a.trace")
    result = call("trace", "import", log, "--out", out, "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["is_consistent"] is False
    assert answer["detail"].startswith("a.log, line 6, host 'b': the clock has 3 for its own host")
    assert result.stderr == f"FAIL: {answer['detail']}\n"
    assert not out.exists()


def test_events_that_are_left_out_are_filled_in_if_that_is_wanted(call: Call, log: Path) -> None:
    """How many is said at the import, and nothing that depends on them is said to be exact."""
    log.write_text(LOG + 'lost\nb {"42[main]":1, "b":4}\n', encoding="utf-8")
    assert "log leaves out events, give --fill-gaps" in call("trace", "import", log).stdout
    out = log.with_name("a.trace")
    result = call("trace", "import", log, "--fill-gaps", "--out", out)
    assert "2 events filled in, which the log leaves out" in result.stderr.splitlines()
    assert rows_and_words(result.stdout)[0] == ["1 2 5 possibly 1 unknown".split()]
    (row,) = json.loads(call("trace", "import", log, "--fill-gaps", "--json").stdout)["executions"]
    assert row["filled_count"] == 2
    labels = [event.label for event in tracefile.read(out).lines["b"]]
    assert labels == ["got it", *["left out of the log"] * 2, "lost"]
    counted = call("trace", "cuts", out)
    assert counted.stderr == (
        "2 events of the trace were left out of its log: some of its cuts may not be consistent, "
        "and messages in transit may have arrived\n"
    )
    assert json.loads(call("trace", "cuts", out, "--json").stdout)["filled_count"] == 2
    sure = call("trace", "cuts", out, "--cut", "P42-main=1")
    assert "in transit on P42-main->b: possibly 1 message" in sure.stdout.splitlines()


def test_several_executions_get_numbers(call: Call, log: Path) -> None:
    """Each has a file of its own, unless one is chosen."""
    log.write_text(f"== x\n{LOG}== y\n{LOG}\nnoise\n", encoding="utf-8")
    out = log.with_name("a.trace")
    options = ("trace", "import", log, "--delimiter", "^== (?<trace>.*)$", "--out", out, "--json")
    answer = json.loads(call(*options).stdout)
    assert [(row["number"], row["label"], row["file"]) for row in answer["executions"]] == [
        (1, "x", str(log.with_name("a-1.trace"))),
        (2, "y", str(log.with_name("a-2.trace"))),
    ]
    assert answer["ignored_line_count"] == 1
    (row,) = json.loads(call(*options, "--execution", "2").stdout)["executions"]
    assert (row["label"], row["file"], row["hosts"]) == (
        "y",
        str(out),
        {"P42-main": "42[main]", "b": "b"},
    )
    wrong = call(*options, "--execution", "3")
    assert wrong.exit_code == 2
    assert "a.log has no execution 3: it has 2, counted from 1" in wrong.stderr


def test_several_logs_are_one_execution(call: Call, tmp_path: Path) -> None:
    """One of each host, and what is odd about their times is said; none is overwritten."""
    one, other = tmp_path / "a.log", tmp_path / "b.log"
    one.write_text('9 a {"a":1}\nask\n8 a {"a":2}\nwait\n', encoding="utf-8")
    other.write_text('b {"a":1, "b":1}\nanswer\n', encoding="utf-8")
    result = call("trace", "import", one, other, "--out", tmp_path / "both.trace")
    assert result.exit_code == 0
    assert rows_and_words(result.stdout)[0] == ["1 2 3 at least 1 unknown".split()]
    warning = (
        "a.log, host 'a': physical time runs backwards at 1 of 2 events, first at line 3, which "
        "happened after line 1"
    )
    assert result.stderr.splitlines()[0] == f"warning: {warning}"
    (row,) = json.loads(call("trace", "import", one, other, "--json").stdout)["executions"]
    assert row["warnings"] == [warning]
    wrong = call("trace", "import", one, other, "--out", other)
    assert wrong.exit_code == 2
    assert "the input: give another output file" in wrong.stderr
    assert "is an address" in call("trace", "import", one, "s3://bucket/b.log").stderr


@pytest.mark.parametrize(
    ("name", "options"), [("a.ndjson", ()), ("a.txt", ("--json-paths", "kind=event"))]
)
def test_json_in_lines_is_known_by_its_name_or_by_an_option(
    call: Call, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    """What repeats and what is passed over is said."""
    path = tmp_path / name
    path.write_text(
        '{"N": 1}\n{"event": "<", "node": "a", "pkt": {"snd": "a", "vc": {"a": 1}}}\n',
        encoding="utf-8",
    )
    result = call("trace", "import", path, *options)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "1 line without an event skipped",
        "1 receive accepted nothing: by the clocks, the message had arrived before",
    ]
    assert rows_and_words(result.stdout)[1] == [
        "PASS: the clocks of 1 execution do not contradict each other"
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--regex", "(?<host>a)"), "has no group (?<clock>...)"),
        (("--json-paths", "host"), "'host' is not NAME=PATH"),
        (("--json-paths", "host=a", "--delimiter", "x"), "--regex and --delimiter are for text"),
        (("--out", "no/such/place"), "the directory no/such does not exist: create it first"),
    ],
)
def test_a_wrong_request_says_why(
    call: Call, log: Path, options: tuple[str, ...], sentence: str
) -> None:
    """Exit 2 and a sentence."""
    result = call("trace", "import", log, *options)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("Error: ")


def test_many_new_names_are_not_all_said(call: Call, tmp_path: Path) -> None:
    """Some, and how many more; JSON has them all."""
    path = tmp_path / "a.log"
    path.write_text("".join(f'x\n{n} {{"{n}": 1}}\n' for n in range(8)), encoding="utf-8")
    result = call("trace", "import", path)
    assert "host '4' is process P4\nand 3 other hosts renamed: see --json\n" in result.stderr
    (row,) = json.loads(call("trace", "import", path, "--json").stdout)["executions"]
    assert len(row["hosts"]) == 8


def test_a_log_is_not_overwritten_by_its_trace(
    call: Call, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever name it is called; stdout is no file for it either."""
    monkeypatch.chdir(log.parent)
    (log.parent / "link").symlink_to(log)
    for out, sentence in (
        ("a.log", "the input: give another output file"),
        ("link", "the input: give another output file"),
        ("-", "'-' is not a file"),
        ("/dev/null", "is not a regular file"),
    ):
        result = call("trace", "import", log, "--out", out)
        assert result.exit_code == 2
        assert sentence in result.stderr
    assert log.read_text(encoding="utf-8") == LOG


def test_what_is_in_transit_is_known_only_where_messages_are_stated(call: Call, log: Path) -> None:
    """JSON says null, and that the number of messages is a lower bound."""
    (row,) = json.loads(call("trace", "import", log, "--json").stdout)["executions"]
    assert row["in_transit_count"] is None
    assert row["is_message_count_exact"] is False
