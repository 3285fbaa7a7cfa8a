"""Text logs: a regular expression finds the events, the rest is passed over and counted."""

import os
import re
import time
from pathlib import Path

import pytest

from stillframe.errors import NotConsistent, UsageError
from stillframe.importer import shiviz
from stillframe.importer.execution import Imported
from stillframe.importer.shiviz import read_shiviz

TWO_HOSTS = """starting
a {"a":1}
got it
b {"a":1, "b":1}
"""
ONE_LINE = r"^\[(?<date>\S+)\] (?<host>\w+) (?<clock>\{.*?\}) (?<event>.*)$"


def log(tmp_path: Path, text: str) -> Path:
    """Write a log."""
    path = tmp_path / "a.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_event_may_go_over_several_lines(tmp_path: Path) -> None:
    """The usual form is an event, and on the next line its host and clock."""
    imported = read_shiviz(log(tmp_path, TWO_HOSTS))
    (execution,) = imported.executions
    assert [event.label for event in execution.trace.steps if hasattr(event, "label")] == [
        "starting",
        "got it",
    ]
    assert [str(channel) for channel in execution.trace.channels] == ["a->b"]
    assert imported.ignored_line_count == 0


GOVECTOR = """a {"a":1}
starting
b {"a":1, "b":1}
got it
"""
GOVECTOR_EXPRESSION = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"


def labels(imported: Imported) -> list[list[str]]:
    """Return the labels of the events of each execution."""
    return [
        [event.label for _, event in execution.trace.positions()]
        for execution in imported.executions
    ]


@pytest.mark.parametrize(
    ("text", "ignored_line_count"),
    [
        (TWO_HOSTS, 0),
        (GOVECTOR, 0),
        (GOVECTOR.removesuffix("\n"), 0),
        (f"{GOVECTOR}one more line\n", 1),
        (f"\n\n{GOVECTOR}", 0),
        (f"one more line\n\n{TWO_HOSTS}", 1),
        (GOVECTOR.replace("a {", "1456966522870845696 a {"), 0),
    ],
)
def test_the_layout_that_fits_is_recognized(
    tmp_path: Path, text: str, ignored_line_count: int
) -> None:
    """GoVector writes host and clock first, others the event: no label shifts by a line."""
    imported = read_shiviz(log(tmp_path, text))
    assert labels(imported) == [["starting", "got it"]]
    assert imported.ignored_line_count == ignored_line_count


@pytest.mark.parametrize(
    ("text", "line"), [(f"one more line\n{GOVECTOR}", 3), (f"{TWO_HOSTS}one more line\n", 3)]
)
def test_a_log_that_fits_both_layouts_is_refused(tmp_path: Path, text: str, line: int) -> None:
    """The labels would differ, so the sentence names the line and the option with both values."""
    path = log(tmp_path, text)
    with pytest.raises(UsageError) as error:
        read_shiviz(path)
    assert str(error.value).startswith(f"a.log can be read in two ways: line {line} may be the ev")
    regexes = re.findall("--regex '([^']*)'", str(error.value))
    assert sorted(labels(read_shiviz(path, regex=regex))[0] for regex in regexes) == [
        ["one more line", "starting"] if text.startswith("one") else ["got it", "one more line"],
        ["starting", "got it"],
    ]


def test_a_log_that_both_layouts_read_alike_is_read(tmp_path: Path) -> None:
    """An event without a text is the same in both."""
    assert labels(read_shiviz(log(tmp_path, '\na {"a":1}\n'))) == [[""]]


@pytest.mark.parametrize("expression", [GOVECTOR_EXPRESSION, f"^{GOVECTOR_EXPRESSION}$"])
@pytest.mark.parametrize("empty", ["\n\n", "\n\n\n", "\n \n"])
def test_a_file_for_shiviz_says_how_it_is_read(tmp_path: Path, expression: str, empty: str) -> None:
    """GoVector's program writes one empty line before the log, its script two."""
    imported = read_shiviz(log(tmp_path, f"{expression}{empty}{GOVECTOR}"))
    assert labels(imported) == [["starting", "got it"]]
    assert imported.ignored_line_count == 0


def test_a_log_of_dinv_has_a_third_line_for_each_event(tmp_path: Path) -> None:
    """With the values of variables, which may be empty; its expression says so."""
    text = 'a {"a":1}\nstarting\nx=1,y=2\nb {"a":1, "b":1}\ngot it\n\n'
    imported = read_shiviz(log(tmp_path, f"{GOVECTOR_EXPRESSION}\\n(?<dump>.*)\n\n{text}"))
    assert labels(imported) == [["starting", "got it"]]
    first, second = (event for _, event in imported.executions[0].trace.positions())
    assert (first.fields, second.fields) == ({"dump": "x=1,y=2"}, {"dump": ""})
    bare = read_shiviz(log(tmp_path, text))
    assert labels(bare) == [["starting", "got it"]]
    assert bare.ignored_line_count == 1


def test_the_second_line_of_a_file_for_shiviz_separates_executions(tmp_path: Path) -> None:
    """It names them, too; an option replaces either line."""
    text = f"== one ==\n{GOVECTOR}== two ==\n{GOVECTOR}"
    path = log(tmp_path, f"{GOVECTOR_EXPRESSION}\n== (?<trace>.*) ==\n{text}")
    imported = read_shiviz(path)
    assert [execution.label for execution in imported.executions] == ["one", "two"]
    assert labels(imported) == [["starting", "got it"]] * 2
    assert imported.ignored_line_count == 0
    renamed = read_shiviz(path, delimiter="^(?<trace>== .*)$")
    assert [execution.label for execution in renamed.executions] == ["== one ==", "== two =="]
    hosts_only = read_shiviz(path, regex=r"^(?<host>\S*) (?<clock>{.*})(?<event>)$")
    assert labels(hosts_only) == [["", ""]] * 2


def test_the_lines_of_a_file_for_shiviz_count(tmp_path: Path) -> None:
    """Errors give the line of the file, and say where a wrong expression is."""
    text = f'{GOVECTOR_EXPRESSION}\n\n{GOVECTOR}a {{"a":3}}\nlost\n'
    with pytest.raises(NotConsistent, match=r"^a\.log, line 7, host 'a': the clock has 3"):
        read_shiviz(log(tmp_path, text))
    with pytest.raises(UsageError, match=r"expression in line 1 of a\.log .* no group \(\?<event"):
        read_shiviz(log(tmp_path, "(?<host>a) (?<clock>b)\n\n"))
    with pytest.raises(UsageError, match=r"delimiter in line 2 of a\.log '\^\(.*' is invalid"):
        read_shiviz(log(tmp_path, f"{GOVECTOR_EXPRESSION}\n(\n{GOVECTOR}"))
    with pytest.raises(UsageError, match=r"a\.log is empty: there is no event in it"):
        read_shiviz(log(tmp_path, GOVECTOR_EXPRESSION))


@pytest.mark.parametrize("regex", [ONE_LINE, ONE_LINE.replace("(?<", "(?P<")])
def test_groups_are_written_as_in_javascript_or_python(tmp_path: Path, regex: str) -> None:
    """Both ways to name a group work; groups beyond those needed become fields."""
    path = log(tmp_path, '[09:00] a {"a":1} hello\n\nnoise\n[09:01] a {"a":2} bye\nmore noise\n')
    imported = read_shiviz(path, regex=regex)
    events = imported.executions[0].trace.lines["a"]
    assert [(event.label, event.fields) for event in events] == [
        ("hello", {"date": "09:00"}),
        ("bye", {"date": "09:01"}),
    ]
    assert imported.ignored_line_count == 2


@pytest.mark.parametrize(
    "regex",
    [
        r"(?<=# )(?<host>\w) (?<clock>{.*}) (?<event>.*)",
        r"(?<!x)# (?<host>\w) (?<clock>{.*}) (?<event>.*)",
        r"[(?<#] (?<host>\w) (?<clock>{.*}) (?<event>.*)",
        r"\(?<?# (?<host>\w) (?<clock>{.*}) (?<event>.*)",
        r"(?<mark>#) (?<host>\w) (?<clock>{.*}) (?<event>\k<mark>.*)",
    ],
)
def test_only_the_names_of_groups_are_translated(tmp_path: Path, regex: str) -> None:
    """Looking back, sets of characters, escapes and back references mean what they should."""
    path = log(tmp_path, '# a {"a": 1} #hello\n')
    (event,) = read_shiviz(path, regex=regex).executions[0].trace.lines["a"]
    assert event.label == "#hello"


def test_a_delimiter_separates_executions(tmp_path: Path) -> None:
    """Each execution has clocks of its own, and the label that its delimiter gives."""
    path = log(tmp_path, f"=== one ===\n{TWO_HOSTS}\n=== two ===\n{TWO_HOSTS}")
    imported = read_shiviz(path, delimiter=r"^=== (?<trace>.*) ===$")
    assert [execution.label for execution in imported.executions] == ["one", "two"]
    assert [execution.trace.event_count for execution in imported.executions] == [2, 2]


def test_a_count_that_comes_twice_leads_to_the_delimiter(tmp_path: Path) -> None:
    """GoVector puts a line before each execution: the option that fits it is given, and works."""
    path = log(tmp_path, "".join(f" \n=== Execution #{day}  ===\n{GOVECTOR}" for day in "ab"))
    with pytest.raises(NotConsistent, match=r"separates them, as in line 2\); two proc") as caught:
        read_shiviz(path)
    (delimiter,) = re.findall("--delimiter '(.*)' separates", str(caught.value))
    imported = read_shiviz(path, delimiter=delimiter)
    assert [one.label for one in imported.executions] == ["Execution #a", "Execution #b"]
    for text, option, advice in (
        (GOVECTOR * 2, None, "give what separates them with --delimiter"),
        (GOVECTOR * 2, "^x$", "give a --delimiter that matches whatever separates them"),
    ):
        with pytest.raises(NotConsistent, match=rf"the log has several executions \({advice}\)"):
            read_shiviz(log(tmp_path, text), delimiter=option)


def test_a_contradiction_in_a_later_execution_names_its_line(tmp_path: Path) -> None:
    """Lines are counted from the beginning of the log; what counts is where the clock stands."""
    path = log(tmp_path, f'{TWO_HOSTS}---\n{TWO_HOSTS}bad\na {{"a":3}}\n')
    with pytest.raises(NotConsistent, match=r"^a\.log, line 11, host 'a': the clock has 3 for"):
        read_shiviz(path, delimiter="^---$")


@pytest.mark.parametrize(
    ("regex", "sentence"),
    [
        ("(?<host>a) (?<event>b)", r"no group \(\?<clock>...\): it needs"),
        ("(?<clock>a) (?<event>b)", r"no group \(\?<host>...\): it needs"),
        ("(?<host>a", "the regular expression .* is invalid: missing \\)"),
        ("(?<host>a)|(?<clock>b)|(?<event>starting)", "line 1: .* without a host"),
        ("(?<host>a) (?<clock>nowhere)(?<event>)", "finds no event from line 1 on; .* 'starting"),
        (r"(?<host>a) (?<clock>.)(?<event>)", "line 2, host 'a': '{' is not a vector clock"),
    ],
)
def test_a_wrong_regular_expression_says_why(tmp_path: Path, regex: str, sentence: str) -> None:
    """A missing group, a mistake in it, or no match: each has a sentence."""
    with pytest.raises(UsageError, match=sentence):
        read_shiviz(log(tmp_path, TWO_HOSTS), regex=regex)


def test_a_wrong_delimiter_is_named(tmp_path: Path) -> None:
    """The sentence says that it is the delimiter that cannot be understood."""
    with pytest.raises(UsageError, match=r"the delimiter '\(' is invalid"):
        read_shiviz(log(tmp_path, TWO_HOSTS), delimiter="(")


@pytest.mark.parametrize(
    "clock", ['{"a": "1"}', '{"a": 1.5}', '{"a": true}', "{}x}", '{"a": null}', '{"a": [1]}']
)
def test_a_clock_of_anything_but_whole_numbers_is_refused(tmp_path: Path, clock: str) -> None:
    """Nothing is guessed: a clock is JSON, from host to whole number."""
    with pytest.raises(UsageError, match=r"line 2, host 'a': .* is not a vector clock"):
        read_shiviz(log(tmp_path, f"x\na {clock}\n"))


def test_lines_end_as_they_like_and_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    """A log written elsewhere may have other line ends, and broken characters in its events."""
    path = tmp_path / "a.log"
    path.write_bytes(b'st\xffrting\r\na {"a":1}\r\n')
    (event,) = read_shiviz(path).executions[0].trace.lines["a"]
    assert event.label == "st\N{REPLACEMENT CHARACTER}rting"


def test_a_text_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence says what else can be done."""
    monkeypatch.setattr(shiviz, "TEXT_BYTES_MAX", 10)
    with pytest.raises(UsageError, match=r"at most 10 bytes can be searched .*; split it, or"):
        read_shiviz(log(tmp_path, TWO_HOSTS))


@pytest.mark.parametrize("stray", ["x" * 1_000_000, "h" * 1_000_000 + " {", "h " + "{" * 1_000_000])
def test_long_lines_without_an_event_take_time_that_grows_with_them(
    tmp_path: Path, stray: str
) -> None:
    """A million letters that are no event are passed over at once."""
    begin_s = time.process_time()
    imported = read_shiviz(log(tmp_path, f"{stray}\n{TWO_HOSTS}"))
    assert time.process_time() - begin_s < 1.0
    assert imported.executions[0].trace.event_count == 2
    assert imported.ignored_line_count == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"^a\.log is empty: there is no event in it"),
        (b" \n\n", "is empty"),
        (b"hello", "begins with 'hello': describe events with --regex$"),
        (b'{"a": 1}', "use a name that ends in .ndjson, or give --json-paths"),
    ],
)
def test_a_text_without_an_event_says_what_to_do(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    """By what it looks like."""
    path = tmp_path / "a.log"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        read_shiviz(path)


def test_foreign_text_cannot_fill_the_terminal(tmp_path: Path) -> None:
    """A label is one line of bounded length; a host is shortened where people are told it."""
    host = "h" * 3_000_000
    regex = r"(?s)(?<host>\w+) (?<clock>{.*?}) (?<event>.*)"
    path = log(tmp_path, f'{host} {{"{host}": 1}} a\nb{"x" * 3_000_000}')
    (execution,) = read_shiviz(path, regex=regex).executions
    (event,) = execution.trace.lines["h" * 64]
    assert event.label.startswith("a\\nbxxx")
    assert len(event.label) == 500
    with pytest.raises(NotConsistent) as caught:
        read_shiviz(log(tmp_path, f'{host} {{"{host}": 7}} a'), regex=regex)
    assert len(str(caught.value)) < 300


TLC = r"""State 2: <SendMsg line 118 of module EWD998ChanID>
/\ Host = n6
/\ Clock = "{\"n1\":0,\"n6\":1}"

State 3: <Receive line 149 of module EWD998ChanID>
/\ Host = n1
/\ Clock = "{\"n1\":1,\"n6\":1}"
"""
TLC_EXPRESSION = (
    r'^State [0-9]+: <(?<event>\w*) .*>\n\/\\ Host = (?<host>.*)\n\/\\ Clock = "(?<clock>.*)"'
)


def test_clocks_as_tlc_prints_them_are_read(tmp_path: Path) -> None:
    """TLA+ has an object of JSON in a string, with a backslash before each quote."""
    imported = read_shiviz(log(tmp_path, TLC), regex=TLC_EXPRESSION)
    assert labels(imported) == [["SendMsg", "Receive"]]
    assert [str(channel) for channel in imported.executions[0].trace.channels] == ["n6->n1"]


def test_backslashes_in_the_name_of_a_host_stay(tmp_path: Path) -> None:
    """They are escapes of JSON there, and no string within a string."""
    imported = read_shiviz(log(tmp_path, 'x\na"b {"a\\"b":1}\n'))
    assert list(imported.executions[0].hosts.values()) == ['a"b']


def test_several_files_have_the_events_of_one_execution(tmp_path: Path) -> None:
    """Such as one of each host; lines that are passed over are counted in all."""
    one, other = tmp_path / "a.log", tmp_path / "b.log"
    one.write_text('a {"a":1}\nask\n\nnoise\n', encoding="utf-8")
    other.write_text('answer\nb {"a":1, "b":1}\n', encoding="utf-8")
    imported = read_shiviz(one, other)
    assert labels(imported) == [["ask", "answer"]]
    assert imported.executions[0].trace.message_count == 1
    assert imported.ignored_line_count == 1


def test_what_contradicts_in_several_files_is_named_with_both(tmp_path: Path) -> None:
    """With the files' names, or in full if two have the same."""
    one, other = tmp_path / "a.log", tmp_path / "x" / "a.log"
    other.parent.mkdir()
    for path in (one, other):
        path.write_text('a {"a":1}\nask\n', encoding="utf-8")
    with pytest.raises(NotConsistent) as error:
        read_shiviz(one, other)
    assert str(error.value).startswith(
        f"{other}, line 1, host 'a': the clock has 1 for its own host, as line 1 of {one} has: "
    )
    other.write_text('b {"a":2, "b":1}\nanswer\n', encoding="utf-8")
    renamed = other.rename(other.with_name("b.log"))
    with pytest.raises(NotConsistent, match=r"^b\.log, line 1, host 'b': the clock has 2 for host"):
        read_shiviz(one, renamed)


def test_several_files_have_the_same_executions(tmp_path: Path) -> None:
    """They are merged one by one; which would go with which is not guessed."""
    one, other = tmp_path / "a.log", tmp_path / "b.log"
    one.write_text('= x\na {"a":1}\nask\n= y\na {"a":1}\nask again\n', encoding="utf-8")
    other.write_text(
        '= x\nb {"a":1, "b":1}\ngot it\n= y\nnoise\n\nb {"b":1}\nidle\n', encoding="utf-8"
    )
    imported = read_shiviz(one, other, regex=GOVECTOR_EXPRESSION, delimiter="^= (?<trace>.*)$")
    assert [execution.label for execution in imported.executions] == ["x", "y"]
    assert [sorted(found) for found in labels(imported)] == [
        ["ask", "got it"],
        ["ask again", "idle"],
    ]
    assert [execution.trace.message_count for execution in imported.executions] == [1, 0]
    assert imported.ignored_line_count == 1
    other.write_text('= y\nb {"b":1}\nidle\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"^b\.log has other executions than a\.log: 'y', and 'x'"):
        read_shiviz(one, other, regex=GOVECTOR_EXPRESSION, delimiter="^= (?<trace>.*)$")
    with pytest.raises(UsageError, match="one without a name, and one without a name, one without"):
        read_shiviz(one, other, regex=GOVECTOR_EXPRESSION, delimiter="^= .$")
    with pytest.raises(UsageError, match="name at least one file"):
        read_shiviz()


def test_a_pipe_is_read_from_its_first_byte_to_its_last() -> None:
    """It can be read only once."""
    reading, writing = os.pipe()
    os.write(writing, TWO_HOSTS.encode())
    os.close(writing)
    assert labels(read_shiviz(Path(f"/dev/fd/{reading}"))) == [["starting", "got it"]]
    os.close(reading)


def test_blanks_at_the_ends_of_lines_do_no_harm(tmp_path: Path) -> None:
    """The expression of a file for ShiViz matches whole lines but for these."""
    text = TWO_HOSTS.replace("}", "}  ")
    expression = r"(?<event>.*)\n(?<host>\S*) (?<clock>{.*})"
    imported = read_shiviz(log(tmp_path, f"{expression}\n---\n{text}--- \n{text}"))
    assert labels(imported) == [["starting", "got it"]] * 2


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("1456966522870845696", "1456966522870845697"),
        ("9.5", "10"),
        ("2013-05-24 23:28:00,637", "2013-05-24 23:28:01,001"),
        ("2013-05-24T23:28:00+02:00", "2013-05-24T22:28:00Z"),
        ("10/13/2014 04:23:20.113", "10/13/2014 04:23:20.114"),
        ("5/27/2013 10:53:39 AM", "5/27/2013 1:53:39 PM"),
    ],
)
def test_physical_time_that_runs_backwards_is_reported(
    tmp_path: Path, earlier: str, later: str
) -> None:
    """On one host, in the order of its vector clocks; what two hosts say is not compared."""
    regex = r"^(?<date>.*) \| (?<host>\w) (?<clock>{.*}) (?<event>.*)$"
    rows = ['a {"a":1} x', 'a {"a":2} y', 'b {"b":1} z']
    good = [f"{time} | {row}" for time, row in zip((earlier, later, earlier), rows, strict=True)]
    bad = [f"{time} | {row}" for time, row in zip((later, earlier, earlier), rows, strict=True)]
    for lines, warnings in (
        (good, ()),
        (
            bad,
            (
                (
                    "a.log, host 'a': physical time runs backwards at 1 of 2 events, first at line "
                    "2, which happened after line 1"
                ),
            ),
        ),
    ):
        path = log(tmp_path, "\n".join(lines))
        assert read_shiviz(path, regex=regex).executions[0].warnings == warnings


def test_times_that_contradict_the_order_between_hosts_are_counted(tmp_path: Path) -> None:
    """One warning for all, with the pair whose times are furthest apart; a message may take any
    time, and an event without a time is not compared."""
    rows = (
        *('9 a {"a":1}', '10 a {"a":2}', '7 b {"b":1, "a":1}', '4 c {"c":1, "b":1, "a":1}'),
        *('99 c {"c":2, "b":1, "a":2}', 'b {"b":2, "a":2}', '3 d {"d":1}'),
    )
    (warning,) = read_shiviz(log(tmp_path, "\n.\n".join(rows) + "\n.\n")).executions[0].warnings
    assert warning == (
        "physical times contradict the order between hosts at 2 of 6 events, most at a.log, line 7 "
        "(host 'c'), which happened after line 1 (host 'a') by the vector clocks, and before it by "
        "its time: the clocks of these hosts differ"
    )


@pytest.mark.parametrize("unknown", ["noon", "nan", "-inf", "9" * 40])
def test_a_time_in_an_unknown_form_is_not_compared(tmp_path: Path, unknown: str) -> None:
    """It stays a field, and a warning says so once."""
    regex = r"^(?<time>.*) \| (?<host>\w) (?<clock>{.*}) (?<event>.*)$"
    path = log(tmp_path, unknown + ' | a {"a":1} x\n9 | a {"a":2} y\nmidnight | a {"a":3} z\n')
    (execution,) = read_shiviz(path, regex=regex).executions
    (warning,) = execution.warnings
    assert warning == (
        f"a.log, line 1: the physical time '{unknown}' has an unknown form: 2 of 3 events are not "
        "compared by time. Known forms are numbers, ISO 8601, and month/day/year with a time"
    )
    assert execution.trace.lines["a"][0].fields == {"time": unknown}


def test_the_times_that_govector_writes_are_compared(tmp_path: Path) -> None:
    """Nanoseconds before the host."""
    path = log(tmp_path, '20 a {"a":1}\nx\n19 a {"a":2}\ny\n')
    (warning,) = read_shiviz(path).executions[0].warnings
    assert warning.endswith("first at line 3, which happened after line 1")


@pytest.mark.parametrize(
    ("event", "line_2", "letter_count", "found"),
    [
        (r"(?:\w+)+!", "", 99, "regular expression in line 1"),
        (".*", r"a .* (?:x+)+!", 99, "delimiter in line 2"),
        ("(?:x|yz)*", "", 500_000, "regular expression in line 1"),
    ],
)
def test_an_expression_of_the_log_itself_cannot_search_without_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    line_2: str,
    letter_count: int,
    found: str,
) -> None:
    """Nested repetition takes exponential time, and alternatives take memory: both are refused."""
    monkeypatch.setattr(shiviz, "_TRIAL_S", 1)
    monkeypatch.setattr(shiviz, "_TRIAL_BYTES", 2**26)
    text = f'(?<host>\\S+) (?<clock>{{.*}}) (?<event>{event})\n{line_2}\na {{"a":1}} '
    with pytest.raises(UsageError, match=rf"the {found} of a.log takes more than 1 s .* --"):
        read_shiviz(log(tmp_path, text + "x" * letter_count))


def test_an_expression_of_the_log_itself_is_short(tmp_path: Path) -> None:
    """Thousands of characters are refused before they are compiled."""
    path = log(tmp_path, f"(?<clock>{'[' * 5000}\n\n{GOVECTOR}")
    with pytest.raises(UsageError, match=r"more than 4,096 characters: .* --regex and --delimiter"):
        read_shiviz(path)
