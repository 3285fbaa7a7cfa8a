"""The commands about the snapshots of a store: ``list``, ``show`` and ``events`` show them,
``snapshot``, ``savepoint`` and ``delete`` change them, ``verify``, ``detect`` and ``diff`` check
them.

The store has one writer: if a system runs on it, that one is asked.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from itertools import chain, islice
from operator import attrgetter
from typing import Any, assert_never

import uvloop
from rich.console import Console
from rich.live import Live
from rich.table import Table

from stillframe.cli import observations, output, quantities
from stillframe.cli.command import (
    Commands,
    argument,
    conclude,
    end_with_failure,
    flag,
    option,
)
from stillframe.cli.options import (
    CLASSES,
    INITIATOR,
    OptionalName,
    SnapshotName,
    StorePath,
)
from stillframe.detect import predicate
from stillframe.errors import Damaged, NotConsistent, Unavailable, UsageError
from stillframe.json_values import plain
from stillframe.model import ChannelState, GlobalState, ProcessId, Snapshot, SnapshotId
from stillframe.protocol.stragglers import PendingSnapshot
from stillframe.runtime.supervisor import admin_socket
from stillframe.storage.location import Location
from stillframe.storage.opened import requests_to
from stillframe.store import history as store_history
from stillframe.store.copying import copy_store
from stillframe.store.diff import SnapshotDiff, diff_snapshots
from stillframe.store.history import HistoryEvent, readable_history
from stillframe.store.layout import is_published
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.store.tables import DecodedMessage, fields_of, messages_of
from stillframe.topology import Description, Topology

MESSAGE_COUNT_MAX = 3
"""Maximum messages of a channel that are printed."""
BOOKS_COLUMNS = ("channel", "sent", "received", "in channel")
BOOKS_COUNTS = ("sent_count", "received_count", "message_count")
AGAIN_S = 0.5
"""Interval between polls of a system, in seconds."""

LIST_COLUMNS: output.Columns[SnapshotEntry] = {
    "snapshot": attrgetter("id"),
    "savepoint": lambda entry: ", ".join(entry.savepoints),
    "published": lambda entry: quantities.moment(entry.published_at),
    "in transit": lambda entry: entry.message_count,
    "paused for": lambda entry: quantities.duration(entry.pause_s),
    "encoded in": lambda entry: quantities.duration(entry.capture_s),
    "recorded in": lambda entry: quantities.duration(entry.completed_at - entry.initiated_at),
    "published after": lambda entry: quantities.duration(entry.published_at - entry.initiated_at),
    "size": lambda entry: quantities.size(entry.bytes),
    "epoch": lambda entry: str(entry.epoch),
    "restore point": lambda entry: "yes" if entry.is_restore_point else "no",
    "processes": lambda entry: str(entry.process_count),
    "channels": lambda entry: str(entry.channel_count),
    "based on": lambda entry: ", ".join(map(str, entry.bases)),
    "chain": lambda entry: str(entry.chain_length) if entry.bases else "",
}

app = Commands()


@app.add("list money", "list seen", name="list")
def list_snapshots(path: StorePath) -> None:
    """List the snapshots of a store in the order of publishing, or the observations of services."""
    if (seen := observations.reader_of(path)) is not None:
        observations.list_observations(seen)
        return
    store = Store.open(path)
    entries, damages = store.listing()
    current = None
    try:
        current = store.current()
    except (Damaged, UsageError):
        if not damages:
            raise
    document: dict[str, Any] = {
        "store": store.path,
        "epoch": store.epoch,
        "current": current and current.id,
        "snapshots": entries,
        "damaged": [{"id": one, "detail": str(damage)} for one, damage in damages.items()],
    }
    if store.is_remote:
        document["requests"] = requests_to(path)
    output.answer(document, lambda: _put_list(store, entries, current, has_none=not damages))
    if damages:
        end_with_failure(*map(str, damages.values()))


def _put_list(
    store: Store, entries: list[SnapshotEntry], current: SnapshotEntry | None, *, has_none: bool
) -> None:
    if has_none and not entries:
        output.report(f"the store {store.path} holds no snapshot yet")
        return
    output.put_table("", LIST_COLUMNS, entries, texts=3)
    output.report(*(f"{e.id}{without(e.excluded)}" for e in entries if e.excluded))
    point = "from none: name one" if current is None else f"from {current.id}"
    output.report(f"{quantities.count(len(entries), 'snapshot')}; a restore starts {point}")
    output.say_requests(store.path)


@app.add("show money P1-17 --books", "show money --live", "show seen 17")
def show(
    path: StorePath,
    name: OptionalName = None,
    books: bool = flag("--books", "Show only the message counts."),
    live: bool = flag(
        "--live",
        "Show pending snapshots of the running system and what delays them, until all have ended.",
    ),
) -> None:
    """Show the contents of a snapshot, by default the newest: process states, message counts and
    messages in transit. Of an observation: states of instances, open and unresolved calls."""
    if (seen := observations.reader_of(path)) is not None:
        observations.refuse_options(("--live", live), ("--books", books))
        observations.show_observation(seen, name)
        return
    if live and (name is not None or books):
        raise UsageError("--live shows pending snapshots: leave out SNAPSHOT and --books")
    store = Store.open(path)
    if live:
        with contextlib.suppress(KeyboardInterrupt):
            if output.wants_json():
                done = ask(path, admin_socket.GetPendingSnapshots())
                output.put_json({"epoch": done.epoch, "pending": done.pending})
            else:
                uvloop.run(_follow(path))
        return
    snapshot = store.load(_newest(store) if name is None else store.find(name))
    description = store.description_of(snapshot.id)
    if output.wants_json():
        output.put_json(_snapshot_document(snapshot, description, only_books=books))
        return
    recorded_s = snapshot.completed_at - snapshot.initiated_at
    output.report(
        f"snapshot {snapshot.id}: epoch {snapshot.epoch}, initiated "
        f"{quantities.moment(snapshot.initiated_at)}, recorded in {quantities.duration(recorded_s)}"
        f"{without(snapshot.excluded)}"
    )
    if books:
        put_books(snapshot.state)
        return
    for kind, columns in description.states.items():
        states = [state for state in snapshot.state.processes if state.kind == kind]
        names = [column.name for column in columns]
        rows = [
            (state.process, *(output.cell(fields.get(name)) for name in names))
            for state in states
            for fields in [fields_of(state)]
        ]
        output.put_table(f"processes: {kind}", ["process", *names], rows)
    _put_channels(snapshot, description)


def _newest(store: Store) -> SnapshotId:
    entries = store.entries()
    if not entries:
        raise UsageError(f"the store {store.path} holds no snapshot yet: take one")
    return entries[-1].id


def _snapshot_document(
    snapshot: Snapshot, description: Description, *, only_books: bool
) -> dict[str, Any]:
    channels = books_document(snapshot.state)
    document: dict[str, Any] = {
        "id": snapshot.id,
        "epoch": snapshot.epoch,
        "initiated_at": snapshot.initiated_at,
        "completed_at": snapshot.completed_at,
        "excluded": snapshot.excluded,
        "channels": channels,
    }
    if only_books:
        return document
    document["processes"] = [
        {"process": state.process, "kind": state.kind, "state": fields_of(state)}
        for state in snapshot.state.processes
    ]
    for shown, state in zip(channels, snapshot.state.channels, strict=True):
        shown["messages"] = _first_messages(state, description)
        shown["messages_left_out_count"] = state.message_count - len(shown["messages"])
    return document


def _first_messages(state: ChannelState, description: Description) -> list[DecodedMessage]:
    return list(islice(messages_of(state, description), MESSAGE_COUNT_MAX))


def _put_channels(snapshot: Snapshot, description: Description) -> None:
    def messages(state: ChannelState) -> str:
        first = _first_messages(state, description)
        shown = [
            f"{message.number}: {message.kind}("
            + ", ".join(f"{name}={output.cell(value)}" for name, value in message.fields.items())
            + ")"
            for message in first
        ]
        left_out = state.message_count - len(first)
        return ", ".join(shown) + (f" and {left_out:,} more" if left_out else "")

    columns: output.Columns[ChannelState] = {
        "channel": attrgetter("channel"),
        "first messages": messages,
        "sent": attrgetter("sent_count"),
        "received": attrgetter("received_count"),
        "in channel": attrgetter("message_count"),
    }
    output.put_table("channels, counts in messages", columns, snapshot.state.channels, texts=2)
    output.report(
        f"{quantities.count(snapshot.state.message_count, 'message')} in transit; at most "
        f"{MESSAGE_COUNT_MAX} of each channel are shown, and {output.VALUE_LENGTH_MAX} characters "
        "of each value (--json has the values whole, messages.parquet has every message)"
    )


def books_document(state: GlobalState) -> list[dict[str, Any]]:
    """Return the books as JSON shows them."""
    return [
        {"channel": channel.channel} | {count: getattr(channel, count) for count in BOOKS_COUNTS}
        for channel in state.channels
    ]


def put_books(state: GlobalState) -> None:
    """Write the books as a table, with their sum."""
    books = books_document(state)
    sums = (sum(one[name] for one in books) for name in BOOKS_COUNTS)
    rows = [*(tuple(one.values()) for one in books), ("all", *sums)]
    output.put_table("books, in messages", BOOKS_COLUMNS, rows)


@app.add("events money")
def events(path: StorePath) -> None:
    """List the events of a system: starts, failures and the outcome of each snapshot."""
    Store.open(path)
    found, damages = readable_history(path)
    lines = [line for line in found if not isinstance(line.what, store_history.Rollover)]
    told = (f"{quantities.moment(line.at)}  {sentence(line.what)}" for line in lines)
    output.answer(
        lambda: {
            "store": path,
            "history": [{"at": line.at} | plain(line.what) for line in lines],
            "damaged": [{"detail": str(damage)} for damage in damages],
        },
        lambda: output.put_lines(told),
    )
    if not output.wants_json():
        output.report(quantities.count(len(lines), "event"))
    if damages:
        end_with_failure(*map(str, damages))


def sentence(what: HistoryEvent) -> str:
    """Return an event of the history as text."""
    match what:
        case store_history.EpochBegan(epoch, restored_from):
            origin = f"snapshot {restored_from}" if restored_from else "the initial states"
            text = f"epoch {epoch} began from {origin}"
        case store_history.TakenOver(epoch):
            text = f"epoch {epoch} continues: a new supervisor took it over"
        case store_history.ProcessDied(process, cause):
            text = f"process {process} died: {cause}"
        case store_history.SnapshotBegan(snapshot):
            text = f"snapshot {snapshot} began"
        case store_history.SnapshotPublished(snapshot):
            text = f"snapshot {snapshot} was published"
        case store_history.SnapshotRemoved(snapshot):
            text = f"snapshot {snapshot} was removed"
        case store_history.SnapshotAbandoned():
            text = str(what)
        case store_history.WriterChanged():
            text = "another program opened the store for writing"
        case store_history.Rollover():
            text = "older events are in the file before"
        case _:
            assert_never(what)
    return text


Shown = tuple[PendingSnapshot, ...]


def ask(path: Location, command: admin_socket.Request) -> admin_socket.Done:
    """Have the system that runs on the store at `path` carry out a command."""
    return uvloop.run(admin_socket.send_command(path, command, notice=output.say))


async def _follow(path: Location) -> None:
    console = output.words()
    if output.is_lively(console) and sys.stdout.isatty():
        with Live(console=console, transient=True) as live:
            async for shown, now in _poll(path, console):
                live.update(_live_table(shown, now))
    else:
        announced: dict[SnapshotId, str] = {}
        async for shown, now in _poll(path, console):
            _put_changes(shown, announced, now)
    output.report("no snapshot is pending")


async def _poll(path: Location, console: Console) -> AsyncIterator[tuple[Shown, float]]:
    """Yield what is pending, and the time by the clock of the snapshots, until nothing is; say of
    each snapshot how it ended."""
    before: Shown = ()
    while True:
        done = await admin_socket.send_command(
            path, admin_socket.GetPendingSnapshots(), notice=output.say
        )
        shown = done.pending
        present = {one.snapshot for one in shown}
        for ended in (one.snapshot for one in before if one.snapshot not in present):
            # To the console that shows the table, which would else be drawn over it.
            output.say(_outcome(path, ended), console=console)
        if not shown:
            return
        yield shown, done.now
        before = shown
        await asyncio.sleep(AGAIN_S)


def _outcome(path: Location, snapshot: SnapshotId) -> str:
    words = "was published" if is_published(path, snapshot) else "is no longer pending"
    return f"snapshot {snapshot} {words}"


def _put_changes(shown: Shown, announced: dict[SnapshotId, str], now: float) -> None:
    """Print a line for each snapshot that has changed apart from its time."""
    for one in shown:
        # As of the same moment for all polls, so that the words change with the causes alone.
        words = "; ".join((*one.missing, *one.sentences(0.0)))
        if announced.get(one.snapshot) != words:
            announced[one.snapshot] = words
            missing = f"{_age(one, now)}; missing: {', '.join(one.missing)}"
            line = f"snapshot {one.snapshot}: pending for {missing}"
            output.put_lines(["; ".join((line, *one.sentences(now)))])


def _age(pending: PendingSnapshot, now: float) -> str:
    return quantities.duration(max(0.0, now - pending.initiated_at))


def _live_table(shown: Shown, now: float) -> Table:
    columns: output.Columns[PendingSnapshot] = {
        "snapshot": attrgetter("snapshot"),
        "pending for": lambda one: _age(one, now),
        "time left": lambda one: quantities.duration(max(0.0, one.deadline - now)),
        "missing": lambda one: ", ".join(one.missing),
        "waits for": lambda one: "\n".join(one.sentences(now)),
    }
    return output.table(columns, shown, texts=len(columns))


@app.add("snapshot money --initiator P2")
def snapshot(path: StorePath, initiator: str | None = INITIATOR) -> None:
    """Take a snapshot of a running system and print its id. Exit 1 if it is abandoned."""
    Store.open(path)  # says so if there is none
    done = ask(path, admin_socket.TriggerSnapshot(initiator))
    document = {"epoch": done.epoch, "entry": done.entry, "abandoned": done.abandoned}
    entry = done.entry
    if entry is None:
        output.answer(document)
        end_with_failure(str(done.abandoned))
    output.answer(document, lambda: output.put_lines([str(entry.id)]))
    output.say(published(entry))


@app.add("savepoint money before-upgrade", "savepoint money audited --snapshot P1-17")
def savepoint(
    path: StorePath,
    name: str = argument("NAME", "Name of the savepoint."),
    of: str | None = option(
        "SNAPSHOT",
        "Existing snapshot to keep. The system need not run.  [default: take one now]",
        "--snapshot",
    ),
    initiator: str | None = INITIATOR,
) -> None:
    """Take a snapshot of a running system, or choose an existing one, and keep it under a name
    until it is deleted. Exit 1 if the snapshot is abandoned."""
    store = Store.open(path)
    store.check_savepoint(name)
    if of is None:
        done = ask(path, admin_socket.TriggerSnapshot(initiator))
        if done.entry is None:
            output.answer({"savepoint": None, "entry": None, "abandoned": done.abandoned})
            end_with_failure(str(done.abandoned))
        chosen = done.entry.id
    else:
        chosen = store.find(of)
    try:
        ask(path, admin_socket.CreateSavepoint(chosen, name))
    except Unavailable:
        with contextlib.closing(Store.open_writer(path)) as writer:
            writer.save(chosen, name)
    entry = Store.open(path).entry(chosen)
    document = {"savepoint": name, "entry": entry, "abandoned": None}
    output.answer(document, lambda: output.put_lines([str(chosen)]))
    output.say(f"savepoint {name}: {published(entry)}; it is kept until 'stillframe delete'")


@app.add("delete money before-upgrade")
def delete(path: StorePath, name: SnapshotName) -> None:
    """Delete a snapshot, or a savepoint with its snapshot. Snapshots that hold changes since it
    stay complete. The newest snapshot and the one that a restore uses are kept."""
    chosen = Store.open(path).find(name)
    try:
        reason = ask(path, admin_socket.DropSnapshot(name)).detail
    except Unavailable:
        with contextlib.closing(Store.open_writer(path)) as writer:
            reason = writer.drop(name)
    output.answer({"snapshot": chosen, "is_deleted": reason is None, "reason": reason})
    if reason is None:
        output.report(f"snapshot {chosen} was deleted")
    else:
        output.report(f"savepoint {name} was deleted; snapshot {chosen} is kept: it {reason}")


def without(excluded: Mapping[ProcessId, SnapshotId]) -> str:
    """Say which processes took no part in a snapshot; nothing if all did."""
    return "".join(
        f"; {process} took no part: its state is from {snapshot}"
        for process, snapshot in excluded.items()
    )


def published(entry: SnapshotEntry) -> str:
    """Say what a published snapshot is."""
    by_name = "; it overlapped another and is not a restore point: to restore it, name it"
    return (
        f"snapshot {entry.id}: {quantities.count(entry.message_count, 'message')} in transit, "
        f"recorded in {quantities.duration(entry.completed_at - entry.initiated_at)}, "
        f"published after {quantities.duration(entry.published_at - entry.initiated_at)}, "
        f"{quantities.size(entry.bytes)}{without(entry.excluded)}"
        f"{'' if entry.is_restore_point else by_name}"
    )


@app.add("verify money")
def verify(path: StorePath, name: OptionalName = None) -> None:
    """Check every byte and the message counts of a snapshot, or the calls of an observation, by
    default of all. Exit 1 if something is wrong."""
    try:
        if (seen := observations.reader_of(path)) is not None:
            observations.verify_observations(seen, name)
            return
        store = Store.open(path)
        if name is None:
            output.verify_all(store.path, "snapshot", store.verify_all, attrgetter("bytes"))
            return
        snapshot = store.find(name)
        store.verify(snapshot)
        state = store.load(snapshot).state
        document = {"is_consistent": True, "snapshot": snapshot, "channels": books_document(state)}
        output.answer(document, lambda: put_books(state))
        size = quantities.size(store.entry(snapshot).bytes)
        output.report(
            f"PASS: snapshot {snapshot} is consistent, and its {size} are what was written"
        )
    except (Damaged, NotConsistent) as error:
        kind = type(error).__name__
        output.answer({"is_consistent": False, "error": kind, "detail": str(error)})
        end_with_failure(str(error))


@app.add("store copy money s3://bucket/money", name="copy")
def copy(
    source: StorePath,
    target: Location = argument("TARGET", "Directory or address of the copy."),
) -> None:
    """Copy a store to another place, from or to an object store. Every byte is verified, and no
    system may run on the store meanwhile. Delete the original to move it."""
    if observations.reader_of(source) is not None:
        raise UsageError(
            f"{source} holds observations of services, and only snapshots are copied",
            remedy="while no collector runs, copy all its files as they are, such as with 'cp -r' "
            "to another directory, or with 'aws s3 sync' inside S3",
        )
    with output.progress_bar("copying snapshots") as update:
        entries = copy_store(source, target, lambda _, total: update(total=total, advance=1))
    byte_count = sum(entry.bytes for entry in entries)
    document = {"store": target, "snapshot_count": len(entries), "byte_count": byte_count}
    output.answer(document)
    output.report(
        f"copied {quantities.count(len(entries), 'snapshot')}, {quantities.size(byte_count)}, to "
        f"{target}"
    )


@app.add(
    "detect dinner deadlock",
    "detect money loss",
    "detect money 'select sum(paid_count) > 1000 from processes'",
)
def detect(
    path: StorePath,
    name: str = argument(
        "PREDICATE",
        "termination, deadlock, loss (since the oldest snapshot), MODULE:FUNCTION, "
        "or an SQL query. The function takes a view of a snapshot and returns True "
        "or False. The query returns true or false from the tables processes, "
        "channels and messages.",
    ),
    reference: str | None = CLASSES,
) -> None:
    """Check whether a stable predicate holds in the newest snapshot, and since which snapshot.
    Exit 1 if it does not hold, and 3 if that is not decided: it is not stable, or loss has nothing
    to compare with. Of observations of services: deadlock in each of them, SQL where the tables
    that it reads are complete, and the others in those that are exact. A function takes an
    observation."""
    if (observed := observations.reader_of(path)) is not None:
        observations.refuse_options(("--topology", reference))
        observations.detect_observations(observed, name)
        return
    store = Store.open(path)
    entries = predicate.entries_of_now(store)
    if not entries:
        raise UsageError(f"the store {store.path} holds no snapshot yet: take one")

    def load() -> Topology:
        return predicate.topology_of_store(
            store, reference, store.description_of(entries[0].id).hash
        )[1]

    evaluations = []
    with output.progress_bar("evaluating snapshots", total=len(entries)) as update:
        # Within the bar: this may read the oldest snapshot.
        evaluate = predicate.resolve_predicate(name, store, load)
        for entry in entries:
            if (seen := predicate.if_present(entry, evaluate)) is not None:
                evaluations.append(seen)
            update(advance=1)
    if not evaluations:
        raise UsageError("every snapshot was deleted meanwhile: try again")
    held = [seen for seen in evaluations if seen.verdict.holds]
    broken = predicate.not_stable(evaluations)
    # One that overlaps with the newest may show what that one does not: both are true of now.
    shown = held[-1] if held else evaluations[-1]
    first = min(held, key=lambda seen: seen.completed_at, default=None)
    document, sentence = said_of_now(name, shown, first, broken, len(evaluations))
    if name == "loss" and len(store.entries()) == 1:
        document, sentence = nothing_to_compare(document)
    output.answer(document)
    conclude(document["holds"], sentence, yes="yes", no="no")


def said_of_now(
    name: str,
    shown: predicate.Evaluation | None,
    since: predicate.Evaluation | None,
    broken: tuple[predicate.Evaluation, predicate.Evaluation] | None,
    snapshot_count: int,
) -> tuple[dict[str, Any], str]:
    """Return whether a predicate holds now, according to its evaluations in the present epoch. The
    result is JSON and a sentence to follow yes, no or not decided; both name the evaluation to
    show, the first in which it held, and two that contradict each other."""
    document = {
        "predicate": name,
        "holds": None if shown is None or broken is not None else since is not None,
        "found": shown and shown.verdict.sentence,
        "snapshot": shown and shown.snapshot,
        "first": since and since.snapshot,
        "snapshot_count": snapshot_count,
        "not_stable": broken and [seen.snapshot for seen in broken],
    }
    if broken is not None:
        return document, not_stable_sentence(name, *broken)
    if shown is None:
        return document, f"no snapshot of the present epoch could be evaluated for {name}"
    if since is None:
        return document, f"{name} does not hold in {shown.snapshot}: {shown.verdict.sentence}"
    count = quantities.count(snapshot_count, "snapshot")
    return document, (
        f"{name} holds in {shown.snapshot}, and has since {since.snapshot}, of {count}: "
        f"{shown.verdict.sentence}"
    )


def nothing_to_compare(document: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return what to say instead if loss was asked of the one snapshot that there is."""
    sentence = (
        f"loss compares with the oldest snapshot, and there is none but {document['snapshot']}: "
        "take another one"
    )
    return document | {"holds": None, "found": sentence}, sentence


def not_stable_sentence(name: str, held: predicate.Evaluation, lost: predicate.Evaluation) -> str:
    """Say, after ``not decided: ``, what two evaluations show of a predicate that is not stable."""
    return (
        f"{name} is not stable: it held in snapshot {held.snapshot} and not in {lost.snapshot}, "
        "which was initiated when that one was complete, so the present state is unknown; in "
        f"{lost.snapshot}: {lost.verdict.sentence}"
    )


@app.add("diff money P1-16 P1-17")
def diff(
    path: StorePath,
    before: str = argument("A", "Id of the first snapshot, or number of an observation."),
    after: str = argument("B", "Id of the second snapshot, or number of an observation."),
) -> None:
    """Compare the process states and channels of two snapshots, or the instances and calls of two
    observations. Exit 1 if they differ."""
    if (seen := observations.reader_of(path)) is not None:
        observations.diff_observations(seen, before, after)
        return
    store = Store.open(path)
    found = diff_snapshots(store, store.find(before), store.find(after))
    fields, channels = found.fields, found.channels
    output.answer(
        {"is_equal": found.is_equal, "fields": fields, "channels": channels},
        lambda: _put_difference(before, after, found),
    )
    if found.is_equal:
        output.report(f"{before} and {after} record the same states and the same messages")
        return
    output.report(
        f"{before} and {after} differ in {quantities.count(len(fields), 'field')} of processes and "
        f"{quantities.count(len(channels), 'channel')}"
    )
    end_with_failure()


def _put_difference(before: str, after: str, found: SnapshotDiff) -> None:
    if fields := found.fields:
        rows = [(d.process, d.field, *output.pair_of_cells(d.before, d.after)) for d in fields]
        output.put_table("processes", ["process", "field", before, after], rows, texts=2)
    if found.channels:
        columns = [f"{what}, {name}" for what in ("sent", "received", "in it") for name in "AB"]
        notes = {True: " (other messages)", False: ""}
        counts = [
            (d.channel + notes[d.is_same_count], *chain(*zip(d.before, d.after, strict=True)))
            for d in found.channels
        ]
        title = f"channels, counts in messages: A is {before}, B is {after}"
        output.put_table(title, ["channel", *columns], counts)
