"""The rules of an outbox, one by one, and over every interleaving of what can happen to it."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import msgspec
import pytest

from stillframe import Channel, Due, Keyed, Message, Outbox, Process, SnapshotId
from stillframe.errors import UsageError
from stillframe.outbox import no_commit
from stillframe.state_codec import StateCodec


class Payment(Message):
    """What is put."""

    invoice: str
    amount: int


class Till(Process):
    """Has an outbox beside a keyed field and a plain one."""

    payments: Outbox[Payment] = field(default_factory=lambda: Outbox(no_commit))
    counts: Keyed[str, int] = field(default_factory=Keyed)
    total: int = 0

    def receive(self, channel: Channel, message: Payment) -> None:
        """Put it."""
        self.payments.put(message)


CODEC = StateCodec(Till)
Kept = Outbox[Any]


def opened(run: str = "run") -> Till:
    """Return a till that runs."""
    till = Till()
    CODEC.open_outboxes(till, "till", run)
    return till


def restored(encoded: bytes, run: str = "another run") -> Till:
    """Return a till that continues from what was recorded."""
    till = Till()
    CODEC.restore(till, encoded)
    CODEC.open_outboxes(till, "till", run)
    return till


def put(outbox: Kept, *names: str) -> list[str]:
    """Put payments, and return their keys."""
    return [outbox.put(Payment(name, 1)) for name in names]


def safe(outbox: Kept, number: int = 1) -> Due[Any]:
    """Return what is due when all that was put is safe."""
    outbox.cut(SnapshotId("till", number))
    outbox.published(SnapshotId("till", number))
    due = outbox.due()
    assert due is not None
    return due


def names(due: Due[Any] | None) -> list[str]:
    """Return which payments are in it."""
    return [] if due is None else [payment.invoice for payment in due.items]


class Receiver:
    """Commits entries and the mark in one transaction, as a database does."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.mark: str | None = None

    def commit(self, due: Due[Any]) -> None:
        """Commit what is still to be committed."""
        due = due.after(self.mark, is_done=lambda payment: payment.invoice in self.rows)
        self.rows += names(due)
        self.mark = due.mark


# --- what is due


def test_entries_wait_for_the_publication_of_a_cut_behind_them() -> None:
    """What was put after the cut waits for another snapshot; an abandoned one makes nothing due."""
    outbox = opened().payments
    put(outbox, "1")
    outbox.cut(SnapshotId("A", 1))
    put(outbox, "2")
    outbox.cut(SnapshotId("A", 2))
    put(outbox, "3")
    assert outbox.due() is None
    outbox.abandon(SnapshotId("A", 2))
    outbox.published(SnapshotId("A", 2))
    assert outbox.due() is None
    outbox.published(SnapshotId("A", 1))
    assert names(outbox.due()) == ["1"]


def test_a_late_notice_makes_nothing_due_again() -> None:
    """Nor does one that comes twice, or after an entry was forgotten."""
    outbox = opened().payments
    for number, name in enumerate("123"):
        put(outbox, name)
        outbox.cut(SnapshotId("A", number))
    outbox.published(SnapshotId("A", 1))
    due = outbox.due()
    assert due is not None
    assert names(due) == ["1", "2"]
    outbox.forget(due)
    outbox.published(SnapshotId("A", 0))
    outbox.published(SnapshotId("A", 1))
    assert outbox.due() is None
    assert [payment.invoice for payment in outbox] == ["3"]


def test_after_a_restore_all_recorded_entries_are_due() -> None:
    """A death goes back no further, so they need no other snapshot; later entries do."""
    till = opened()
    put(till.payments, "1", "2")
    again = restored(CODEC.capture(till)).payments
    put(again, "3")
    assert names(again.due()) == ["1", "2"]


# --- what identifies an entry


def test_the_same_history_gives_the_same_keys_and_no_other_does() -> None:
    """After a restore the keys are as recorded, and so are those of what is put again. Another
    order, process or run gives others, and no two entries of a history share one."""
    till = opened()
    keys = put(till.payments, "1", "2", "2")
    encoded = CODEC.capture(till)
    assert [e.key for e in safe(restored(encoded).payments).entries] == keys
    more = put(till.payments, "4", "5")
    assert put(restored(encoded).payments, "4", "5") == more
    assert len({*keys, *more}) == 5
    assert not {*put(opened().payments, "2", "1")} & {*keys}
    assert not {*put(opened("second run").payments, "1", "2")} & {*keys}
    other = Till()
    CODEC.open_outboxes(other, "other", "run")
    assert not {*put(other.payments, "1", "2")} & {*keys}


def test_what_was_put_before_the_process_ran_gets_keys_of_its_own() -> None:
    """A start state may hold entries: two runs of it must not be taken for one."""
    keys = []
    for run in ("run", "second run"):
        till = Till()
        put(till.payments, "1")
        CODEC.open_outboxes(till, "till", run)
        keys += [entry.key for entry in safe(till.payments).entries]
    assert len({*keys}) == 2


def test_what_was_put_is_a_copy() -> None:
    """What happens to the object later changes no effect."""
    outbox: Outbox[dict[str, int]] = Outbox(no_commit)
    item = {"C1": 1}
    outbox.put(item)
    item["C1"] = 2
    assert list(outbox) == [{"C1": 1}]


# --- what a receiver has


def test_the_mark_tells_what_was_committed() -> None:
    """The same entries again, more of them, or later ones: each is committed once."""
    outbox, receiver = opened().payments, Receiver()
    put(outbox, "1", "2")
    first = safe(outbox)
    receiver.commit(first)
    receiver.commit(first)
    put(outbox, "3")
    receiver.commit(safe(outbox, 2))
    outbox.forget(safe(outbox, 3))
    put(outbox, "4")
    receiver.commit(safe(outbox, 4))
    assert receiver.rows == ["1", "2", "3", "4"]


def test_no_two_entries_are_taken_for_one() -> None:
    """What is put twice in one history is committed twice."""
    outbox, receiver = opened().payments, Receiver()
    put(outbox, "1", "1")
    receiver.commit(safe(outbox))
    assert receiver.rows == ["1", "1"]


def test_what_another_history_committed_is_looked_up_from_then_on() -> None:
    """After a restore by hand what was committed is passed over, in later commits too, and the rest
    is committed; also if as many entries were committed as the restored state has."""
    till, receiver = opened(), Receiver()
    encoded = CODEC.capture(till)
    put(till.payments, "1", "2", "3")
    receiver.commit(safe(till.payments))
    again = restored(encoded).payments
    put(again, "1", "4")
    due = safe(again)
    receiver.commit(due)
    again.forget(due)
    put(again, "2", "3", "5")
    receiver.commit(safe(again, 2))
    assert receiver.rows == ["1", "2", "3", "4", "5"]


def test_a_late_commit_of_an_earlier_epoch_changes_nothing() -> None:
    """Its process was taken for dead inside the commit function; the one of the next epoch has
    committed the same entries, and more. The mark stays that of the next epoch."""
    till, receiver = opened(), Receiver()
    put(till.payments, "1", "2")
    late = safe(till.payments)
    again = restored(CODEC.capture(till)).payments
    receiver.commit(due := safe(again))
    again.forget(due)
    put(again, "3")
    receiver.commit(safe(again, 2))
    mark = receiver.mark
    receiver.commit(late)
    assert (receiver.rows, receiver.mark) == (["1", "2", "3"], mark)
    assert "forked" not in (mark or "")


def test_another_history_looks_up_all_entries_before_it_commits_any() -> None:
    """So a name must be unique in a history: of two in one call both are committed, and of two in
    different calls only the first."""
    till, receiver = opened(), Receiver()
    receiver.mark = "of another history"
    put(till.payments, "1", "1")
    receiver.commit(due := safe(till.payments))
    till.payments.forget(due)
    put(till.payments, "1")
    receiver.commit(safe(till.payments, 2))
    assert receiver.rows == ["1", "1"]


@pytest.mark.parametrize("mark", ["0" * 64, None, ""])
def test_a_mark_of_another_history_is_refused(mark: str | None) -> None:
    """Without a way to look entries up it is an error that names the outbox; also if the mark of a
    history is lost."""
    outbox = opened().payments
    put(outbox, "1")
    outbox.forget(safe(outbox))
    put(outbox, "2")
    due = safe(outbox, 2)
    with pytest.raises(UsageError, match=r"till\.payments: the stored mark .* not of this history"):
        due.after(mark)


# --- limits and errors


def test_an_outbox_is_bounded() -> None:
    """The error names it and says what holds it up: snapshots, or the commit function."""
    till = Till(payments=Outbox(no_commit, count_max=2))
    CODEC.open_outboxes(till, "till", "run")
    put(till.payments, "1", "2")
    with pytest.raises(UsageError, match=r"till\.payments is full: 2 entries .* no snapshot was"):
        put(till.payments, "3")
    due = safe(till.payments)
    with pytest.raises(UsageError, match="its commit function has not returned"):
        put(till.payments, "3")
    till.payments.forget(due)
    put(till.payments, "3")
    assert len(till.payments) == 1


def test_what_is_no_item_is_refused_when_it_is_put() -> None:
    """The error names the outbox, and nothing is added."""
    outbox: Outbox[Any] = opened().payments
    for item in (7, object(), {"invoice": 1}):
        with pytest.raises(UsageError, match=r"till\.payments: .* cannot be put"):
            outbox.put(item)
    assert len(outbox) == 0


def test_it_needs_a_commit_function_and_a_bound() -> None:
    """Each wrong argument is named."""
    with pytest.raises(UsageError, match="give the function that commits"):
        Outbox(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give at least 1"):
        Outbox(no_commit, count_max=0)


def test_processes_cannot_share_one_as_a_default() -> None:
    """A default would be one object of all processes of the class."""
    with pytest.raises(UsageError, match="mutable default"):

        class Shared(Process):
            payments: Outbox[Payment] = Outbox(no_commit)


def test_what_an_epoch_left_without_a_snapshot_is_not_taken_over() -> None:
    """Its entries would happen though the action that put them is undone; a restore replaces
    them."""
    till = opened()
    put(till.payments, "1")
    encoded = CODEC.capture(opened())
    with pytest.raises(UsageError, match=r"till\.payments holds entries of an epoch that ended"):
        CODEC.open_outboxes(till, "till", "second run")
    CODEC.restore(till, encoded)
    CODEC.open_outboxes(till, "till", "third run")
    assert len(till.payments) == 0


# --- as a field


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Outbox, r"with the type of its items: declare 'payments: Outbox\[Payment\]'"),
        (Outbox[Payment] | None, "the whole type of a field"),
        (list[Outbox[Payment]], "the whole type of a field"),
    ],
)
def test_an_outbox_is_the_whole_type_of_a_field(annotation: Any, words: str) -> None:
    """The error names the field."""
    with pytest.raises(UsageError, match=rf"Odd\.payments: .*{words}"):
        StateCodec(type("Odd", (Process,), {"__annotations__": {"payments": annotation}}))


def test_a_field_that_holds_something_else_is_named() -> None:
    """Also two fields that hold one outbox."""
    till = Till()
    till.payments = []  # type: ignore[assignment]
    with pytest.raises(UsageError, match="declared as Outbox and holds a list"):
        CODEC.capture(till)

    class Two(Process):
        """Has two."""

        one: Outbox[int]
        other: Outbox[int]

    same: Outbox[int] = Outbox(no_commit)
    with pytest.raises(UsageError, match="other and one hold the same Outbox"):
        StateCodec(Two).capture(Two(one=same, other=same))


def test_it_is_recorded_readably_with_its_neighbours() -> None:
    """Entries are maps with their items' fields, between fields of other kinds; a restore gives
    items of the declared class, and keeps the function."""
    till = opened()
    [key] = put(till.payments, "C1/1")
    till.counts["C1"] = 1
    till.total = 5
    encoded = CODEC.capture(till)
    found = msgspec.msgpack.decode(encoded)
    assert found["payments"]["entries"] == [{"key": key, "item": ["Payment", "C1/1", 1]}]
    assert (found["payments"]["committed"], found["total"]) == (0, 5)
    receiver = Receiver()
    again = Till(payments=Outbox(receiver.commit))
    CODEC.check(encoded)
    CODEC.restore(again, encoded)
    assert list(again.payments) == [Payment("C1/1", 1)]
    assert again.payments.commit == receiver.commit
    assert dict(again.counts) == {"C1": 1}
    assert CODEC.capture(again) == encoded


def test_a_process_with_entries_is_not_passive() -> None:
    """It will still act: its entries will be committed."""
    till = opened()
    assert till.is_passive()
    put(till.payments, "1")
    assert not till.is_passive()


# --- every interleaving


class Try(msgspec.Struct):
    """A till, its receiver, and the snapshots of the store, newest last."""

    till: Till
    receiver: Receiver
    put_count: int = 0
    snapshot_count: int = 0
    cuts: dict[SnapshotId, bytes] = {}
    told: SnapshotId | None = None
    published: list[tuple[SnapshotId, bytes]] = []
    untold: list[SnapshotId] = []
    death_count: int = 0
    late: Due[Any] | None = None
    returned: bool = False
    steps: tuple[str, ...] = ()


def copied(state: Try) -> Try:
    """Return the same again, sharing nothing that changes."""
    return copy.deepcopy(state)


def choices(state: Try, *, by_hand: bool) -> Iterator[tuple[str, Try]]:
    """Yield every step that can come next, and what it leads to."""

    def step(name: str) -> Try:
        following = twin(state)
        following.steps = (*state.steps, name)
        return following

    if state.put_count < 3:
        new = step("put")
        new.put_count += 1
        # What is put after a death need not be what was put before it.
        new.till.payments.put(Payment(f"{state.put_count}.{state.death_count}", 1))
        yield "put", new
    if state.snapshot_count < 2:
        new = step("cut")
        new.snapshot_count += 1
        snapshot = SnapshotId("till", new.snapshot_count)
        new.cuts[snapshot] = CODEC.capture(new.till)
        new.till.payments.cut(snapshot)
        yield "cut", new
    for snapshot in state.cuts:
        new = step(f"publish {snapshot}")
        encoded = new.cuts.pop(snapshot)
        if not new.published or new.published[-1][0].number < snapshot.number:
            new.published.append((snapshot, encoded))
            new.untold.append(snapshot)
        yield "publish", new
    for snapshot in state.untold[:1]:
        new = step(f"notify {snapshot}")
        new.untold.remove(snapshot)
        new.till.payments.published(snapshot)
        yield "notify", new
    yield from commits(state, step)
    if state.death_count < 2:
        yield "die", died(step("die"))
    if by_hand and not state.returned and len(state.published) > 1:
        new = step("restore by hand")
        new.published = new.published[:1]
        new.returned = True
        yield "restore by hand", died(new)


def commits(state: Try, step: Callable[[str], Try]) -> Iterator[tuple[str, Try]]:
    """Yield every commit that can come next."""
    due = state.till.payments.due()
    if due is not None:
        new = step("commit")
        new.receiver.commit(due)
        new.till.payments.forget(due)
        yield "commit", new
        if state.death_count < 2:  # it dies after the transaction, and forgets nothing
            new = step("commit and die")
            new.receiver.commit(due)
            yield "commit and die", died(new)
        if state.death_count < 2 and state.late is None:  # it is only taken for dead
            new = step("commit late")
            new.late = due
            yield "commit late", died(new)
    if state.late is not None:
        new = step("late commit")
        new.receiver.commit(state.late)
        new.late = None
        yield "late commit", new


def twin(state: Try) -> Try:
    """Return the same, to change it."""
    till, receiver = Till(), Receiver()
    till.payments = twin_of(state.till.payments)
    receiver.rows, receiver.mark = list(state.receiver.rows), state.receiver.mark
    return msgspec.structs.replace(
        state,
        till=till,
        receiver=receiver,
        cuts=dict(state.cuts),
        published=list(state.published),
        untold=list(state.untold),
    )


def twin_of(outbox: Kept) -> Kept:
    """Return the same outbox, with what it knows and does not record."""
    same: Kept = copy.deepcopy(outbox)
    same.name, same._decode, same._safe = outbox.name, outbox._decode, copy.deepcopy(outbox._safe)
    return same


def died(state: Try) -> Try:
    """Return what follows a death: the newest published snapshot, or a fresh start."""
    state.death_count += 1
    state.cuts, state.untold = {}, []
    run = f"run {state.death_count}"
    state.till = restored(state.published[-1][1], run) if state.published else opened(run)
    if state.published:
        # The snapshot counts what was put before it; the rest never happened.
        state.put_count = len(history(state.till, state.receiver))
    else:
        state.put_count = 0
    return state


def history(till: Till, receiver: Receiver) -> list[str]:
    """Return all that this history has put: what was forgotten, and what waits."""
    recorded = till.payments.recorded()
    waiting = [payment.invoice for payment in till.payments]
    return receiver.rows[: recorded["committed"]] + waiting


def visit(*, by_hand: bool) -> tuple[int, set[str]]:
    """Take every step in every order; check each state; return how many there are, and which kinds
    of steps there were."""
    stack = [Try(opened("run 0"), Receiver())]
    seen: set[Any] = set()
    kinds: set[str] = set()
    while stack:
        state = stack.pop()
        mark = (
            CODEC.capture(state.till),
            tuple(sorted(state.till.payments._safe._cuts.items())),
            state.till.payments._safe.count,
            tuple(state.receiver.rows),
            state.receiver.mark,
            tuple(sorted(state.cuts.items())),
            tuple(state.published),
            tuple(state.untold),
            None if state.late is None else (state.late.before, state.late.mark),
            (state.put_count, state.snapshot_count, state.death_count, state.returned),
        )
        if mark in seen:
            continue
        seen.add(mark)
        check(state, by_hand=by_hand)
        for kind, following in choices(state, by_hand=by_hand):
            kinds.add(kind)
            stack.append(following)
    return len(seen), kinds


def check(state: Try, *, by_hand: bool) -> None:
    """Check that the receiver has each effect at most once, and only what this history contains,
    in its order; nothing that was forgotten is missing."""
    rows = state.receiver.rows
    assert len(rows) == len({*rows}), state.steps
    committed = state.till.payments.recorded()["committed"]
    assert len(rows) >= committed, state.steps
    if not state.returned:
        assert rows == history(state.till, state.receiver)[: len(rows)], state.steps
        assert not (state.receiver.mark or "").endswith("forked"), state.steps
    due = state.till.payments.due()
    if due is not None:
        last = twin(state)
        last.receiver.commit(due)
        assert {*names(due)} <= {*last.receiver.rows}, state.steps


def test_every_interleaving_commits_each_entry_once() -> None:
    """Puts, cuts, publications, notices, commits and deaths in every order, with deaths between a
    commit and the forgetting, and commits of processes that were taken for dead: nothing is
    committed twice, too early, or lost, and no mark is taken for one of another history."""
    count, kinds = visit(by_hand=False)
    ends = {"commit", "commit and die", "commit late", "late commit"}
    assert kinds == {"put", "cut", "publish", "notify", "die"} | ends
    assert count > 1_000


def test_no_interleaving_with_a_restore_by_hand_commits_twice() -> None:
    """When somebody goes back to an older snapshot, effects with the name of one that happened do
    not happen again."""
    count, kinds = visit(by_hand=True)
    assert "restore by hand" in kinds
    assert count > 2_000
