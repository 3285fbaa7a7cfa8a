"""The audit of a store: bytes, books and a conserved quantity, over all snapshots at once.

1. *Bytes.* Every file matches its manifest, and every snapshot exists that was published and not
   removed. A snapshot with a changed byte is named and left out of the next two checks.
2. *Books.* Every process and channel of the description is there, and every channel's books
   balance, down to the number of each message.
3. *A conserved quantity*, if the caller names one: a sum over states and messages in transit that
   is the same in all snapshots. Whole numbers and decimals are compared exactly, also when they
   come as floating point; other floating point numbers to nine digits, because the order of
   additions is Spark's.
"""

import decimal
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.analytics import verified_parquet
from stillframe.analytics.full_snapshots import rows_of
from stillframe.analytics.manifests import Published, expected_of, read_published
from stillframe.analytics.snapshot_verdicts import checked
from stillframe.analytics.verified_parquet import first_line
from stillframe.errors import Damaged, NotConsistent, UsageError
from stillframe.model import SnapshotId
from stillframe.storage.location import Location, locate
from stillframe.store.history import explain_loss, lost_snapshots
from stillframe.store.parquet import SNAPSHOT

_FLOAT_TOLERANCE = 1e-9

Amount = int | float | decimal.Decimal
_Books = tuple[int, str | None]
"""Of a snapshot: how many messages are in transit, and what contradiction there is."""
_Amounts = dict[SnapshotId, Amount]


class SnapshotAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one snapshot. One that is damaged has no other result.

    Attributes:
        id: the snapshot.
        sequence: its place in the order of publishing; 0 if its manifest cannot be read.
        message_count: how many messages are in transit.
        states_amount: the amount in the states; None without that SQL.
        messages_amount: the amount in the messages; None without that SQL.
        total: both together; None without SQL.
        difference: the excess of the total over that of the first snapshot.
        damage: what was changed; None if nothing was.
        contradiction: why the books do not balance; None if they do.
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
    def is_valid(self) -> bool:
        """Whether nothing is wrong with this snapshot."""
        return not (self.damage or self.contradiction or self.difference)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a store.

    Attributes:
        ok: whether nothing is wrong.
        verdict: a sentence, which names the first fault.
        snapshots: in the order of publishing, unreadable and lost ones at the end.
        history_damage: the first line of the history that was changed; None if none was. It is then
            unknown which snapshots are lost.
    """

    ok: bool
    verdict: str
    snapshots: tuple[SnapshotAudit, ...]
    history_damage: str | None = None


def audit(
    spark: SparkSession,
    store_path: str | Location,
    *,
    states_sql: str | None = None,
    messages_sql: str | None = None,
) -> Audit:
    """Do what ``audit_store`` says in a given session; a running system may write to the store."""
    store_path = locate(store_path)
    published = read_published(store_path)
    lost, history_damage = set[SnapshotId](), None
    try:
        lost = set(lost_snapshots(store_path))
    except Damaged as error:
        history_damage = str(error)  # it would tell what is lost
    if published.is_empty and not lost:
        raise UsageError(f"the store {store_path} holds no snapshot yet: there is nothing to audit")
    changed, books = _verify_snapshots(spark, published)
    damages = {**published.damages, **changed}
    damages |= {snapshot: explain_loss(store_path, snapshot) for snapshot in lost}
    by_topology = published.by_topology(books).values()
    amounts = [
        None
        if sql is None or not books
        else _amounts([rows_of(spark, published, some, table) for some in by_topology], sql, over)
        for table, sql, over in (
            ("processes", states_sql, "the states"),
            ("messages", messages_sql, "the messages"),
        )
    ]
    rows = _rows(published, damages, books, amounts)
    rows += [
        SnapshotAudit(id=snapshot, sequence=0, damage=damages[snapshot])
        for snapshot in sorted(damages.keys() - published.manifests.keys(), key=str)
    ]
    return _verdict(rows, history_damage)


def _verify_snapshots(
    spark: SparkSession, published: Published
) -> tuple[dict[SnapshotId, str], dict[SnapshotId, _Books]]:
    """Return why snapshots are damaged, and the books of the others."""
    sizes = [sum(file.bytes for file in found.files) for found in published.manifests.values()]
    directories = [(str(published.directory(snapshot)),) for snapshot in published.manifests]
    check = partial(checked, expected=expected_of(published.head))
    damages: dict[SnapshotId, str] = {}
    books: dict[SnapshotId, _Books] = {}
    for name, is_consistent, why, message_count in verified_parquet.run(
        spark, published.path, directories, sizes, check
    ):
        snapshot = SnapshotId.parse(name)
        if message_count is None:
            damages[snapshot] = why.removeprefix(f"{published.directory(snapshot)}/")
        else:
            books[snapshot] = message_count, None if is_consistent else why
    return damages, books


def invalid_snapshots(
    spark: SparkSession, published: Published
) -> dict[SnapshotId, Damaged | NotConsistent]:
    """Return the damaged and the contradictory snapshots, and why; every byte is read."""
    damages, books = _verify_snapshots(spark, published)
    found: dict[SnapshotId, Damaged | NotConsistent] = {}
    for snapshot in published.manifests:
        if snapshot in damages:
            found[snapshot] = Damaged(damages[snapshot])
        elif (why := books[snapshot][1]) is not None:
            found[snapshot] = NotConsistent(why)
    return found


def _amounts(tables: Sequence[DataFrame], sql: str, over: str) -> _Amounts:
    """Return the caller's aggregate by snapshot; null counts as 0."""
    try:
        sums = [rows.groupBy(SNAPSHOT).agg(F.expr(sql).alias("amount")) for rows in tables]
        found = [row for each in sums for row in each.collect()]
    except PySparkException as error:
        if (damage := verified_parquet.error_of_task(error)) is not None:
            raise damage from error
        raise UsageError(
            f"the SQL over {over} failed: {sql!r}: {first_line(error)}. It must be an aggregate "
            "over one snapshot's rows, such as 'sum(balance)'"
        ) from error
    amounts: _Amounts = {}
    for row in found:
        amount = 0 if row["amount"] is None else row["amount"]
        if isinstance(amount, bool) or not isinstance(amount, Amount):
            raise UsageError(
                f"the SQL over {over} gives {amount!r}, which is not a number: {sql!r}. Use an "
                "aggregate such as 'sum(balance)'"
            )
        amounts[SnapshotId.parse(row[SNAPSHOT])] = amount
    return amounts


def _rows(
    published: Published,
    damages: Mapping[SnapshotId, str],
    books: Mapping[SnapshotId, _Books],
    amounts: Sequence[_Amounts | None],
) -> list[SnapshotAudit]:
    """Return the results for snapshots with a manifest; totals are compared with the first."""
    rows: list[SnapshotAudit] = []
    first: Amount | None = None
    for snapshot, manifest in published.manifests.items():
        if snapshot in damages:
            damage, sequence = damages[snapshot], manifest.sequence
            rows.append(SnapshotAudit(id=snapshot, sequence=sequence, damage=damage))
            continue
        message_count, contradiction = books[snapshot]
        states, messages = (None if of is None else of.get(snapshot, 0) for of in amounts)
        given = [amount for amount in (states, messages) if amount is not None]
        total = _plus(given) if given else None
        first = total if first is None else first
        rows.append(
            SnapshotAudit(
                id=snapshot,
                sequence=manifest.sequence,
                message_count=message_count,
                contradiction=contradiction,
                states_amount=states,
                messages_amount=messages,
                total=total,
                difference=None if total is None or first is None else _difference(total, first),
            )
        )
    return rows


def _plus(amounts: Sequence[Amount]) -> Amount:
    """Add amounts of any kinds; a decimal and a floating point number give the latter."""
    if any(isinstance(amount, float) for amount in amounts):
        return math.fsum(amounts)
    total: Any = sum(amounts)
    return total  # type: ignore[no-any-return]


def _difference(total: Amount, first: Amount) -> Amount:
    """Return how much more `total` is; 0 if they are equal as defined at the top of the module."""
    if total == first:
        return 0
    is_whole = all(amount == amount // 1 for amount in (total, first))
    if not is_whole and math.isclose(total, first, rel_tol=_FLOAT_TOLERANCE):
        return 0
    return _plus([total, -first])


def _verdict(rows: Sequence[SnapshotAudit], history_damage: str | None) -> Audit:
    wrong = [row for row in rows if not row.is_valid]
    if wrong:
        row, more = wrong[0], len(wrong) - 1
        verdict = f"snapshot {row.id}: {_first_fault(row, rows)}"
        verdict += f" ({more} more of {len(rows)} snapshots are wrong)" if more else ""
    elif history_damage is not None:
        verdict = history_damage
    else:
        count = sum(row.message_count for row in rows)
        verdict = f"{len(rows)} snapshots with {count} messages: no byte changed, the books balance"
        if rows[0].total is not None:
            verdict += f", and the total is {rows[0].total} in all of them"
    return Audit(
        ok=not wrong and history_damage is None,
        verdict=verdict,
        snapshots=tuple(rows),
        history_damage=history_damage,
    )


def _first_fault(row: SnapshotAudit, rows: Sequence[SnapshotAudit]) -> str:
    if row.damage or row.contradiction:
        return row.damage or row.contradiction or ""
    first = next(other for other in rows if other.total is not None)
    return (
        f"the total is {row.total} (states {row.states_amount}, messages {row.messages_amount}), "
        f"and in {first.id} it is {first.total}: a difference of {row.difference:+}"
    )
