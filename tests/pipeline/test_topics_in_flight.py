"""Predicates ask topics whether any record is in flight, and do not read all of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stillframe.pipeline import KafkaRecord, Manifest
from stillframe.pipeline.cut_view import termination
from tests.pipeline.topics_shop import Shop


def test_termination_reads_no_more_records_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sentence says when there are more."""
    shop = Shop(tmp_path / "shop.pipeline", monkeypatch)
    shop.run()
    manifest = shop.pipeline.snapshot()
    assert isinstance(manifest, Manifest)
    view, read, seen = shop.pipeline.view(manifest.snapshot), shop.brokers.records, list[int]()

    def noting(
        topic: str, ranges: Mapping[int, tuple[int, int]], **how: Any
    ) -> Iterator[KafkaRecord]:
        for record in read(topic, ranges):
            seen.append(record.offset)
            yield record

    monkeypatch.setattr(shop.brokers, "records", noting)
    assert termination(view).sentence == ("records in flight: orders to dedup 4, unique to sums 4")
    assert view.in_flight_count("unique") == 4
    seen.clear()
    monkeypatch.setattr("stillframe.pipeline.cut_view._COUNTED_MAX", 1)
    assert termination(view).sentence == (
        "records in flight: orders to dedup more than 1, unique to sums more than 1"
    )
    assert len(seen) == 4
    assert view.in_flight_count("unique", most=1) == 1
    assert len(seen) == 5
