"""Operating-system processes that go on with changed code: money and messages in transit."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stillframe.detect.predicate import places_of, total
from stillframe.detect.view import view_of
from stillframe.errors import UsageError
from stillframe.examples import shards
from stillframe.imports import load_topology
from stillframe.model import Snapshot, SnapshotId
from stillframe.runtime import events
from stillframe.runtime.supervisor.config import SupervisorConfig
from stillframe.runtime.supervisor.supervisor import Supervisor
from stillframe.store.store import Store
from tests.runtime.watch import Watch, take

pytestmark = pytest.mark.slow

Doing = Callable[[Supervisor, Watch], Coroutine[Any, Any, None]]


def run(name: str, store: Store, doing: Doing, **options: Any) -> Watch:
    """Run a topology of the example on `store` until `doing` is done."""
    watch = Watch()

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Supervisor(
                f"stillframe.examples.shards:{name}",
                store,
                SupervisorConfig(**options),
                emit=watch.emit,
            ) as system,
        ):
            await doing(system, watch)

    asyncio.run(main())
    return watch


def new_store(path: Path) -> Store:
    """Make a store of two shards."""
    return Store.create(path / "store", description=shards.two.description)


def money(snapshot: Snapshot, name: str) -> float:
    """Return how much money there is, in accounts and on its way."""
    topology = load_topology(f"stillframe.examples.shards:{name}")
    return total(places_of(view_of(snapshot, topology))["money"])


async def fullest(system: Supervisor) -> Snapshot:
    """Take snapshots until one has caught money on its way."""
    while True:
        found = await take(system)
        if found.state.message_count:
            return found


def test_split_and_merge_back(tmp_path: Path) -> None:
    """Two shards become four and two again, with messages on the channels; no money is lost, and
    the old snapshots stay what they were."""
    store = new_store(tmp_path)
    taken: dict[str, Snapshot] = {}

    async def begin(system: Supervisor, watch: Watch) -> None:
        taken["two"] = await fullest(system)

    async def go_on(system: Supervisor, watch: Watch) -> None:
        taken["four"] = await fullest(system)
        # What follows rests on that one, not on a snapshot of the code before.
        taken["later"] = await take(system)
        os.kill(system.children["S3"].pid, signal.SIGKILL)
        assert (await watch.until_epoch(3)).restored_from == taken["later"].id
        taken["four again"] = await fullest(system)

    async def come_back(system: Supervisor, watch: Watch) -> None:
        taken["merged"] = await fullest(system)

    run("two", store, begin)
    split = run("four", store, go_on, may_migrate=True)
    merged = run("two", store, come_back, may_migrate=True)
    assert {
        name: money(snapshot, "two") for name, snapshot in taken.items() if name[0] in "tm"
    } == {"two": shards.TOTAL, "merged": shards.TOTAL}
    for name in ("four", "later", "four again"):
        assert money(taken[name], "four") == shards.TOTAL
    (changed,) = split.of(events.CodeChanged)
    said = [str(change) for change in changed.changes]
    assert "processes: S2, S3: new" in said
    assert f"conserved: {shards.TOTAL} money before and after" in said
    assert merged.of(events.CodeChanged)
    assert store.verify_all(lambda entry, count: None) == len(store.entries())
    assert store.load(taken["two"].id) == taken["two"]
    store.close()


def test_a_death_before_the_first_new_snapshot(tmp_path: Path) -> None:
    """The system goes back to the old snapshot once more, by the same way and without being asked;
    so does a supervisor that comes back."""
    store = new_store(tmp_path)
    taken: list[SnapshotId] = []

    async def begin(system: Supervisor, watch: Watch) -> None:
        taken.append((await fullest(system)).id)

    async def die(system: Supervisor, watch: Watch) -> None:
        os.kill(system.children["S0"].pid, signal.SIGKILL)
        assert (await watch.until_epoch(3)).restored_from == taken[0]

    async def look(system: Supervisor, watch: Watch) -> None:
        assert money(await take(system), "four") == shards.TOTAL

    run("two", store, begin)
    assert len(run("four", store, die, may_migrate=True).of(events.CodeChanged)) == 2
    run("four", store, look)
    store.close()


def test_other_code_needs_somebody_who_agrees(tmp_path: Path) -> None:
    """Without it the error says what is different and what to do; live, nobody is disturbed."""
    store = new_store(tmp_path)
    taken: list[SnapshotId] = []

    async def begin(system: Supervisor, watch: Watch) -> None:
        taken.extend([(await take(system)).id, (await take(system)).id])

    async def go_on(system: Supervisor, watch: Watch) -> None:
        with pytest.raises(UsageError, match="processes: S2, S3: new"):
            await system.restore(taken[0])
        assert store.epoch == 2

    run("two", store, begin)
    with pytest.raises(UsageError, match=r"S2, S3: new.* --dry-run'.*--migrate"):
        run("four", store, go_on)
    assert store.epoch == 1
    run("four", store, go_on, may_migrate=True)
    store.close()


def test_code_that_is_changed_under_a_running_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that comes back with other code than its system says so, and is not let in."""
    source = tmp_path / "under.py"
    code = (
        "import stillframe\n"
        "class Idle(stillframe.Process):\n"
        "    {field}: int = 0\n"
        "idle = stillframe.Topology({{'A': Idle()}}, [])\n"
    )
    source.write_text(code.format(field="count"))
    monkeypatch.syspath_prepend(tmp_path)
    topology = load_topology("under:idle")
    store = Store.create(tmp_path / "store", description=topology.description)

    async def main() -> None:
        async with asyncio.timeout(60), Supervisor("under:idle", store) as system:
            await take(system)
            source.write_text(code.format(field="other_count"))
            os.kill(system.children["A"].pid, signal.SIGKILL)
            await system.finished

    try:
        with pytest.raises(UsageError, match="code of under:idle was changed while the system ran"):
            asyncio.run(main())
    finally:
        del sys.modules["under"]
    store.close()
