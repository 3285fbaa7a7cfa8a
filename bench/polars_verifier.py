"""Verifies an event log with Polars: see ``verifiers``."""

from pathlib import Path

import polars as pl


def verify(log: Path) -> int:
    """Return how many snapshots are consistent."""
    processes = sorted(path.name for path in (log / "e1").iterdir())
    placed = pl.concat([_placed(log, process) for process in processes])
    steps = pl.scan_parquet(f"{log}/e1/*/events-*.parquet").filter(
        pl.col("kind").is_in(["marker sent", "marker accepted"])
    )
    by_channel = ["channel", "snapshot"]
    markers = (
        steps.group_by(by_channel)
        .agg(
            (pl.col("kind") == "marker sent").sum().alias("sent_markers"),
            (pl.col("kind") == "marker accepted").sum().alias("accepted_markers"),
            pl.col("recorded").filter(pl.col("kind") == "marker accepted").first(),
        )
        .collect()
    )
    is_sent = pl.col("channel").str.starts_with(pl.col("process") + "->")
    received = placed.filter(~is_sent).select(
        *by_channel, pl.col("total").alias("received"), pl.col("follows").alias("received_follows")
    )
    on_channel = pl.col("total") - pl.col("received")
    first = pl.col("recorded").list.get(0, null_on_oob=True).struct.field("first")
    count = pl.col("recorded").list.get(0, null_on_oob=True).struct.field("count")
    judged = (
        placed.filter(is_sent)
        .join(received, on=by_channel)
        .join(markers, on=by_channel)
        .with_columns(
            is_right=pl.col("follows")
            & pl.col("received_follows")
            & (on_channel >= 0)
            & (pl.col("sent_markers") == 1)
            & (pl.col("accepted_markers") == 1)
            & pl.when(on_channel == 0)
            .then(pl.col("recorded").list.len() == 0)
            .otherwise((first == pl.col("received") + 1) & (count == on_channel))
        )
    )
    channel_count = len(processes) * (len(processes) - 1)
    whole = judged.group_by("snapshot").agg(pl.col("is_right").all(), pl.len().alias("channels"))
    return whole.filter(pl.col("is_right") & (pl.col("channels") == channel_count)).height


def _placed(log: Path, process: str) -> pl.DataFrame:
    """Return, for each cut of a process and each channel, how many messages are before it."""
    rows = pl.scan_parquet(f"{log}/e1/{process}/events-*.parquet")
    cuts = (
        rows.filter(pl.col("kind") == "recorded")
        .select("snapshot", pl.col("event").alias("cut"))
        .collect()
        .with_row_index("place")
    )
    # Before which cut each message lies: the cuts are few, and sorted.
    place = pl.lit(cuts["cut"]).search_sorted(pl.col("event"), side="left")
    counted = (
        rows.filter(pl.col("number").is_not_null())
        .select("channel", "number", place.cast(pl.UInt32).alias("place"))
        .group_by("channel", "place")
        .agg(
            pl.len().alias("n"),
            pl.col("number").min().alias("low"),
            pl.col("number").max().alias("high"),
        )
        .collect()
    )
    every = cuts.join(counted.select("channel").unique(), how="cross")
    found = every.join(counted, on=["channel", "place"], how="left").sort("channel", "place")
    n = pl.col("n").fill_null(0).cast(pl.Int64)
    return (
        found.with_columns(n.alias("n"), pl.lit(process).alias("process"))
        .with_columns(pl.col("n").cum_sum().over("channel").alias("total"))
        .with_columns(
            follows=(pl.col("n") == 0)
            | (
                (pl.col("high") == pl.col("total"))
                & (pl.col("low") == pl.col("total") - pl.col("n") + 1)
            )
        )
        .select("process", "channel", "snapshot", "total", "follows")
    )
