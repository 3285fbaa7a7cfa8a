"""Those who look on are told how every process and channel is, and how the markers went."""

import asyncio
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from stillframe import Process, Topology
from stillframe.errors import ProtocolViolation, Unavailable
from stillframe.imports import load_topology
from stillframe.model import (
    Abandoned,
    Fragment,
    IncomingRecord,
    MarkerTimes,
    ProcessState,
    SnapshotId,
)
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.stragglers import NAME_CHARS_MAX, QUANTITY_COUNT_MAX
from stillframe.runtime.coordinator import snapshot_monitor
from stillframe.runtime.coordinator.snapshot_monitor import TIMELINE_COUNT_MAX, SnapshotTimelines
from stillframe.runtime.process.process_runtime import QUICK_S
from stillframe.runtime.supervisor.admin_socket import (
    SystemStatus,
    TriggerSnapshot,
    query_status,
    send_command,
    serve_commands,
)
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from tests.calm import BANK, TOTAL
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Sink, Source

TIMEOUT_S = 60


@pytest.fixture(autouse=True)
def _all_may_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers longer than somebody who looks would: the machine may be busy."""
    monkeypatch.setattr(snapshot_monitor, "ANSWER_S", 5.0)


def counts(observed: SystemStatus) -> list[int]:
    """Return how much every end of every channel has sent or received."""
    statuses = observed.statuses.values()
    return [
        end.count for s in statuses for ends in (s.incoming, s.outgoing) for end in ends.values()
    ]


@pytest.mark.slow
def test_a_running_bank_is_observed(tmp_path: Path) -> None:
    """Counts go up and fit together, each process says what it has, and the wave of a snapshot
    leads from its initiator to every process, with one time for each channel."""
    description = load_topology(BANK).description

    async def main() -> None:
        store = Store.create(tmp_path / "store", description=description, reference=BANK)
        async with (
            asyncio.timeout(TIMEOUT_S),
            Supervisor(BANK, store) as system,
            serve_commands(system),
        ):
            done = await send_command(store.path, TriggerSnapshot("P2"))
            assert done.entry is not None
            first = second = await query_status(store.path)
            while not all(
                now > then for now, then in zip(counts(second), counts(first), strict=True)
            ):
                second = await query_status(store.path)
            (wave,) = second.timelines
            killed = system.children["P3"].pid
            os.kill(killed, signal.SIGKILL)
            while (await query_status(store.path)).epoch == first.epoch:
                pass
            await system.until_running()
            again = await query_status(store.path)
        assert first.is_running
        assert first.statuses.keys() == description.processes.keys()
        for channel in description.channels:
            sent = second.statuses[channel.source].outgoing[channel.target].count
            received = first.statuses[channel.target].incoming[channel.source].count
            assert received <= sent  # which was asked later
        for status in first.statuses.values():
            assert isinstance(status.quantities, dict)
            assert 0 <= status.quantities["money"] <= TOTAL
        assert (wave.snapshot, wave.is_published) == (done.entry.id, True)
        assert wave.times.keys() == wave.fragment_at.keys() == description.processes.keys()
        assert wave.times["P2"].marked_by is None
        for process, times in wave.times.items():
            assert times.came_s.keys() == set(description.incoming(process))
            if process != "P2":
                assert times.marked_by is not None
                assert times.came_s[times.marked_by] == 0.0
            assert wave.initiated_at - 1 < times.cut_at < wave.fragment_at[process] + 1
            assert wave.ended_at is not None
            assert wave.initiated_at <= wave.fragment_at[process] <= wave.ended_at
        assert again.epoch == first.epoch + 1
        assert [w.snapshot for w in again.timelines] == [wave.snapshot]  # of the epoch that ended
        assert wave.epoch == first.epoch
        with pytest.raises(Unavailable):
            await query_status(store.path)
        store.close()

    asyncio.run(main())


ODD = ("raises", "huge", "huger", "slow", "many", "long")


class Odd(Process):
    """Has more than can be shown, or cannot say what it has."""

    what: str = ""

    def conserved(self) -> dict[str, float]:
        """Tell, or fail."""
        if self.what == "raises":
            raise ValueError("no idea")
        if self.what == "huge":
            return {"things": 10**300}
        if self.what == "huger":
            return {"things": 10**400}
        if self.what == "slow":
            time.sleep(2 * QUICK_S)
            return {"things": 1}
        if self.what == "many":
            return {f"thing{number}": 1 for number in range(QUANTITY_COUNT_MAX + 1)}
        return {"x" * (NAME_CHARS_MAX + 1): 1}


def test_a_process_that_cannot_say_what_it_has_says_why(tmp_path: Path) -> None:
    """It goes on, and so does the coordinator, whatever ``conserved`` returns or raises."""

    async def main() -> None:
        odd = {what: Odd(what) for what in ODD}
        async with asyncio.timeout(TIMEOUT_S), LocalSystem(Topology(odd, []), tmp_path) as system:
            under_way, statuses = await system.coordinator.monitor.poll()
            told = {process: status.quantities for process, status in statuses.items()}
            assert under_way == ()
            assert told["raises"] == "process raises: conserved() raised ValueError: no idea"
            assert told["huge"] == {"things": 1e300}
            assert "OverflowError" in str(told["huger"])
            assert told["slow"] == {"things": 1}
            _, again = await system.coordinator.monitor.poll()
            assert "is called again only after" in str(again["slow"].quantities)
            assert f"{QUANTITY_COUNT_MAX + 1} conserved quantities" in str(told["many"])
            assert f"at most {NAME_CHARS_MAX} characters" in str(told["long"])
            assert not isinstance(await system.coordinator.begin("raises"), Abandoned)

    asyncio.run(main())


def test_only_the_timelines_of_the_last_snapshots_are_kept() -> None:
    """Also of those that never end; what a process says of channels it does not have is refused."""
    assembler = Assembler(Topology({"A": Source(), "B": Sink()}, [("A", "B")]).description, epoch=1)
    timelines = SnapshotTimelines()
    for number in range(TIMELINE_COUNT_MAX + 5):
        timelines.started(SnapshotId("A", number), float(number), 1)
    kept = [*range(5, TIMELINE_COUNT_MAX + 5)]
    assert [timeline.snapshot.number for timeline in timelines.latest()] == kept
    incoming = (IncomingRecord("A", 0, ()),)
    part = Fragment(SnapshotId("A", 9), ProcessState("B", "Sink", b""), {}, incoming)
    for times in (
        MarkerTimes(1.0, "B", {}),
        MarkerTimes(1.0, None, {"C": 1.0}),
        MarkerTimes(float("nan"), None, {}),
        MarkerTimes(1.0, "A", {"A": float("inf")}),
    ):
        with pytest.raises(ProtocolViolation, match="markers that it cannot receive"):
            assembler.add(msgspec.structs.replace(part, marker_times=times), 2.0)
    part = msgspec.structs.replace(part, marker_times=MarkerTimes(1.0, "A", {"A": 0.0}))
    assert assembler.add(part, 2.0) is None
    timelines.add_fragment(part, 2.0)
    assert next(t for t in timelines.latest() if t.snapshot.number == 9).fragment_at == {"B": 2.0}
