"""The options of ``format("stillframe")``, read and checked."""

from collections.abc import Mapping

import msgspec

from stillframe.errors import UsageError
from stillframe.local_path import local_path
from stillframe.pipeline.dataflow import Log, schema_difference
from stillframe.pipeline.head import read_head


class ReadOptions(msgspec.Struct, frozen=True):
    """Who reads which channels, and about how many records at once (None for all there are)."""

    pipeline: str
    query: str
    channels: tuple[str, ...]
    max_rows: int | None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a streaming read.

    Raises:
        UsageError: one is missing or wrong; which is named.
    """
    for name in ("pipeline", "query", "channels"):
        if options.get(name) is None or (name != "channels" and not options[name]):
            raise UsageError(
                f'format("stillframe") needs the option {name!r}; it needs pipeline (the '
                "directory), query (who reads) and channels (names, with commas)"
            )
    rows = options.get("maxRowsPerTrigger")
    if rows is not None and (not rows.isascii() or not rows.isdigit() or int(rows) == 0):
        raise UsageError(f"maxRowsPerTrigger is {rows!r}: give a number of records above 0")
    return ReadOptions(
        pipeline=options["pipeline"],
        query=options["query"],
        channels=tuple(name.strip() for name in options["channels"].split(",") if name.strip()),
        max_rows=None if rows is None else int(rows),
    )


def channels_of(options: ReadOptions) -> list[Log]:
    """Return the logs that the options name.

    Raises:
        UsageError: one does not exist, is not read by that query, or has other columns.
    """
    dataflow = read_head(local_path(options.pipeline)).dataflow
    dataflow.check_participant(options.query, "query")
    if not options.channels and dataflow.incoming(options.query):
        raise UsageError(
            f"query {options.query} is declared to read channels: name them in the option channels"
        )
    logs = [dataflow.log(name) for name in options.channels]
    for log in logs:
        if options.query not in log.targets:
            raise UsageError(
                f"query {options.query} is no target of channel {log.name}; its targets are "
                f"{', '.join(log.targets) or 'none'}: declare it"
            )
        difference = schema_difference(logs[0].arrow_schema, log.arrow_schema)
        if difference is not None:
            raise UsageError(
                f"channels {logs[0].name} and {log.name} have different columns ({difference}): "
                "read each with a readStream of its own"
            )
    return logs
