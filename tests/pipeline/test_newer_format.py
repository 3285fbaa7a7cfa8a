"""Files of a pipeline in a newer format are refused with the sentence of the document."""

import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stillframe.errors import Damaged, StoreError
from stillframe.pipeline import Pipeline, channel
from stillframe.store.sealed_json import FORMAT, seal

PAGES = Path(__file__).parents[2] / "docs"


class Newer(msgspec.Struct):
    """What a later version may have written."""

    format: int


def test_a_newer_pipeline_is_refused_as_such(tmp_path: Path) -> None:
    """It is not called damaged; the error says what to use."""
    sentence = re.search(
        r"^    (FILE has format N, .*)$", (PAGES / "store-format.md").read_text(), re.MULTILINE
    )
    assert sentence
    assert "(store-format.md#sealed-files)" in (PAGES / "pipeline-format.md").read_text()
    numbers = channel("numbers", pa.schema([("n", pa.int64())]), source="feed")
    Pipeline.create(tmp_path / "p", services={"feed": Newer}, channels=[numbers])
    path = tmp_path / "p" / "pipeline.json"
    path.write_bytes(seal(Newer(FORMAT + 1)))
    with pytest.raises(StoreError) as caught:
        Pipeline(tmp_path / "p")
    assert not isinstance(caught.value, Damaged)
    expected = sentence[1].replace("FILE", str(path)).replace(" N,", f" {FORMAT + 1},")
    assert str(caught.value) == expected.replace(" M:", f" {FORMAT}:")
