"""``store follow``: a line for each verdict as it comes, the exit code, and how it is ended."""

import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import typer
from typer.testing import Result

pytest.importorskip("pyspark", reason="needs PySpark")

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.analytics import verdict_stream as source
from stillframe.analytics.snapshot_verdicts import VERDICTS
from stillframe.cli import follow, output
from stillframe.cli.spark_session import documents_of
from stillframe.errors import Unavailable
from stillframe.store.history import SnapshotAbandoned, SnapshotPublished, read_history
from tests.cli.conftest import Call
from tests.cli.test_log_verification import verdict
from tests.cli.test_runs import ROOT, Start, start  # noqa: F401 - a fixture
from tests.shapes import same_shape

HERE = ("--master", "local[2]")
DEADLINE_S = 300
"""After so long a program that hangs is killed, and the test fails for want of its words."""
SEED = 1985


GOOD: dict[str, Any] = {
    "snapshot": "A-1",
    "sequence": 1,
    "epoch": 1,
    "verdict": "consistent",
    "why": "all is well",
    "reason": None,
    "missing": [],
    "initiated_at": datetime(2026, 11, 23, 12, 0, tzinfo=UTC),
    "ended_at": datetime(2026, 11, 23, 12, 0, 1, tzinfo=UTC),
    "pause_s": 0.001,
    "capture_s": 0.001,
    "total_s": 0.02,
    "message_count": 5,
}
"""What is found of a snapshot (``snapshot_verdicts.VERDICTS``)."""
BAD = GOOD | {"snapshot": "A-2", "verdict": "inconsistent", "why": "messages.parquet was changed"}


wait = follow._wait


def judge_what_is_there(query: StreamingQuery, *rest: Any) -> None:
    """Press Ctrl-C when all of it is judged."""
    query.processAllAvailable()
    signal.raise_signal(signal.SIGINT)
    wait(query, *rest)


def conclude(*rows: dict[str, Any]) -> int:
    """Write verdicts that come together, and how many there were; return the exit code."""
    verdicts = follow.Verdicts(lambda _: list(rows), is_json=False)
    verdicts.put(cast(DataFrame, None), 0)
    with pytest.raises(typer.Exit) as raised:
        follow._conclude(verdicts.counts, verdicts.damage_count)
    return raised.value.exit_code


def test_a_damaged_line_of_the_history_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    """It is written beside the verdicts, is none on a snapshot, and the exit code is 1."""
    nothing = dict.fromkeys(VERDICTS.names)
    damage = nothing | {"verdict": "inconsistent", "why": "line 3 was changed", "log": None}
    good = nothing | {"snapshot": "A-1", "verdict": "consistent", "why": "all is well"}
    assert conclude(good, damage) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "the history: line 3 was changed",
        "snapshot A-1: consistent: all is well",
        "FAIL: 1 snapshot, 1 consistent; 1 damaged line of the history",
    ]
    assert said.err == ""


def test_an_inconsistent_snapshot_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    """Each verdict is a line with when the snapshot ended; the exit code is 1."""
    assert conclude(BAD, GOOD) == 1
    said = capsys.readouterr()
    at, much = "2026-11-23 12:00:01.000 UTC", "5 messages in transit, took 20 ms"
    assert said.out.splitlines() == [
        f"{at}  snapshot A-1: consistent, {much}: all is well",
        f"{at}  snapshot A-2: inconsistent, {much}: messages.parquet was changed",
        "FAIL: 2 snapshots, 1 consistent, 1 inconsistent",
    ]
    assert said.err == ""


def test_what_the_event_log_says_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Its verdict, with the first thing that is wrong; or that it has nothing of the snapshot."""
    said = verdict("A-1", 1) | {"verdict": "incomplete"}
    rows = [GOOD | {"log": said | {"missing": missing}} for missing in ([], ["B"])]
    assert conclude(GOOD | {"log": None}, *rows, BAD | {"log": None}) == 1
    *verdicts, _ = capsys.readouterr().out.splitlines()
    assert [line.partition("; ")[2] for line in verdicts] == [
        "the event log has nothing of it",
        "the event log: incomplete",
        "the event log: incomplete: B did not record",
        "the event log has nothing of it",
    ]


@pytest.mark.parametrize("checkpoint", [(), ("--checkpoint", "kept")])
def test_only_a_checkpoint_is_kept(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: tuple[str, ...]
) -> None:
    """Without one the query is given no place."""
    frame, waited = mock.MagicMock(), mock.Mock()
    writer = frame.writeStream.foreachBatch.return_value.trigger.return_value
    monkeypatch.setattr(follow, "start_spark", mock.Mock())
    monkeypatch.setattr(source, "follow", lambda *_, **__: frame)
    monkeypatch.setattr(follow, "_wait", waited)
    result = call("store", "follow", money, *checkpoint)
    assert (result.exit_code, result.stdout) == (0, "PASS: 0 snapshots\n")
    assert writer.option.called == bool(checkpoint)
    started = writer.option.return_value if checkpoint else writer
    assert waited.call_args.args[0] is started.start.return_value


def test_ctrl_c_while_spark_starts_is_an_end(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of it any more."""
    asked = mock.Mock(side_effect=lambda _: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(follow, "start_spark", asked)
    result = call("store", "follow", money)
    assert (result.exit_code, result.output) == (0, "")


def rows_of(result: Result) -> list[dict[str, Any]]:
    """Return the verdicts that were written as JSON."""
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_what_is_broken_off_is_judged_again_and_no_verdict_is_lost(
    call: Call, money: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is reported as such, not as an error of Spark. The next run resumes from the
    checkpoint: each snapshot has a verdict, and repeated verdicts are equal. A third run repeats
    none."""
    put = output.put_json
    told: list[dict[str, Any]] = []
    really: list[dict[str, Any]] = []

    def put_two(row: dict[str, Any]) -> None:
        if len(told) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        told.append(row)

    def put_and_keep(row: dict[str, Any]) -> None:
        really.append(row)
        put(row)

    monkeypatch.setattr(follow, "_wait", judge_what_is_there)
    command = ("store", "follow", money, "--checkpoint", tmp_path / "checkpoint", "--json", *HERE)
    monkeypatch.setattr(output, "put_json", put_two)
    full = call(*command)
    assert (full.exit_code, full.stdout) == (2, "")
    assert "input or output: No space left on device" in json.loads(full.stderr)["detail"]

    monkeypatch.setattr(output, "put_json", put_and_keep)
    result = call(*command)
    assert result.exit_code == 0, result.output
    rows = rows_of(result)
    assert [(row["snapshot"], row["verdict"]) for row in rows] == [
        (f"A-{number}", "consistent") for number in (1, 2, 3)
    ]
    assert rows[0]["initiated_at"] == "1970-01-01T00:16:40Z"
    assert result.stderr == "PASS: 3 snapshots, 3 consistent\n"
    assert [row["snapshot"] for row in told] == ["A-1", "A-2"]
    assert all(row in really for row in told)
    same_shape(documents_of([GOOD, BAD]), really)

    again = call(*command)
    assert (again.exit_code, again.stdout) == (0, "")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_checkpoint_in_s3_needs_packages(call: Call, money: Path) -> None:
    """The error names the section that lists them."""
    result = call("store", "follow", money, "--checkpoint", "s3://bucket/judged", *HERE)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "S3A for s3a://bucket/judged" in result.stderr
    assert "Checkpoints in S3" in result.stderr


def test_what_is_missing_is_named_before_spark_starts(
    call: Call, money: Path, tmp_path: Path
) -> None:
    """A store, an event log, and lengths of time."""
    for arguments, named in (
        ((tmp_path / "nowhere",), "does not exist"),
        ((money, "--event-log", tmp_path / "nowhere"), "nowhere"),
        ((money, "--timeout", "long"), "--timeout 'long' is not a duration"),
        ((money, "--duration", "0"), "--duration '0' is not a duration"),
        ((money, "--checkpoint", "gs://bucket/x"), "give a local directory, s3:// or hdfs://"),
    ):
        result = call("store", "follow", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert named in result.stderr


def test_without_spark_it_says_what_to_install(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing extra is no bug: exit 2 with the command that helps."""

    def unavailable(_: object) -> None:
        raise Unavailable("PySpark is not installed: pip install 'stillframe[spark]'")

    monkeypatch.setattr(follow, "start_spark", unavailable)
    result = call("store", "follow", money)
    assert result.exit_code == 2
    assert "pip install 'stillframe[spark]'" in result.stderr


class Query:
    """A query that takes a while to begin, on a clock of its own."""

    def __init__(self, begins_s: float, ends_s: float = math.inf) -> None:
        self.now = 0.0
        self.is_stopped = False
        self._begins_s = begins_s
        self._ends_s = ends_s

    @property
    def status(self) -> dict[str, Any]:
        """Return what Spark says of one that finds nothing new when it has begun."""
        begins = {"message": "Initializing sources", "isTriggerActive": False}
        waits = {"message": "Waiting for data to arrive", "isTriggerActive": False}
        return waits if self.now >= self._begins_s else begins

    lastProgress = None  # noqa: N815 - Spark's

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's
        """Let the time go by."""
        self.now += timeout
        return self.now >= self._ends_s

    def stop(self) -> None:
        """Note that."""
        self.is_stopped = True


@pytest.mark.parametrize(
    ("query", "stop_s", "ended_s"),
    [
        (Query(begins_s=40), 3.0, 43),
        (Query(begins_s=1), 3.0, 4),
        (Query(begins_s=1, ends_s=20), None, 20),
    ],
)
def test_the_time_to_follow_begins_when_it_does(
    query: Query, stop_s: float | None, ended_s: int
) -> None:
    """What Spark takes to begin is not counted, however long that is."""
    stop = follow.Stop()
    follow._wait(cast(StreamingQuery, query), stop_s, stop, lambda: query.now)
    assert (query.now, query.is_stopped) == (ended_s, True)


class Failing(Query):
    """A query with a method that fails, with or without a signal before it."""

    def __init__(self, stop: follow.Stop, method: str, error: Exception, *, is_asked: bool) -> None:
        super().__init__(begins_s=1)
        self._stop = stop
        self._is_asked = is_asked
        self._errors = {method: error}

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's
        """Let the time go by until the signal comes."""
        self._stop.is_asked = self._is_asked
        return self._fail("awaitTermination")

    def stop(self) -> None:
        """Stop, or fail."""
        self._fail("stop")

    def _fail(self, method: str) -> bool:
        if method in self._errors:
            raise self._errors[method]
        return True


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("awaitTermination", StreamingQueryException("it needs them")),
        ("awaitTermination", Py4JNetworkError("Answer from Java side is empty")),
        ("stop", Py4JError("Cannot call methods on a stopped SparkContext.")),
    ],
)
def test_a_query_that_a_signal_ends_has_not_failed(method: str, error: Exception) -> None:
    """Ctrl-C reaches all processes of a terminal, and systemd sends SIGTERM to Java, too. Without
    a signal, the same errors are raised."""
    stop = follow.Stop()
    query: Any = Failing(stop, method, error, is_asked=True)
    follow._wait(query, None, stop)
    stop = follow.Stop()
    query = Failing(stop, method, error, is_asked=False)
    with pytest.raises(type(error)):
        follow._wait(query, None, stop)


class Follower:
    """The command as a program of its own; Ctrl-C reaches all that it has started."""

    def __init__(self, store: Path, checkpoint: Path) -> None:
        self._words = checkpoint.with_name("words").open("w+", encoding="utf-8")
        options = ("--checkpoint", str(checkpoint), "--json", *HERE)
        self.process = subprocess.Popen(
            [*(sys.executable, "-m", "stillframe", "store", "follow", str(store)), *options],
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            start_new_session=True,
        )
        self._deadline = threading.Timer(DEADLINE_S, self.process.kill)
        self._deadline.start()

    def rows(self, count: int) -> list[dict[str, Any]]:
        """Return the next verdicts; wait for them."""
        assert self.process.stdout is not None
        rows = [
            json.loads(line) for _, line in zip(range(count), self.process.stdout, strict=False)
        ]
        assert len(rows) == count, self.words()
        return rows

    def rest(self) -> list[dict[str, Any]]:
        """Return what comes until Spark is gone, too."""
        assert self.process.stdout is not None
        return [*map(json.loads, self.process.stdout)]

    def words(self) -> str:
        """Return what it said to people."""
        self._words.seek(0)
        return self._words.read()

    def interrupt(self) -> tuple[int, list[dict[str, Any]]]:
        """Press Ctrl-C; return its exit code and the verdicts that came before the end."""
        os.killpg(self.process.pid, signal.SIGINT)
        rows = self.rest()
        return self.process.wait(), rows

    def kill(self) -> list[dict[str, Any]]:
        """Kill it with SIGKILL; return the verdicts that came before the end."""
        self.process.kill()
        return self.rest()

    def close(self) -> None:
        """Leave nothing behind, whatever happened."""
        self.kill()
        self.process.communicate()
        self._deadline.cancel()
        self._words.close()


class Held:
    """A file whose reader waits: a pipe is in its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)

    def until_read(self, reader: Follower) -> None:
        """Wait until it is being read, but for no longer than the reader may take."""
        nobody = threading.Timer(
            DEADLINE_S, lambda: os.close(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))
        )
        nobody.start()
        self._end = os.open(self._path, os.O_WRONLY)
        nobody.cancel()
        assert reader.process.poll() is None, reader.words()

    def release(self) -> None:
        """Put the file back."""
        os.close(self._end)
        self._path.unlink()
        self._path.write_bytes(self._content)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_ctrl_c_ends_it_while_it_judges(
    call: Call, money: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no verdict, says no more than how many there were, and its checkpoint is good:
    what was being judged is judged when it is started again."""
    file = Held(money / "snapshots" / "A-2" / "channels.parquet")
    checkpoint = tmp_path / "checkpoint"
    with closing(Follower(money, checkpoint)) as follower:
        file.until_read(follower)
        assert follower.interrupt() == (0, []), follower.words()
        assert follower.words().strip() == "PASS: 0 snapshots"
    file.release()
    monkeypatch.setattr(follow, "_wait", judge_what_is_there)
    again = call("store", "follow", money, "--checkpoint", checkpoint, "--json", *HERE)
    assert [row["snapshot"] for row in rows_of(again)] == ["A-1", "A-2", "A-3"]


@pytest.mark.nightly(part="soak", only=True)
@pytest.mark.slow
@pytest.mark.spark
def test_a_follower_that_is_killed_loses_no_snapshot(
    start: Start,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    """Killed while it judges, and twice after some verdicts, it goes on: each snapshot of a system
    that runs has a verdict, and one that is told again is told the same."""
    store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
    # A calm one: what pays as fast as it can leaves Spark no processor.
    calm = ("run", "tests.watch.programs:calm", "--store", store, "--every", "200ms")
    system = start(*calm, deadline_s=3 * DEADLINE_S)
    system.until("snapshot P1-1:")
    assert system.process.stderr is not None
    threading.Thread(target=deque, args=(system.process.stderr, 0), daemon=True).start()
    chance = random.Random(SEED)
    file = Held(store / "snapshots" / "P1-1" / "channels.parquet")
    with closing(Follower(store, checkpoint)) as follower:
        file.until_read(follower)
        told = follower.kill()
    assert told == []
    file.release()
    for _ in range(2):
        with closing(Follower(store, checkpoint)) as follower:
            told += follower.rows(chance.randint(1, 20))
            told += follower.kill()
    system.process.send_signal(signal.SIGINT)
    system.process.wait()
    ended = {
        str(line.what.snapshot): isinstance(line.what, SnapshotPublished)
        for line in read_history(store)
        if isinstance(line.what, SnapshotPublished | SnapshotAbandoned)
    }
    with closing(Follower(store, checkpoint)) as follower:
        while ended.keys() - {row["snapshot"] for row in told}:
            told += follower.rows(1)
        assert follower.interrupt() == (0, []), follower.words()
        assert follower.words().startswith("PASS: ")
    by_snapshot = {row["snapshot"]: row for row in told}
    assert all(row == by_snapshot[row["snapshot"]] for row in told), f"{SEED=}"
    for name, is_published in ended.items():
        assert by_snapshot[name]["verdict"] == ("consistent" if is_published else "incomplete")
