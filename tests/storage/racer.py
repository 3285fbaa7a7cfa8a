"""A program that races others for objects: a line on stdin for each race, and one on stdout for its
end. Each line in has an address, the content to write, and the version to replace, or null.
"""

import json
import sys

from stillframe.storage.location import locate
from stillframe.storage.opened import storage_of
from stillframe.storage.storage import Changed, Version


def main() -> None:
    """Race until stdin ends."""
    for line in sys.stdin:
        address, content, version = json.loads(line)
        place = locate(address)
        try:
            if version is None:
                storage_of(place).put_if_absent(place, content.encode())
            else:
                storage_of(place).replace_if_unchanged(place, content.encode(), Version(*version))
        except (FileExistsError, Changed):
            print("lost", flush=True)  # noqa: T201 - its caller reads it
        else:
            print("won", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
