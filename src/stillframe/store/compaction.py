"""Makes a published snapshot whole: what it is based on can go then, and reading it is short."""

import contextlib
from pathlib import Path

import msgspec

from stillframe.store.contents import Chain, merged_rows, record_of
from stillframe.store.disk import replace_durably
from stillframe.store.keyed import KeyedTable
from stillframe.store.manifest import FILES, MANIFEST, FileRecord, Manifest, keyed_file
from stillframe.store.seal import seal


def write_whole(chain: Chain) -> Manifest:
    """Write the keyed fields of a snapshot, whole, beside its files of changes.

    The manifest returned lists the new files instead of those; ``put_manifest`` is the next step.

    Raises:
        Damaged, StoreError: something that it is based on cannot be read.
        OSError: the disk is full or failed; nothing is left of the new files.
    """
    records = [record for record in chain.manifest.files if record.name in FILES]
    written: list[Path] = []
    try:
        for table in chain.tables.keyed:
            path = chain.directory / keyed_file(table.name, is_whole=True)
            written.append(path)
            records.append(_write(chain, table, path))
    except BaseException:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    return msgspec.structs.replace(chain.manifest, bases=None, files=tuple(records))


def _write(chain: Chain, table: KeyedTable, path: Path) -> FileRecord:
    rows = list(merged_rows(chain, table).values())
    content = table.to_parquet(table.of_snapshot(str(chain.manifest.snapshot), rows))
    replace_durably(path, content)
    return record_of(path.name, content)


def put_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest of a snapshot, by one rename: readers see the old one or this.

    ``remove_changes`` is the next step.

    Raises:
        OSError: the disk is full or failed; which of the two is there has to be read.
    """
    replace_durably(directory / MANIFEST, seal(manifest))


def remove_changes(chain: Chain) -> None:
    """Remove the files of changes of a snapshot that is whole now.

    Raises:
        OSError: the disk failed; the next writer that opens the store removes them.
    """
    for table in chain.tables.keyed:
        (chain.directory / keyed_file(table.name, is_whole=False)).unlink(missing_ok=True)
