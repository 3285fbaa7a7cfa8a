"""Certificates of every kind, good and bad, made once for a run of the tests."""

import atexit
import datetime
import functools
import shutil
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the extra 'tls'")

from stillframe.runtime.network.certificate_authority import issue_certificates

DAYS = 10
_PLACE = Path(tempfile.mkdtemp(prefix="stillframe-papers-"))
atexit.register(shutil.rmtree, _PLACE)


def make(directory: Path, *processes: str) -> None:
    """Make a CA in `directory`, and folders for the coordinator and for `processes`."""
    issue_certificates(directory, processes, days=DAYS)


@functools.cache
def papers() -> Path:
    """Return a directory with a CA, and the folders ``coordinator``, ``A``, ``B`` and ``C``."""
    directory = _PLACE / "good"
    make(directory, "A", "B", "C")
    return directory


def everybody() -> Path:
    """Return the directory of a certificate for the coordinator and every process."""
    return papers() / "coordinator"


@functools.cache
def shifted(days: int) -> Path:
    """Return the directory of a certificate of A that is valid `days` later, or earlier, than a
    good one."""
    directory = _PLACE / f"shifted{days}"
    directory.mkdir()
    for name in ("ca.pem", "ca-key.pem"):
        (directory / name).write_bytes((papers() / name).read_bytes())
    begins = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    issue_certificates(directory, ("A",), days=DAYS, valid_from=begins)
    return directory / "A"


@functools.cache
def foreign() -> Path:
    """Return the directory of a certificate of A that another CA has signed."""
    directory = _PLACE / "foreign"
    make(directory, "A")
    return directory / "A"


@functools.cache
def smuggled() -> Path:
    """Return a directory with the foreign certificate of A and the CA that the others trust."""
    directory = _PLACE / "smuggled"
    directory.mkdir()
    for name in ("cert.pem", "key.pem"):
        (directory / name).write_bytes((foreign() / name).read_bytes())
    (directory / "ca.pem").write_bytes((papers() / "ca.pem").read_bytes())
    return directory
