"""What somebody can wish for on the page, as it travels."""

import msgspec

from stillframe.decoding import DECODING_ERRORS
from stillframe.errors import UsageError


class Take(msgspec.Struct, frozen=True, tag="take", forbid_unknown_fields=True):
    """Take a snapshot, initiated by a process; None leaves that to the system. With a name it is
    kept as a savepoint."""

    initiator: str | None = None
    name: str | None = None


class Keep(msgspec.Struct, frozen=True, tag="keep", forbid_unknown_fields=True):
    """Keep a snapshot under a name, as a savepoint."""

    snapshot: str
    name: str


class Restore(msgspec.Struct, frozen=True, tag="restore", forbid_unknown_fields=True):
    """Take the running system back to a snapshot, or to a savepoint by its name."""

    snapshot: str


Wish = Take | Keep | Restore

_decode = msgspec.json.Decoder(Wish).decode


def decode_wish(body: bytes) -> Wish:
    """Return what `body`, which may come from anywhere, wishes for.

    Raises:
        UsageError: nothing that we know.
    """
    try:
        wish: Wish = _decode(body)
    except DECODING_ERRORS as error:
        raise UsageError(f"that cannot be read: {error}") from error
    return wish
