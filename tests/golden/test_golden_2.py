"""What 0.2.0 wrote is read as it was recorded, by Stillframe and by the reader of the document."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from stillframe.pipeline import Pipeline
from stillframe.pipeline.service import join
from stillframe.store.store import Store
from tests.golden import recording
from tests.golden.systems import Till


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A copy of the data, to write to."""
    return shutil.copytree(recording.DATA_2, tmp_path / "data")


def test_all_is_read_as_it_was_recorded() -> None:
    """States, messages, chains of keyed fields, event logs, fragments and manifests."""
    known = json.loads(recording.EXPECTED_2.read_text(encoding="utf-8"))
    assert recording.answers_2(recording.DATA_2) == known
    assert any(one["based_on"] for one in known["store"].values())
    assert any(one["in_flight"] for one in known["store"].values())


def test_every_snapshot_is_verified(own: Path) -> None:
    """Every byte, the books, and the columns against what was recorded."""
    known = json.loads(recording.EXPECTED_2.read_text(encoding="utf-8"))
    with contextlib.closing(Store.open(own / "store")) as store:
        assert store.verify_all(lambda entry, count: None) == len(known["store"])


def test_a_pipeline_goes_back(own: Path) -> None:
    """It is restored, and its service stands where it stood."""
    Pipeline(own / "shop.pipeline").restore("gold")
    with join("till", pipeline=own / "shop.pipeline", state=(till := Till())):
        assert till.sold == 5 + 6 + 7
