"""``stillframe spark compact``: few large tables of all snapshots."""

from pathlib import Path
from typing import Any

from stillframe.analytics.manifests import read_published
from stillframe.cli import output, quantities, tasks


def compact(
    path: Path, out: Path, *, of: str | None, keep: int | None, where: str, is_json: bool
) -> None:
    """Bring the tables in `out` up to what the store at `path` holds, and write which there are.

    Raises:
        Unavailable: PySpark or Java is missing, or somebody else writes to `out`.
        UsageError: there is no such store or snapshot, or `out` is something else.
        StoreError: something cannot be read or written; the tables are as they were.
    """
    published = read_published(path)
    if of is not None:  # before Spark is started
        published.find(of)
    with tasks.session(where, "compacting") as spark:
        from stillframe.analytics.compaction import (  # noqa: PLC0415 - needs PySpark
            INDEX,
            compact_store,
            version_path,
        )

        done = compact_store(spark, path, out, of=of, keep=keep)
    catalog = done.catalog
    directory = version_path(out, catalog.version)
    rows: list[dict[str, Any]] = [
        {
            "table": name,
            "row_count": sum(file.row_count for file in files),
            "file_count": len(files),
            "bytes": sum(file.bytes for file in files),
        }
        for name in (INDEX, *catalog.columns)
        for files in [catalog.files(name)]
    ]
    if is_json:
        output.put_json(
            {
                "directory": directory,
                "added": done.added,
                "removed": done.removed,
                "snapshot_count": len(catalog.snapshots),
                "tables": rows,
            }
        )
    else:
        cells = [
            (
                row["table"],
                f"{row['row_count']:,}",
                f"{row['file_count']:,}",
                quantities.size(row["bytes"]),
            )
            for row in rows
        ]
        output.put_table("", ("table", "rows", "files", "size"), cells)
    output.say(
        f"{quantities.count(len(done.added), 'snapshot')} added, {len(done.removed):,} removed: "
        f"{quantities.count(len(catalog.snapshots), 'snapshot')} in {directory}"
    )
