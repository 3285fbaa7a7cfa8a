"""What is asked for is done when the call returns, in the same thread."""

import threading

import pytest

from stillframe.store.here import Here


def test_it_is_done_at_once_and_here() -> None:
    """With its answer."""
    here = Here()
    assert here.submit(threading.get_ident).result(timeout=0) == threading.get_ident()
    assert list(here.map(divmod, [7, 8], [2, 3])) == [(3, 1), (2, 2)]
    here.shutdown()


def test_an_error_is_kept_for_who_asks() -> None:
    """As by any executor."""
    with Here() as here:
        failed = here.submit(divmod, 1, 0)
        assert isinstance(failed.exception(timeout=0), ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            failed.result()


def test_who_dies_within_dies() -> None:
    """What is no error ends the thread that asks."""

    def leave() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Here().submit(leave)
