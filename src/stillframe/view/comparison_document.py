"""In what two snapshots differ, as plain JSON for a page: what ``stillframe diff`` finds."""

from typing import Any

from stillframe.model import ProcessId, SnapshotId
from stillframe.store.difference import ChannelDifference, FieldDifference, difference
from stillframe.store.reading import StoreReader
from stillframe.view.plain import printable
from stillframe.view.shown import Budget, show, show_pair
from stillframe.view.snapshot_document import STATE_CHARS_MAX, head

KIND = "comparison"
CHANNELS_MAX = 10_000
KEYS_MAX = 200
"""So many keys of a keyed field are shown."""


def comparison_document(
    store: StoreReader, before: SnapshotId, after: SnapshotId
) -> dict[str, Any]:
    """Return what a page shows of the difference of two snapshots.

    Raises:
        UsageError: there is no such snapshot.
        Damaged: a file is not what was written; it is named.
        NotConsistent: the books of one do not balance.
        StoreError: a file cannot be read.
    """
    entries = [store.entry(snapshot) for snapshot in (before, after)]
    found = difference(store, before, after)
    kinds = [store.description_of(snapshot).processes for snapshot in (before, after)]
    keyed = {
        (process, field)
        for process in kinds[0].keys() & kinds[1].keys()
        for kind, field in found.keyed
        if kinds[0][process] == kind
    }
    budget = Budget(STATE_CHARS_MAX)
    fields = []
    for each in found.fields:
        if budget.is_spent:
            break
        fields.append(_field(each, keyed, budget))
    channels = [_channel(each) for each in found.channels[:CHANNELS_MAX]]
    return {
        "kind": KIND,
        "noun": "message",
        "note": "",
        "before": head(entries[0]),
        "after": head(entries[1]),
        "is_equal": found.is_equal,
        "equal": "They record the same states and the same messages.",
        "same_count": "other messages",
        "fields": fields,
        "field_count": len(found.fields),
        "process_count": len({each.process for each in found.fields}),
        "only_before": sorted(kinds[0].keys() - kinds[1].keys()),
        "only_after": sorted(kinds[1].keys() - kinds[0].keys()),
        "channels": channels,
        "channel_count": len(found.channels),
    }


def _field(
    found: FieldDifference, keyed: set[tuple[ProcessId, str]], budget: Budget
) -> dict[str, Any]:
    named = {"process": found.process, "field": printable(found.field)}
    values = found.before, found.after
    if (found.process, found.field) in keyed and all(isinstance(v, dict) for v in values):
        return named | _keys(*values, budget)
    before, after = show_pair(*values, budget)
    return named | {"before": before, "after": after}


def _keys(before: dict[Any, Any], after: dict[Any, Any], budget: Budget) -> dict[str, Any]:
    """Return of a keyed field what became of which key."""
    rows = []
    for key in list(before | after)[:KEYS_MAX]:
        if budget.is_spent:
            break
        row: dict[str, Any] = {"key": show(key, budget)}
        if key in before and key in after:
            row["before"], row["after"] = show_pair(before[key], after[key], budget)
        elif key in before:
            row["before"] = show(before[key], budget)
        else:
            row["after"] = show(after[key], budget)
        rows.append(row)
    total = len(before | after)
    return {
        "keys": rows,
        "keys_left_out_count": total - len(rows),
        "added_count": len(after.keys() - before.keys()),
        "removed_count": len(before.keys() - after.keys()),
        "changed_count": len(before.keys() & after.keys()),
    }


def _channel(found: ChannelDifference) -> dict[str, Any]:
    return {
        "channel": found.channel,
        "before": list(found.before),
        "after": list(found.after),
        "is_same_count": found.is_same_count,
    }
