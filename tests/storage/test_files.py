"""Many files at a time: in order, with the first error, and Ctrl-C waits for none; and copies."""

import secrets
import signal
import threading
from pathlib import Path

import pytest

from stillframe.storage import files
from stillframe.storage.files import side_by_side
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of


def test_results_come_in_order() -> None:
    """Whichever is ready first, and with more items than threads."""
    second = threading.Event()

    def wait(number: int) -> int:
        if number == 0:
            assert second.wait(10)
        second.set()
        return number * 2

    assert list(side_by_side(wait, range(9), 2)) == [*range(0, 18, 2)]
    assert list(side_by_side(wait, [], 2)) == []


def test_an_error_ends_it_when_no_item_is_in_the_works() -> None:
    """Nothing happens later."""
    began, released = threading.Event(), threading.Event()
    ended: list[int] = []

    def act(number: int) -> None:
        if number == 0:
            began.wait()
            raise OSError("first")
        began.set()
        released.wait()
        ended.append(number)

    threading.Timer(0.05, released.set).start()
    with pytest.raises(OSError, match="first"):
        list(side_by_side(act, [0, 1], 2))
    assert ended == [1]


def test_a_file_that_is_too_long_is_not_copied_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy would be another file."""
    source, target = tmp_path / "x", ObjectPath(f"memory://{secrets.token_hex(8)}", "x")
    source.write_bytes(b"123")
    monkeypatch.setattr(files, "_COPIED_BYTES_MAX", 2)
    with pytest.raises(OSError, match="it has more than 2 bytes"):
        files.copy_into(source, target)
    assert files.names(target.parent) == []
    monkeypatch.setattr(files, "_COPIED_BYTES_MAX", 3)
    files.copy_into(source, target)
    assert storage_of(target).read(target, bytes_max=9)[0] == b"123"


def test_ctrl_c_waits_for_no_item() -> None:
    """An object store may never answer."""
    began, never, waiting = threading.Event(), threading.Event(), threading.get_ident()

    def wait(_: int) -> None:
        began.set()
        never.wait()

    def interrupt() -> None:
        began.wait()
        # To the main thread, as the kernel gives it Ctrl-C: no other thread's signal ends its wait.
        signal.pthread_kill(waiting, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        list(side_by_side(wait, [1, 2, 3], 2))
    never.set()
