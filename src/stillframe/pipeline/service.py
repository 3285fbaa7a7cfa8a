"""A Python program as a service of a pipeline, reading and writing its logs.

One iteration of its loop is one atomic action; between iterations, and only there, a snapshot may
record the fields of its state.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from stillframe.errors import UsageError
from stillframe.pipeline.joined import Joined, Left, codec_of, holding_place
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.participant_logs import ServiceLogs
from stillframe.pipeline.pending_snapshot import Request
from stillframe.pipeline.stopped import OwnRecord
from stillframe.state_codec import StateCodec
from stillframe.storage.location import Location, locate


class JoinedService(Joined[pa.Table]):
    """A service's view of its pipeline: ``for`` to receive, ``append`` to send.

    ``boundary``, ``receive`` and ``for`` raise Refused if the pipeline was restored: join again.
    """

    def __init__(
        self,
        name: str,
        logs: ServiceLogs,
        codec: StateCodec,
        state: object,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name, codec, state)
        self._check = check
        self._logs = logs

    def append(self, channel: str, table: pa.Table) -> None:
        """Append the records of `table` to a channel. It is part of the current action.

        Raises:
            UsageError: this service writes no such channel, or the columns are not those declared.
            StoreError: the disk is full or failed; nothing was appended. An object store that did
                not answer may have appended it: then the next call, or the end, is an Unavailable.
            Unavailable: another program appended to this channel, or see above.
        """
        self._logs.append(channel, table)

    @property
    def positions(self) -> dict[str, int]:
        """The position of this service on each log that it reads."""
        return self._logs.positions()

    def _between_actions(self) -> None:
        self._check_leaving()
        self._check()
        self._logs.report()
        self._limits = self._logs.at_boundary(self._record)

    def _take(self) -> tuple[str, pa.Table] | None:
        return self._logs.take(self._limits)

    def _wait(self) -> None:
        time.sleep(self._logs.poll_s)

    def _record(self, request: Request) -> None:
        content: dict[str, Any]
        try:
            content = {"service": self.state()}
        except UsageError as error:
            content = {"failure": f"service {self.id}: {error}"}
        self._logs.submit(request, self.positions, **content)


@contextlib.contextmanager
def join(name: str, *, pipeline: str | Location, state: object) -> Iterator[JoinedService]:
    """Take the place of a service: see ``Pipeline.join_service``."""
    root = locate(pipeline)
    codec = codec_of(read_metadata(root), name, state)
    with holding_place(root, name) as lock:
        again = "restore the pipeline from its last snapshot and start the service again"
        check = functools.partial(lock.check_held, "service", name, remedy=again)
        metadata = read_metadata(root)
        record = OwnRecord(root, metadata, name)
        stopped = record.stopped()
        positions = metadata.starts[name] if stopped is None else stopped[0]
        logs = ServiceLogs(root, name, metadata, positions)
        me = JoinedService(name, logs, codec, state, check)
        if stopped is not None:
            codec.restore(state, stopped[1].encoded)
        record.write()
        with contextlib.suppress(Left):
            yield me
        logs.check_end()
        record.write(me.positions, me.state())
