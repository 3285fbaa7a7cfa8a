"""An answer with fewer bytes than were asked for is repeated, and never taken for a short file."""

import secrets
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stillframe.storage import remote
from stillframe.storage.location import ObjectPath
from stillframe.storage.object_store import ObjectStore

CONTENT = b"0123456789"
READS: dict[str, Callable[[ObjectStore, ObjectPath], object]] = {
    "read": lambda store, place: store.read(place, bytes_max=20)[0],
    "read_range": lambda store, place: store.read_range(place, 0, 20),
    "read_end": lambda store, place: store.read_end(place, 20)[0],
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("is_for_long", [False, True])
def test_a_short_answer_is_repeated(
    name: str, monkeypatch: pytest.MonkeyPatch, *, is_for_long: bool
) -> None:
    """Once is no error; if it goes on for long, it is one, with a sentence."""
    place = ObjectPath(f"memory://test-{secrets.token_hex(8)}", "x")
    store = ObjectStore(place.root)
    store.put(place, CONTENT)
    get = store._api.get
    answers: list[Any] = []

    def short(*args: Any, **options: Any) -> Any:
        answer = get(*args, **options)
        answers.append(answer)
        if len(answers) > 1 and not is_for_long:
            return answer
        cut = bytes(answer.bytes())[:-1]
        return SimpleNamespace(meta=answer.meta, bytes=lambda: cut, stream=lambda: iter([cut]))

    api = SimpleNamespace(get=short, head=store._api.head, exceptions=store._api.exceptions)
    monkeypatch.setattr(store, "_api", api)
    monkeypatch.setattr(remote, "REPEAT_S", 0.2 if is_for_long else 15.0)
    if not is_for_long:
        assert READS[name](store, place) == CONTENT
        assert len(answers) == 2
        return
    with pytest.raises(OSError, match="it cut the answer short"):
        READS[name](store, place)
    assert len(answers) > 1
