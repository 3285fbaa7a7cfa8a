"""What processes send of their states before their parts: rows of keyed fields, pieces of bytes."""

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import Fragment, KeyedRows, ProcessId, SnapshotId
from stillframe.runtime import control
from stillframe.runtime.captures import MESSAGE_EXTRA_BYTES, PART_BYTES_MAX


class _Ahead:
    """What one process has sent ahead of its part of one snapshot."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.rows: dict[str, list[KeyedRows]] = {}
        self.byte_count = 0


class Pieces:
    """Keeps what comes before the parts of snapshots that are pending, and puts it into them."""

    def __init__(self) -> None:
        self._ahead: dict[tuple[SnapshotId, ProcessId], _Ahead] = {}

    def add(self, process: ProcessId, message: control.PartRows | control.PartPiece) -> None:
        """Take what `process` sends ahead.

        Raises:
            ProtocolViolation: it is more than a part may have.
        """
        ahead = self._ahead.setdefault((message.snapshot, process), _Ahead())
        ahead.byte_count += MESSAGE_EXTRA_BYTES
        match message:
            case control.PartRows(_, field, rows):
                ahead.byte_count += len(field) + len(rows.keys) + len(rows.values)
                ahead.rows.setdefault(field, []).append(rows)
            case control.PartPiece(_, piece):
                ahead.byte_count += len(piece)
                ahead.pieces.append(piece)
        if ahead.byte_count > PART_BYTES_MAX:
            raise ProtocolViolation(
                f"its part of snapshot {message.snapshot} has more than {PART_BYTES_MAX:,} bytes"
            )

    def complete(self, fragment: Fragment) -> Fragment:
        """Return a part with all that its process sent ahead of it."""
        ahead = self._ahead.pop((fragment.snapshot, fragment.state.process), None)
        if ahead is None:
            return fragment
        state = fragment.state
        keyed = {
            field: msgspec.structs.replace(change, rows=tuple(ahead.rows.get(field, ())))
            for field, change in state.keyed.items()
        }
        encoded = b"".join(ahead.pieces) if ahead.pieces else state.encoded
        return msgspec.structs.replace(
            fragment, state=msgspec.structs.replace(state, encoded=encoded, keyed=keyed)
        )

    def forget(self, snapshot: SnapshotId) -> None:
        """Drop what belongs to `snapshot`: it has ended."""
        for key in [key for key in self._ahead if key[0] == snapshot]:
            del self._ahead[key]
