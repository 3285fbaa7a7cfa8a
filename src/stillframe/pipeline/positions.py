"""Where services that run stand on the logs that they read, noted now and then, for people.

    ROOT/participants/epoch-2/positions/NAME.json    as a service said a moment ago

A query commits to disk where it stands; a service has it in memory alone, and hands it in with its
state. Nothing but what is shown rests on these notes, so they cost no sync, and may be missing.
"""

import contextlib
from pathlib import Path

import msgspec

from stillframe.errors import StillframeError
from stillframe.pipeline.head import Head, check_positions
from stillframe.pipeline.locks import PARTICIPANTS
from stillframe.store.disk import partial_path
from stillframe.store.seal import FORMAT, read_sealed, seal


class Noted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of such a file."""

    format: int = FORMAT
    positions: dict[str, int]


def note_positions(root: Path, epoch: int, service: str, positions: dict[str, int]) -> None:
    """Note where a service stands; if that cannot be written, it goes on without."""
    path = _path(root, epoch, service)
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        partial = partial_path(path)
        partial.write_bytes(seal(Noted(positions=positions)))
        partial.replace(path)


def noted_positions(root: Path, head: Head, service: str) -> tuple[dict[str, int], float] | None:
    """Return where a service stood, and when it said so; None if it has not, or if it cannot be
    read."""
    path = _path(root, head.epoch, service)
    with contextlib.suppress(OSError, StillframeError):
        noted_at = path.stat().st_mtime
        positions = read_sealed(path, Noted).positions
        check_positions(positions, head.dataflow.incoming(service), service)
        return positions, noted_at
    return None


def _path(root: Path, epoch: int, service: str) -> Path:
    return root / PARTICIPANTS / f"epoch-{epoch}" / "positions" / f"{service}.json"
