"""The host for programs with their own event loop, and for a ``Process`` with ``async`` handlers.

The program is inside an atomic action except while it waits in ``async for``, or in ``boundary``:
only there is a marker handled or the state recorded.
"""

import asyncio
import inspect
from collections.abc import Coroutine, Generator
from typing import Any, cast

from stillframe.errors import StillframeError, Unavailable, UsageError, repr_of
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.outbox import Outbox, SafePoint
from stillframe.process import Action, Message, Process
from stillframe.protocol.recorder import Effect
from stillframe.runtime.process.endpoints import Send
from stillframe.runtime.process.handlers import RETURNED, SLICE_S
from stillframe.runtime.process.host import Delivery, Host, forks, leave


class _Watched(Coroutine[Any, Any, None]):
    """Runs the handlers of `host`, and checks for a fork each time they wait."""

    def __init__(self, inner: Coroutine[Any, Any, None], host: "LoopHost") -> None:
        self._inner = inner
        self._host = host

    def send(self, value: Any, /) -> Any:
        """Run until the handler waits."""
        try:
            return self._inner.send(value)
        finally:
            self._check()

    def throw(self, *error: Any) -> Any:
        """Run with an error until the handler waits."""
        try:
            return self._inner.throw(*error)
        finally:
            self._check()

    def close(self) -> None:
        """Close the handler."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._inner.__await__()

    def _check(self) -> None:
        if forks.is_child:
            leave(self._host.process, self._host.where)


class LoopHost(Host):
    """Hands out one message at a time, between boundaries.

    `action` is held during an atomic action. Before it is released, `boundary` is called. `where`
    says which handler was called last.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.action = asyncio.Lock()
        self.where = "its program"
        self._changed = asyncio.Event()
        self._slice_end = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[Any] | None = None
        self._is_published = asyncio.Event()
        self._safe = SafePoint()
        self._waiter_count = 0
        self._waiters: dict[int, asyncio.Future[None]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether an atomic action is in progress."""
        return self.action.locked()

    def fail(self, error: BaseException) -> None:
        """Stop permanently; a program that waits gets the error."""
        super().fail(error)
        self._changed.set()
        assert self.error is not None
        self._dismiss_waiters(self.error)

    async def enter(self) -> None:
        """Begin an action of the program, when the action in progress has ended."""
        await self.action.acquire()
        self._loop_task = asyncio.current_task()

    async def until_safe(self) -> None:
        """Wait until no death can undo what was done before this call. Raises a StillframeError
        if the process cannot continue: then it is unknown whether the work is undone."""
        if self.error is not None:
            raise self.error
        if asyncio.current_task() is self._loop_task:
            raise UsageError(
                f"process {self.process}: until_safe() was called inside an action, which no "
                "snapshot can record before it ends: call it in a separate task"
            )
        self._waiter_count += 1
        number = self._waiter_count
        waiter = self._waiters[number] = self.loop.create_future()
        try:
            await waiter
        finally:
            del self._waiters[number]

    def published(self, snapshot: SnapshotId) -> None:
        """Wake those who wait for `snapshot`, and let its entries be committed."""
        super().published(snapshot)
        self._safe.published(snapshot)
        for number, waiter in self._waiters.items():
            if number <= self._safe.count and not waiter.done():
                waiter.set_result(None)
        self._is_published.set()

    def abandon(self, snapshot: SnapshotId) -> None:
        """Stop recording `snapshot`."""
        super().abandon(snapshot)
        self._safe.abandon(snapshot)

    def _announce_cut(self, snapshot: SnapshotId, effects: list[Effect]) -> None:
        self._safe.cut(snapshot, self._waiter_count)
        super()._announce_cut(snapshot, effects)

    def _dismiss_waiters(self, error: StillframeError) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)

    def begin_commits(self) -> None:
        """Commit the entries of each outbox from now on, when they are safe."""
        for outbox in self.outboxes:
            self._spawn(self._commit(outbox))

    async def _commit(self, outbox: Outbox[Any]) -> None:
        while self.error is None:
            due = outbox.due()
            if due is None:
                self._is_published.clear()
                await self._is_published.wait()
                continue
            # Outside of any action: the process continues meanwhile.
            await self._call(outbox.commit, f"{outbox.name}.commit()", due)
            await self.action.acquire()
            self.boundary()
            self.log_spontaneous_action()
            outbox.forget(due)
            self.end()

    async def close(self) -> None:
        """Cancel what runs for the program, and wait for its end."""
        self.error = self.error or Unavailable(f"process {self.process} has left the system")
        self._dismiss_waiters(self.error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        async def until_failure() -> None:
            try:
                await coroutine
            except BaseException as error:
                # No caller awaits this task. `close` sets the error before it cancels the task, so
                # code of the application made any other cancellation.
                if self.error is None and not isinstance(error, GeneratorExit):
                    self.fail(error)

        watched = _Watched(until_failure(), self)
        task = asyncio.get_running_loop().create_task(watched)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, function: Any, where: str, *arguments: object) -> None:
        self.where = where
        try:
            result = function(*arguments)
            if inspect.isawaitable(result):
                result = await result
            if forks.is_child:
                leave(self.process, where)
            if result is not None:
                raise TypeError(RETURNED)
        except BaseException as error:
            if self.error is not None:  # `close` has cancelled it, or another action failed
                raise
            if arguments and isinstance(arguments[-1], Message):
                where += f", {repr_of(arguments[-1])}"
            failure = self.failure_in(where, error)
            self.fail(failure)
            raise failure from error

    def wake(self) -> None:
        """Handle markers if no action is in progress, and wake the program."""
        if not self.action.locked():
            self.boundary()
        self._changed.set()

    def boundary(self) -> None:
        """Between two actions: flush, and handle markers up to the next message."""
        if self.error is not None:
            return
        try:
            self.flush()
            while self.mailbox and not isinstance(self.mailbox[0], Delivery):
                item = self.mailbox.popleft()
                assert not isinstance(item, Delivery)
                self.step(item)
            if self.log is not None and self.error is None:
                self.log.on_boundary()
        except BaseException as error:
            self.fail(error)

    async def begin_with_message(self) -> tuple[Channel, Message]:
        """Wait for the next message, begin its action (`action` is held then) and return it; raises
        a StillframeError if the process cannot continue."""
        if self.loop.time() > self._slice_end:
            # Messages that are there already must not keep the loop from receiving new ones.
            await asyncio.sleep(0)
            self._slice_end = self.loop.time() + SLICE_S
        while True:
            while (self.is_blocked or not self.mailbox) and self.error is None:
                self._changed.clear()
                await self._changed.wait()
            await self.enter()
            self.boundary()
            if self.mailbox and not self.is_blocked and self.error is None:
                return self._take()
            self.action.release()
            if self.error is not None:
                raise self.error

    async def begin_action(self) -> None:
        """Wait until the channels have room, and begin an action (`action` is held then); raises a
        StillframeError if the process cannot continue."""
        while True:
            while not self.has_room and self.error is None:
                self._changed.clear()
                await self._changed.wait()
            await self.enter()
            self.boundary()
            if self.has_room and self.error is None:
                self.log_spontaneous_action()
                return
            self.action.release()
            if self.error is not None:
                raise self.error

    def log_spontaneous_action(self) -> None:
        """Record in the event log, if any, that an action began without a message."""
        if self.log is not None:
            self.log.action_started()

    def make_send(self) -> Send:
        """Return the function that applications call to send. What a task of the application sends
        between two actions is an action for the event log."""
        send = super().make_send()
        if self.log is None:
            return send

        def send_at_any_time(target: ProcessId, message: Message) -> None:
            if not self.is_busy:
                self.log_spontaneous_action()
            send(target, message)

        return send_at_any_time

    def end(self) -> None:
        """End the action that was begun."""
        self._loop_task = None
        self.boundary()
        self.action.release()
        self._changed.set()

    def _take(self) -> tuple[Channel, Message]:
        item = self.mailbox.popleft()
        assert isinstance(item, Delivery)
        incoming, message = item.incoming, item.messages[0]
        batch = item.batch
        if len(item.messages) > 1:
            singles = _singles(item)
            batch = singles[0].batch
            self.mailbox.extendleft(reversed(singles[1:]))
            item = singles[0]
        self.recorder.receive(incoming.source, batch)
        if self.log is not None:
            self.log.record(self.log.accepting[incoming.source])
        if item.frame_bytes is not None and (sequence := incoming.session.handle(item.frame_bytes)):
            incoming.acknowledge(sequence)
        return incoming.channel, message


def _singles(item: Delivery) -> list[Delivery]:
    """Return one delivery a message; the last one ends the frame."""
    deliveries = [
        Delivery(item.incoming, [message], batch, None)
        for message, batch in zip(item.messages, item.batch.singles(), strict=True)
    ]
    deliveries[-1].frame_bytes = item.frame_bytes
    return deliveries


def has_async_handlers(process: Process) -> bool:
    """Return whether any handler or commit function of `process` is a coroutine function."""
    names = ["start", "receive", "on_published", *(action.name for action in process.actions)]
    commits = [held.commit for held in vars(process).values() if isinstance(held, Outbox)]
    handlers = [*commits, *(getattr(process, name) for name in names)]
    return any(map(inspect.iscoroutinefunction, handlers))


class AsyncHandlerHost(LoopHost):
    """Runs a ``Process`` that has ``async`` handlers: one action at a time, from start to end."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._application = cast(Process, self.subject)

    def begin(self, *, is_fresh: bool) -> None:
        """Call ``start`` on a fresh start, then receive and act. `action` must be held: nothing may
        come before ``start``."""
        self._spawn(self._run(is_fresh=is_fresh))
        self.begin_commits()

    def published(self, snapshot: SnapshotId) -> None:
        """Notify the application that `snapshot` was published, and commit what is safe now."""
        super().published(snapshot)
        self._spawn(self._by_itself(self._application.on_published, "on_published", snapshot))

    async def _run(self, *, is_fresh: bool) -> None:
        if is_fresh:
            self.log_spontaneous_action()
            await self._call(self._application.start, "start()")
        self.end()
        for _ in range(self.replayed_count):
            await self._receive_one()
        for action in self._application.actions:
            self._spawn(self._act(action))
        while True:
            await self._receive_one()

    async def _receive_one(self) -> None:
        channel, message = await self.begin_with_message()
        where = f"receive() on channel {channel}"
        await self._call(self._application.receive, where, channel, message)
        self.end()

    async def _act(self, action: Action) -> None:
        loop = asyncio.get_running_loop()
        period_s = action.period_ms / 1000
        due = loop.time() + period_s
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._by_itself(getattr(self._application, action.name), action.name)
            due = max(due + period_s, loop.time())

    async def _by_itself(self, function: Any, name: str, *arguments: object) -> None:
        await self.begin_action()
        await self._call(function, f"{name}()", *arguments)
        self.end()
