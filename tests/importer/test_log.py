"""The form of a log is known by its name, or by what the caller says."""

import bz2
import gzip
import io
import lzma
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from stillframe.errors import UsageError
from stillframe.importer import JsonPaths, log_files, read_log

JSON = '{"event": "x", "node": "a", "pkt": {"vc": {"a": 1}}}\n'
TEXT = 'a {"a": 1}\nx\n'


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.ndjson", JSON, {}),
        ("a.JSONL", JSON, {}),
        ("a.json", JSON, {}),
        ("bom.jsonl", f"\ufeff{JSON}", {}),
        ("bom.log", f"\ufeff{TEXT}", {}),
        ("crlf.jsonl", f"{JSON}\n\n".replace("\n", "\r\n"), {}),
        ("text-clock.jsonl", JSON.replace('{"a": 1}', r'"{\"a\": 1}"'), {}),
        ("a.txt", JSON, {"json_paths": JsonPaths()}),
        ("a.log", TEXT, {}),
        ("a.ndjson", TEXT, {"regex": r"^(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"}),
    ],
)
def test_the_form_of_a_log_is_known(
    tmp_path: Path, name: str, content: str, options: dict[str, JsonPaths | str]
) -> None:
    """By its name, if nothing else says so."""
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    (execution,) = read_log(path, **options).executions  # type: ignore[arg-type]
    assert execution.trace.lines["a"][0].label == "x"


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    """Files of two forms, and options of the other one."""
    with pytest.raises(UsageError, match="some of these files are JSON lines by their names"):
        read_log(tmp_path / "a.ndjson", tmp_path / "b.log")
    with pytest.raises(UsageError, match="--regex and --delimiter are for text"):
        read_log(tmp_path / "a.ndjson", delimiter="x")


@pytest.mark.parametrize(
    ("begin", "sentence"),
    [
        (gzip.compress(b"x", mtime=0), "is compressed: uncompress it first, with gunzip"),
        (bz2.compress(b"x"), "bunzip2"),
        (lzma.compress(b"x"), "unxz"),
        (b"\x28\xb5\x2f\xfd", "unzstd"),
        (b"PK\x03\x04", "is a zip file: .* unzip"),
        (TEXT.encode("utf-16"), "is UTF-16, not UTF-8: convert it with iconv -t UTF-8 -f UTF-16"),
        (TEXT.encode("utf-16-le"), "UTF-16LE"),
        (TEXT.encode("utf-16-be"), "UTF-16BE"),
        (f"\n{TEXT}".encode("utf-16-le"), "UTF-16LE"),
        (f"\n{TEXT}".encode("utf-16-be"), "UTF-16BE"),
        (TEXT.encode("utf-32"), "is UTF-32"),
    ],
)
@pytest.mark.parametrize("name", ["a.log", "a.ndjson"])
def test_a_file_in_another_form_is_named(
    tmp_path: Path, name: str, begin: bytes, sentence: str
) -> None:
    """With the command that converts it, whatever its name says."""
    path = tmp_path / name
    path.write_bytes(begin)
    with pytest.raises(UsageError, match=sentence):
        read_log(path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.json",
            "[\n{}]",
            r"line 1: it begins a JSON array, .* jq -c '\.\[\]' a\.json > a-lines",
        ),
        ("a.log", '[ {"node": 1}]', r"if it is a JSON array of events, write them with: jq -c"),
        (
            "a.json",
            '{\n"node": 1}',
            r"several lines, or share one, write them with: jq -c \. a\.json",
        ),
        ("a.json", JSON[:-1] * 2, "line 1: it is malformed JSON .* share one, write them with: jq"),
        ("a.json", JSON + JSON[:9], r"line 2: it is malformed JSON \(Input data was truncated\)$"),
        (
            "a b.json",
            '{"x": [{}]}',
            r"""array 'x' has the events, .* '\.\["x"\]\[\]' 'a b.json' >""",
        ),
        ("a.json", JSON.replace("1", '1, "a": 2'), r"line 1: .* \(it has host 'a' twice\)"),
        ("a.log", TEXT.replace("1", '1, "a": 2'), r"line 1, .* \(it has host 'a' twice\)"),
    ],
)
def test_json_in_another_form_is_named(
    tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    """An array, an object over several lines, several in one line, a host twice: with the command
    that makes lines of it."""
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=sentence):
        read_log(path)


def test_a_log_may_be_bytes_or_an_open_file(tmp_path: Path) -> None:
    """With the name of the file, if it has one; no more is read than a file may have."""
    path = tmp_path / "a.jsonl"
    path.write_text(JSON)
    expected = read_log(path).executions[0].trace.lines
    with path.open("rb") as file:
        assert read_log(file).executions[0].trace.lines == expected
    for log in (JSON.encode(), io.BytesIO(JSON.encode())):
        assert read_log(log, json_paths=JsonPaths()).executions[0].trace.lines == expected
    assert read_log(TEXT.encode()).executions[0].trace.end == (1,)
    assert read_log(bytearray(TEXT.encode())).executions[0].trace.end == (1,)
    with path.open() as text, pytest.raises(UsageError, match=r"a\.jsonl is open for text"):
        read_log(text)  # type: ignore[arg-type]
    with (
        mock.patch.object(log_files, "LOG_BYTES_MAX", 5),
        pytest.raises(UsageError, match="log 1 has more than 1 GiB"),
    ):
        read_log(TEXT.encode())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/x/a.jsonl", "a.jsonl"),
        ("a.json.gz", "a.json.gz"),
        *((name, "log 2") for name in ("a\0b", "", "/", "n" * 300, 7, None)),
        ("..", ".."),
    ],
)
def test_an_open_file_is_called_by_its_name(tmp_path: Path, name: object, shown: str) -> None:
    """Errors never name the copy, and no name makes the import fail."""
    options: dict[str, Any] = {"json_paths": None if "json" in shown else JsonPaths()}
    path = tmp_path / "b.json"
    path.write_text(JSON)
    for broken in (b"x", gzip.compress(b"x"), b"\n\n"):
        log = io.BytesIO(broken)
        log.name = name
        with pytest.raises(UsageError, match=f"^{re.escape(shown)}[, ]"):
            read_log(path, log, **options)
