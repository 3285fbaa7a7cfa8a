"""A system whose processes are services of a pipeline: the supervisor's side.

For each snapshot of the pipeline the system takes its own, so that both are one cut. The
system must not be rolled back alone, because the logs would not be. So a death stops it; then the
pipeline is restored, and the system started again. Processes are notified of a snapshot when that
of the pipeline is published: until then a death can undo what is before its cut.
"""

import asyncio
from collections.abc import Callable

import msgspec

from stillframe.durable_files import shell_command, sync
from stillframe.errors import StoreError, Unavailable, UsageError, describe
from stillframe.model import Abandoned, SnapshotId
from stillframe.pipeline.locks import OBJECT_POLL_S
from stillframe.pipeline.metadata import ObjectMetadata, read_metadata, read_object_metadata
from stillframe.pipeline.pending_snapshot import (
    CutReport,
    Outcome,
    Request,
    SystemCut,
    pending_request,
    services_among,
)
from stillframe.pipeline.snapshot_manifest import SNAPSHOTS, read_manifest, snapshot_path
from stillframe.pipeline.stopped import stopped_service
from stillframe.runtime import events
from stillframe.runtime.coordinator.coordinator import Coordinator
from stillframe.runtime.process.handlers import POLL_S
from stillframe.runtime.process.pipeline_logs import check_unused
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.storage import Version
from stillframe.store.store import Store


class PipelineBinding:
    """Binds the system of a store to the pipeline `root`; UsageError if there is none, or no
    process is a service of it."""

    def __init__(self, root: Location, store: Store) -> None:
        self.root = root
        self._metadata = read_metadata(root)
        self._known: tuple[ObjectMetadata, Version] | None = None
        self._store = store
        self.services = services_among(self._metadata.dataflow, list(store.description.processes))
        self.name = self.services[0]

    @property
    def epoch(self) -> int:
        """The epoch of the pipeline in which the system takes part."""
        return self._metadata.epoch

    def initial_snapshot(self) -> SnapshotId | None:
        """Return the snapshot in the system's store to start from; None for a fresh start.
        UsageError if the pipeline was restored from a snapshot without this system, or a process
        ran alone in this epoch of the pipeline, and left; NotAtRest if a process died in it."""
        for service in self.services:
            resting = stopped_service(self.root, self._metadata, service)
            check_unused(self.root, self._metadata, service, resting)
        if self._metadata.restored_from is None:
            return None
        manifest = read_manifest(self.root, self._metadata.restored_from)
        for cut in manifest.systems:
            if cut.name == self.name:
                if locate(cut.store) != self._store.path.absolute():
                    raise UsageError(
                        f"the pipeline {self.root} was restored from snapshot "
                        f"{manifest.snapshot}, whose fragment of this system is in the store "
                        f"{cut.store}: use that store"
                    )
                return cut.snapshot
        raise UsageError(
            f"the pipeline {self.root} was restored from snapshot {manifest.snapshot}, in which "
            f"{self.name} was not a process of a system: run it as it ran then"
        )

    def died(self, death: events.ProcessDied) -> Unavailable:
        """Return the error with which the system ends when a process has died."""
        return Unavailable(
            f"process {death.process} died: {death.cause}. The system is part of the pipeline "
            f"{self.root} and can only be restored with it: stop its other programs, restore it "
            f"with '{shell_command('pipeline', 'restore', self.root)}', and start the system with "
            f"'{shell_command('restore', self._store.path, '--pipeline', self.root)}'"
        )

    def refusal(self, doing: str) -> UsageError:
        """Return the error for what the system must not do alone."""
        return UsageError(
            f"{doing} is not possible for this system alone, because it is part of the pipeline "
            f"{self.root}; use 'stillframe pipeline' with that directory"
        )

    async def follow(self, coordinator: Coordinator, emit: Callable[[events.Event], None]) -> None:
        """Take the system's part in each snapshot of the pipeline, until cancelled. It is announced
        when that one is published. `emit` receives errors, after which the pipeline's snapshot ends
        by its deadline."""
        last = ours = None
        poll_s = OBJECT_POLL_S if isinstance(self.root, ObjectPath) else POLL_S
        while True:
            try:
                is_published, request = await self._look(last if ours else None)
                if is_published:
                    assert ours is not None
                    coordinator.announce(ours)
                    ours = None
                if (
                    request is not None
                    and request.epoch == self._metadata.epoch
                    and request.snapshot != last
                ):
                    last, ours = request.snapshot, None
                    ours = await self._take_snapshot(coordinator, request, emit)
            except Exception as error:
                emit(events.StoreUnavailable(describe(error)))
            await asyncio.sleep(poll_s)

    async def _look(self, awaited: SnapshotId | None) -> tuple[bool, Request | None]:
        """Return whether the snapshot `awaited` is published, and the pending request."""
        if isinstance(self.root, ObjectPath):
            return await asyncio.to_thread(self._look_at_object, self.root, awaited)
        is_published = awaited is not None and snapshot_path(self.root, awaited).exists()
        if is_published:
            await asyncio.to_thread(sync, self.root / SNAPSHOTS)
        return is_published, pending_request(self.root)

    def _look_at_object(
        self, root: ObjectPath, awaited: SnapshotId | None
    ) -> tuple[bool, Request | None]:
        self._known = metadata, _ = read_object_metadata(root, self._known)
        # A system that was frozen meanwhile, and has lost its place, takes no part any more.
        if metadata.epoch != self._metadata.epoch:
            return False, None
        return awaited is not None and metadata.has_published(awaited), metadata.request

    async def _take_snapshot(
        self, coordinator: Coordinator, request: Request, emit: Callable[[events.Event], None]
    ) -> SnapshotId:
        snapshot = SnapshotId(self.name, coordinator.next_number)
        store = str(self._store.path.absolute())
        cut = SystemCut(name=self.name, store=store, snapshot=snapshot)
        report = CutReport(self.root, request.snapshot, self.name)
        # Before any marker travels: who records for it must know what it is a part of.
        await self._write(report, cut)
        outcome = await coordinator.begin(self.name)
        ended, detail = Outcome.PUBLISHED, ""
        if isinstance(outcome, Abandoned):
            ended, detail = Outcome.ABANDONED, str(outcome)
        try:
            await self._write(report, msgspec.structs.replace(cut, outcome=ended, detail=detail))
        except StoreError as error:
            # It may be there all the same: then the snapshot of the pipeline is published with it.
            emit(events.StoreUnavailable(describe(error)))
        return snapshot

    async def _write(self, report: CutReport, cut: SystemCut) -> None:
        if isinstance(self.root, ObjectPath):
            await asyncio.to_thread(report.write, cut)
        else:
            report.write(cut)
