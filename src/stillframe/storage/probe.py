"""A probe of an object store: whether it honours the conditional writes that safety rests on."""

import contextlib
import secrets

from stillframe.errors import StoreError
from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from stillframe.storage.storage import Changed


def check_conditional_writes(directory: Location) -> None:
    """Write, and delete, a small file in `directory`; StoreError if a condition was ignored, so
    that two writers could not be told apart. OSError if the storage fails."""
    storage = storage_of(directory)
    place = directory / f".probe-{secrets.token_hex(8)}"
    contents = [secrets.token_bytes(16) for _ in range(4)]
    first = storage.put_if_absent(place, contents[0])
    try:
        with contextlib.suppress(FileExistsError):
            storage.put_if_absent(place, contents[1])
            raise _ignores("writes an object although it exists ('If-None-Match: *')", place)
        try:
            storage.replace_if_unchanged(place, contents[2], first)
        except Changed as error:
            raise _ignores("refuses to replace an object that is unchanged", place) from error
        with contextlib.suppress(Changed):
            storage.replace_if_unchanged(place, contents[3], first)
            raise _ignores("replaces an object although it was changed ('If-Match')", place)
    finally:
        storage.delete([place])


def _ignores(what: str, place: Location) -> StoreError:
    return StoreError(
        f"the object store of {place.parent} {what}: two writers could not be kept apart there",
        path=place.parent,
        remedy="use an object store with conditional writes, or a local directory",
    )
