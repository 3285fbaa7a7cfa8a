"""The document of a snapshot: all that the store holds of it, or how much is left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from stillframe.model import SnapshotId
from stillframe.pages.snapshot_documents import snapshot_document
from stillframe.store.store import Store
from tests.store import keyed_samples
from tests.store.samples import DESCRIPTION, SOME_MESSAGES, publish


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one snapshot that holds values and messages of every kind."""
    path = tmp_path / "store"
    writer = Store.create(path, description=DESCRIPTION)
    writer.raise_epoch(None)
    publish(writer, 1)
    writer.close()
    return Store.open(path)


def test_everything_that_the_store_holds_is_in_it(store: Store) -> None:
    """States, channels with counts, and each message with its number and fields, as text."""
    document = snapshot_document(store, SnapshotId("A", 1))
    json.dumps(document)
    states = {state["process"]: state for state in document["processes"]}
    assert states.keys() == {"A", "B", "T"}
    fields = {field["name"]: field["text"] for field in states["A"]["fields"]}
    assert fields == {"balance": "100", "name": '""', "history": "[]"}
    held = {channel["channel"]: channel for channel in document["channels"]}
    assert [channel["channel"] for channel in document["channels"]] == ["A->B", "B->T", "B->A"]
    messages = held["A->B"]["messages"]
    assert [message["kind"] for message in messages] == [
        type(message).__name__ for message in SOME_MESSAGES["A", "B"]
    ]
    assert [message["number"] for message in messages] == [1, 2, 3, 4]
    assert held["B->A"]["messages"] == []
    assert (held["B->T"]["sent_count"], held["B->T"]["received_count"]) == (21, 20)


def test_a_keyed_field_is_shown_key_by_key(tmp_path: Path) -> None:
    """Also if the snapshot holds only what changed; and it says what it is based on."""
    path = tmp_path / "keyed"
    writer = Store.create(path, description=keyed_samples.DESCRIPTION)
    writer.raise_epoch(None)
    first = keyed_samples.nothing() | {"accounts": {"a": 1, "b": 2}}
    then = keyed_samples.nothing() | {"accounts": {"a": 1, "b": 3}}
    states = [keyed_samples.part(name, keyed_samples.nothing(), first, None) for name in "PQ"]
    base = keyed_samples.snapshot_of(1, states)
    writer.publish(base)
    writer.publish(
        keyed_samples.snapshot_of(
            2, [keyed_samples.part(name, first, then, base.id) for name in "PQ"]
        )
    )
    writer.close()
    document = snapshot_document(Store.open(path), SnapshotId("P", 2))
    assert (document["bases"], document["chain_length"]) == (["P-1"], 1)
    fields: dict[str, Any] = {f["name"]: f for f in document["processes"][0]["fields"]}
    rows = {key["text"]: value["text"] for key, value in fields["accounts"]["rows"]}
    assert rows == {'"a"': "1", '"b"': "3"}
    assert fields["accounts"]["row_count"] == 2
