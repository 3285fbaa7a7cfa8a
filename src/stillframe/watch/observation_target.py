"""Watches the observations of services in a directory, while a collector stores new ones and
afterwards.

It only reads the store: it has no connection to the collector, and none to the services. The page
shows the newest observation; retention may remove any of them at any time.
"""

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from stillframe.detect.observations import DEADLOCK
from stillframe.errors import Damaged, StillframeError, UsageError
from stillframe.protocol.calls import CallPlace
from stillframe.store.observation_tables import KINDS
from stillframe.store.observations import (
    QUALITIES,
    ObservationManifest,
    ObservationReader,
    StoredObservation,
)
from stillframe.watch import observation_document as document
from stillframe.watch.metrics import PROCESS_COUNT_MAX, QUANTITY_COUNT_MAX, MetricSet
from stillframe.watch.observation_document import Summary, summarize
from stillframe.watch.snapshot_list import ObservationId, stored_observations
from stillframe.watch.target import NEW_COUNT_MAX, POLL_S, Action, Target

if TYPE_CHECKING:
    from stillframe.watch.observation_traces import ObservationTraces  # an extra

POLL_IDLE_S = 5.0
"""Time between two polls while no page is open and nothing is traced, in seconds: later pages show
these events."""
PLACES = tuple(place.value for place in CallPlace)
UNREADABLE = "unreadable"
"""The quality of a damaged observation."""

STORE, TRACES = "store", "traces"


class ObservationTarget(Target):
    """The observations in a directory; `summary` is that of the newest one that can be read."""

    def __init__(self, store: ObservationReader, traces: "ObservationTraces | None" = None) -> None:
        self._observations = stored_observations(store)
        super().__init__(self._observations, STORE)
        self.store = store
        self.summary: Summary | None = None
        self._traces = traces
        self._qualities: dict[ObservationId, str] = {}
        self._counts = dict.fromkeys((*QUALITIES, UNREADABLE), 0)
        self._last: ObservationManifest | None = None
        self._is_first_read = True

    async def run(self) -> None:
        """Follow the store until this is cancelled."""
        try:
            while True:
                await self.poll()
                is_watched = self.stream.subscriber_count or self._traces is not None
                with contextlib.suppress(TimeoutError):
                    self._is_wanted.clear()
                    async with asyncio.timeout(POLL_S if is_watched else POLL_IDLE_S):
                        await self._is_wanted.wait()
        finally:
            self.stream.close()

    async def poll(self) -> None:
        """Read what is new, and publish it; what the first poll finds is there at first."""
        await super().poll()
        self.stream.open()

    async def perform(self, action: Action) -> dict[str, Any]:
        """Refuse it: observations are for looking only."""
        raise UsageError(
            "observations of services are taken by 'stillframe observe', and cannot be restored"
        )

    def _describe(self) -> dict[str, Any]:
        return {"kind": "observations", "store": str(self.store.path)}

    def _snapshot_document(self, name: str) -> dict[str, Any]:
        found = self.store.load(self.store.find(name))
        return summarize(found, self.store.timed_out()).document

    def _comparison_document(self, first: str, second: str) -> dict[str, Any]:
        raise UsageError("compare observations with 'stillframe diff'")

    async def _poll(self) -> None:
        started, before = time.monotonic(), self.summary
        is_first = self._is_first_read
        new, gone, events, error = await asyncio.to_thread(self._read)
        self._is_first_read = False
        self.polls.add(started)
        self.polls.errors[STORE] = bool(error)
        self._publish_events(events)
        self._publish_errors([error] if error else ())
        if (new or gone) and not is_first:
            await self._publish_rows(new[-NEW_COUNT_MAX:], gone)
        self.stream.retain("about", self._describe())
        if self.summary is not None and self.summary is not before:
            self.stream.retain("observation", self.summary.document)
        self.stream.retain("system", self._system_document(error))

    def _system_document(self, error: str) -> dict[str, Any]:
        is_empty = self.summary is None and not error
        return {
            "at": time.time(),
            "explanation": error or (f"{self.store.path} holds no observation yet" * is_empty),
            "counts": self._counts,
        }

    def _read(
        self,
    ) -> tuple[list[ObservationId], list[ObservationId], list[dict[str, Any]], str]:
        """Return new observations, removed ones, events, and an error, if there is one."""
        new: list[ObservationId] = []
        gone: list[ObservationId] = []
        events: list[dict[str, Any]] = []
        errors: list[str] = []
        try:
            new, gone = self._observations.poll()
            for one in gone:
                self._qualities.pop(one, None)
            for one in new:
                events += self._read_manifest(one, errors)
            if self._traces is not None and not self._is_first_read:
                for one in new:
                    self._trace(self._traces, one)
            events += self._read_newest()
        except StillframeError as error:
            errors.append(str(error))
        # Replaced as a whole: a scrape may read it in another thread.
        self._counts = dict.fromkeys(self._counts, 0) | Counter(self._qualities.values())
        return new, gone, events, errors[-1] if errors else ""

    def _read_manifest(self, one: ObservationId, errors: list[str]) -> list[dict[str, Any]]:
        """Note how much a new observation shows, and return its events. Those that were there
        before the first poll have none."""
        try:
            manifest = self.store.manifest(one.number)
        except UsageError:  # it was removed meanwhile
            return []
        except Damaged as error:
            self._qualities[one] = UNREADABLE
            errors.append(str(error))
            return []
        before, self._last = self._last, manifest
        self._qualities[one] = manifest.quality
        if before is None or self._is_first_read:
            return []
        return document.events_between(before, manifest)

    def _read_newest(self) -> list[dict[str, Any]]:
        """Read the newest observation, unless it is known, and return its events."""
        before = self.summary
        newest = self._observations.ids[-1:]
        if not newest or (before is not None and before.manifest.number == newest[0].number):
            return []
        found = self.store.load_if_present(newest[0].number)
        if found is None:  # it was removed meanwhile
            return []
        self.summary = summarize(found, self.store.timed_out())
        return document.deadlock_events(before, self.summary)

    def _trace(self, traces: "ObservationTraces", one: ObservationId) -> None:
        found: StoredObservation | None = None
        with contextlib.suppress(Damaged):  # the poll has said so
            found = self.store.load_if_present(one.number)
        traces.add(found)

    async def _collect(self, metrics: MetricSet) -> None:
        metrics.put_all("store_observations", self._counts)
        if self.summary is not None:
            _collect_summary(metrics, self.summary)
        if self._traces is not None:
            self.polls.errors[TRACES] = self._traces.exporter.is_failing
            self._traces.collect(metrics)


def _collect_summary(metrics: MetricSet, summary: Summary) -> None:
    manifest = summary.manifest
    metrics.put("last_observation_number", manifest.number)
    metrics.put("last_observation_timestamp_seconds", manifest.completed_at)
    metrics.put("last_observation_duration_seconds", manifest.duration_s)
    metrics.put("last_observation_size_bytes", manifest.byte_count)
    metrics.put("last_observation_exact", manifest.is_exact)
    metrics.put("predicate_holds", summary.deadlock is not None, DEADLOCK)
    services = sorted(summary.services.items())
    for service, count in services[:PROCESS_COUNT_MAX]:
        metrics.put("observed_instances", count, service)
    metrics.put("left_out", len(services[PROCESS_COUNT_MAX:]), "service")
    metrics.put_all("open_calls", dict.fromkeys(PLACES, 0) | summary.places)
    metrics.put("oldest_open_call_seconds", summary.oldest_s)
    metrics.put_all("unresolved_calls", dict.fromkeys(KINDS, 0) | summary.kinds)
    metrics.put_all("listed_timed_out_calls", summary.timed_out.accepted_counts())
    metrics.put("timed_out_calls_total", summary.timed_out.count)
    metrics.put("left_out", len(summary.amounts[QUANTITY_COUNT_MAX:]), "quantity")
    for row in summary.amounts[:QUANTITY_COUNT_MAX]:
        unit = row["unit"]
        metrics.put("conserved_amount", row["total"], unit)
        for place in document.AMOUNT_PLACES:
            metrics.put("observed_amount", row[place], unit, place)
