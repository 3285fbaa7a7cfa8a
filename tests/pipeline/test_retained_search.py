"""Cuts in what is retained, while Spark deletes old micro-batches and drivers are replaced."""

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stillframe.errors import Damaged, Unavailable
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, channel, checkpoint
from stillframe.pipeline.kafka import KafkaRecord
from stillframe.pipeline.metadata import checkpoint_path
from stillframe.pipeline.query_runs import current_run
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.storage.location import Location
from tests.pipeline.topics_shop import Shop

Ranges = Mapping[int, tuple[int, int]]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A query that has committed two micro-batches, behind one that has committed none."""
    schema = pa.schema([("v", pa.int64())])
    made = Pipeline.create(
        tmp_path / "shop",
        queries=["first", "second"],
        channels=[channel("between", schema, source="first", targets=["second"])],
    )
    place = current_run(made.path, made.epoch, "second").checkpoint
    files = {"metadata": "{}", "commits/0": "v1\n{}", "commits/1": "v1\n{}"}
    for batch in (0, 1):
        files[f"offsets/{batch}"] = 'v1\n{"batchTimestampMs":1}\n{"stillframe": {"between": 0}}'
    for name, text in files.items():
        path = Path(str(place)) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return made


def test_micro_batches_that_spark_deletes_during_a_search_are_looked_for_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search ends with those that are there."""
    look, seen = checkpoint.retained_batches, set[Location]()

    def find_older_ones_first(place: Location) -> list[int]:
        found = look(place)
        is_first = place not in seen and found != [checkpoint.START]
        seen.add(place)
        return [7] if is_first else found

    monkeypatch.setattr(checkpoint, "retained_batches", find_older_ones_first)
    outcome = pipeline.snapshot("retained")
    assert isinstance(outcome, Manifest)
    assert outcome.last_batches == {"second": 1}


def test_a_damaged_plan_is_reported_at_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If what is retained has not changed, another search would find the same."""
    place = current_run(pipeline.path, pipeline.epoch, "second").checkpoint
    Path(str(place / "offsets" / "1")).write_text("no plan of Spark")
    look, asked = checkpoint.retained_batches, list[Location]()

    def ask(place: Location) -> list[int]:
        asked.append(place)
        return look(place)

    monkeypatch.setattr(checkpoint, "retained_batches", ask)
    with pytest.raises(Damaged, match="not an offset file of Spark"):
        pipeline.snapshot("retained")
    assert len(asked) == 4


def test_an_adopted_query_is_not_taken_for_one_that_retains_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its micro-batches have high numbers, and Spark has deleted none of them in the pipeline."""
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    place = Path(str(current_run(shop.path, 1, "sums").checkpoint))
    shutil.rmtree(place)
    for batch in (158, 159):
        shop.commit("sums", batch, {"shop-unique": {0: 4, 1: 4}})
    place.rename(tmp_path / "old")
    checkpoint.adopt(tmp_path / "old", place)
    said: list[str] = []
    taken = shop.pipeline.snapshot(report=said.append)
    assert isinstance(taken, Manifest), taken
    assert taken.last_batches == {"dedup": 2, "sums": 159}
    assert said == []
    shop.commit("sums", 160, {"shop-unique": {0: 4, 1: 4}})
    (place / "commits" / "159").unlink()
    shop.pipeline.snapshot(report=said.append)
    assert said[0].startswith("the cut needed the newest 1 of the 1 micro-batches that Spark ret")


def test_a_query_that_has_read_a_topic_of_the_pipeline_undeclared_fits_no_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its position on that topic is not compared with any other."""
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    read = {"shop-unique": {0: 4, 1: 4}, "elsewhere": {0: 1}}
    shop.commit("sums", 2, read)
    assert isinstance(shop.pipeline.snapshot(), Manifest)
    shop.commit("sums", 3, {**read, "shop-orders": {0: 4, 1: 4}})
    outcome = shop.pipeline.snapshot()
    assert isinstance(outcome, Abandoned)
    assert "sums is no target of channel orders, and has read its topic shop-ord" in outcome.detail


def test_staleness_counts_from_what_was_planned_or_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planned micro-batch that is not committed counts, and the first record that is not read. If
    that cannot be read, it has come after the micro-batch before."""
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    at, ages = shop.began_at, list[float | None]()

    def left_out_at() -> float:
        """Return since when something has been left out of a snapshot of now."""
        monkeypatch.setattr(time, "time", lambda: at + 100)
        taken = shop.pipeline.snapshot()
        assert isinstance(taken, Manifest)
        assert taken.staleness_s is not None
        ages.append(taken.data_age_s)
        return at + 100 - taken.staleness_s

    assert left_out_at() == pytest.approx(at + 100)
    shop.commit("sums", 2, {"shop-unique": {0: 6, 1: 6}})
    commits = checkpoint_path(shop.path, 1, "sums") / "commits"
    (commits / "2").unlink()
    assert left_out_at() == pytest.approx(at + 2)
    (commits / "2").write_text("v1\n{}")
    shop.brokers.now_ms = int(1000 * (at + 40))
    shop.send("unique", 2, 2)
    assert left_out_at() == pytest.approx(at + 40, abs=0.001)
    read = shop.brokers.records

    def refuse(topic: str, ranges: Ranges, **how: Any) -> Iterator[KafkaRecord]:
        if topic == "shop-orders":
            raise Unavailable("Kafka does not allow the operation READ")
        return read(topic, ranges, **how)

    monkeypatch.setattr(shop.brokers, "records", refuse)
    assert left_out_at() == pytest.approx(at + 2)
    assert ages == [0.0, 0.0, pytest.approx(60, abs=0.001), pytest.approx(98, abs=0.001)]
