"""The form of a log is known by its name, or by what the caller says."""

from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.importer import JsonPaths, read_log

JSON = '{"event": "x", "node": "a", "pkt": {"vc": {"a": 1}}}\n'
TEXT = 'a {"a": 1}\nx\n'


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.ndjson", JSON, {}),
        ("a.JSONL", JSON, {}),
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
