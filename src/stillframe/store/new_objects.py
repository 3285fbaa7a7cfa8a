"""A directory of an object store that is being written: its manifest is put last."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, wait

import msgspec
import pyarrow as pa

from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.store.manifest import MANIFEST, FileRecord
from stillframe.store.sealed_json import seal
from stillframe.store.snapshot_directory import record_of


class NewObjects:
    """The objects of a snapshot or fragment; like ``snapshot_directory.NewDirectory``.

    Nothing is replaced: FileExistsError if an object is there. `executor` writes them side by side;
    None: one after the other. `names` are those of the tables that may be there, and `is_tried` is
    set as soon as the manifest may be.
    """

    def __init__(self, directory: ObjectPath, executor: Executor | None) -> None:
        self._directory = directory
        self._executor = executor
        self._storage = storage_of(directory)
        self.names: tuple[str, ...] = ()
        self.is_tried = False

    def write_tables(
        self, tables: Mapping[str, pa.Table], to_parquet: Callable[[str, pa.Table], bytes]
    ) -> tuple[FileRecord, ...]:
        """Write the tables; the first argument of `to_parquet` is the name of the file."""

        def write(name: str) -> FileRecord:
            content = to_parquet(name, tables[name])
            # Only if nothing is there: a late duplicate of an attempt that failed changes nothing.
            self._storage.put_if_absent(self._directory / name, content)
            return record_of(name, content)

        self.names = tuple(tables)
        if self._executor is None:
            return tuple(map(write, tables))
        futures = [self._executor.submit(write, name) for name in tables]
        wait(futures)
        return tuple(future.result() for future in futures)

    def publish(self, manifest: msgspec.Struct) -> None:
        """Write the manifest. When this returns, the directory is published."""
        content = seal(manifest)
        self.is_tried = True
        self._storage.put_if_absent(self._directory / MANIFEST, content)
