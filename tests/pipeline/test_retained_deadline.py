"""A search for a cut that takes too long is given up."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import pytest

from stillframe.model import Abandoned, Reason
from stillframe.pipeline import KafkaRecord, coordinator, retained
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.topics import counting
from tests.pipeline.topics_shop import Shop


def test_a_long_run_of_abandoned_records_is_not_read_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's lock is held meanwhile. The outcome says what was being read."""
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    decides = counting(shop.path, read_metadata(shop.path), shop.pipeline.dataflow.topic("unique"))
    zombie = decides.label(shop.pipeline.epoch + 1, 0).encoded
    for _ in range(40_000):
        shop.brokers.add("shop-unique", 0, zombie)
    shop.commit("sums", 2, {"shop-unique": {0: 40_006, 1: 6}})
    read, reads = shop.brokers.records, list[str]()

    def one_second(topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[KafkaRecord]:
        reads.append(topic)
        return read(topic, ranges)

    monkeypatch.setattr(shop.brokers, "records", one_second)
    clock = mock.Mock(wraps=time, monotonic=lambda: float(len(reads)))
    for module in (coordinator, retained):
        monkeypatch.setattr(module, "time", clock)
    outcome = shop.pipeline.snapshot(timeout_s=6.5)
    assert isinstance(outcome, Abandoned)
    assert (outcome.reason, outcome.missing) == (Reason.DEADLINE, ("sums",))
    assert "topic shop-unique was still being read" in outcome.detail
    assert len(reads) == 7
