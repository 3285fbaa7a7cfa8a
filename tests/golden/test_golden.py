"""What an earlier version wrote is read as that version read it.

``data`` and ``expected.json`` were recorded by ``scripts/record_golden.py`` with the code as it was
then. A name on the disk that changes unnoticed makes one of these tests fail.
"""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from stillframe import spark
from stillframe.cli.app import app
from stillframe.errors import Unavailable
from stillframe.model import GlobalState, Snapshot, SnapshotId
from stillframe.pipeline import Pipeline, locks
from stillframe.pipeline.service import join
from stillframe.runtime import run_file
from stillframe.runtime.network.addresses import ANY_PORT
from stillframe.runtime.os_process import current_process
from stillframe.runtime.process import pipeline_logs
from stillframe.store.sealed_json import FORMAT
from stillframe.store.store import Store
from stillframe.store.tables import as_changes
from tests.golden import recording
from tests.golden.systems import TOTAL, Books, Till
from tests.nightly import by_night
from tests.store.format_reader import Reader

REPOSITORY = Path(__file__).parent.parent.parent
MONEY = (
    "(select sum(balance) from processes)"
    " + (select coalesce(sum(amount), 0) from messages where _kind = 'Coin')"
)
KNOWN: dict[str, Any] = json.loads(recording.EXPECTED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the data, to read."""
    return shutil.copytree(recording.DATA, tmp_path_factory.mktemp("golden") / "data")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A copy of the data, to write to."""
    return shutil.copytree(recording.DATA, tmp_path / "data")


def as_json(value: Any) -> Any:
    """Return a value as it is when it was written as JSON and read again."""
    return json.loads(json.dumps(value))


def test_the_recorded_files_are_as_they_were_recorded() -> None:
    """A word that is replaced in the whole repository must not be replaced in them."""
    assert recording.checksums() == json.loads(recording.CHECKSUMS.read_text(encoding="utf-8"))


def test_all_is_asked_that_was_recorded() -> None:
    """No answer is left out, and none is new."""
    assert [*KNOWN] == [*recording.COMMANDS, "log", "fragments"]


@pytest.mark.parametrize("command", recording.COMMANDS)
def test_a_command_says_what_it_said(root: Path, command: str) -> None:
    """Exit code and JSON are those of the version that wrote the data."""
    assert as_json(recording.answer(root, command)) == KNOWN[command]


def test_an_event_log_is_read(root: Path) -> None:
    """One that is complete, in Parquet, and one as killed processes left it, in Arrow's streams."""
    assert as_json(recording.logged(root)) == KNOWN["log"]
    assert {Path(name).suffix for name in KNOWN["log"]} == {".parquet", ".arrows"}


def test_fragments_are_read(root: Path) -> None:
    """Each has its manifest, and the topology that it is a part of."""
    assert as_json(recording.fragments(root)) == KNOWN["fragments"]


@pytest.mark.parametrize(
    "command",
    [
        "view store --log log --snapshot A-10",
        "view store --log log --snapshot B-3",
        "view store --snapshot B-3 --compare A-2",
        "view shop.pipeline --compare shop-1",
        "view counted.pipeline --snapshot gold",
        "view lecture.trace --snapshot P1-1",
        "view lecture.run",
    ],
)
def test_a_page_is_made(root: Path, tmp_path: Path, command: str) -> None:
    """Pages are made of stores, event logs, pipelines, traces and scripts."""
    page = tmp_path / "page.html"
    assert recording.run(root, f"{command} --out {page}")[0] == 0
    assert page.stat().st_size > 10_000


def test_the_history_goes_on(own: Path) -> None:
    """A writer reads it: a snapshot is dropped, and what was based on it is made whole."""
    assert recording.run(own, "drop store A-4") == (0, "snapshot A-4 was deleted\n")
    assert format_of(own / "store" / "store.json") == FORMAT
    assert recording.run(own, "verify store")[0] == 0
    listed = recording.answer(own, "list store")["says"]["snapshots"]
    assert [one["id"] for one in listed] == "A-2 B-3 A-6 A-7 A-8 B-9 A-10".split()
    shown = recording.answer(own, "show store A-6")
    assert as_json(shown) == KNOWN["show store A-6"]
    events = recording.answer(own, "history store")["says"]["history"]
    assert events[:-1] == KNOWN["history store"]["says"]["history"]
    assert (events[-1]["event"], events[-1]["snapshot"]) == ("SnapshotRemoved", "A-4")


def test_a_savepoint_is_made(own: Path) -> None:
    """``store.json`` is read and written again."""
    assert recording.run(own, "savepoint store kept --of B-9")[0] == 0
    listed = recording.answer(own, "list store")["says"]["snapshots"]
    assert {one["id"]: one["savepoints"] for one in listed if one["savepoints"]} == {
        "A-2": ["audited"],
        "A-8": ["after-the-restore"],
        "B-9": ["kept"],
    }


def test_a_pipeline_goes_back(own: Path) -> None:
    """It is restored, its services stand where they stood, and a snapshot of all is published."""
    path = own / "shop.pipeline"
    exit_code, output = recording.run(own, "spark restore shop.pipeline gold --json")
    document = json.loads(output)
    assert (exit_code, document["snapshot"], document["epoch"]) == (0, "shop-2", 3)
    with join("till", pipeline=path, state=(till := Till())):
        assert till.sold == 5 + 6 + 7
    books = recording.add_up(Pipeline(path), 1)
    assert books == Books(18, {"5": "noted", "11": "noted", "18": "noted"})
    recording.sell(Pipeline(path), 2)
    taken = json.loads(
        recording.run(own, "spark snapshot shop.pipeline --mode unaligned --json")[1]
    )
    assert taken["published"]["id"] == "shop-6"
    assert [one.epoch for one in Pipeline(path).snapshots()] == [1, 1, 1, 2, 3]


def test_a_checkpoint_goes_back(own: Path) -> None:
    """The one that is pinned in a snapshot is verified, and put in its place for the next epoch."""
    exit_code, output = recording.run(own, "spark restore counted.pipeline gold --json")
    document = json.loads(output)
    assert (exit_code, document["snapshot"], document["epoch"]) == (0, "counted-1", 2)
    path = own / "counted.pipeline"
    pinned = path / "snapshots/counted-1/checkpoints/counts"
    files = {p.relative_to(pinned) for p in pinned.rglob("*") if p.is_file()}
    put = path / "checkpoints/epoch-2/counts"
    assert {p.relative_to(put) for p in put.rglob("*") if p.is_file()} == files
    assert document["byte_count"] == sum((pinned / name).stat().st_size for name in files)


def test_a_stopped_pipeline_goes_on(own: Path) -> None:
    """Its services stand where they stood when they left, and their records are read on."""
    shop = Pipeline(own / "shop.pipeline")
    assert shop.timeline("audit") == {2: range(2**63 - 1)}
    books = recording.add_up(shop, 2)
    assert books.total == 5 + 6 + 7 + 10 + 11


def left_running(store: Path) -> None:
    """Let the run file in a copy of a store be that of the copy: it names the directory."""
    path = store / "running.json"
    status = store.stat()
    document = json.loads(path.read_bytes())
    document["directory"] = f"{status.st_dev}:{status.st_ino}"
    path.write_text(json.dumps(document))


def test_the_run_file_is_read(own: Path) -> None:
    """Of a system whose supervisor was killed it is known how to bring it back."""
    left_running(own / "store")
    pid = json.loads((own / "store" / "running.json").read_bytes())["supervisor"]["pid"]
    done = CliRunner().invoke(app, ["snapshot", str(own / "store")])
    assert done.exit_code == 2
    assert f"its supervisor, process {pid}, died" in " ".join(done.stderr.split())


def detect(store: Path, question: str) -> int:
    """Return the exit code of ``detect`` with a question in SQL."""
    return CliRunner().invoke(app, ["detect", str(store), question]).exit_code


def started(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a program of its own."""
    words = [str(root / word) if (root / word).exists() else word for word in command.split()]
    return subprocess.run(
        [sys.executable, "-m", "stillframe", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "epoch", "begins"), [("restore store B-3", 4, "B-3"), ("resume store", 4, "A-10")]
)
def test_a_system_goes_on(own: Path, command: str, epoch: int, begins: str) -> None:
    """It is started from a recorded snapshot, runs, and has all the money at its end."""
    left_running(own / "store")
    before = own / "fragments"
    shutil.rmtree(before)
    done = started(own, f"{command} --every never --for 300ms --log {own / 'log'}")
    assert done.returncode == 0, done.stderr
    document = recording.answer(own, "list store")["says"]
    assert (document["epoch"], document["current"]) == (epoch, "A-11")
    event = recording.answer(own, "history store")["says"]["history"][-3]
    assert (event["event"], event["restored_from"]) == ("EpochBegan", begins)
    assert recording.answer(own, "verify store")["says"]["snapshot_count"] == 9
    assert detect(own / "store", f"select ({MONEY}) = {TOTAL}") == 0


def test_a_snapshot_is_based_on_one_of_version_1(own: Path) -> None:
    """A writer continues the store in place: files of both versions make one chain, which the
    reader of the document reads as well, and 0.1.0 refuses the store from the first write on."""
    with contextlib.closing(Store.open_writer(own / "store")) as store:
        before = store.load(SnapshotId("A", 10))
        assert format_of(own / "store" / "store.json") == 1
        epoch = store.raise_epoch(before.id)
        assert format_of(own / "store" / "store.json") == FORMAT
        changes = [as_changes("A-11", state, store.description) for state in before.state.processes]
        states = tuple(
            msgspec.structs.replace(one, base=before.id) if one.keyed else one for one in changes
        )
        state = GlobalState(states, before.state.channels)
        at = before.completed_at
        store.publish(Snapshot(SnapshotId("A", 11), epoch, at, at, state))
        assert store.load(SnapshotId("A", 11)).state == before.state
        store.verify(SnapshotId("A", 11))
    manifests = own / "store" / "snapshots"
    assert format_of(manifests / "A-10" / "manifest.json") == 1
    assert format_of(manifests / "A-11" / "manifest.json") == FORMAT
    reader = Reader(own / "store")
    assert reader.read("A-11") == reader.read("A-10")


def test_a_refused_takeover_does_not_lock_out_the_release_that_started_it(own: Path) -> None:
    """Processes of 0.1.0 run without a supervisor: only 0.1.0 can take them over, so `resume` of
    this release writes nothing before it refuses to."""
    path = own / "store"
    system = run_file.RunFile(
        supervisor=msgspec.structs.replace(current_process(), start_ticks=1),
        directory=run_file.identity(path),
        epoch=Store.open(path).epoch,
        topology_hash=Store.open(path).description.hash,
        coordinator=ANY_PORT,
        has_tls=False,
        secret=b"",
        commands="",
        children={"A": current_process()},
        pipeline=None,
    )
    run_file.write_run_file(path, system)
    before = {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}
    refused = CliRunner().invoke(app, ["resume", str(path), "--keep", "1"])
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    assert f"the running system on the store {path} speaks version 2 of the protocol" in said
    assert {one: one.read_bytes() for one in path.rglob("*") if one.is_file()} == before


def format_of(path: Path) -> int:
    """Return the version of the format of a sealed file."""
    version: int = json.loads(path.read_bytes())["content"]["format"]
    return version


def test_a_pipeline_is_continued_in_place(own: Path) -> None:
    """What is written is of this version; what is there stays, but for a pending snapshot."""
    path = own / "shop.pipeline"
    first = min((path / "channels/sales/epoch-2").glob("*.json"))
    (path / "under-way" / "shop-9" / "parts").mkdir(parents=True)  # of a coordinator that died
    recording.sell(Pipeline(path), 12)
    last = max((path / "channels/sales/epoch-2").glob("*.json"))
    assert (format_of(first), format_of(last)) == (1, FORMAT)
    assert not (path / "under-way").exists()
    Pipeline(path).restore("gold")
    assert "segments" in json.loads((path / "pipeline.json").read_bytes())["content"]


STRIDE = by_night(1, check=8)


def left_by_the_dead(name: str, tmp_path: Path) -> list[Path]:
    """Return what first writes leave of the directory `name`, killed at each step (``dying``). Each
    is as 0.1.0 left it, but for hidden files and locks, or 0.1.0 refuses it; both occur."""
    command = [sys.executable, "-m", "tests.golden.dying", name, str(tmp_path), str(STRIDE)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head = "pipeline.json" if name.endswith(".pipeline") else "store.json"
    before = contents(recording.DATA / name)
    found = sorted(tmp_path.iterdir())
    formats = {path: format_of(path / head) for path in found}
    assert {*formats.values()} == {1, FORMAT}
    for path, version in formats.items():
        assert version == FORMAT or contents(path) == before, path
    return found


def contents(directory: Path) -> dict[Path, bytes]:
    """Return the files of a directory, but for hidden ones and locks."""
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name[0] != "." and path.suffix != ".lock"
    }


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
def test_a_store_survives_the_death_of_its_first_writer(tmp_path: Path) -> None:
    """At each step of a restore and of a deletion: the next writer continues it."""
    for path in left_by_the_dead("store", tmp_path):
        with contextlib.closing(Store.open_writer(path)) as store:
            store.raise_epoch(SnapshotId("A", 10))
            assert store.verify_all(lambda *_: None) in (7, 8), path


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
def test_a_pipeline_survives_the_death_of_its_first_writer(tmp_path: Path) -> None:
    """At each step of a service and of a restore: the next restore continues it."""
    for path in left_by_the_dead("shop.pipeline", tmp_path):
        Pipeline(path).restore("gold")
        with join("till", pipeline=path, state=(till := Till())):
            assert till.sold == 5 + 6 + 7, path


CONTINUED: dict[str, Callable[[Path], object]] = {
    "service": lambda path: recording.sell(Pipeline(path), 12),
    "process": lambda path: pipeline_logs.PipelineLogs(
        path, "till", system="till", epoch=Pipeline(path).epoch
    ),
    "snapshot": lambda path: Pipeline(path).snapshot("unaligned"),
    "restore": lambda path: Pipeline(path).restore("gold"),
    "query": lambda path: spark.to_channel(Pipeline(path.parent / "counted.pipeline"), "counted"),
}


@pytest.mark.parametrize("act", CONTINUED)
def test_a_continued_pipeline_is_refused_by_0_1_0(
    own: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole: ``pipeline.json`` is of this version before another file is written."""
    monkeypatch.setattr(pipeline_logs, "check_unused", lambda *_: None)
    written: list[Path] = []
    replace = Path.replace

    def spy(old: Path, new: Path) -> Path:
        written.append(new)
        return replace(old, new)

    monkeypatch.setattr(Path, "replace", spy)
    CONTINUED[act](own / "shop.pipeline")
    assert (written[0].name, format_of(written[0])) == ("pipeline.json", FORMAT)


@pytest.mark.parametrize("act", CONTINUED)
def test_no_program_of_0_1_0_is_cut_off(
    own: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one runs, nothing is written: it would be refused what it needs, and lose its state."""
    monkeypatch.setattr(pipeline_logs, "check_unused", lambda *_: None)
    monkeypatch.setattr(locks, "WAIT_S", 0.0)
    running = [
        locks.participant_lock(own / f"{pipeline}.pipeline", participant)
        for pipeline, participant in (("shop", "books"), ("counted", "till"))
    ]
    assert all(lock.acquire() for lock in running)
    before = {one: one.read_bytes() for one in own.rglob("*.json")}
    with pytest.raises(Unavailable, match=r"(still runs with an older|is running)"):
        CONTINUED[act](own / "shop.pipeline")
    assert {one: one.read_bytes() for one in own.rglob("*.json")} == before
    for lock in running:
        lock.release()
