"""Files survive a crash, are written whole or not at all, and are on this machine."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from stillframe.durable_files import (
    partial_path,
    replace_durably,
    shell_command,
    sync,
    write_atomically,
    write_new,
)
from stillframe.errors import Damaged, UsageError
from stillframe.pipeline import Pipeline, channel
from stillframe.storage.location import local_path
from stillframe.storage.reading import read_file
from stillframe.tracefile import read
from tests.cli.conftest import Call, call

SOURCE = Path(__file__).parent.parent / "src"


def test_a_new_file_is_never_an_old_one(tmp_path: Path) -> None:
    """Writing a new file over an existing one is refused; the old content stays."""
    write_new(tmp_path / "x", b"old")
    sync(tmp_path / "x")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "x", b"new")
    assert read_file(tmp_path / "x", bytes_max=3) == b"old"


def test_replacing_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    """The file has the new content, also if an earlier attempt left its partial file."""
    path = tmp_path / "x"
    partial_path(path).write_bytes(b"left by a crash")
    replace_durably(path, b"one")
    replace_durably(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_partial_name_begins_with_a_dot(tmp_path: Path) -> None:
    """Spark, DuckDB and our own lists pass over what is being written."""
    assert partial_path(tmp_path / "P1-17") == tmp_path / ".P1-17.partial"


def test_reading_is_bounded(tmp_path: Path) -> None:
    """A file over the bound is refused; one at the bound is read."""
    (tmp_path / "x").write_bytes(b"1234")
    assert read_file(tmp_path / "x", bytes_max=4) == b"1234"
    with pytest.raises(Damaged, match="more than the 3 bytes"):
        read_file(tmp_path / "x", bytes_max=3)


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    """Nothing else stays in the directory, however long the name is."""
    path = tmp_path / ("x" * 255)
    for content in (b"one", b"two"):
        write_atomically(path, [content[:1], content[1:]])
        assert path.read_bytes() == content
    assert [*tmp_path.iterdir()] == [path]


def test_what_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """Whatever happens while it is written; an error of the disk names the file."""
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, chunks())
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


def test_no_input_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under none of its names: relative, by a symbolic link, by a hard link."""
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    log.write_bytes(b"log")
    (tmp_path / "symbolic").symlink_to(log)
    os.link(log, tmp_path / "hard")
    for name in ("log", "./log", "symbolic", "hard", str(log)):
        with pytest.raises(UsageError, match="the input: give another output file"):
            write_atomically(Path(name), [b"trace"], inputs=[Path("absent"), log])
    assert log.read_bytes() == b"log"


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    """What it points to is written, there already or not; the link stays one."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    for content in (b"one", b"two"):
        write_atomically(link, [content])
        assert (tmp_path / "file").read_bytes() == content
    assert link.is_symlink()


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """A pipe, a directory or a device stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/null")):
        with pytest.raises(UsageError, match="is not a regular file, and is not replaced"):
            write_atomically(path, [b"x"])
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nodir/x", "the directory .*nodir does not exist: create it first"),
        ("file/x", "the directory .*file is not a directory"),
    ],
)
def test_a_directory_that_is_missing_is_named(tmp_path: Path, name: str, sentence: str) -> None:
    """Rather than a temporary name that nobody knows."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=sentence):
        write_atomically(tmp_path / name, [b"x"])


def test_a_dash_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It means stdout elsewhere; here it is refused with a word."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="'-' is not a file"):
        write_atomically(Path("-"), [b"x"])
    assert not [*tmp_path.iterdir()]


__all__ = ["call"]

ADDRESSES = [
    *(
        "s3://bucket/x",
        "s3a://bucket/x",
        "gs://bucket/x",
        "abfss://box@account.dfs.core.windows.net/x",
    ),
    *("hdfs://host:9000/x", "dbfs:/x", "S3://bucket/x"),
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("kind", [str, Path])
def test_an_address_is_no_path(address: str, kind: type[str] | type[Path]) -> None:
    """A ``Path`` of it has lost a slash, and is refused as well."""
    with pytest.raises(UsageError, match=r"is an address, and "):
        local_path(kind(address))


@pytest.mark.parametrize("path", ["a:b", "./a:b", "C:/x", "./s3:/x", "/s3:/x", "x/s3:/y", ":/x"])
def test_odd_local_names_stay_possible(path: str) -> None:
    """What only looks a little like an address is a path."""
    assert local_path(path) == Path(path)


def test_the_python_api_refuses_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And makes no directory for them."""
    monkeypatch.chdir(tmp_path)
    logs = [
        channel("sales", source="buy", targets=["book"], schema=pa.schema({"item": pa.string()}))
    ]
    address = "gs://bucket/x"
    with pytest.raises(UsageError, match="only into a directory, S3 or HDFS: give one of these"):
        Pipeline.create(address, queries=["buy", "book"], channels=logs)
    with pytest.raises(UsageError, match="is an address"):
        read(Path(address))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        "run stillframe.examples.bank:bank --store x --tls {}",
        "certificates {}",
        "import {}",
        "import x --out {}",
        "view x --out {}",
    ],
)
def test_what_can_only_be_local_refuses_addresses(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Exit 2 before anything else is looked at, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    result = call(*command.format("s3://bucket/x").split())
    assert result.exit_code == 2, result.output
    assert "is an address, and only a local file" in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


def test_a_command_can_be_copied_into_a_shell() -> None:
    """Every path in a command that a message names is quoted where it has to be."""
    command = shell_command("restore", Path("my money"), "P1-17")
    assert command == "stillframe restore 'my money' P1-17"
    unquoted = re.compile(r"stillframe [a-z -]*\{(?!shell)")
    found = {
        path.name
        for path in SOURCE.rglob("*.py")
        if unquoted.search(re.sub(r'"\s+f?"', "", path.read_text()))  # texts of several lines
    }
    assert found == {"app.py", "command.py"}  # the version, and examples without paths
