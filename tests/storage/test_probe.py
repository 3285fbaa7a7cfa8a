"""An object store that ignores conditions is refused before anything is kept there."""

import secrets
from typing import Any

import pytest

from stillframe.errors import StoreError
from stillframe.pipeline import Pipeline
from stillframe.storage import object_store, remote
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import object_store_of, storage_of
from stillframe.storage.owned import check_conditional_writes
from stillframe.store.copying import copy_store
from stillframe.store.store import Store
from tests.pipeline.money import Account
from tests.store.samples import DESCRIPTION


@pytest.fixture
def place() -> ObjectPath:
    """An empty place in an object store."""
    return ObjectPath(f"memory://{secrets.token_hex(8)}", "store")


def careless(place: ObjectPath, monkeypatch: pytest.MonkeyPatch, ignored: type) -> None:
    """Let the object store ignore the condition that is a text, or a version."""
    api = object_store_of(place)._api

    class Careless:
        """Passes everything on, and puts without a condition."""

        def __getattr__(self, name: str) -> Any:
            return getattr(api, name)

        def put(self, client: Any, key: str, content: bytes, **options: Any) -> Any:
            """Put an object."""
            if isinstance(options["mode"], ignored):
                options["mode"] = "overwrite"
            return api.put(client, key, content, **options)

    monkeypatch.setattr(object_store_of(place), "_api", Careless())


def test_one_that_honours_conditions_is_accepted(place: ObjectPath) -> None:
    """And nothing is left of the probe."""
    check_conditional_writes(place)
    assert storage_of(place).files_below(place) == []


@pytest.mark.parametrize(("ignored", "words"), [(str, "although it exists"), (dict, "was changed")])
def test_one_that_ignores_a_condition_is_refused(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch, ignored: type, words: str
) -> None:
    """Also when a store or a pipeline is made there; nothing is left."""
    careless(place, monkeypatch, ignored)
    with pytest.raises(StoreError, match=words):
        check_conditional_writes(place)
    with pytest.raises(StoreError, match=r"use an object store with conditional writes"):
        Store.create(place, description=DESCRIPTION)
    with pytest.raises(StoreError, match=r"use an object store with conditional writes"):
        Pipeline.create(place.parent / "shop", services={"mint": Account}, channels=[])
    assert not storage_of(place).exists(place / "store.json")
    assert storage_of(place).files_below(place.parent / "shop") == []
    original = ObjectPath(f"memory://{secrets.token_hex(8)}", "store")
    Store.create(original, description=DESCRIPTION).close()
    with pytest.raises(StoreError, match=r"use an object store with conditional writes"):
        copy_store(original, place, lambda *_: None)


def test_one_that_never_replaces_is_refused(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells no version from another."""
    monkeypatch.setattr(remote, "REPEAT_S", 0.0)
    real = object_store.ObjectStore._put

    def put(store: Any, location: Any, content: bytes, mode: Any, token: str | None) -> Any:
        """Lose the version."""
        version = real(store, location, content, mode, token)
        return version._replace(etag='"unknown"')

    monkeypatch.setattr(object_store.ObjectStore, "_put", put)
    with pytest.raises(StoreError, match="refuses to replace an object that is unchanged"):
        check_conditional_writes(place)
