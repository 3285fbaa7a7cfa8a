"""JSON files that know when they were changed: the content, then the SHA-256 of its bytes.

Such a file is exactly ``{"content":<JSON>,"hash":"<64 digits>"}``. There is one way to write each
content, so that any changed byte is found, also white space, a digit of the hash or something
added at the end.
"""

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec

from stillframe.decoding import DECODING_ERRORS
from stillframe.errors import Damaged, StoreError
from stillframe.store.checksum import read_sealed_content
from stillframe.store.disk import PUT_BACK

FORMAT = 1
"""The number of the format that this version reads and writes; it is in every sealed file."""

SEALED_BYTES_MAX = 64 * 2**20

_Content = TypeVar("_Content", bound=msgspec.Struct)


class TooLarge(StoreError):
    """What was to be sealed is longer than what is read back."""


class _Format(msgspec.Struct):
    format: int


def seal(content: msgspec.Struct) -> bytes:
    """Return the bytes of the sealed file that holds `content`.

    Raises:
        TooLarge: it would be refused when it is read.
    """
    encoded = msgspec.json.encode(content)
    digest = hashlib.sha256(encoded).hexdigest().encode()
    sealed = b'{"content":%b,"hash":"%b"}' % (encoded, digest)
    if len(sealed) > SEALED_BYTES_MAX:
        raise TooLarge(
            f"it would have {len(sealed)} bytes, more than the {SEALED_BYTES_MAX} that such a file "
            "may have"
        )
    return sealed


def read_sealed(path: Path, kind: type[_Content], *, advice: str = PUT_BACK) -> _Content:
    """Read a sealed file whose content is of `kind`.

    Args:
        path: of the file.
        kind: of the content.
        advice: what can be done if the file is not what was written.

    Raises:
        Damaged: a byte was changed, the file is cut short, too long or missing.
        StoreError: it cannot be read, or a newer version of Stillframe wrote it.
    """
    content = read_sealed_content(path, bytes_max=SEALED_BYTES_MAX, advice=advice)
    try:
        number = msgspec.json.decode(content, type=_Format).format
        if number > FORMAT:
            raise StoreError(
                f"{path} has format {number}, and this version of Stillframe knows {FORMAT}: "
                "use the version that wrote it, or a newer one"
            )
        return msgspec.json.decode(content, type=kind)
    except DECODING_ERRORS as error:
        raise Damaged(f"{path} does not hold what it should: {error}: {advice}") from error
