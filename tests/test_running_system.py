"""``run``: a real system that a Python program starts and controls."""

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stillframe
from stillframe import SnapshotEntry, Topology
from stillframe.errors import StillframeError, Unavailable, UsageError
from stillframe.imports import reference_of
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.pipeline import Manifest
from stillframe.runtime import events
from stillframe.runtime.os_process import identify, is_alive
from stillframe.runtime.supervisor.admin_socket import (
    RestoreSnapshot,
    TriggerSnapshot,
    send_command,
)
from stillframe.store.store import Store
from tests.runtime import programs
from tests.runtime.mixed import START
from tests.runtime.programs import rally
from tests.runtime.test_pipeline_binding import minting, money, new_pipeline

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent


def test_a_program_runs_a_system(tmp_path: Path) -> None:
    """It takes a snapshot and a savepoint, rolls the system back, and stops it after a last
    snapshot; what it starts then continues there."""
    path = tmp_path / "store"
    seen: list[events.Event] = []
    with stillframe.run(rally, store=path, interval_s=None, on_event=seen.append) as system:
        assert (system.is_running, system.epoch) == (True, 1)
        first = system.snapshot("B")
        assert isinstance(first, SnapshotEntry)
        assert first.id.initiator == "B"
        kept = system.savepoint("kept")
        assert isinstance(kept, SnapshotEntry)
        assert kept.savepoints == ("kept",)
        system.restore(first.id)
        assert (system.is_running, system.epoch) == (True, 2)
        assert not system.wait(timeout_s=0)
        system.snapshot()
        system.delete("kept")
        assert system.store.savepoints == {}
        with pytest.raises(UsageError, match="there is no snapshot A-99"):
            system.delete("A-99")
        assert isinstance(system.savepoint("kept"), SnapshotEntry)
    assert not system.is_running
    last = system.stop()
    assert isinstance(last, SnapshotEntry)
    assert last.epoch == 2
    hits = system.store.load(last.id).processes["A"].hit_count
    with stillframe.run(rally, store=path, restore="newest") as system:
        taken = system.snapshot()
        assert isinstance(taken, SnapshotEntry)
        assert system.store.load(taken.id).processes["A"].hit_count >= hits
        system.restore("kept")
    assert [type(one).__name__ for one in seen].count("SystemRunning") == 2


def test_it_works_where_an_event_loop_is_running(tmp_path: Path) -> None:
    """As in a notebook: in a cell, and in a coroutine without blocking its loop."""

    async def cell() -> None:
        with stillframe.run(rally, store=tmp_path / "store", interval_s=None) as system:
            assert isinstance(system.snapshot(), SnapshotEntry)
            taken = await asyncio.to_thread(system.snapshot)
            assert isinstance(taken, SnapshotEntry)

    asyncio.run(cell())


CELLS = """
import asyncio, stillframe
from tests.runtime.programs import rally

system = stillframe.run(rally, store="rally.store", interval_s=None)
system
# %%
system.snapshot().id
# %%
(await asyncio.to_thread(system.savepoint, "kept")).savepoints
# %%
from stillframe import Process, Topology

class Idle(Process):
    n: int = 0

here = Topology({"A": Idle()}, [])
try:
    stillframe.run(here, store="here.store")
except stillframe.UsageError as error:
    print(error)
# %%
system.stop().id
"""


def test_it_works_in_the_kernel_of_a_notebook(tmp_path: Path) -> None:
    """In cells, whose loop is running, and awaited in one; a topology of a cell is refused."""
    pytest.importorskip("nbclient", reason="needs the extra 'notebook'")
    cells: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "source": cell,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for cell in CELLS.split("# %%\n")
    ]
    notebook = tmp_path / "run.ipynb"
    notebook.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})
    )
    here = {"PYTHONPATH": str(ROOT), "JUPYTER_NO_CONFIG": "1"}
    subprocess.run(
        [str(Path(sys.executable).with_name("jupyter")), "execute", "--inplace", notebook.name],
        cwd=tmp_path,
        env={**os.environ, **here, "IPYTHONDIR": str(tmp_path / "ipython"), "HOME": str(tmp_path)},
        capture_output=True,
        timeout=120,
        check=True,
    )
    shown = [
        "".join(output.get("text") or output["data"]["text/plain"])
        for cell in json.loads(notebook.read_text())["cells"]
        for output in cell["outputs"]
    ]
    assert shown[:3] == [
        "<system of rally.store, running>",
        "SnapshotId(initiator='A', number=1)",
        "('kept',)",
    ]
    assert "defined in this script or notebook" in shown[3]
    assert shown[4] == "SnapshotId(initiator='A', number=3)"


def test_snapshots_are_periodic_and_old_ones_are_removed(tmp_path: Path) -> None:
    """And processes write an event log, where the program says."""
    published = threading.Semaphore(0)

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.SnapshotPublished):
            published.release()

    store, log = tmp_path / "store", tmp_path / "log"
    with stillframe.run(
        rally, store=store, interval_s=0.05, initiators=["B"], keep=1, log=log, on_event=on_event
    ) as system:
        for _ in range(4):
            assert published.acquire(timeout=30)
    assert {one.id.initiator for one in system.store.snapshots()} == {"B"}
    assert len(system.store.snapshots()) < 5
    assert list(log.rglob("*.parquet"))


def test_the_commands_reach_a_system_that_a_program_runs(tmp_path: Path) -> None:
    """``stillframe snapshot`` asks it over the same socket. An error has its fields there, too."""
    path = tmp_path / "store"
    with stillframe.run(rally, store=path, interval_s=None):
        done = asyncio.run(send_command(path, TriggerSnapshot(None)))
        with pytest.raises(UsageError, match="there is no snapshot A-99") as caught:
            asyncio.run(send_command(path, RestoreSnapshot(SnapshotId("A", 99))))
    assert done.entry is not None
    assert (caught.value.path, caught.value.snapshot) == (str(path), "A-99")


def test_without_a_last_snapshot_nothing_more_is_published(tmp_path: Path) -> None:
    """The program decides; stopping twice is once."""
    system = stillframe.run(rally, store=tmp_path / "store", interval_s=None)
    assert system.stop(last_snapshot=False) is None
    assert system.stop() is None
    assert system.wait()
    assert system.store.snapshots() == []
    with pytest.raises(Unavailable, match="the system has ended: it was stopped"):
        system.snapshot()


def test_a_used_store_is_no_fresh_start(tmp_path: Path) -> None:
    """The error names the argument that goes on; so does one that asks for too much."""
    path = tmp_path / "store"
    with stillframe.run(rally, store=path, interval_s=None):
        pass
    with pytest.raises(UsageError, match=r"run\(\.\.\., restore='newest'\)"):
        stillframe.run(rally, store=path)
    with pytest.raises(UsageError, match="there is no snapshot A-99"):
        stillframe.run(rally, store=path, restore="A-99")
    with pytest.raises(UsageError, match="no process 'Z'"):
        stillframe.run(rally, store=path, restore="newest", initiators=["Z"])
    with pytest.raises(UsageError, match="on_incomplete is 'hope': use one of abandon, retry"):
        stillframe.run(rally, store=path, on_incomplete="hope")
    with pytest.raises(UsageError, match="does not exist"):
        stillframe.run(rally, store=tmp_path / "nothing", restore="newest")
    assert not (tmp_path / "nothing").exists()
    with stillframe.run(rally, store=path, restore="newest"):
        pass  # what was refused has left the store free


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"interval_s": -1}, "interval_s is -1: give a number of seconds above 0"),
        ({"interval_s": 0}, "interval_s is 0: give"),
        ({"interval_s": float("nan")}, "interval_s is nan: give"),
        ({"timeout_s": 0}, "timeout_s is 0: give"),
        ({"timeout_s": float("inf")}, "timeout_s is inf: give"),
        ({"marker_linger_s": -1}, "marker_linger_s is -1: give 0 to 1 second"),
        ({"marker_linger_s": 2}, "marker_linger_s is 2: give 0 to 1 second"),
        ({"max_abandoned": -1}, "max_abandoned is -1: give 0 or more"),
        ({"keep": 0}, "keep is 0: give 1 or more"),
    ],
)
def test_a_number_out_of_range_is_refused(tmp_path: Path, wrong: dict[str, Any], text: str) -> None:
    """Before anything is started or written, as the options of the command are."""
    with pytest.raises(UsageError, match=text):
        stillframe.run(rally, store=tmp_path / "store", **wrong)
    assert not (tmp_path / "store").exists()


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    """By the number of the process that uses it."""
    path = tmp_path / "store"
    with stillframe.run(rally, store=path, interval_s=None) as system:
        system.snapshot()
        with pytest.raises(Unavailable, match=f"process {os.getpid()}, is running"):
            stillframe.run(rally, store=path, restore="newest")


def test_what_ends_the_system_is_told_by_wait_and_by_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a handler that raises each time; at the end of the body, too."""
    monkeypatch.setenv(programs.LATE_VARIABLE, str(tmp_path / "late"))
    system = stillframe.run(programs.raising_later, store=tmp_path / "store", interval_s=None)
    (tmp_path / "late").touch()
    with pytest.raises(StillframeError, match="it is too late") as told, system:
        system.wait()
    with pytest.raises(Unavailable, match=r"the system has ended: .*it is too late"):
        system.snapshot()
    with pytest.raises(StillframeError) as again:
        system.stop()
    assert again.value is told.value


def test_a_system_that_cannot_start_raises_and_leaves_the_store_free(tmp_path: Path) -> None:
    """After as many attempts as the commands make."""
    path = tmp_path / "store"
    with pytest.raises(StillframeError, match="nowhere to begin"):
        stillframe.run(programs.raising_at_start, store=path)
    with pytest.raises(StillframeError, match="nowhere to begin"):
        stillframe.run(programs.raising_at_start, store=path)


def test_a_listener_cannot_call_the_system_and_may_end_it(tmp_path: Path) -> None:
    """It runs in the system's thread, which would wait for itself."""
    system: stillframe.RunningSystem | None = None

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.SnapshotPublished):
            assert system is not None
            system.snapshot()

    system = stillframe.run(rally, store=tmp_path / "store", interval_s=None, on_event=on_event)
    system.snapshot()
    with pytest.raises(UsageError, match="cannot be called from on_event"):
        system.wait()


def test_an_abandoned_snapshot_is_a_value(tmp_path: Path) -> None:
    """With its reason, and who was missing."""
    stubborn = "tests.runtime.programs:stubborn"
    with stillframe.run(
        stubborn, store=tmp_path / "store", interval_s=None, timeout_s=0.5
    ) as system:
        outcome = system.savepoint("never", "A")
        assert isinstance(outcome, Abandoned)
        assert (outcome.reason, outcome.missing) == (Reason.DEADLINE, ("B",))
        assert system.store.savepoints == {}
        assert isinstance(system.stop(), Abandoned)


def test_a_system_that_is_part_of_a_pipeline_continues_with_it(tmp_path: Path) -> None:
    """The pipeline takes the snapshots, the last one included, and says where to start."""
    pipeline = new_pipeline(tmp_path)
    run = functools.partial(
        stillframe.run, "tests.runtime.mixed:system", store=tmp_path / "store", timeout_s=30
    )
    with minting(pipeline), run(pipeline=pipeline.path) as system:
        with pytest.raises(UsageError, match="pipeline"):
            system.snapshot()
        last = system.stop()
    assert isinstance(last, Manifest)
    assert money(pipeline, last) == START
    pipeline.restore()
    with minting(pipeline), run(pipeline=pipeline.path) as system:
        assert system.epoch == 2
        again = system.stop()
    assert isinstance(again, Manifest)
    assert money(pipeline, again) == START


def test_a_program_joins_a_system_that_another_thread_starts(tmp_path: Path) -> None:
    """``run`` returns when the external process has joined."""
    path = tmp_path / "store"
    waits = threading.Event()

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.AwaitingProcesses):
            waits.set()

    async def join() -> None:
        async with stillframe.join(
            "J", topology=programs.only_joining, store=path, state=programs.Books()
        ) as me:
            joined.set()
            with pytest.raises(Unavailable):
                async for _ in me:
                    pass

    joined = threading.Event()
    joining = threading.Thread(target=lambda: waits.wait(30) and asyncio.run(join()))
    joining.start()
    with stillframe.run(programs.only_joining, store=path, on_event=on_event) as system:
        assert joined.wait(30)
        assert isinstance(system.snapshot(), SnapshotEntry)
    joining.join()


PROGRAM = """
    import sys
    from stillframe import Process, Topology, run

    class Idle(Process):
        n: int = 0

    here = Topology({"A": Idle()}, [])
    run(here, store=sys.argv[1])
"""


def test_a_topology_of_the_script_itself_is_refused_with_a_remedy(tmp_path: Path) -> None:
    """No other process can import it from there; a notebook's module is the same."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = _python(str(script), str(tmp_path / "store"))
    assert done.returncode == 1
    assert "defined in this script or notebook" in done.stderr
    assert "from here_topology import here" in done.stderr
    assert not (tmp_path / "store").exists()


def test_a_topology_that_is_in_no_module_is_refused() -> None:
    """Such as one that a function made."""
    with pytest.raises(UsageError, match="defined in no module"):
        reference_of(Topology({"A": programs.Sink()}, []))


def test_a_topology_is_found_where_its_classes_are() -> None:
    """Though other modules, such as this one, have imported it."""
    assert reference_of(rally) == "tests.runtime.programs:rally"


def test_a_program_that_forgets_to_stop_leaves_nothing_running(tmp_path: Path) -> None:
    """The system ends with Python, without a last snapshot, and without a word."""
    program = (
        "import sys, stillframe\n"
        "from tests.runtime.programs import rally\n"
        "system = stillframe.run(rally, store=sys.argv[1], interval_s=None)\n"
        "system.restore(system.snapshot().id)\n"
        "print(*(child.pid for child in system._system.children.values()))\n"
    )
    done = _python("-c", program, str(tmp_path / "store"))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(stillframe.open_store(tmp_path / "store").snapshots()) == 1
    pids = done.stdout.split()
    assert len(pids) == 2
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    with stillframe.run(rally, store=tmp_path / "store", restore="newest") as system:
        assert system.epoch == 3


RUN = """
    import sys, stillframe
    from tests.runtime import programs

    system = stillframe.run(getattr(programs, sys.argv[1]), store=sys.argv[2], interval_s=None)
    print("runs", *(child.pid for child in system._system.children.values()), flush=True)
    system.wait()
"""


def test_processes_outlive_the_program_and_are_taken_over(tmp_path: Path) -> None:
    """After a SIGKILL of the program, another one continues in the same epoch; without
    ``take_over`` they would be ended."""
    with _begun("rally", tmp_path / "store") as program:
        assert program.stdout is not None
        pids = map(int, program.stdout.readline().split()[1:])
        children = [known for known in map(identify, pids) if known is not None]
        program.kill()
    with stillframe.run(rally, store=tmp_path / "store", interval_s=None, take_over=True) as system:
        assert system.epoch == 1
        assert [is_alive(child) for child in children] == [True, True]
        assert isinstance(system.snapshot(), SnapshotEntry)
    assert [is_alive(child) for child in children] == [False, False]


@pytest.mark.parametrize("name", ["rally", "only_joining"])
def test_ctrl_c_ends_a_program_that_waits_for_its_system(tmp_path: Path, name: str) -> None:
    """While it runs, and while it starts: here it waits for another program to join."""
    with _begun(name, tmp_path / "store") as program:
        if name == "rally":
            assert program.stdout is not None
            assert program.stdout.readline().startswith("runs")
        else:
            _until((tmp_path / "store" / "running.json").exists, program)
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=30) != 0
        assert program.stderr is not None
        assert program.stderr.read().endswith("KeyboardInterrupt\n")
    assert not (tmp_path / "store" / "running.json").exists()


TERMINATED = """
    import signal, sys, stillframe
    from tests.runtime.programs import rally

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with stillframe.run(rally, store=sys.argv[2], interval_s=None) as system:
        print("runs", flush=True)
        system.wait()
"""


def test_sigterm_as_an_exception_stops_in_order(tmp_path: Path) -> None:
    """As the documents say: after a last snapshot."""
    with _started(TERMINATED, "rally", str(tmp_path / "store")) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("runs")
        program.terminate()
        assert program.wait(timeout=30) == 0
    assert not (tmp_path / "store" / "running.json").exists()
    assert len(stillframe.open_store(tmp_path / "store").snapshots()) == 1


CHILD = """
    import atexit, os, sys, stillframe
    from tests.runtime.programs import rally

    with stillframe.run(rally, store=sys.argv[1], interval_s=None) as system:
        for call in (atexit._run_exitfuncs, system.snapshot, system.wait, system.stop):
            child = os.fork()
            if not child:
                try:
                    call()
                except stillframe.Unavailable as error:
                    print(error, flush=True)
                    os._exit(3)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print(system.snapshot().id, flush=True)
"""


def test_a_child_of_the_program_is_told_that_the_system_is_not_its_own(tmp_path: Path) -> None:
    """It ends as other programs do, and the system of its parent goes on."""
    done = _python("-c", textwrap.dedent(CHILD), str(tmp_path / "store"))
    told = ["the system is run by the parent of this process, and only that can use it", "3"]
    assert done.stdout.splitlines() == ["0", *told, *told, *told, "A-1"]
    assert done.stderr == ""


def test_a_call_that_a_stop_overtakes_raises_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an error of asyncio, though the loop of the system is closed before its store."""
    closes, close = threading.Event(), Store.close

    def close_late(store: Store) -> None:
        closes.set()
        threading.Event().wait(0.3)
        close(store)

    system = stillframe.run(rally, store=tmp_path / "store", interval_s=None)
    monkeypatch.setattr(Store, "close", close_late)
    stopping = threading.Thread(target=system.stop, kwargs={"last_snapshot": False})
    stopping.start()
    assert closes.wait(30)
    with pytest.raises(Unavailable, match="the system has ended: it was stopped"):
        system.snapshot()
    stopping.join()


def test_a_second_ctrl_c_stops_without_the_last_snapshot(tmp_path: Path) -> None:
    """It does not wait for the deadline of that, and nothing stays."""
    program = """
        import sys, stillframe

        def on_event(event):
            print(type(event).__name__, flush=True)

        stubborn = "tests.runtime.programs:stubborn"
        with stillframe.run(
            stubborn, store=sys.argv[1], interval_s=None, timeout_s=600, on_event=on_event
        ) as system:
            print("runs", flush=True)
            system.wait()
    """
    with _started(program, str(tmp_path / "store")) as ended:
        assert ended.stdout is not None
        while ended.stdout.readline() != "runs\n":
            pass
        ended.send_signal(signal.SIGINT)
        _until(
            lambda: "SnapshotBegan" in (tmp_path / "store" / "history.ndjson").read_text(), ended
        )
        ended.send_signal(signal.SIGINT)
        assert ended.wait(timeout=30) != 0
        assert ended.stderr is not None
        assert ended.stderr.read().endswith("KeyboardInterrupt\n")
    assert not (tmp_path / "store" / "running.json").exists()


def _until(condition: Callable[[], bool], program: "subprocess.Popen[str]") -> None:
    while not condition():
        assert program.poll() is None, program.communicate()
        os.sched_yield()


def _begun(name: str, store: Path) -> "subprocess.Popen[str]":
    return _started(RUN, name, str(store))


def _started(program: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )


def _python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
