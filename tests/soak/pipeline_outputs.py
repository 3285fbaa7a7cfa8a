"""What came out of the soak's pipeline, and how it differs from what should have."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from stillframe.pipeline import Pipeline
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.stopped import stopped_service
from stillframe.state_codec import StateCodec
from tests.soak.pipeline_shop import Books, Feed

_SHOWN_COUNT = 3


def reader(pipeline: Pipeline, log: str) -> LogReader:
    """Return a reader of a channel as it is in the present epoch."""
    head = read_metadata(pipeline.path)
    return LogReader(pipeline.path, head.dataflow.log(log), head.segments[log])


def outputs(pipeline: Pipeline, report: Path) -> dict[str, Any]:
    """Return the records of each channel, sorted, and the states of all who took part.

    Args:
        pipeline: the pipeline; everybody has left it.
        report: where the driver wrote the states of the queries.
    """
    head = read_metadata(pipeline.path)
    found: dict[str, Any] = {}
    for log in ("orders", "unique", "payments", "settled"):
        items = reader(pipeline, log)
        rows = [
            tuple(row.values())
            for item in items.entries(0, items.tail(0))
            for row in items.table(item).to_pylist()
        ]
        found[f"channel {log}"] = sorted(rows)
    for name, state in (("feed", Feed()), ("books", Books())):
        resting = stopped_service(pipeline.path, head, name)
        assert resting is not None, f"{name} never ran"
        positions, recorded = resting
        for log, position in positions.items():
            tail = reader(pipeline, log).tail(position)
            found[f"unread by {name}: {log}"] = sum(
                item.record_count for item in reader(pipeline, log).entries(position, tail)
            )
        StateCodec(type(state)).restore(state, recorded.encoded)
        found[f"service {name}"] = state
    for query, rows in json.loads(report.read_text()).items():
        found[f"query {query}"] = [tuple(row) for row in rows]
    return found


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Return a sentence for everything that is not as wanted."""
    sentences = []
    for name, right in wanted.items():
        got = found.get(name)
        if got == right:
            continue
        if isinstance(got, list) and isinstance(right, list):
            missing = list((Counter(right) - Counter(got)).elements())
            extra = list((Counter(got) - Counter(right)).elements())
            sentences.append(
                f"{name}: {len(missing)} are missing {missing[:_SHOWN_COUNT]}, {len(extra)} are "
                f"too many {extra[:_SHOWN_COUNT]}"
            )
        else:
            sentences.append(f"{name}: {got} instead of {right}")
    return sentences
