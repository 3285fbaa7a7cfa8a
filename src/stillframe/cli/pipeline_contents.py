"""The commands about the records and states of a pipeline: ``pipeline filter``, ``detect``."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from stillframe.cli import output
from stillframe.cli.command import Commands, argument, conclude, option
from stillframe.cli.options import MASTER
from stillframe.cli.pipeline import PipelinePath
from stillframe.cli.snapshots import nothing_to_compare, said_of_now
from stillframe.detect.predicate import Evaluation, not_stable
from stillframe.errors import NotConsistent, UsageError
from stillframe.imports import add_cwd_to_path, load_function
from stillframe.pipeline import cut_view
from stillframe.pipeline.cut_view import PipelinePredicate, PipelineView
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.topics import HEADER, Counting

_SHIPPED = ("termination", "deadlock", "loss")

app = Commands()


@app.add(
    "pipeline filter shop.pipeline unique",
    "pipeline filter shop.pipeline unique --json",
    name="filter",
)
def show_filter(
    path: PipelinePath,
    channel: str = argument("CHANNEL", "Name of a channel that is a topic of Kafka."),
    snapshot: str | None = option(
        "SNAPSHOT",
        "Only the records up to the cut of this snapshot or savepoint.  [default: all that count]",
    ),
) -> None:
    """Print the condition, in the SQL of Spark, that a record of a topic counts. With --json, also
    the id of the writer and the ranges of labels, for programs in any language. A restore needs a
    new filter."""
    pipeline = Pipeline(path)
    counting = pipeline.topic_filter(channel, snapshot=snapshot)
    document = {"epoch": pipeline.epoch, **_filter_document(counting)}
    output.answer(document, lambda: output.put_lines([counting.condition()]))


def _filter_document(counting: Counting) -> dict[str, Any]:
    """Return what JSON says of a filter; bytes are hexadecimal."""
    topic, first_offsets = counting.topic, counting.record.first_offsets
    return {
        "channel": topic.name,
        "topic": topic.topic,
        "servers": topic.servers,
        "source": topic.source,
        "header": HEADER,
        "writer": counting.record.writer,
        "ranges": [
            {
                "epoch": one.epoch,
                "first": one.first,
                "end": one.end,
                "low": one.low.hex(),
                "high": one.high.hex(),
            }
            for one in counting.ranges()
        ],
        "first_offsets": {str(p): offset for p, offset in sorted(first_offsets.items())},
        "condition": counting.condition(),
    }


@app.add(
    "pipeline detect shop.pipeline termination",
    "pipeline detect shop.pipeline loss --sum money:amounts",
)
def detect(
    path: PipelinePath,
    name: str = argument(
        "PREDICATE",
        "termination, deadlock, loss (since the oldest snapshot), or MODULE:FUNCTION. The "
        "function takes a view of a snapshot and returns True or False.",
    ),
    snapshot: str | None = option(
        "SNAPSHOT",
        "Check only this snapshot or savepoint.  [default: all of the present timeline]",
    ),
    amounts: str | None = option(
        "MODULE:FUNCTION",
        "For loss: the function takes a view of a snapshot and returns how much is where, as a "
        "dict.",
        "--sum",
    ),
    master: str = MASTER,
) -> None:
    """Check whether a stable predicate holds in the newest snapshot of a pipeline, and since which
    snapshot. Exit 1 if it does not hold, and 3 if that is not decided: it is not stable, or loss
    has nothing to compare with."""
    pipeline = Pipeline(path)
    manifests = _of_now(pipeline) if snapshot is None else [pipeline.find(snapshot)]
    if not manifests:
        raise UsageError(f"the pipeline {pipeline.path} holds no snapshot yet: take one")
    evaluations = []
    with _views(pipeline, master) as view_of:
        predicate = _predicate(name, amounts, pipeline, view_of)
        for manifest in manifests:
            try:
                verdict = predicate(view_of(manifest))
            except NotConsistent as error:
                # Kafka may have deleted what an older one needs.
                if manifest is manifests[-1]:
                    raise
                output.say(f"snapshot {manifest.snapshot} is left out: {error}")
                continue
            evaluations.append(
                Evaluation(
                    manifest.snapshot,
                    manifest.epoch,
                    manifest.initiated_at,
                    manifest.completed_at,
                    verdict,
                )
            )
    held = [seen for seen in evaluations if seen.verdict.holds]
    broken = not_stable(evaluations)
    shown = held[-1] if held else evaluations[-1]
    first = min(held, key=lambda seen: seen.completed_at, default=None)
    document, sentence = said_of_now(name, shown, first, broken, len(evaluations))
    if name == "loss" and len(pipeline.snapshots()) == 1:
        document, sentence = nothing_to_compare(document)
    output.answer(document)
    conclude(document["holds"], sentence, yes="yes", no="no")


def _of_now(pipeline: Pipeline) -> list[Manifest]:
    """Return the snapshots of the present epoch, or else the one from which it began."""
    metadata = read_metadata(pipeline.path)
    every = pipeline.snapshots()
    found = [one for one in every if one.epoch == metadata.epoch]
    return found or [one for one in every if one.snapshot == metadata.restored_from]


@contextlib.contextmanager
def _views(pipeline: Pipeline, master: str) -> Iterator[Callable[[Manifest], PipelineView]]:
    """Give what returns the view of a snapshot. Spark is started if a state of a query is read."""
    with contextlib.ExitStack() as stack:
        sessions: list[Any] = []

        def query_states(snapshot: object, query: str, **options: Any) -> Any:
            from stillframe.cli.spark_session import session  # noqa: PLC0415 - few need Spark
            from stillframe.spark import query_state  # noqa: PLC0415

            if not sessions:
                sessions.append(stack.enter_context(session(master, "reading states")))
            return query_state(sessions[0], pipeline, str(snapshot), query, **options)

        yield lambda manifest: PipelineView(pipeline.path, manifest, query_states)


def _predicate(
    name: str,
    amounts: str | None,
    pipeline: Pipeline,
    view_of: Callable[[Manifest], PipelineView],
) -> PipelinePredicate:
    """Return the predicate of that name; UsageError if there is none."""
    if (amounts is not None) != (name == "loss"):
        raise UsageError(
            "loss needs --sum MODULE:FUNCTION, and no other predicate takes it: the function "
            "returns how much is where, as a dict"
        )
    match name:
        case "termination":
            return cut_view.termination
        case "deadlock":
            return cut_view.deadlock
    add_cwd_to_path()
    if amounts is not None:
        function = load_function(amounts)
        expected = cut_view.amounts_in(view_of(pipeline.snapshots()[0]), function, amounts)
        return cut_view.loss_against(expected, function, amounts)
    if ":" not in name:
        raise UsageError(
            f"there is no predicate {name!r}: give one of {', '.join(_SHIPPED)}; or "
            "MODULE:FUNCTION, your function that takes a view and returns True or False"
        )
    return cut_view.asking(load_function(name), name)
