"""Watches one system, while it runs and afterwards.

It polls the running system over the admin socket and reads the store; the system knows nothing of
it, and no process is polled while no page is open.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from stillframe.errors import StillframeError, Unavailable
from stillframe.model import SnapshotId
from stillframe.pages.snapshot_documents import diff_document, snapshot_document
from stillframe.protocol.stragglers import SENTENCE_COUNT_MAX
from stillframe.runtime.coordinator.snapshot_monitor import TIMELINE_COUNT_MAX
from stillframe.runtime.os_process import is_apart, is_stopped
from stillframe.runtime.run_file import supervisor_of
from stillframe.runtime.supervisor import admin_socket
from stillframe.runtime.supervisor.admin_socket import (
    RestoreSnapshot,
    SystemStatus,
    query_status,
    send_command,
)
from stillframe.storage.location import Location
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.topology import Description
from stillframe.watch import system_document as document
from stillframe.watch.event_feed import EventReader
from stillframe.watch.metrics import MetricSet, SystemCounters, SystemSample, collect_system
from stillframe.watch.predicate_status import PredicateMonitor, PredicateStatus
from stillframe.watch.snapshot_list import store_snapshots
from stillframe.watch.target import (
    NEW_COUNT_MAX,
    POLL_PENDING_S,
    POLL_S,
    Action,
    CreateSavepoint,
    Restore,
    Target,
    TriggerSnapshot,
    action_result,
)

if TYPE_CHECKING:
    from stillframe.watch.snapshot_traces import TraceBuilder  # an extra

READ_S = 0.5
"""Time between two polls of the store, in seconds."""
PAUSE_S_MIN = 0.02
"""The shortest time between two polls when snapshots that come quickly are traced, in seconds."""
ANSWER_S_MAX = 5.0
"""Time in which a system must answer, in seconds."""
EVALUATED_COUNT_MAX = 300
"""How many evaluated snapshots, and naive totals, are kept for the page."""
OVERLAP_COUNT_MAX = 64
"""The snapshot that was published last is among this many with the highest numbers."""

SYSTEM, STORE, PREDICATES, TRACES = "system", "store", "predicates", "traces"


class SystemTarget(Target):
    """One system that is watched: its store, open for reading, and the directory of its event log.

    `status` is its last answer. If there was none, `explanation` says why in a sentence, and
    `unreachable` is the status of its processes: stopped; starting, if its supervisor accepts no
    commands yet, or no more; silent, if it did not answer, or nothing readable. `evaluated` has the
    last evaluated snapshots, by id.
    """

    def __init__(
        self,
        store: Store,
        predicates: PredicateMonitor,
        log: Location | None,
        traces: "TraceBuilder | None" = None,
    ) -> None:
        super().__init__(store_snapshots(store), SYSTEM, STORE, PREDICATES)
        self.store = store
        self.status: SystemStatus | None = None
        self.unreachable = document.STOPPED
        self.explanation = ""
        self.evaluated: dict[str, PredicateStatus] = {}
        self._log = log
        self._traces = traces
        self._predicates = predicates
        self._history = EventReader(store.path)
        self._counters = SystemCounters()
        self._naive: deque[tuple[float, dict[str, int | float | str]]] = deque(
            maxlen=EVALUATED_COUNT_MAX
        )
        # When more snapshots than this wait for evaluation, the oldest are left out.
        self._unevaluated: deque[SnapshotId] = deque(maxlen=NEW_COUNT_MAX)
        self._has_unevaluated = asyncio.Event()
        self._reading = asyncio.Lock()
        self._read_started = 0.0
        self._is_first_read = True
        self._savepoints: dict[str, SnapshotId] = {}

    @property
    def description(self) -> Description:
        """The topology that the system has now."""
        return self.store.description

    async def run(self) -> None:
        """Follow the system until this is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._poll_while_pages_are_open())
                tasks.create_task(self._read_repeatedly())
                tasks.create_task(self._evaluate_new_snapshots())
                if self._traces is not None:
                    tasks.create_task(self._trace_repeatedly(self._traces))
        finally:
            self.stream.close()

    def _describe(self) -> dict[str, Any]:
        description = self.description
        places = {process: index for index, process in enumerate(description.processes)}
        return {
            "kind": "system",
            "store": str(self.store.path),
            "processes": [[name, kind] for name, kind in description.processes.items()],
            "channels": [[places[c.source], places[c.target]] for c in description.channels],
        }

    async def perform(self, action: Action) -> dict[str, Any]:
        """Do it over the admin socket, as the commands do; see ``Target.perform``."""
        match action:
            case TriggerSnapshot(initiator, name):
                return await self._trigger_snapshot(initiator, name)
            case CreateSavepoint(snapshot, name):
                await asyncio.to_thread(self.store.check_savepoint, name)
                return await self._create_savepoint(SnapshotId.parse(snapshot), name)
            case Restore(snapshot):
                chosen = await asyncio.to_thread(
                    lambda: self.store.entry(self.store.find(snapshot))
                )
                done = await send_command(self.store.path, RestoreSnapshot(chosen.id))
                return action_result(
                    f"epoch {done.epoch}: the system was rolled back to snapshot {chosen.id}"
                )
            case _:
                assert_never(action)

    async def _trigger_snapshot(self, initiator: str | None, name: str | None) -> dict[str, Any]:
        if name is not None:
            await asyncio.to_thread(self.store.check_savepoint, name)
        done = await send_command(self.store.path, admin_socket.TriggerSnapshot(initiator))
        if done.entry is None:
            return action_result(str(done.abandoned), is_done=False)
        if name is not None:
            return await self._create_savepoint(done.entry.id, name)
        return action_result(_published_sentence(done.entry), snapshot=str(done.entry.id))

    async def _create_savepoint(self, snapshot: SnapshotId, name: str) -> dict[str, Any]:
        await send_command(self.store.path, admin_socket.CreateSavepoint(snapshot, name))
        sentence = f"snapshot {snapshot} is kept as {name!r}"
        return action_result(sentence, snapshot=str(snapshot))

    def _snapshot_document(self, name: str) -> dict[str, Any]:
        return snapshot_document(self.store, self.store.find(name), log=self._log)

    def _comparison_document(self, first: str, second: str) -> dict[str, Any]:
        return diff_document(self.store, self.store.find(first), self.store.find(second))

    def _past(self) -> dict[str, Any]:
        return super()._past() | {
            "naive": [[at, totals] for at, totals in self._naive],
            "predicates": [document.predicate_document(one) for one in self.evaluated.values()],
        }

    async def _refresh(self) -> None:
        started = time.monotonic()
        await super()._refresh()
        async with self._reading:
            if self._read_started < started:
                await self._read()

    async def _collect(self, metrics: MetricSet) -> None:
        last = max(self.evaluated.values(), key=lambda one: one.at, default=None)
        sample = SystemSample(
            description=self.description,
            epoch=self.store.epoch if self.status is None else self.status.epoch,
            status=self.status,
            process_statuses=self._process_statuses(),
            counts=self._history.counts,
            predicates=last,
            snapshot_count=self.snapshots.count,
            savepoint_count=len(self._savepoints),
        )
        collect_system(metrics, sample, self._counters)
        self.polls.errors[PREDICATES] = last is not None and bool(last.error)
        if self._traces is not None:
            self.polls.errors[TRACES] = self._traces.exporter.is_failing
            self._traces.collect(metrics)

    def _process_statuses(self) -> list[str]:
        return document.process_statuses(
            self.description, self.status, self._history.dead, unreachable=self.unreachable
        )

    async def _poll(self) -> None:
        before, started = self.status, time.monotonic()
        status, unreachable, explanation = None, document.SILENT, ""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                status = await self._observe()
        except Unavailable as error:
            unreachable, explanation = self._presence(), str(error)
        except TimeoutError:
            explanation = f"the system did not answer within {ANSWER_S_MAX:.0f} s"
        except StillframeError as error:
            explanation = f"the system cannot be polled: {error}"
        # All at once: a scrape in between gets either this answer or the one before.
        self.status, self.unreachable, self.explanation = status, unreachable, explanation
        self.polls.add(started)
        self.polls.errors[SYSTEM] = status is None and unreachable == document.SILENT
        if status is not None:
            self._counters.add_messages(status)
        self.stream.retain("about", self._describe())
        is_comparable = (
            before is not None
            and status is not None
            and before.is_running
            and before.epoch == status.epoch
        )
        self.stream.retain("system", self._system_document(before if is_comparable else None))
        if status is not None and status.timelines:
            self.stream.retain("timeline", document.timeline_document(status.timelines[-1]))

    def _presence(self) -> str:
        """Return the status of the processes of a system that accepted no command."""
        supervisor = supervisor_of(self.store.path)
        if supervisor is None:
            return document.STOPPED
        is_unheard = is_stopped(supervisor) or is_apart(supervisor)
        return document.SILENT if is_unheard else document.STARTING

    async def _observe(self) -> SystemStatus:
        """Poll the system; the marker timelines of the last answer are not sent again."""
        known = () if self.status is None else self.status.timelines
        after = max((timeline.ended_at or 0.0 for timeline in known), default=0.0)
        status = await query_status(self.store.path, after)
        timelines = {timeline.snapshot: timeline for timeline in (*known, *status.timelines)}
        latest = tuple(timelines.values())[-TIMELINE_COUNT_MAX:]
        return msgspec.structs.replace(status, timelines=latest)

    def _system_document(self, before: SystemStatus | None) -> dict[str, Any]:
        status, now = self.status, time.time()
        found: dict[str, Any] = {
            "at": now,
            "epoch": None if status is None else status.epoch,
            "is_running": status is not None and status.is_running,
            "unreachable": self.unreachable if status is None else "",
            "explanation": self.explanation,
            "statuses": self._process_statuses(),
        }
        if status is None or not status.is_running:
            return found
        naive = document.exact_amounts(document.naive_totals(self.description, status))
        if naive:
            self._naive.append((now, naive))
        return found | {
            "channels": document.channel_columns(self.description, status, before),
            "pending": document.pending_snapshots(status)[:SENTENCE_COUNT_MAX],
            "naive": naive,
            "quantities_error": document.quantities_error(status),
        }

    async def _poll_while_pages_are_open(self) -> None:
        while True:
            self._is_wanted.clear()
            if not self.stream.subscriber_count:
                await self._is_wanted.wait()
            await self.poll()
            is_pending = self.status is not None and bool(self.status.pending)
            await asyncio.sleep(POLL_PENDING_S if is_pending else POLL_S)

    async def _trace_repeatedly(self, traces: "TraceBuilder") -> None:
        """Poll often enough that the system still has the marker timelines of all that ended
        since."""
        pause_s = POLL_S
        while True:
            async with self._reading:
                await self._read()
            outcomes = dict(self._history.outcomes)
            await self.poll()
            if not self.polls.errors[SYSTEM]:
                count = await asyncio.to_thread(traces.update, outcomes, self.status)
                is_close = count > TIMELINE_COUNT_MAX // 4
                pause_s = max(pause_s / 2, PAUSE_S_MIN) if is_close else min(pause_s * 1.2, POLL_S)
            await asyncio.sleep(pause_s)

    async def _read_repeatedly(self) -> None:
        while True:
            async with self._reading:
                await self._read()
            await asyncio.sleep(READ_S)

    async def _read(self) -> None:
        """Read what is new in the store, and publish it."""
        self._read_started = time.monotonic()
        is_first, savepoints = self._is_first_read, self._savepoints
        new, gone, events, named = await asyncio.to_thread(self._read_store)
        self._publish_events(events)
        if (new or gone or named != savepoints) and not is_first:
            changed = {*named.values(), *savepoints.values()}
            chosen = dict.fromkeys((*new[-NEW_COUNT_MAX:], *sorted(changed)))
            await self._publish_rows(chosen, gone)
        for snapshot in gone:
            self.evaluated.pop(str(snapshot), None)
        if new:
            self._unevaluated.extend(new[-NEW_COUNT_MAX:])
            self._has_unevaluated.set()
        self._is_first_read, self._savepoints = False, named
        self.stream.open()

    def _read_store(
        self,
    ) -> tuple[list[SnapshotId], list[SnapshotId], list[dict[str, Any]], dict[str, SnapshotId]]:
        """Return new snapshots, removed ones, events and savepoints; an error is an event."""
        events: list[dict[str, Any]] = []
        new: list[SnapshotId] = []
        gone: list[SnapshotId] = []
        named: dict[str, SnapshotId] = {}
        is_failing = False
        try:
            events = self._history.poll()
            is_failing = self._history.is_damaged
            new, gone = self.snapshots.poll()
            named = self.store.savepoints
        except StillframeError as error:
            is_failing = True
            events.append({"at": time.time(), "kind": "error", "sentence": str(error)})
        self.polls.errors[STORE] = is_failing
        for snapshot in new[-OVERLAP_COUNT_MAX:] if self._is_first_read else new:
            with contextlib.suppress(StillframeError):
                entry = self.store.entry(snapshot)
                self._counters.add_snapshot(entry, is_new=not self._is_first_read)
        return new, gone, events, named

    async def _evaluate_new_snapshots(self) -> None:
        while True:
            self._has_unevaluated.clear()
            while self._unevaluated:
                snapshot = self._unevaluated.pop()  # the newest first: the page shows it first
                status = await asyncio.to_thread(self._predicates.evaluate, snapshot)
                if status is not None:
                    self.evaluated[status.snapshot] = status
                    while len(self.evaluated) > EVALUATED_COUNT_MAX:
                        del self.evaluated[next(iter(self.evaluated))]
                    self.stream.publish("predicates", document.predicate_document(status))
            await self._has_unevaluated.wait()


def _published_sentence(entry: SnapshotEntry) -> str:
    caught = f"{entry.message_count:,} message{'' if entry.message_count == 1 else 's'}"
    duration_ms = (entry.completed_at - entry.initiated_at) * 1000
    return f"snapshot {entry.id} was taken in {duration_ms:.1f} ms, with {caught} in transit"
