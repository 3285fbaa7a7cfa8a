"""Observations of services in a directory: one writer, any number of readers.

    STORE/observations.json                    makes the directory a store of observations
    STORE/lock                                 held by the one writer, as long as it lives
    STORE/ledger.json                          what a collector starts again from
    STORE/baseline.json                        an operator's newest request for a new baseline
    STORE/observations/17/manifest.json        every file, with length and SHA-256
    STORE/observations/17/instances.parquet    one row for each instance
    STORE/observations/17/states.parquet       one row for each field of each instance's state
    STORE/observations/17/calls.parquet        one row for each open call
    STORE/observations/17/unresolved.parquet   one row for each call whose caller does not wait
    STORE/observations/17/farewells.parquet    one row for each instance that has said goodbye,
                                               while not all of it is settled
    STORE/observations/.17.partial/            an observation that is being written
    STORE/observations/.17.dropped/            one that is being removed

In an object store they have the same names, and the ledger lists those that are published
(``observation_writers``).

An observation is not a snapshot: no system can be restored from it. ``docs/observation-format.md``
has its invariants, and what checks each of them.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import msgspec
import pyarrow as pa

from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.protocol.calls import (
    NOTHING,
    Amounts,
    Baseline,
    CallId,
    CallLedger,
    CallPlace,
    InstanceFragment,
    Located,
    Observation,
    ReceivedAnswers,
    ServedCall,
    TimedOutCall,
    check_cut,
)
from stillframe.storage.files import mapped
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.reading import FILE_ADVICE, read_hashed
from stillframe.store import observation_tables
from stillframe.store.layout import OBSERVATIONS
from stillframe.store.manifest import MANIFEST, FileRecord
from stillframe.store.observation_tables import (
    CALLS,
    DUPLICATE,
    FAREWELLS,
    FILES,
    INSTANCES,
    ORPHAN,
    SCHEMAS,
    UNRESOLVED,
)
from stillframe.store.observation_writers import (
    ObservationBucket,
    ObservationDirectory,
    ObservationStorage,
    decoded_ledger,
    is_number,
    read_head,
    stored_ledger,
    stored_numbers,
)
from stillframe.store.parquet import as_written, different_column, read_parquet, to_parquet
from stillframe.store.sealed_json import OBSERVATION_FORMAT, read_sealed

EXACT, PARTIAL, NOT_EXACT = QUALITIES = ("exact", "partial", "not exact")
"""How much an observation shows: all amounts; not everything, for the reasons that it has; or all
that is there, and something is unknown."""
ACCEPTED: Mapping[bool | None, str] = {True: "yes", False: "no", None: "unknown"}
"""Whether a call was accepted, in a word."""
SETTLED = "settled"
"""Stands for a call that needs no attention any more."""
KEEP_COUNT = 1000
"""How many observations stay by default."""
OLDER = "a version of Stillframe that took what restarts for exact had stored what came before"
"""Why a collector begins a baseline after one of an older version."""
AMOUNTS = "amounts"
"""The table for queries that follows from the others, and is in no file."""
_ENCODED = "encoded"
_WHOLE: Mapping[str, Collection[str]] = dict.fromkeys(FILES, ())
_RECORDED = {INSTANCES: (_ENCODED,), CALLS: (_ENCODED,), UNRESOLVED: ("kind", _ENCODED)}
_RECORDED |= {FAREWELLS: (_ENCODED,)}
"""The columns from which an observation is put together; the others repeat them."""
_DIRECTORY_ADVICE = f"{FILE_ADVICE}, or delete the directory of that observation"


class ObservationManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``manifest.json``. Times are seconds since 1970, by the collector's clock.

    `settled_calls` and `settled_answers` are what fragments still hold although an earlier
    observation has settled it: calls, and answers by sender, caller and number. The others are
    those of `Observation`, and `baseline` with what begins so are its `since`; `instance_count`,
    `open_count` and `unresolved_count` follow from the files. Those with a default at the end were
    not in format 2.
    """

    format: int = OBSERVATION_FORMAT
    number: int
    initiated_at: float
    completed_at: float
    is_exact: bool
    baseline: int
    instance_count: int
    open_count: int
    unresolved_count: int
    partial: tuple[str, ...] = ()
    disconnected: tuple[str, ...] = ()
    not_accepted: Amounts = NOTHING
    unknown: Amounts = NOTHING
    lost: Amounts = NOTHING
    created: Amounts = NOTHING
    forgotten_count: int = 0
    settled_calls: tuple[CallId, ...] = ()
    settled_answers: tuple[tuple[str, str, int], ...] = ()
    files: tuple[FileRecord, ...] = ()
    baseline_why: str = ""
    baseline_by: str = ""
    baseline_at: float = 0.0
    ended: dict[str, dict[str, int]] = {}
    gone: tuple[str, ...] = ()
    unknown_count: int = 0
    double_spent: dict[str, dict[str, int]] = {}

    @property
    def since(self) -> Baseline:
        """The first observation with whose total that of this one is comparable."""
        return Baseline(self.baseline, self.baseline_why, self.baseline_by, self.baseline_at)

    def comparable(self, moment: Callable[[float], str]) -> str:
        """Return a sentence about the observations whose totals are comparable; `moment` writes
        a time."""
        since = self.since
        by = f"{moment(since.at)}, by {since.by}: because " if since.by else ""
        why = f" ({by}{since.why})" if since.why else ""
        return f"totals are comparable since observation {since.number}{why}"

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
        return list(dict.fromkeys((*self.partial, *self.unknowns)))

    @property
    def unknowns(self) -> list[str]:
        """Why it is not exact, besides the reasons for which it is partial."""
        if self.is_exact:
            return []
        found = [
            f"{name} has left without a goodbye: it is unknown what it did" for name in self.gone
        ]
        if self.unknown_count:
            count = f"{self.unknown_count:,}"
            found.append(f"earlier calls with an unknown fate: {count}")
        if self.forgotten_count:
            count = f"{self.forgotten_count:,}"
            found.append(
                f"amounts that are not known were dropped since the baseline: {count} times"
            )
        if not found and not self.partial:
            found.append("it is unknown whether some calls were accepted")
        return found


class StoredObservation(msgspec.Struct, frozen=True):
    """An observation, and what its manifest says of it."""

    manifest: ObservationManifest
    observation: Observation


class TimedOutCalls(msgspec.Struct, frozen=True):
    """The calls whose callers have stopped waiting, also those that no observation shows any more.

    Attributes:
        listed: the newest of them, by their names: the oldest first.
        count: how many there were since the store was made.
    """

    listed: dict[CallId, TimedOutCall]
    count: int

    @property
    def dropped_count(self) -> int:
        """How many are not listed any more."""
        return self.count - len(self.listed)

    def accepted_counts(self) -> dict[str, int]:
        """Return how many were accepted, were not, and may have been, and how many of all are
        `SETTLED` instead."""
        counts = Counter(
            SETTLED if one.is_settled or one.was_given_up else ACCEPTED[one.was_accepted]
            for one in self.listed.values()
        )
        return dict.fromkeys((*ACCEPTED.values(), SETTLED), 0) | counts


class ObservationReader:
    """The observations in a directory or object store, to read, also while a collector stores new
    ones.

    Every method raises StoreError if something cannot be read, and Damaged if it is not what was
    written. One that is given a number raises UsageError if there is no such observation.
    """

    def __init__(self, path: Location) -> None:
        read_head(path)
        self.path = path
        self._directory = path / OBSERVATIONS
        self._advice = FILE_ADVICE if isinstance(path, ObjectPath) else _DIRECTORY_ADVICE
        self._listed: frozenset[int] = frozenset()

    def numbers(self) -> list[int]:
        """Return the numbers of all observations, in order."""
        numbers = stored_numbers(self.path)
        self._listed = frozenset(numbers)
        return numbers

    def find(self, text: str) -> int:
        """Return the observation that `text` names, which need not exist."""
        if not is_number(text):
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
        numbers = self.numbers()

        def read(number: int) -> ObservationManifest | Damaged | None:
            try:
                return self.manifest(number)
            except UsageError:  # it was removed meanwhile
                return None
            except Damaged as error:
                return error

        for number, one in zip(numbers, mapped(self.path, read, numbers), strict=True):
            if isinstance(one, Damaged):
                damages[number] = one
            elif one is not None:
                found.append(one)
        return found, damages

    def manifest(self, number: int) -> ObservationManifest:
        """Return the manifest of an observation."""
        path = self._directory / str(number) / MANIFEST
        if isinstance(path, ObjectPath) and number not in self._listed:
            # One that is not published may have a manifest there.
            self._check_there(number)
        try:
            manifest = read_sealed(path, ObservationManifest, advice=self._advice)
        except Damaged:
            self._check_there(number)
            raise
        names = tuple(one.name for one in manifest.files)
        if manifest.number != number or names not in (FILES, FILES[:-1]):
            raise Damaged(
                f"{path} is not the manifest of observation {number}",
                path=path,
                remedy=self._advice,
            )
        return manifest

    def load(self, number: int) -> StoredObservation:
        """Put an observation together from its files."""
        manifest = self.manifest(number)
        return StoredObservation(manifest, self._put_together(manifest, self._tables(manifest)))

    def tables(self, manifest: ObservationManifest, names: Collection[str]) -> dict[str, pa.Table]:
        """Return some of the tables `instances`, `states`, `calls`, `unresolved` and `amounts` of
        an observation, with the columns for queries: those of the files without `encoded`, and
        those of ``observation_tables.amounts_of``."""
        wanted = {
            file: [column for column in SCHEMAS[file].names if column != _ENCODED]
            for file in FILES
            if _query_name(file) in names
        }
        read = self._tables(manifest, wanted)
        tables = {_query_name(file): table for file, table in read.items()}
        if AMOUNTS in names:
            recorded = self._tables(manifest, _RECORDED)
            made = self._put_together(manifest, recorded)
            tables[AMOUNTS] = observation_tables.amounts_table(made)
        return tables

    def load_if_present(self, number: int) -> StoredObservation | None:
        """Return an observation, or None if it was removed meanwhile."""
        try:
            return self.load(number)
        except UsageError:
            return None

    def timed_out(self) -> TimedOutCalls:
        """Return the calls whose callers have stopped waiting, as the ledger lists them."""
        stored = stored_ledger(self.path)
        ledger = decoded_ledger(self.path, stored)
        self._list_newest(ledger, stored.number)
        return TimedOutCalls(ledger.timed_out, ledger.timed_out_count)

    def _list_newest(self, ledger: CallLedger, number: int) -> None:
        """List what the newest observation has, if it is newer than `number`, that of the ledger.
        A collector may have died in between. If the ledger was not stored because it did not
        change, this changes nothing either. That no instance of the observation has accepted a call
        proves nothing: only the ledger knows the others."""
        newest = max(self.numbers(), default=0)
        found = self.load_if_present(newest) if newest > number else None
        if found is not None:
            for located in (*found.observation.calls, *found.observation.late):
                one = located.timed_out(newest)
                is_listed = located.call in ledger.timed_out
                if located.record.is_awaited or (is_listed and not one.accepted_by):
                    continue
                if one.place is CallPlace.REQUESTED and one.was_sent:
                    one = msgspec.structs.replace(one, place=CallPlace.UNKNOWN)
                ledger.list_timed_out(located.call, one)

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
        if made.keys() != tables.keys():
            raise _contradiction(directory / MANIFEST, f"{FAREWELLS} has no row")
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
        numbers = self.numbers()
        if number not in numbers:
            known = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "it has none"
            raise UsageError(
                f"there is no observation {number} in the store {self.path}; {known}",
                path=self.path,
            )

    def _tables(
        self, manifest: ObservationManifest, wanted: Mapping[str, Collection[str]] = _WHOLE
    ) -> dict[str, pa.Table]:
        """Return tables by the names of their files; `wanted` are their columns, and all if it is
        empty for a file."""
        directory = self._directory / str(manifest.number)
        files = [record for record in manifest.files if record.name in wanted]

        def read(record: FileRecord) -> pa.Table:
            path = directory / record.name
            try:
                content = read_hashed(path, record.bytes, record.hash, advice=self._advice)
            except Damaged:
                self._check_there(manifest.number)
                raise
            with as_written(path, advice=self._advice):
                return observation_tables.read_table(record.name, content, wanted[record.name])

        tables = mapped(self.path, read, files)
        return {record.name: table for record, table in zip(files, tables, strict=True)}

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
            name = FAREWELLS
            farewells = tables.get(FAREWELLS)
            ends = {} if farewells is None else observation_tables.ends_in(farewells)
            name = UNRESOLVED
            return Observation(
                fragments=fragments,
                calls=calls,
                late=observation_tables.late_in(tables[UNRESOLVED]),
                duplicates=observation_tables.accepted_in(tables[UNRESOLVED], DUPLICATE),
                orphans=observation_tables.accepted_in(tables[UNRESOLVED], ORPHAN),
                since=manifest.since,
                ends=ends,
                **shared,
            )
        except (NotConsistent, *DECODING_ERRORS) as error:
            raise Damaged(
                f"{directory / name} has invalid content: {text_of(error)}",
                path=directory / name,
                remedy=self._advice,
            ) from error


class ObservationWriter(ObservationReader):
    """The one writer of a store of observations: use ``open``, then ``close``.

    `number` is the newest observation, and `ledger` what the collector before has stored. Once
    another writer has taken over a store in an object store, each change raises Fenced.
    """

    def __init__(self, path: Location, storage: ObservationStorage) -> None:
        super().__init__(path)
        self._storage = storage
        self.ledger = decoded_ledger(path, storage.stored)
        if storage.stored.format < OBSERVATION_FORMAT and storage.stored.number:
            # No instance could say goodbye, so each that is away may have changed its state.
            away = self.ledger.disconnected.keys() - self.ledger.retired
            self.ledger.gone |= dict.fromkeys(sorted(away))
            self.ledger.next_baseline = Baseline(0, OLDER)
        # A collector can die when it has stored an observation, and the ledger not yet. No
        # instance has settled anything then.
        self.number = max(storage.stored.number, *self.numbers(), 0)
        with contextlib.suppress(StoreError):  # a damaged observation stops no collector
            self._list_newest(self.ledger, storage.stored.number)

    @classmethod
    def open(cls, path: Location, *, keep_count: int = KEEP_COUNT) -> Self:
        """Open a store of observations, or make one in a place that is empty or new. It keeps the
        newest `keep_count`.

        Raises:
            UsageError: something else is there.
            Unavailable: another program writes to it.
        """
        storage: ObservationStorage
        if isinstance(path, ObjectPath):
            storage = ObservationBucket(path, keep_count)
        else:
            storage = ObservationDirectory(path, keep_count)
        try:
            return cls(path, storage)
        except BaseException:
            storage.close()
            raise

    def close(self) -> None:
        """Let another collector have the store. Closing twice does nothing."""
        self._storage.close()

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
        shared = {
            name: getattr(observation, name)
            for name in ObservationManifest.__struct_fields__
            if name in Observation.__struct_fields__
        }
        with self._storage.new(observation.number) as new:
            manifest = ObservationManifest(
                initiated_at=times[0],
                completed_at=times[1],
                is_exact=observation.is_exact,
                baseline=observation.since.number,
                baseline_why=observation.since.why,
                baseline_by=observation.since.by,
                baseline_at=observation.since.at,
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
            self._storage.withdraw(observation.number)
            raise
        return manifest

    def store_ledger(self, ledger: CallLedger) -> None:
        """Store the ledger, unless it is as it was; a StoreError if that fails."""
        self._storage.write_ledger(self.number, ledger)

    def remove_old(self) -> None:
        """Remove all observations but the newest ones; a StoreError if that fails."""
        self._storage.remove_old()


def _query_name(file: str) -> str:
    """Return the name of the table of a file in queries."""
    return file.removesuffix(".parquet")


def _contradiction(path: Location, what: str) -> NotConsistent:
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
        _check_place(located, observation.everybody.values())
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
        **_counts(observation),
        "settled_calls": settled_calls,
        "settled_answers": settled_answers,
    }
    if manifest.format >= OBSERVATION_FORMAT:  # an older version had another rule
        found["is_exact"] = observation.is_exact
    for name, value in found.items():
        if getattr(manifest, name) != value:
            raise NotConsistent(f"{name} of {MANIFEST} differs from the recorded data")
    if not 0 < observation.baseline <= observation.number:
        raise NotConsistent(f"baseline of {MANIFEST} is {observation.baseline}")
    if both := sorted(
        observation.fragments.keys() & {*observation.disconnected, *observation.gone}
    ):
        raise NotConsistent(f"{both[0]} has a fragment and was disconnected")
    if both := sorted(observation.fragments.keys() & observation.ends.keys()):
        raise NotConsistent(f"{both[0]} has a fragment and had said goodbye")


def _check_records(observation: Observation) -> None:
    """Check that each call is what its caller and those that have accepted it keep, and that each
    is listed once."""
    fragments = observation.everybody
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
        if len(located.served) != 1:
            raise NotConsistent(f"call {located.call} is not a late call")
    kept = {name: list(fragment.served) for name, fragment in fragments.items()}
    for name, served in _listed_answers(observation):
        if served not in kept.get(name, []):
            raise NotConsistent(f"call {served.call} is not as {name} has recorded it")
        kept[name].remove(served)
    late = {located.call for located in observation.late}
    for accepted, is_known in ((observation.duplicates, True), (observation.orphans, False)):
        for _, served in accepted:
            if (served.call.caller in fragments or served.call in late) is not is_known:
                kind = DUPLICATE if is_known else ORPHAN
                raise NotConsistent(f"call {served.call} is not a call of the kind {kind}")


def _check_place(located: Located, fragments: Collection[InstanceFragment]) -> None:
    """Check that a call is where the fragments have it."""
    call, record = located.call, located.record
    may_be = {CallPlace.OUTSIDE}
    if located.served:
        is_served = any(not served.number for _, served in located.served)
        may_be = {CallPlace.SERVED if is_served else CallPlace.ANSWERED}
    elif not record.was_sent or located.returned:
        may_be = {CallPlace.REQUESTED}
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
        for name, fragment in observation.everybody.items()
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
    for name, fragment in observation.everybody.items():
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
    fragment = observation.everybody.get(caller)
    return fragment is not None and number in fragment.received.get(instance, ReceivedAnswers())
