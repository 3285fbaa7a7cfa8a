"""``stillframe view``: a trace as a picture, or as a sequence of pictures."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stillframe import tracefile
from stillframe.cli.sim import read_script, script_path
from stillframe.diagram import layout
from stillframe.trace import Event, Trace
from tests.cli.conftest import Call
from tests.diagram.runs import lecture
from tests.fonts import font

__all__ = ["font"]

ROOT = Path(__file__).parent.parent.parent
LECTURE = script_path("lecture")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The execution of the lecture, in a file."""
    path = tmp_path / "lecture.trace"
    tracefile.write(path, lecture())
    return path


def test_a_picture_has_the_name_of_the_trace(call: Call, trace: Path) -> None:
    """It is drawn again over the old one, and what it shows is said."""
    out = trace.with_suffix(".svg")
    out.write_text("old")
    result = call("view", trace)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "snapshot P1-1: consistent, with 1 message in transit",
        f"done: {out}: 18 steps of 3 processes",
    ]
    ElementTree.fromstring(out.read_text(encoding="utf-8"))
    assert {file.name for file in trace.parent.iterdir()} == {"lecture.trace", "lecture.svg"}


def test_a_cut_can_be_asked_for(call: Call, trace: Path, tmp_path: Path) -> None:
    """Processes that are left out have done nothing; the snapshot is still named."""
    out = tmp_path / "cut.svg"
    result = call("view", trace, "--cut", "P1=4, P2=2,P3=1", "--out", out, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"version": 2, "files": [str(out)], "left_out": ""}
    assert result.stderr.splitlines()[0] == "cut: NOT consistent: 1 effect without a cause"
    assert ">accepted before it, but sent after it: H→D<" in out.read_text(encoding="utf-8")


def test_steps_are_numbered_pictures_in_a_directory(
    call: Call, trace: Path, tmp_path: Path
) -> None:
    """One after each step; drawing them again is fine."""
    out = tmp_path / "new" / "film.svg"
    for _ in range(2):
        result = call("view", trace, "--steps", "--out", out, "--json")
        assert result.exit_code == 0
    directory = tmp_path / "new" / "film"
    names = [f"film-{number:03}.svg" for number in range(1, 19)]
    assert sorted(file.name for file in directory.iterdir()) == names
    assert json.loads(result.stdout)["files"] == [str(directory / name) for name in names]
    assert ">step 3 of 18: P1 " in (directory / "film-003.svg").read_text(encoding="utf-8")
    assert f"18 pictures in {directory}" in result.stderr


def test_a_shorter_sequence_does_not_end_in_an_older_one(call: Call, trace: Path) -> None:
    """Pictures that would stand behind its end are named, and nothing is written."""
    directory = trace.with_suffix("")
    assert call("view", trace, "--steps").exit_code == 0
    (directory / "lecture-001.svg").write_text("old")
    result = call("view", trace, "--steps", "--first", 10)
    assert result.exit_code == 2
    assert f"{directory / 'lecture-010.svg'} belongs to a longer sequence" in result.stderr
    assert (directory / "lecture-001.svg").read_text() == "old"


def test_what_is_cut_off_is_said_with_how_to_go_on(call: Call, tmp_path: Path) -> None:
    """Also in JSON; the last part has nothing to go on to."""
    path = tmp_path / "long.trace"
    tracefile.write(path, Trace(["P1"], [Event("P1")] * 450))
    result = call("view", path, "--json")
    assert json.loads(result.stdout)["left_out"] == "the first 400 of 450 steps are shown"
    assert result.stderr.splitlines() == [
        "the first 400 of 450 steps are shown: continue with --first 401",
        f"done: {path.with_suffix('.svg')}: 400 steps of 1 process",
    ]
    last = call("view", path, "--first", 401)
    assert last.stderr.splitlines()[0] == "steps 401 to 450 of 450 are shown"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--snapshot", "P2-7"), "the trace has no snapshot P2-7; it has P1-1"),
        (("--snapshot", "7"), "'7' is not a snapshot id"),
        (("--cut", "P1"), "'P1' is not part of a cut"),
        (("--cut", "P1=1,P1=2"), "'P1=2' is not part of a cut"),
        (("--cut", "P9=1"), "the trace has no process 'P9': it has P1, P2, P3"),
        (("--cut", "P1=6"), "no cut has 6 events of P1, which has 5"),
        (("--first", "19"), "the trace has 18 steps"),
        (("--out", "{trace}"), "lecture.trace: use a name that ends in .svg, .png or .html"),
        (("--out", "{trace}/x.svg"), "is not a directory"),
        (
            ("--out", "{trace}.html", "--steps"),
            "a page shows every step already: leave out --steps",
        ),
        (("--out", "{trace}.html", "--snapshot", "P2-7"), "no snapshot P2-7; it has P1-1"),
        (("--out", "{trace}.html", "--first", "19"), "the trace has 18 steps"),
        (("--out", "{trace}/x.html"), "is not a directory"),
    ],
)
def test_a_wrong_option_says_why(
    call: Call, trace: Path, options: tuple[str, ...], sentence: str
) -> None:
    """Exit 2 and a sentence; no picture is made, and the trace is as it was."""
    before = trace.read_bytes()
    result = call("view", trace, *(option.format(trace=trace) for option in options))
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert [*trace.parent.iterdir()] == [trace]
    assert trace.read_bytes() == before


def test_no_picture_takes_the_place_of_what_it_is_made_from(call: Call, trace: Path) -> None:
    """Whatever the trace is called; a file where a directory of pictures would go is left, too."""
    for name in ("odd.svg", "odd"):
        trace.with_name(name).write_bytes(trace.read_bytes())
    odd = trace.with_name("odd.svg")
    result = call("view", odd)
    assert result.exit_code == 2
    assert "the input: give another output file" in result.stderr
    result = call("view", trace, "--steps", "--out", odd)
    assert result.exit_code == 2
    assert (
        "odd is a file, but the pictures need a directory of that name: give another --out"
        in result.stderr
    )
    assert odd.read_bytes() == trace.read_bytes()


def test_a_script_is_drawn_as_the_trace_of_it_is(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name if it comes with stillframe, and then here; or by its path, then beside it."""
    monkeypatch.chdir(tmp_path)
    assert call("view", "lecture").exit_code == 0
    assert call("sim", "lecture", "--trace", "same.trace").exit_code == 0
    assert call("view", "same.trace").exit_code == 0
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "x.run").write_text(read_script(LECTURE))
    assert call("view", "own/x.run").exit_code == 0
    pictures = {path.read_text() for path in tmp_path.glob("**/*.svg")}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("**/*.svg")} == {
        *("lecture.svg", "same.svg", "own/x.svg")
    }
    assert pictures == {(ROOT / "docs" / "lecture.svg").read_text()}


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("lectur", "there is no file lectur: give a trace, a .run file, or an included script:"),
        ("lectur.run", "there is no script lectur.run"),
        (".", ". is a directory, but neither a store nor a pipeline: give one of these"),
    ],
)
def test_what_is_no_execution_is_named(call: Call, what: str, sentence: str) -> None:
    """With what could be given."""
    result = call("view", what)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("font")
def test_a_picture_can_be_png(call: Call, trace: Path, tmp_path: Path) -> None:
    """Of twice the size, with all its text; and a sequence as well."""
    out = tmp_path / "lecture.png"
    assert call("view", trace, "--out", out).exit_code == 0
    content = out.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20]) == 2 * layout.lay_out(lecture()).width
    assert call("view", trace, "--steps", "--out", tmp_path / "film.png").exit_code == 0
    assert len([*(tmp_path / "film").glob("film-???.png")]) == 18


def test_a_page_holds_every_step(call: Call, trace: Path, tmp_path: Path) -> None:
    """Of a trace as of a script; what was written is said, with its size."""
    out = tmp_path / "lecture.html"
    result = call("view", "lecture", "--out", out, "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (
        0,
        {"version": 2, "files": [str(out)], "left_out": ""},
    )
    assert re.fullmatch(rf"done: {out}: 18 steps, [\d.]+ kB: open it in a browser\n", result.stderr)
    page = out.read_text(encoding="utf-8")
    assert "P1 accepts H>D from P2: does D; P2->P1 keeps H>D for P1-1" in page
    assert call("view", trace, "--cut", "P1=4,P2=2,P3=1", "--out", out).exit_code == 0
    assert "message P2->P1 #1 is red" in out.read_text(encoding="utf-8")


def test_a_page_says_what_it_leaves_out(call: Call, tmp_path: Path) -> None:
    """And the command that goes on."""
    path = tmp_path / "long.trace"
    tracefile.write(path, Trace(["P1"], [Event("P1")] * 450))
    result = call("view", path, "--out", tmp_path / "long.html")
    assert result.stderr.startswith(
        "the first 200 of 450 steps are shown: continue with --first 201\n"
    )


def test_a_picture_is_replaced_whole_or_not_at_all(
    call: Call, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk is full the old picture is still there, and no part of a new one."""
    out = trace.with_suffix(".svg")
    out.write_text("old")

    def replace(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", replace)
    result = call("view", trace)
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert out.read_text() == "old"
    assert {file.name for file in trace.parent.iterdir()} == {"lecture.trace", "lecture.svg"}


def test_a_file_that_is_no_trace_is_refused(call: Call, tmp_path: Path) -> None:
    """With the file, the line and where traces come from."""
    path = tmp_path / "x.trace"
    path.write_text("hello")
    result = call("view", path)
    assert result.exit_code == 2
    assert f"{path}, line 1" in result.stderr
    assert not path.with_suffix(".svg").exists()
