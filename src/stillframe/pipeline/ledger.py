"""The ledger of a service: a topic of Kafka with an entry for each version of its state.

    ROOT/ledgers/till.json                 the name of the topic
    ROOT/ledgers/epoch-2/till.json         the same: the ledger has an entry of that epoch
    ROOT/states/till/epoch-2/41-9f0c2a7b   a state that is too long for an entry

In a pipeline with topics of Kafka a service works in transactions. Each one holds the records that
it wrote, and an entry in its ledger: up to where it had read, and its state. So all of that is
there, or nothing. The number of the transaction is the version of the service, and the label of its
records.

The last entry of the current epoch is the state of the service, whatever happens to its program.
Entries of other epochs do not count: a program that did not notice a restore may have written them.

Where the epoch begins, the first version is that of the restored state, or of the state with which
the service first started. Old entries are deleted (``Ledger.trim``). No snapshot needs them, since
its manifest has the states.
"""

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from stillframe.errors import Damaged, NotConsistent, Unavailable, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.pipeline.kafka import Broker, KafkaRecord
from stillframe.pipeline.pending_snapshot import ServiceState
from stillframe.pipeline.topics import TopicPositions, write_once
from stillframe.storage.files import below, names, remove_tree
from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import is_there, read_hashed
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, read_sealed

LEDGERS = "ledgers"
STATES = "states"
STATE_BYTES_MAX = 2**19
"""A longer state is in a file, and not in an entry."""
VERSION_COUNT = 1000
"""Maximum number of versions, from the newest on, among which a cut is searched for."""
KEPT_COUNT = 1200
KEPT_COUNT_MAX = 1500
"""When there are more entries, all but the newest `KEPT_COUNT` are deleted."""
KEPT_BYTES = 2**30
"""States in files are kept up to this length together, but not fewer than `KEPT_FILE_COUNT`."""
KEPT_FILE_COUNT = 10
_READ_BYTES_MAX = 2**26
_WINDOWS = (64, 512)
_Kind = TypeVar("_Kind", "Entry", "Version")
_REMEDY = "restore the pipeline from a snapshot"


class LedgerTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the files in ``ledgers``, each written once."""

    format: int = FORMAT
    topic: str


class StateFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state in a file: its name, its length and its SHA-256."""

    name: str
    bytes: int
    hash: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry, as MessagePack. `kind` is the class of the state, and `encoded` its fields; None if
    they are in a `file`."""

    format: int = FORMAT
    epoch: int
    version: int
    recorded_at: float
    positions: TopicPositions
    kind: str
    encoded: bytes | None
    file: StateFile | None


class Version(msgspec.Struct, frozen=True):
    """An entry without its state, and its offset."""

    epoch: int
    version: int
    recorded_at: float
    positions: TopicPositions
    kind: str
    file: StateFile | None
    offset: int = -1


class Ledger:
    """The ledger of one service in one epoch."""

    def __init__(
        self, root: Location, service: str, epoch: int, topic: str, broker: Broker
    ) -> None:
        self.topic = topic
        self._root = root
        self._service = service
        self._epoch = epoch
        self._broker = broker

    def versions(self, count: int = VERSION_COUNT) -> list[Version]:
        """Return the newest versions of this epoch, up to `count`, in rising order; fewer if their
        states are long."""
        first = self._broker.first_offsets(self.topic)[0]
        end = self._broker.end_offsets(self.topic)[0]
        found: dict[int, Version] = {}
        size, epochs = 0, {self._epoch}
        windows = iter(_WINDOWS)
        window = next(windows)
        while (
            first < end
            and len(found) < count
            and size < _READ_BYTES_MAX
            # Entries of an older epoch are before all of this one.
            and epochs == {self._epoch}
        ):
            start = max(first, end - window)
            for record in self._broker.records(self.topic, {0: (start, end)}):
                version = self._decoded(record, Version)
                size += len(record.value or b"")
                epochs.add(version.epoch)
                if version.epoch == self._epoch:
                    at = msgspec.structs.replace(version, offset=record.offset)
                    found[version.version] = at
            end, window = start, next(windows, window)
        return [found[number] for number in sorted(found)][-count:]

    def some_versions(self) -> list[Version]:
        """Return ``versions``, after ``begin``; NotConsistent if there are none any more."""
        if versions := self.versions():
            return versions
        raise NotConsistent(
            f"topic {self.topic}, the ledger of service {self._service}, does not have the state "
            "any more that was written there: the topic was deleted, or records of it were",
            process=self._service,
            remedy=_REMEDY,
        )

    def state(self, version: Version) -> ServiceState:
        """Return the state of a version.

        Raises:
            Damaged: its file was changed or is missing.
            NotConsistent: its entry is missing.
        """
        if (file := version.file) is not None:
            path = below(self._states(), file.name)
            encoded = read_hashed(path, file.bytes, file.hash, advice=_REMEDY)
            return ServiceState(version.kind, encoded, version.version)
        span = {0: (version.offset, version.offset + 1)}
        for record in self._broker.records(self.topic, span):
            entry = self._decoded(record, Entry)
            if entry.encoded is not None:
                return ServiceState(entry.kind, entry.encoded, entry.version)
        raise NotConsistent(
            f"topic {self.topic}, the ledger of service {self._service}, does not have version "
            f"{version.version} any more",
            process=self._service,
        )

    def entry(self, state: ServiceState, positions: TopicPositions, recorded_at: float) -> Entry:
        """Return an entry for a state. A long state is on the disk, in a new file, when this
        returns."""
        assert state.version is not msgspec.UNSET
        file = None
        if len(state.encoded) > STATE_BYTES_MAX:
            # Another name each time: a program that lost its place must not replace the file.
            name = f"{state.version}-{secrets.token_hex(4)}"
            file = StateFile(name, len(state.encoded), hashlib.sha256(state.encoded).hexdigest())
            path = below(self._states(), name)
            with explain_io_errors(path, "written"):
                storage_of(path).put(path, state.encoded)
        return Entry(
            epoch=self._epoch,
            version=state.version,
            recorded_at=recorded_at,
            positions=positions,
            kind=state.kind,
            encoded=state.encoded if file is None else None,
            file=file,
        )

    def trim(self, versions: Sequence[Version]) -> list[Version]:
        """Delete all entries before the newest ones, and all files of states that belong to no
        other entry; return the `versions` that are left. The caller runs the service. If Kafka does
        not delete the entries, for want of a permission, the ledger grows."""
        kept = kept_of(versions)
        try:
            self._broker.delete_before(self.topic, kept[0].offset)
        except Unavailable:
            return list(versions[-KEPT_COUNT:])
        self.remove_files(kept)
        return kept

    def remove_files(self, kept: Iterable[Version]) -> None:
        """Remove all files of states but those of these versions."""
        known = {version.file.name for version in kept if version.file is not None}
        place = below(self._root, STATES, self._service)
        with explain_io_errors(place, "trimmed"):
            for name in names(place):
                if name != f"epoch-{self._epoch}":
                    remove_tree(below(place, name))
            unneeded = [name for name in names(self._states()) if name not in known]
            storage_of(place).delete(below(self._states(), name) for name in unneeded)

    def has_begun(self) -> bool:
        """Return whether there is an entry of this epoch, as far as the pipeline knows."""
        return is_there(self._mark())

    def begin(self) -> None:
        """Note that there is an entry of this epoch."""
        write_once(self._mark(), LedgerTopic(topic=self.topic))

    def _mark(self) -> Location:
        return below(self._root, LEDGERS, f"epoch-{self._epoch}", f"{self._service}.json")

    def _states(self) -> Location:
        return below(self._root, STATES, self._service, f"epoch-{self._epoch}")

    def _decoded(self, record: KafkaRecord, kind: type[_Kind]) -> _Kind:
        try:
            return msgspec.msgpack.decode(record.value or b"", type=kind)
        except DECODING_ERRORS as error:
            raise Damaged(
                f"the record with offset {record.offset} of topic {self.topic}, the ledger of "
                f"service {self._service}, is no entry: {text_of(error)}",
                process=self._service,
                remedy=f"stop whatever writes that topic, and {_REMEDY}",
            ) from error


def needs_trim(versions: Sequence[Version]) -> bool:
    """Return whether enough versions are kept for ``Ledger.trim`` to be worthwhile."""
    size = sum(version.file.bytes for version in versions if version.file is not None)
    return len(versions) > KEPT_COUNT_MAX or (
        len(versions) > 2 * KEPT_FILE_COUNT and size > 2 * KEPT_BYTES
    )


def kept_of(versions: Sequence[Version]) -> list[Version]:
    """Return the newest of some versions that stay."""
    kept: list[Version] = []
    size = 0
    for version in reversed(versions[-KEPT_COUNT:]):
        size += 0 if version.file is None else version.file.bytes
        if size > KEPT_BYTES and len(kept) >= KEPT_FILE_COUNT:
            break
        kept.append(version)
    return kept[::-1]


def find_ledger(root: Location, service: str, epoch: int, broker: Broker) -> Ledger | None:
    """Return the ledger of a service; None if the service has not joined the pipeline."""
    path = _path(root, service)
    if not is_there(path):
        return None
    return Ledger(root, service, epoch, read_sealed(path, LedgerTopic).topic, broker)


def open_ledger(root: Location, pipeline: str, service: str, epoch: int, broker: Broker) -> Ledger:
    """Return the ledger of a service; it is created if there is none. A program that does not run
    the service alone has the same one."""
    topic = f"stillframe-{pipeline}-{service}-{secrets.token_hex(8)}"
    write_once(_path(root, service), LedgerTopic(topic=topic))
    ledger = find_ledger(root, service, epoch, broker)
    assert ledger is not None
    if not ledger.has_begun():
        broker.create(ledger.topic)
    return ledger


def _path(root: Location, service: str) -> Location:
    return root / LEDGERS / f"{service}.json"
