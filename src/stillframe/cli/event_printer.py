"""Prints the events of a running system, for people or for programs."""

import contextlib
import time
from collections.abc import Callable
from typing import assert_never

from rich.live import Live
from rich.text import Text

from stillframe.cli import output, quantities
from stillframe.cli.snapshot import published
from stillframe.pages.values import plain
from stillframe.runtime import events
from stillframe.store.manifest import Entry

REFRESH_PER_SECOND = 4


def sentence(event: events.Event) -> str:
    """Return an event as people read it."""
    match event:
        case events.EpochBegan(epoch, snapshot):
            text = (
                f"epoch {epoch}: starting {f'from snapshot {snapshot}' if snapshot else 'afresh'}"
            )
        case events.CodeChanged(snapshot, changes):
            lines = "".join(f"\n  {change}" for change in changes)
            text = f"snapshot {snapshot} was taken of other code:{lines}"
        case events.SystemRunning():
            text = _running(event)
        case events.SupervisorReplaced(epoch, seconds):
            text = (
                f"epoch {epoch}: the system had gone on without its supervisor; all processes came "
                f"back, after {quantities.duration(seconds)}"
            )
        case events.OrphansKilled(processes, reason):
            names = ", ".join(processes)
            text = f"{names} had gone on without their supervisor and were ended: {reason}"
        case events.AwaitingProcesses(processes):
            text = f"waiting for {', '.join(processes)} to join: start their programs"
        case events.SnapshotPublished(entry):
            text = published(entry)
        case events.SnapshotAbandoned(abandoned, retried_as):
            text = f"{abandoned}{f'; tried again as {retried_as}' if retried_as else ''}"
        case events.SnapshotSkipped(under_way):
            text = f"a snapshot was due and skipped: {under_way} is still under way"
        case events.ProcessDied(process, cause, story):
            lines = f"\n{story.rstrip()}" if story else ""
            text = f"process {process} died: {cause}; going back to the last snapshot{lines}"
        case (
            events.NotShared(detail)
            | events.ConnectionWarning(detail)
            | events.StoreUnavailable(detail)
            | events.OutputFailed(detail)
        ):
            text = detail
        case _:
            assert_never(event)
    return text


def _running(event: events.SystemRunning) -> str:
    took, processes, state, connections = map(
        quantities.duration, (event.seconds, event.processes_s, event.state_s, event.connections_s)
    )
    spent = f"(processes {processes}, state {state}, connections {connections})"
    if event.restored_from is None:
        return f"epoch {event.epoch}: the system runs, {took} after its start {spent}"
    return (
        f"epoch {event.epoch}: the system runs from snapshot {event.restored_from}, after {took} "
        f"{spent}"
    )


class EventPrinter:
    """Takes events. On a terminal a status line moves meanwhile, which `showing` turns on: epoch,
    processes, snapshots published; of the last one age, latency and how many messages it caught.

    Of snapshots that succeed it writes only the first one of each epoch, and those that a process
    took no part in.

    Args:
        process_count: how many processes the system has.
        is_json: also write every event to stdout, as one line of JSON.

    Attributes:
        unwritten: why no more events are written to stdout; None as long as they are.
        on_unwritten: called once, when an event cannot be written: the system must stop in order,
            because it would continue unseen.
    """

    def __init__(self, *, process_count: int, is_json: bool) -> None:
        self._console = output.words()
        self._process_count = process_count
        self._is_json = is_json
        self._epoch = 0
        self._is_running = False
        self._published_count = 0
        self._last: Entry | None = None
        self._last_at = 0.0
        self.unwritten: OSError | None = None
        self.on_unwritten: Callable[[], None] = lambda: None

    def emit(self, event: events.Event) -> None:
        """Take an event."""
        if self._is_json and self.unwritten is None:
            self._put(event)
        match event:
            case events.EpochBegan(epoch):
                self._epoch, self._is_running = epoch, False
            case events.SystemRunning(epoch) | events.SupervisorReplaced(epoch):
                self._epoch, self._is_running = epoch, True
            case events.ProcessDied():
                self._is_running = False
            case events.SnapshotPublished(entry):
                is_first = self._last is None or self._last.epoch != entry.epoch
                self._last, self._last_at = entry, time.monotonic()
                self._published_count += 1
                if not is_first and not entry.excluded:
                    return
            case _:
                pass
        self.say(sentence(event))

    def _put(self, event: events.Event) -> None:
        try:
            output.put_json({"at": time.time()} | plain(event))
        except OSError as error:
            self.unwritten = error
            self.say(f"the system stops: its events cannot be written to stdout: {error.strerror}")
            self.on_unwritten()

    def say(self, line: str) -> None:
        """Write a line, above the status line if there is one."""
        output.say(line, console=self._console)

    def showing(self) -> contextlib.AbstractContextManager[object]:
        """Show the status line while the body runs, if there is a terminal for it."""
        if self._is_json or not self._console.is_terminal:
            return contextlib.nullcontext()
        return Live(
            self,
            console=self._console,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __rich__(self) -> Text:
        parts = [
            f"epoch {self._epoch}{'' if self._is_running else ' starting'}",
            quantities.count(self._process_count, "process"),
            quantities.count(self._published_count, "snapshot"),
        ]
        if self._last is not None:
            entry = self._last
            age_s = time.monotonic() - self._last_at
            took = quantities.duration(entry.published_at - entry.initiated_at)
            caught = quantities.count(entry.message_count, "message")
            parts.append(f"{entry.id} {age_s:.1f} s ago in {took}, {caught}")
        return Text(" | ".join(parts), no_wrap=True, overflow="ellipsis")
