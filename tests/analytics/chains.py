"""Stores of keyed banks whose snapshots are based on each other at random."""

import copy
import datetime
import random
from collections.abc import Callable
from typing import Any

from stillframe.model import Snapshot, SnapshotId
from stillframe.storage.location import Location
from stillframe.store.store import Store
from tests.store.keyed_samples import (
    BANKS,
    DESCRIPTION,
    Fields,
    Guest,
    Place,
    nothing,
    part,
    snapshot_of,
    whole,
)

KEYS: dict[str, list[Any]] = {
    "accounts": ["", "a", "b", "c", "ä\0", '"'],
    "seats": [Place(1, "x"), Place(1, "y"), Place(2, "x")],
    "days": [datetime.date(2024, 1, day) for day in (1, 2, 3)],
}
VALUES: dict[str, list[Any]] = {
    "accounts": [0, 1, -(2**63)],
    "seats": [Guest("A"), Guest('B"', 7), Guest("null", 0)],
    "days": [None, 0.0, -0.0, 0.5, float("inf"), float("nan")],
}
Cuts = dict[SnapshotId, dict[str, Fields]]


def make_chains(
    path: Location,
    seed: int,
    *,
    snapshot_count: int = 8,
    took: Callable[[Snapshot], object] = lambda snapshot: None,
) -> Cuts:
    """Make a store with snapshots P-1, P-2, ...; return what the banks hold in each.

    Each part of a bank is based on any earlier snapshot, or whole. `took` is called with each as it
    was recorded.
    """
    chance = random.Random(seed)
    store = Store.create(path, description=DESCRIPTION)
    store.raise_epoch(None)
    now: dict[str, Fields] = {bank: nothing() for bank in BANKS}
    cuts: Cuts = {}
    for number in range(1, snapshot_count + 1):
        for _ in range(8):
            change(chance, now)
        cut = copy.deepcopy(now)
        parts = []
        for bank in BANKS:
            base = chance.choice([None, *list(cuts)[-3:], *list(cuts)[-1:]])
            if base is None and chance.random() < 0.5:
                parts.append(whole(bank, cut[bank], name=str(number)))
            else:
                before = nothing() if base is None else cuts[base][bank]
                parts.append(part(bank, before, cut[bank], base, name=str(number)))
        recorded = snapshot_of(number, parts)
        took(recorded)
        store.publish(recorded)
        cuts[SnapshotId("P", number)] = cut
    store.settle()
    store.close()
    return cuts


def change(chance: random.Random, banks: dict[str, Fields]) -> None:
    """Set a key of a bank, or remove it."""
    rows = chance.choice(list(banks.values()))
    name = chance.choice(list(KEYS))
    key = chance.choice(KEYS[name])
    if chance.random() < 0.3:
        rows[name].pop(key, None)
    else:
        rows[name][key] = chance.choice(VALUES[name])
