"""The audit of a store: bytes, books and a conserved quantity, over all snapshots at once.

1. *Bytes.* Every file is what its manifest says. A snapshot with a changed byte is named and left
   out of what follows.
2. *Books.* Every process and channel of the description is there, and every channel's books
   balance, down to the number of each message.
3. *A conserved quantity*, if the caller names one: a sum over states and messages in transit that
   is the same in all snapshots. Whole numbers and decimals are compared exactly, also when they
   come as floating point; other floating point numbers to nine digits, because the order of
   additions is Spark's.
"""

import decimal
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stillframe.errors import StoreError, UsageError
from stillframe.model import SnapshotId
from stillframe.spark import history
from stillframe.spark.balance import explained
from stillframe.spark.manifests import read_published
from stillframe.spark.verified import shortened
from stillframe.store.disk import WHAT_TO_DO
from stillframe.store.manifest import MANIFEST, Manifest
from stillframe.topology import Description

_FLOAT_TOLERANCE = 1e-9

Amount = int | float | decimal.Decimal


class SnapshotAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit found in one snapshot.

    `sequence` is the order of publishing, 0 if the manifest cannot be read. `damage` names the
    first file that is not what was written; then nothing else is known. `contradiction` names the
    first process or channel that is wrong, with the figures. The amounts are None if no conserved
    quantity was asked for; `total` is that of states and messages together, `difference` what it
    has more than the first snapshot's.
    """

    id: SnapshotId
    sequence: int
    message_count: int = 0
    states_amount: Amount | None = None
    messages_amount: Amount | None = None
    total: Amount | None = None
    difference: Amount | None = None
    damage: str | None = None
    contradiction: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with this snapshot."""
        return not (self.damage or self.contradiction or self.difference)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict over a store: `verdict` is a sentence that names the first thing that is wrong.

    `snapshots` are in the order of publishing, those whose manifest cannot be read at the end.
    """

    ok: bool
    verdict: str
    snapshots: tuple[SnapshotAudit, ...]


def audit(
    spark: SparkSession,
    store_path: Path,
    *,
    states_sql: str | None = None,
    messages_sql: str | None = None,
) -> Audit:
    """Check every snapshot of a store: bytes, books and, if asked for, a conserved quantity.

    Args:
        spark: the session to run in, for example ``spark_session()``.
        store_path: the directory of the store; a running system may write to it.
        states_sql: an aggregate over the rows of ``processes.parquet``, such as ``sum(balance)``.
        messages_sql: the same over ``messages.parquet``, such as ``sum(amount)``. One may be left
            out; what both give together must be the same in all snapshots.

    Raises:
        UsageError: there is no store or no snapshot in it, or the SQL is wrong.
        StoreError: the store cannot be read, or changed meanwhile.
    """
    published = read_published(store_path)
    if published.is_empty:
        raise UsageError(f"the store {store_path} holds no snapshot yet: there is nothing to audit")
    manifests = {str(snapshot): found for snapshot, found in published.manifests.items()}
    damages = {str(snapshot): why for snapshot, why in published.damages.items()}
    head = published.head
    try:
        damages |= _changed_files(history.file_hashes(spark, store_path), manifests)
        whole = [name for name in manifests if name not in damages]
        sources: list[_Source] = []
        books: dict[str, tuple[int, str | None]] = {}
        for description in (*head.former, head.description):
            ours = [name for name in whole if manifests[name].topology == description.hash]
            if ours:
                is_all = len(ours) == len(manifests | damages)
                sources.append(_Source(spark, store_path, description, None if is_all else ours))
                books |= _check_books(sources[-1], ours)
    except PySparkException as error:
        raise StoreError(
            f"Spark cannot read the store {store_path}: {shortened(error)}. If its snapshots are "
            "being deleted meanwhile, try again"
        ) from error
    amounts: list[dict[str, Amount] | None] = [None, None]
    if whole and states_sql is not None:
        amounts[0] = _amounts([each.processes() for each in sources], states_sql, "the states")
    if whole and messages_sql is not None:
        amounts[1] = _amounts([each.messages() for each in sources], messages_sql, "the messages")
    rows = [
        SnapshotAudit(id=manifest.snapshot, sequence=manifest.sequence, damage=damages.get(name))
        if name in damages
        else _row(
            manifest,
            books[name],
            [None if found is None else found.get(name, 0) for found in amounts],
        )
        for name, manifest in manifests.items()
    ]
    rows += [
        SnapshotAudit(id=SnapshotId.parse(name), sequence=0, damage=damages[name])
        for name in sorted(damages.keys() - manifests.keys())
    ]
    return _verdict(_with_differences(rows))


class _Source:
    """The tables of the snapshots that can be read; `chosen` is None if all of them can."""

    def __init__(
        self,
        spark: SparkSession,
        store_path: Path,
        description: Description,
        chosen: Sequence[str] | None,
    ) -> None:
        self.spark = spark
        self.description = description
        self._store_path = store_path
        self._chosen = chosen

    def processes(self) -> DataFrame:
        return history.processes(self.spark, self._store_path, self.description, self._chosen)

    def channels(self) -> DataFrame:
        return history.channels(self.spark, self._store_path, self._chosen)

    def messages(self) -> DataFrame:
        return history.messages(self.spark, self._store_path, self.description, self._chosen)


def _changed_files(hashes: DataFrame, manifests: dict[str, Manifest]) -> dict[str, str]:
    """Return, for each snapshot with a file that is not what its manifest says, the first one."""
    there = {(row["snapshot"], row["name"]): row for row in hashes.collect()}
    damages: dict[str, str] = {}
    for snapshot, manifest in manifests.items():
        for record in manifest.files:
            row = there.get((snapshot, record.name))
            if row is None:
                what = "is missing"
            elif row["byte_count"] != record.bytes:
                what = f"has {row['byte_count']} bytes; {record.bytes} were written"
            elif row["hash"] != record.hash:
                what = f"was changed since it was written: its hash is not the one in {MANIFEST}"
            else:
                continue
            damages.setdefault(snapshot, f"{record.name} {what}: {WHAT_TO_DO}")
    return damages


def _check_books(source: _Source, whole: Sequence[str]) -> dict[str, tuple[int, str | None]]:
    """Return how many messages each whole snapshot holds, and what contradicts itself in it."""
    if not whole:
        return {}
    expected = sorted(source.description.processes)
    processes = {
        row["snapshot"]: row["processes"]
        for row in history.recorded_processes(source.processes()).collect()
    }
    books = history.channel_books(
        history.expected_channels(source.spark, source.description, whole),
        source.channels(),
        source.messages(),
    )
    rows = {row["snapshot"]: row for row in history.snapshot_books(books).collect()}
    found: dict[str, tuple[int, str | None]] = {}
    for name in whole:
        recorded = processes.get(name, [])
        row = rows.get(name)  # a system without channels has no books
        wrong = explained(row["first_wrong"]) if row and row["first_wrong"] else None
        if recorded != expected:
            wrong = (
                f"states of the processes {', '.join(recorded) or 'none'} are recorded, and the "
                f"processes are {', '.join(expected)}"
            )
        found[name] = (row["message_count"] if row else 0, wrong)
    return found


def _amounts(tables: Sequence[DataFrame], sql: str, over: str) -> dict[str, Amount]:
    """Return the caller's aggregate by snapshot; null counts as 0."""
    try:
        found = [row for rows in tables for row in history.sums(rows, sql).collect()]
    except PySparkException as error:
        raise UsageError(
            f"the SQL over {over} does not work: {sql!r}: {shortened(error)}. It must be an "
            "aggregate over one snapshot's rows, such as 'sum(balance)'"
        ) from error
    amounts: dict[str, Amount] = {}
    for row in found:
        amount = 0 if row["amount"] is None else row["amount"]
        if isinstance(amount, bool) or not isinstance(amount, Amount):
            raise UsageError(
                f"the SQL over {over} gives {amount!r}, which is no number: {sql!r}. Use an "
                "aggregate such as 'sum(balance)'"
            )
        amounts[row["snapshot"]] = amount
    return amounts


def _row(
    manifest: Manifest, books: tuple[int, str | None], amounts: Sequence[Amount | None]
) -> SnapshotAudit:
    given = [amount for amount in amounts if amount is not None]
    return SnapshotAudit(
        id=manifest.snapshot,
        sequence=manifest.sequence,
        message_count=books[0],
        contradiction=books[1],
        states_amount=amounts[0],
        messages_amount=amounts[1],
        total=_plus(given) if given else None,
    )


def _plus(amounts: Sequence[Amount]) -> Amount:
    """Add amounts of any kinds; a decimal and a floating point number meet as the latter."""
    if any(isinstance(amount, float) for amount in amounts):
        return math.fsum(amounts)
    total: Any = sum(amounts)
    return total  # type: ignore[no-any-return]


def _with_differences(rows: Sequence[SnapshotAudit]) -> list[SnapshotAudit]:
    """Compare every total with the first."""
    first = next((row.total for row in rows if row.total is not None), None)
    if first is None:
        return list(rows)
    return [
        row
        if row.total is None
        else msgspec.structs.replace(row, difference=_difference(row.total, first))
        for row in rows
    ]


def _difference(total: Amount, first: Amount) -> Amount:
    """Return how much more `total` is; 0 if they are equal as the module's docstring defines it."""
    if total == first:
        return 0
    is_whole = all(amount == amount // 1 for amount in (total, first))
    if not is_whole and math.isclose(total, first, rel_tol=_FLOAT_TOLERANCE):
        return 0
    return _plus([total, -first])


def _verdict(rows: Sequence[SnapshotAudit]) -> Audit:
    wrong = [row for row in rows if not row.is_sound]
    if wrong:
        row, more = wrong[0], len(wrong) - 1
        verdict = f"snapshot {row.id}: {_first_fault(row, rows)}"
        verdict += f" ({more} more of {len(rows)} snapshots are wrong)" if more else ""
    else:
        count = sum(row.message_count for row in rows)
        verdict = f"{len(rows)} snapshots with {count} messages: no byte changed, the books balance"
        if rows[0].total is not None:
            verdict += f", and the total is {rows[0].total} in all of them"
    return Audit(ok=not wrong, verdict=verdict, snapshots=tuple(rows))


def _first_fault(row: SnapshotAudit, rows: Sequence[SnapshotAudit]) -> str:
    if row.damage or row.contradiction:
        return row.damage or row.contradiction or ""
    first = next(other for other in rows if other.total is not None)
    return (
        f"the total is {row.total} (states {row.states_amount}, messages {row.messages_amount}), "
        f"and in {first.id} it is {first.total}: a difference of {row.difference:+}"
    )
