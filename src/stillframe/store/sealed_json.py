"""JSON files that detect changes: the content, then the SHA-256 of its bytes.

Such a file is exactly ``{"content":<JSON>,"hash":"<64 digits>"}``. There is one way to write each
content, so that any changed byte is detected, also white space or bytes added at the end.
"""

import functools
import hashlib
from typing import Annotated, TypeVar

import msgspec

from stillframe.errors import Damaged, StoreError, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.storage.location import Location
from stillframe.storage.reading import FILE_ADVICE, read_file, sealed_content
from stillframe.store import version_1

FORMAT = 2
"""The version of the format, which is in every sealed file."""
BUCKET_FORMAT = 3
"""The version of those files that only stores in object stores have."""
OBSERVATION_FORMAT = 4
"""The version of the manifest of an observation, and of the ledger of a collector."""

SEALED_BYTES_MAX = 64 * 2**20

_Content = TypeVar("_Content", bound=msgspec.Struct)


class TooLarge(StoreError):
    """The content is larger than a sealed file may be."""


class _Format(msgspec.Struct):
    format: Annotated[int, msgspec.Meta(ge=1)]


@functools.cache
def _newest_of(kind: type[msgspec.Struct]) -> int:
    """Return the newest version that a content of this kind may have."""
    own = msgspec.structs.fields(kind)[0].default
    return own if isinstance(own, int) and own > FORMAT else FORMAT


def seal(content: msgspec.Struct) -> bytes:
    """Return the bytes of the sealed file with this content, if it is not ``TooLarge``. What
    was read in an older format is written in this one."""
    if getattr(content, "format", FORMAT) < FORMAT:
        content = msgspec.structs.replace(content, format=FORMAT)
    encoded = msgspec.json.encode(content)
    digest = hashlib.sha256(encoded).hexdigest().encode()
    sealed = b'{"content":%b,"hash":"%b"}' % (encoded, digest)
    if len(sealed) > SEALED_BYTES_MAX:
        raise TooLarge(
            f"it would have {len(sealed)} bytes, more than the limit of {SEALED_BYTES_MAX}"
        )
    return sealed


def read_sealed(path: Location, kind: type[_Content], *, advice: str = FILE_ADVICE) -> _Content:
    """Read a sealed file with content of this kind; `advice` says what to do if it is damaged.

    A Damaged if a byte was changed, or the file is cut short, too long or missing; a StoreError if
    it cannot be read, or a newer version of Stillframe wrote it.
    """
    sealed = read_file(path, bytes_max=SEALED_BYTES_MAX, advice=advice)
    return read_sealed_bytes(path, sealed, kind, advice=advice)


def read_sealed_bytes(
    path: Location, sealed: bytes, kind: type[_Content], *, advice: str = FILE_ADVICE
) -> _Content:
    """Return the content of a sealed file that was read before; errors as for ``read_sealed``."""
    content = sealed_content(path, sealed, advice=advice)
    newest = _newest_of(kind)
    try:
        number = msgspec.json.decode(content, type=_Format).format
        if number > newest:
            raise StoreError(
                f"{path} has format {number}, and this version of Stillframe knows {newest}: "
                "use the version that wrote it, or a newer one",
                path=path,
            )
        if number < FORMAT:
            former = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
            current = version_1.with_current_keys(former, kind.__struct_fields__)
            content = msgspec.json.encode(current)
        return msgspec.json.decode(content, type=kind)
    except DECODING_ERRORS as error:
        raise Damaged(
            f"{path} has invalid content: {text_of(error)}", path=path, remedy=advice
        ) from error
