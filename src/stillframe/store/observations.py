"""Observations of services in a directory: one writer, any number of readers.

    STORE/observations.json                    makes the directory a store of observations
    STORE/lock                                 held by the one writer, as long as it lives
    STORE/ledger.json                          what a collector starts again from
    STORE/observations/17/manifest.json        every file, with length and SHA-256
    STORE/observations/17/instances.parquet    one row for each instance
    STORE/observations/17/states.parquet       one row for each field of each instance's state
    STORE/observations/17/calls.parquet        one row for each open call
    STORE/observations/17/unresolved.parquet   one row for each call whose caller does not wait
    STORE/observations/.17.partial/            an observation that is being written
    STORE/observations/.17.dropped/            one that is being removed

An observation is not a snapshot: no system can be restored from it. ``docs/observation-format.md``
has its invariants, and what checks each of them.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import pyarrow as pa

from stillframe.durable_files import partial_path, replace_durably, sync
from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError
from stillframe.model import DECODING_ERRORS
from stillframe.protocol.calls import (
    NOTHING,
    Amounts,
    CallId,
    CallLedger,
    CallPlace,
    InstanceFragment,
    Located,
    Observation,
    ReceivedAnswers,
    ServedCall,
    check_cut,
)
from stillframe.storage.reading import FILE_ADVICE, read_hashed
from stillframe.store import layout, observation_tables
from stillframe.store.layout import OBSERVATIONS_HEAD, explain_io_errors
from stillframe.store.manifest import MANIFEST, FileRecord
from stillframe.store.observation_tables import (
    CALLS,
    DUPLICATE,
    FILES,
    INSTANCES,
    ORPHAN,
    UNRESOLVED,
)
from stillframe.store.parquet import as_written, different_column, read_parquet, to_parquet
from stillframe.store.sealed_json import FORMAT, read_sealed, seal
from stillframe.store.snapshot_directory import new_directory

OBSERVATIONS = "observations"
LEDGER = "ledger.json"
EXACT, PARTIAL, NOT_EXACT = QUALITIES = ("exact", "partial", "not exact")
"""How much an observation shows: all amounts; not everything, for the reasons that it has; or all
calls, and of some of them not whether they were accepted."""
KEEP_COUNT = 1000
"""How many observations stay by default."""
ADVICE = f"{FILE_ADVICE}, or delete the directory of that observation"
_NUMBER_DIGITS_MAX = 18


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``observations.json``."""

    format: int = FORMAT
    kind: Literal["observations"] = "observations"


class StoredLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``ledger.json``.

    Attributes:
        format: the version of the format.
        number: the newest observation.
        ledger: the collector's record of calls that instances no longer keep, as MessagePack.
    """

    format: int = FORMAT
    number: int
    ledger: bytes


class ObservationManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``. Times are seconds since 1970, by the collector's clock.

    `settled_calls` and `settled_answers` are what fragments still hold although an earlier
    observation has settled it: calls, and answers by sender, caller and number. The others are
    those of `Observation`; `instance_count`, `open_count` and `unresolved_count` follow from the
    files.
    """

    format: int = FORMAT
    number: int
    initiated_at: float
    completed_at: float
    is_exact: bool
    baseline: int
    instance_count: int
    open_count: int
    unresolved_count: int
    partial: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    not_accepted: Amounts = NOTHING
    unknown: Amounts = NOTHING
    lost: Amounts = NOTHING
    created: Amounts = NOTHING
    forgotten_count: int = 0
    settled_calls: tuple[CallId, ...] = ()
    settled_answers: tuple[tuple[str, str, int], ...] = ()
    files: tuple[FileRecord, ...] = ()

    @property
    def byte_count(self) -> int:
        """The size of the files."""
        return sum(record.bytes for record in self.files)

    @property
    def duration_s(self) -> float:
        """How long it took; 0 if the collector's clock was set back meanwhile."""
        return max(0.0, self.completed_at - self.initiated_at)

    @property
    def quality(self) -> str:
        """How much it shows: one of `QUALITIES`."""
        if self.is_exact:
            return EXACT
        return PARTIAL if self.partial else NOT_EXACT

    @property
    def reasons(self) -> list[str]:
        """Why it is not exact; empty if it is."""
        if self.is_exact or self.partial:
            return list(dict.fromkeys(self.partial))
        return ["it is unknown whether some calls were accepted"]


class StoredObservation(msgspec.Struct, frozen=True):
    """An observation, and what its manifest says of it."""

    manifest: ObservationManifest
    observation: Observation


class ObservationReader:
    """The observations in a directory, to read, also while a collector stores new ones.

    Every method raises StoreError if something cannot be read, and Damaged if it is not what was
    written. One that is given a number raises UsageError if there is no such observation.
    """

    def __init__(self, path: Path) -> None:
        read_sealed(path / OBSERVATIONS_HEAD, Head)
        self.path = path
        self._directory = path / OBSERVATIONS

    def numbers(self) -> list[int]:
        """Return the numbers of all observations, in order."""
        with explain_io_errors(self._directory, "read"):
            if not self._directory.is_dir():
                raise StoreError(
                    f"the directory {self._directory} was deleted or moved, and its observations "
                    "with it",
                    path=self._directory,
                    remedy="put it back, or observe into a new directory",
                )
            found = [path.name for path in layout.visible(self._directory)]
        for name in found:
            if not _is_number(name):
                raise StoreError(
                    f"{self._directory / name} is not an observation: move it out of the store",
                    path=self._directory / name,
                )
        return sorted(map(int, found))

    def find(self, text: str) -> int:
        """Return the observation that `text` names, which need not exist."""
        if not _is_number(text):
            raise UsageError(f"{text!r} is not the number of an observation, such as 17")
        return int(text)

    def newest(self) -> int:
        """Return the number of the newest observation."""
        numbers = self.numbers()
        if not numbers:
            raise UsageError(f"the store {self.path} holds no observation yet")
        return numbers[-1]

    def listing(self) -> tuple[list[ObservationManifest], dict[int, Damaged]]:
        """Return the manifests of all observations, in order, and the errors of damaged ones."""
        found: list[ObservationManifest] = []
        damages: dict[int, Damaged] = {}
        for number in self.numbers():
            try:
                found.append(self.manifest(number))
            except UsageError:  # it was removed meanwhile
                continue
            except Damaged as error:
                damages[number] = error
        return found, damages

    def manifest(self, number: int) -> ObservationManifest:
        """Return the manifest of an observation."""
        path = self._directory / str(number) / MANIFEST
        try:
            manifest = read_sealed(path, ObservationManifest, advice=ADVICE)
        except Damaged:
            self._check_there(number)
            raise
        if manifest.number != number or tuple(one.name for one in manifest.files) != FILES:
            raise Damaged(
                f"{path} is not the manifest of observation {number}", path=path, remedy=ADVICE
            )
        return manifest

    def load(self, number: int) -> StoredObservation:
        """Put an observation together from its files."""
        manifest = self.manifest(number)
        return StoredObservation(manifest, self._put_together(manifest, self._tables(manifest)))

    def load_if_present(self, number: int) -> StoredObservation | None:
        """Return an observation, or None if it was removed meanwhile."""
        try:
            return self.load(number)
        except UsageError:
            return None

    def verify(self, number: int) -> StoredObservation:
        """Check every byte of an observation, and compare redundant data; return it.

        Raises:
            Damaged: a file is not what was written.
            NotConsistent: the observation contradicts itself.
        """
        manifest = self.manifest(number)
        tables = self._tables(manifest)
        observation = self._put_together(manifest, tables)
        directory = self._directory / str(number)
        try:
            check_cut(observation.fragments)
            _check(observation, manifest)
            made = observation_tables.to_tables(observation)
        except NotConsistent as error:
            raise _contradiction(directory, str(error)) from error
        for name, table in made.items():
            # Written and read again, so that both took the same path.
            written = read_parquet(to_parquet(table))
            different = different_column(written, tables[name])
            if different is not None:
                raise _contradiction(
                    directory / name, f"column {different} differs from the recorded data"
                )
        return StoredObservation(manifest, observation)

    def verify_all(self, progress: Callable[[ObservationManifest, int], None]) -> int:
        """Verify every observation, the oldest first, except those that are removed meanwhile;
        return how many. `progress` is called after each with its manifest and the number of all."""
        numbers = self.numbers()
        verified_count = 0
        for number in numbers:
            try:
                verified = self.verify(number)
            except UsageError:
                continue
            verified_count += 1
            progress(verified.manifest, len(numbers))
        return verified_count

    def _check_there(self, number: int) -> None:
        """Raise a UsageError if there is no such observation, or no more."""
        if not (self._directory / str(number)).is_dir():
            numbers = self.numbers()
            known = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none"
            raise UsageError(
                f"there is no observation {number} in the store {self.path}; {known}",
                path=self.path,
            )

    def _tables(self, manifest: ObservationManifest) -> dict[str, pa.Table]:
        directory = self._directory / str(manifest.number)
        found = {}
        for record in manifest.files:
            path = directory / record.name
            try:
                content = read_hashed(path, record.bytes, record.hash, advice=ADVICE)
            except Damaged:
                self._check_there(manifest.number)
                raise
            with as_written(path, advice=ADVICE):
                found[record.name] = observation_tables.read_table(record.name, content)
        return found

    def _put_together(
        self, manifest: ObservationManifest, tables: dict[str, pa.Table]
    ) -> Observation:
        directory = self._directory / str(manifest.number)
        shared = {
            name: getattr(manifest, name)
            for name in ObservationManifest.__struct_fields__
            if name in Observation.__struct_fields__
        }
        name = INSTANCES
        try:
            fragments = observation_tables.fragments_in(tables[INSTANCES])
            for fragment in fragments.values():
                observation_tables.fields_of(fragment)
            name = CALLS
            calls = observation_tables.calls_in(tables[CALLS])
            name = UNRESOLVED
            return Observation(
                fragments=fragments,
                calls=calls,
                late=observation_tables.late_in(tables[UNRESOLVED]),
                duplicates=observation_tables.accepted_in(tables[UNRESOLVED], DUPLICATE),
                orphans=observation_tables.accepted_in(tables[UNRESOLVED], ORPHAN),
                **shared,
            )
        except (NotConsistent, *DECODING_ERRORS) as error:
            raise Damaged(
                f"{directory / name} has invalid content: {error}",
                path=directory / name,
                remedy=ADVICE,
            ) from error


class ObservationWriter(ObservationReader):
    """The one writer of a store of observations: use ``open``, then ``close``.

    `number` is the newest observation, and `ledger` what the collector before has stored.
    """

    def __init__(self, path: Path, lock: int) -> None:
        super().__init__(path)
        stored = read_sealed(path / LEDGER, StoredLedger)
        try:
            self.ledger = msgspec.msgpack.decode(stored.ledger, type=CallLedger)
        except DECODING_ERRORS as error:
            raise Damaged(
                f"{path / LEDGER} has invalid content: {error}",
                path=path / LEDGER,
                remedy=FILE_ADVICE,
            ) from error
        # A collector can die when it has stored an observation, and the ledger not yet. No
        # instance has settled anything then.
        self.number = max(stored.number, *self.numbers(), 0)
        self._stored_ledger = stored.ledger
        self._lock: int | None = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a store of observations, or make one in a directory that is empty or new.

        Raises:
            UsageError: the directory holds something else.
            Unavailable: another program writes to it.
        """
        with explain_io_errors(path, "opened for writing"):
            path.mkdir(parents=True, exist_ok=True)
            _check_unused(path)
            lock = layout.take_lock(path)
            try:
                if not layout.has_observations(path):
                    _make(path)
                _remove_unfinished(path)
                return cls(path, lock)
            except BaseException:
                os.close(lock)
                raise

    def close(self) -> None:
        """Let another collector have the store. Closing twice does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def publish(
        self, observation: Observation, times: tuple[float, float], ledger: CallLedger
    ) -> ObservationManifest:
        """Store an observation and the ledger after it; return its manifest. If that fails, neither
        is stored.

        Args:
            observation: the observation.
            times: when it was initiated and completed, in seconds since 1970.
            ledger: the collector's ledger.

        Raises:
            StoreError: it could not be stored.
        """
        tables = observation_tables.to_tables(observation)
        settled_calls, settled_answers = _settled(observation)
        directory = self._directory / str(observation.number)
        shared = {
            name: getattr(observation, name)
            for name in ObservationManifest.__struct_fields__
            if name in Observation.__struct_fields__
        }
        with new_directory(directory, None) as new:
            manifest = ObservationManifest(
                initiated_at=times[0],
                completed_at=times[1],
                is_exact=observation.is_exact,
                **_counts(observation),
                settled_calls=settled_calls,
                settled_answers=settled_answers,
                files=new.write_tables(tables, lambda name, table: to_parquet(table)),
                **shared,
            )
            new.publish(manifest)
        before, self.number = self.number, observation.number
        try:
            self.store_ledger(ledger)
        except StoreError:
            self.number = before
            with contextlib.suppress(OSError):
                self._remove(observation.number)
            raise
        return manifest

    def store_ledger(self, ledger: CallLedger) -> None:
        """Store the ledger, unless it is as it was; a StoreError if that fails."""
        encoded = msgspec.msgpack.encode(ledger)
        if encoded == self._stored_ledger:
            return
        self._stored_ledger = b""  # it is not known what a failure leaves
        path = self.path / LEDGER
        with explain_io_errors(path, "written"):
            replace_durably(path, seal(StoredLedger(number=self.number, ledger=encoded)))
        self._stored_ledger = encoded

    def keep(self, count: int) -> None:
        """Remove all observations but the newest `count`; a StoreError if that fails."""
        with explain_io_errors(self._directory, "cleared of old observations"):
            for number in self.numbers()[:-count]:
                self._remove(number)

    def _remove(self, number: int) -> None:
        # Renamed first: no reader may see it disappear file by file.
        directory = self._directory / str(number)
        dropped = layout.dropped_path(directory)
        directory.rename(dropped)
        sync(self._directory)
        shutil.rmtree(dropped)


def _is_number(name: str) -> bool:
    is_digits = name.isascii() and name.isdigit() and len(name) <= _NUMBER_DIGITS_MAX
    return is_digits and name == str(int(name)) and name != "0"


def _check_unused(path: Path) -> None:
    if layout.has_observations(path):
        return
    left_by_a_crash = {"lock", LEDGER, OBSERVATIONS}
    left_by_a_crash |= {partial_path(path / name).name for name in (LEDGER, OBSERVATIONS_HEAD)}
    foreign = sorted({one.name for one in path.iterdir()} - left_by_a_crash)
    if foreign:
        what = "a store of snapshots" if layout.is_store(path) else "not empty"
        raise UsageError(
            f"{path} is {what}, and not a store of observations; it contains "
            f"{layout.first_names(foreign)}",
            path=path,
            remedy="give an empty or new directory",
        )
    if (path / OBSERVATIONS).is_dir() and layout.visible(path / OBSERVATIONS):
        raise Damaged(
            f"{path / OBSERVATIONS_HEAD} is missing: put it back from a copy of the store",
            path=path / OBSERVATIONS_HEAD,
        )


def _make(path: Path) -> None:
    (path / OBSERVATIONS).mkdir(exist_ok=True)
    ledger = StoredLedger(number=0, ledger=msgspec.msgpack.encode(CallLedger()))
    replace_durably(path / LEDGER, seal(ledger))
    # Last: this file makes the directory a store of observations.
    replace_durably(path / OBSERVATIONS_HEAD, seal(Head()))
    sync(path.parent)


def _remove_unfinished(path: Path) -> None:
    """Remove what a crashed collector has left."""
    for left in layout.unfinished(path / OBSERVATIONS):
        shutil.rmtree(left)
    if (path / OBSERVATIONS).is_dir():
        # It may have died between the two steps of a publication.
        sync(path / OBSERVATIONS)
    for name in (LEDGER, OBSERVATIONS_HEAD):
        partial_path(path / name).unlink(missing_ok=True)


def _contradiction(path: Path, what: str) -> NotConsistent:
    return NotConsistent(f"{path}: {what}: use another observation", path=path)


# --- what an observation must be


def _counts(observation: Observation) -> dict[str, Any]:
    awaited = [one for one in observation.calls if one.record.is_awaited]
    return {
        "instance_count": len(observation.fragments),
        "open_count": len(awaited),
        "unresolved_count": len(observation_tables.unresolved_of(observation)),
    }


def _check(observation: Observation, manifest: ObservationManifest) -> None:
    """Raise a NotConsistent if an observation is not what its fragments and its manifest say."""
    _check_records(observation)
    for located in observation.calls:
        _check_place(located, observation.fragments.values())
    settled_calls, settled_answers = _settled(observation)
    for call in settled_calls:
        if call not in manifest.settled_calls:
            raise NotConsistent(f"call {call} is open in its fragment and is not in {CALLS}")
    for instance, caller, number in settled_answers:
        if (instance, caller, number) not in manifest.settled_answers:
            raise NotConsistent(
                f"answer {number} of {instance} to {caller} is in its fragment and in no call"
            )
    found = {
        "is_exact": observation.is_exact,
        **_counts(observation),
        "settled_calls": settled_calls,
        "settled_answers": settled_answers,
    }
    for name, value in found.items():
        if getattr(manifest, name) != value:
            raise NotConsistent(f"{name} of {MANIFEST} differs from the recorded data")
    if not 0 < observation.baseline <= observation.number:
        raise NotConsistent(f"baseline of {MANIFEST} is {observation.baseline}")
    if both := sorted(observation.fragments.keys() & set(observation.gone)):
        raise NotConsistent(f"{both[0]} has a fragment and was disconnected")


def _check_records(observation: Observation) -> None:
    """Check that each call is what its caller and those that have accepted it keep, and that each
    is listed once."""
    fragments = observation.fragments
    seen: set[CallId] = set()
    for located in (*observation.calls, *observation.late):
        if located.call in seen:
            raise NotConsistent(f"call {located.call} is listed twice")
        seen.add(located.call)
    open_calls = _open_calls(observation)
    for located in observation.calls:
        if open_calls.get(located.call) != located.record:
            raise NotConsistent(f"call {located.call} is not as its caller has recorded it")
    for located in observation.late:
        if located.call.caller not in fragments or len(located.served) != 1:
            raise NotConsistent(f"call {located.call} is not a late call")
    kept = {name: list(fragment.served) for name, fragment in fragments.items()}
    for name, served in _listed_answers(observation):
        if served not in kept.get(name, []):
            raise NotConsistent(f"call {served.call} is not as {name} has recorded it")
        kept[name].remove(served)
    for accepted, is_connected in ((observation.duplicates, True), (observation.orphans, False)):
        for _, served in accepted:
            if (served.call.caller in fragments) is not is_connected:
                kind = DUPLICATE if is_connected else ORPHAN
                raise NotConsistent(f"call {served.call} is not a call of the kind {kind}")


def _check_place(located: Located, fragments: Collection[InstanceFragment]) -> None:
    """Check that a call is where the fragments have it."""
    call, record = located.call, located.record
    may_be = {CallPlace.OUTSIDE}
    if located.served:
        is_served = any(not served.number for _, served in located.served)
        may_be = {CallPlace.SERVED if is_served else CallPlace.ANSWERED}
    elif not record.was_answered:
        may_be = {CallPlace.UNKNOWN, CallPlace.REQUESTED, CallPlace.OUTSIDE}
        if any(one.targets.get(record.target) for one in fragments):
            may_be.remove(CallPlace.OUTSIDE)
        if any(call.number <= one.dropped.get(call.caller, 0) for one in fragments):
            may_be.remove(CallPlace.REQUESTED)
    if located.place not in may_be or any(served.call != call for _, served in located.served):
        raise NotConsistent(
            f"call {call} is listed as '{located.place.value}', and the fragments show that it is "
            "elsewhere"
        )


def _open_calls(observation: Observation) -> dict[CallId, Any]:
    return {
        CallId(name, call.number): call
        for name, fragment in observation.fragments.items()
        for call in fragment.calls
    }


def _listed_answers(observation: Observation) -> list[tuple[str, ServedCall]]:
    """Return each record of an accepted call that an observation lists, with its instance."""
    return [
        *(one for located in observation.calls for one in located.served),
        *(one for located in observation.late for one in located.served),
        *observation.duplicates,
        *observation.orphans,
    ]


def _settled(
    observation: Observation,
) -> tuple[tuple[CallId, ...], tuple[tuple[str, str, int], ...]]:
    """Return the calls and the answers that fragments hold and the observation does not list: an
    earlier one has settled them.

    Raises:
        NotConsistent: one of them cannot have been settled.
    """
    open_calls = _open_calls(observation)
    calls = sorted(open_calls.keys() - {one.call for one in observation.calls})
    for call in calls:
        if open_calls[call].is_awaited:
            raise NotConsistent(f"call {call} is open in its fragment and is not in {CALLS}")
    listed = {
        (name, served.call.caller, served.number)
        for name, served in _listed_answers(observation)
        if served.number
    }
    serving = {
        (name, served.call) for name, served in _listed_answers(observation) if not served.number
    }
    answers = []
    for name, fragment in observation.fragments.items():
        for served in fragment.served:
            caller = served.call.caller
            answer = name, caller, served.number
            if not served.number:
                if (name, served.call) not in serving:
                    raise NotConsistent(f"call {served.call} is served by {name} and not listed")
            elif answer not in listed and not _is_received(observation, *answer):
                answers.append(answer)
    return tuple(calls), tuple(sorted(answers))


def _is_received(observation: Observation, instance: str, caller: str, number: int) -> bool:
    """Return whether a caller had accepted an answer that is not acknowledged yet."""
    fragment = observation.fragments.get(caller)
    return fragment is not None and number in fragment.received.get(instance, ReceivedAnswers())
