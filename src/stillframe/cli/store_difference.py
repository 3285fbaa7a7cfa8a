"""``stillframe spark diff``: in what two snapshots of a large store differ."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from stillframe.analytics.manifests import Published, read_published, while_published
from stillframe.cli import output, quantities, tasks
from stillframe.cli.contents import VALUE_LENGTH_MAX
from stillframe.cli.verdict import EXIT_NO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_COUNT_MAX = 20
"""So many rows of each kind are shown; JSON has all."""
_COUNTS = ("sent_count", "received_count", "message_count")
Fields = dict[str, Any]


class Found(msgspec.Struct, frozen=True):
    """What Spark found, as rows (``store_diff.Difference``); `key_counts` has a row for each
    process and keyed field."""

    is_equal: bool
    fields: list[Fields]
    key_counts: list[Fields]
    keys: list[Fields]
    channels: list[Fields]
    messages: list[Fields]


def show_difference(path: Path, before: str, after: str, *, where: str, is_json: bool) -> None:
    """Write in what two snapshots of the store at `path` differ.

    Raises:
        typer.Exit: with 1; they do.
        Unavailable: PySpark or Java is missing.
        UsageError: there is no such store or snapshot.
        StoreError: something cannot be read.
    """
    published = read_published(path)
    for name in (before, after):  # before Spark is started
        published.find(name)
    with tasks.session(where, "comparing") as spark:
        found = while_published(path, lambda published: _find(spark, published, before, after))
    if is_json:
        output.put_json(found)
    else:
        _put(found, before, after)
    if found.is_equal:
        output.say(f"{before} and {after} record the same states and the same messages")
        return
    output.say(
        f"{before} and {after} differ in {quantities.count(len(found.fields), 'field')}, "
        f"{quantities.count(len(found.keys), 'key')} and "
        f"{quantities.count(len(found.channels), 'channel')}"
    )
    raise typer.Exit(EXIT_NO)


def _find(spark: "SparkSession", published: Published, before: str, after: str) -> Found:
    from stillframe.analytics import verified_parquet  # noqa: PLC0415 - they need PySpark
    from stillframe.analytics.store_diff import difference  # noqa: PLC0415

    with verified_parquet.spark_errors(published.path):
        made = difference(spark, published, published.find(before), published.find(after))
        ordered = {
            "fields": made.fields.orderBy("process", "field"),
            "keys": made.keys.orderBy("process", "field", "change", "key"),
            "channels": made.channels.orderBy("source", "target"),
            "messages": made.messages.orderBy("source", "target", "number", "caught"),
        }
        rows = {
            name: [row.asDict() for row in frame.toLocalIterator()]
            for name, frame in ordered.items()
        }
    return Found(
        is_equal=not any(rows.values()),
        key_counts=_counts(rows["keys"]),
        **rows,
    )


def _counts(keys: Iterable[Fields]) -> list[Fields]:
    counted: dict[tuple[str, str], Counter[str]] = {}
    for row in keys:
        counted.setdefault((row["process"], row["field"]), Counter())[row["change"]] += 1
    return [
        {"process": process, "field": field}
        | {f"{change}_count": counts[change] for change in ("added", "removed", "changed")}
        for (process, field), counts in counted.items()
    ]


def _put(found: Found, before: str, after: str) -> None:
    _put_rows("processes", ("process", "field", before, after), found.fields, texts=4)
    _put_rows(
        "keys", ("process", "field", "added", "removed", "changed"), found.key_counts, texts=2
    )
    columns = ("process", "field", "change", "key", before, after)
    _put_rows("which keys", columns, found.keys, texts=6)
    counts = [f"{what}, {name}" for what in ("sent", "received", "in it") for name in "AB"]
    _put_rows(
        f"channels, counts in messages: A is {before}, B is {after}",
        ("channel", *counts, "only A", "only B"),
        map(_channel, found.channels),
    )
    _put_rows(
        "messages that only one caught",
        ("channel", "number", "caught by", "kind", "message"),
        (
            {
                "channel": f"{row['source']}->{row['target']}",
                "number": str(row["number"]),
                "caught": before if row["caught"] == "before" else after,
                "kind": row["kind"],
                "message": row["message"],
            }
            for row in found.messages
        ),
        texts=5,
    )


def _channel(row: Fields) -> Fields:
    sides = ("before", "after")
    return {
        "channel": f"{row['source']}->{row['target']}",
        **{f"{count}_{side}": row[f"{count}_{side}"] for count in _COUNTS for side in sides},
        **{f"only_{side}": row[f"only_{side}"] for side in sides},
    }


def _put_rows(
    title: str, columns: Sequence[str], rows: Iterable[Fields], *, texts: int = 1
) -> None:
    listed = list(rows)
    if not listed:
        return
    cells = [tuple(map(_cell, row.values())) for row in listed[:ROW_COUNT_MAX]]
    output.put_table(title, columns, cells, texts=texts)
    if len(listed) > ROW_COUNT_MAX:
        output.say(f"and {len(listed) - ROW_COUNT_MAX:,} more (--json has all)")


def _cell(value: str | int | None) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    text = value or ""
    return text if len(text) <= VALUE_LENGTH_MAX else f"{text[: VALUE_LENGTH_MAX - 3]}..."
