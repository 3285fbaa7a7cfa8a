"""How a pipeline is, from its files alone: what was appended, how far each reader is, who runs."""

import shutil
import threading
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.model import Abandoned
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.participant_logs import REPORT_INTERVAL_S
from stillframe.pipeline.service import join
from stillframe.watch.pipeline_probe import (
    BUSY,
    DEAD,
    RUNNING,
    STOPPED,
    PipelineProbe,
    ReaderSample,
)
from tests.cli.pipelines import Books, Till, add_up, commit, make_shop, resting_shop, sales, sell
from tests.pipeline.money import Account, changed, line, records


def test_a_pipeline_that_nobody_has_begun_has_nothing(tmp_path: Path) -> None:
    """Services have not joined; logs are empty, and nobody is behind."""
    sample = PipelineProbe(make_shop(tmp_path / "shop.pipeline").path).sample()
    assert {name: one.status for name, one in sample.participants.items()} == {
        "audit": STOPPED,
        "books": "absent",
        "till": "absent",
    }
    assert sample.logs["sales"].readers == {"books": ReaderSample(0, 0)}
    assert (sample.logs["sales"].entries, sample.logs["sales"].records, sample.progress) == (
        0,
        0,
        None,
    )


def test_what_was_appended_and_how_far_each_reader_is(tmp_path: Path) -> None:
    """The books have read one sale of three; the query has committed all totals that there are."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    probe = PipelineProbe(shop.path)
    assert probe.sample().logs["totals"].readers == {"audit": ReaderSample(0, 0)}
    commit(shop, 0, 1)
    sample = probe.sample()
    assert (sample.logs["sales"].entries, sample.logs["sales"].records) == (3, 3)
    assert sample.logs["sales"].readers == {"books": ReaderSample(1, 1)}
    assert sample.logs["totals"].readers == {"audit": ReaderSample(1, 1)}
    assert sample.participants["audit"].batch == 0
    assert sample.participants["audit"].since is not None
    assert sample.errors == ()


def test_a_service_that_runs_says_where_it_stands(tmp_path: Path) -> None:
    """Within half a second, at its next boundary."""
    pipeline = line(tmp_path / "line.pipeline")
    probe, turn = PipelineProbe(pipeline.path), threading.Event()
    with join("mint", pipeline=pipeline.path, state=Account()) as mint:
        mint.append("coins", records(1, 2))
        mint.append("coins", records(3))
        with join("till", pipeline=pipeline.path, state=Account()) as till:
            assert till.receive(1) is not None
            turn.wait(REPORT_INTERVAL_S)
            till.boundary()
            sample = probe.sample()
            assert sample.participants["till"].status == RUNNING
            assert sample.logs["coins"].readers == {"till": ReaderSample(1, 2)}
            assert sample.logs["coins"].records == 3
    assert probe.sample().participants["till"].status == STOPPED


def test_a_service_that_died_is_dead(tmp_path: Path) -> None:
    """Its state is gone with it: that is not the same as having left."""
    pipeline = line(tmp_path / "line.pipeline")
    with pytest.raises(RuntimeError), join("mint", pipeline=pipeline.path, state=Account()):
        raise RuntimeError
    assert PipelineProbe(pipeline.path).sample().participants["mint"].status == DEAD


def test_a_query_in_a_micro_batch_is_busy(tmp_path: Path) -> None:
    """One that was planned and not committed, while a program runs the query."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    commit(shop, 0, 1)
    directory = checkpoint_path(shop.path, 1, "audit")
    (directory / "offsets" / "1").write_text((directory / "offsets" / "0").read_text())
    probe = PipelineProbe(shop.path)
    assert probe.sample().participants["audit"].status == STOPPED
    lock = participant_lock(shop.path, "audit")
    assert lock.try_acquire()
    assert probe.sample().participants["audit"].status == BUSY
    lock.release()


def test_nothing_is_read_that_has_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a log is: its newest item, and one for each reader, and these once."""
    pipeline = line(tmp_path / "line.pipeline")
    with join("mint", pipeline=pipeline.path, state=Account()) as mint:
        for _ in range(300):
            mint.append("coins", records(1))
    with join("till", pipeline=pipeline.path, state=Account()) as till:
        for _ in range(100):
            till.receive()
    opened: list[int] = []
    entry = LogReader.entry

    def read(reader: LogReader, number: int) -> object:
        opened.append(number)
        return entry(reader, number)

    monkeypatch.setattr(LogReader, "entry", read)
    probe = PipelineProbe(pipeline.path)
    assert probe.sample().logs["coins"].readers == {"till": ReaderSample(100, 100)}
    probe.sample()
    assert opened == [299, 99]
    with join("mint", pipeline=pipeline.path, state=Account()) as mint:
        mint.append("coins", records(1))
    opened.clear()
    assert probe.sample().logs["coins"].records == 301
    assert opened == [300]


def test_a_trimmed_log_is_counted_from_what_is_left(tmp_path: Path) -> None:
    """Items say how many records came before them, so none that is gone is missed."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    add_up(shop, 2)
    for _ in range(2):
        outcome = shop.snapshot()
        assert not isinstance(outcome, Abandoned), str(outcome)
    shop.keep(1)
    sample = PipelineProbe(shop.path).sample()
    assert (sample.logs["sales"].records, sample.logs["totals"].records) == (3, 3)
    assert sample.logs["sales"].readers == {"books": ReaderSample(3, 3)}


def test_a_changed_byte_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    """One damaged item keeps nobody from seeing the other logs."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    changed(shop.path / "channels" / "sales" / "epoch-1" / f"{2:020d}.json")
    sample = PipelineProbe(shop.path).sample()
    assert "sales" not in sample.logs
    assert "totals" in sample.logs
    assert any("00002.json" in trouble for trouble in sample.errors)


def test_a_restore_begins_another_epoch(tmp_path: Path) -> None:
    """The same probe sees it: logs end at the cut, and services stand where they were put."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    probe = PipelineProbe(shop.path)
    outcome = shop.snapshot()
    assert not isinstance(outcome, Abandoned), str(outcome)
    sell_more = Till()
    with join("till", pipeline=shop.path, state=sell_more) as me:
        me.append("sales", sales(8, 9))
    assert probe.sample().logs["sales"].records == 5
    shop.restore()
    sample = probe.sample()
    assert (sample.metadata.epoch, sample.logs["sales"].records) == (2, 3)
    assert sample.logs["sales"].readers == {"books": ReaderSample(1, 1)}
    assert sample.participants["till"].status == STOPPED
    with join("books", pipeline=shop.path, state=Books(total=0)) as books:
        books.receive()


def test_a_pipeline_that_is_gone_is_refused(tmp_path: Path) -> None:
    """By name, each time."""
    shop = make_shop(tmp_path / "shop.pipeline")
    sell(shop, 1)
    probe = PipelineProbe(shop.path)
    probe.sample()
    shutil.rmtree(shop.path)
    with pytest.raises(UsageError, match="does not exist"):
        probe.sample()
