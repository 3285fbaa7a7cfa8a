"""A file is written whole or not at all, and never over what it is made from."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.whole_file import write_whole


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    """Nothing else stays in the directory, however long the name is."""
    path = tmp_path / ("x" * 255)
    for content in (b"one", b"two"):
        write_whole(path, [content[:1], content[1:]])
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
        write_whole(path, chunks())
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
        with pytest.raises(UsageError, match="from which it would be made: name another file"):
            write_whole(Path(name), [b"trace"], inputs=[Path("absent"), log])
    assert log.read_bytes() == b"log"


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    """What it points to is written, there already or not; the link stays one."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    for content in (b"one", b"two"):
        write_whole(link, [content])
        assert (tmp_path / "file").read_bytes() == content
    assert link.is_symlink()


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """A pipe, a directory or a device stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/null")):
        with pytest.raises(UsageError, match="is no regular file, and is not replaced"):
            write_whole(path, [b"x"])
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nodir/x", "the directory .*nodir does not exist: make it first"),
        ("file/x", "the directory .*file is no directory"),
    ],
)
def test_a_directory_that_is_missing_is_named(tmp_path: Path, name: str, sentence: str) -> None:
    """Rather than a temporary name that nobody knows."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=sentence):
        write_whole(tmp_path / name, [b"x"])


def test_a_dash_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It means stdout elsewhere; here it is refused with a word."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="'-' is no file"):
        write_whole(Path("-"), [b"x"])
    assert not [*tmp_path.iterdir()]
