"""``stillframe view STORE``: a snapshot as a page, or two compared; the cut alone as a picture. The
same of an observation of services, without a comparison."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stillframe.cli import output, quantities
from stillframe.cli.options import ViewOptions
from stillframe.diagram import svg
from stillframe.diagram.shapes import Diagram
from stillframe.durable_files import shell_command, write_atomically
from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.pages import cut_diagram, self_contained_page
from stillframe.pages import snapshot_documents as documents
from stillframe.pages.observation_document import draw_observation, observation_document
from stillframe.pipeline.metadata import PIPELINE_FILE
from stillframe.pipeline.pipeline import Pipeline
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.reading import is_there
from stillframe.store.layout import HEAD, SNAPSHOTS
from stillframe.store.observations import ObservationReader
from stillframe.store.store import Store

SUFFIX = ".html"
_CONTRADICTS = "the event log contradicts the snapshot: "


def is_store(path: Location) -> bool:
    """Return whether `path` is a store, also one that has lost its head, or a pipeline."""
    if isinstance(path, ObjectPath):
        return True  # what it lacks is said when it is opened
    return any((path / name).exists() for name in (HEAD, SNAPSHOTS, PIPELINE_FILE))


def show(path: Location, options: ViewOptions) -> None:
    """Write a snapshot of the store at `path`, or a comparison of two, to a file."""
    if options.cut is not None or options.first != 1 or options.steps:
        raise UsageError("--cut, --first and --steps are for traces, and not for a store")
    suffix = _suffix_of(options.out)
    if is_there(path / PIPELINE_FILE):
        content, words, name = _of_pipeline(path, options, suffix)
    else:
        content, words, name = _of_store(path, options, suffix)
    out = options.out or _beside(path, name)
    _write(out, content, words, outside=(path, options.event_log))


def show_observation(path: Location, number: str | None, options: ViewOptions) -> None:
    """Write an observation in the store at `path` to a file; without a number, the newest."""
    _refuse_options_of_snapshots(path, options)
    suffix = _suffix_of(options.out)
    store = ObservationReader(path)
    found = store.load(store.newest() if number is None else store.find(number))
    manifest = found.manifest
    if suffix == SUFFIX:
        title = f"Observation {manifest.number} of {path.name}"
        content = self_contained_page.render(observation_document(found), title=title).encode()
    else:
        shown = draw_observation(found)
        content = _picture(shown.diagram, suffix)
        if shown.left_out:
            output.say(shown.left_out)
    words = (
        f"observation {manifest.number} of {quantities.count(manifest.instance_count, 'instance')},"
        f" {quantities.count(manifest.open_count, 'open call')}, {manifest.quality}"
    )
    out = options.out or _beside(path, str(manifest.number))
    _write(out, content, words, outside=[path])


def _refuse_options_of_snapshots(path: Location, options: ViewOptions) -> None:
    given = {
        "--snapshot": options.snapshot is not None,
        "--compare": options.compare is not None,
        "--event-log": options.event_log is not None,
        "--cut": options.cut is not None,
        "--first": options.first != 1,
        "--steps": options.steps,
    }
    if names := [name for name, is_given in given.items() if is_given]:
        raise UsageError(
            f"{', '.join(names)}: {path} holds observations, which have only --out; select one by "
            "its number, and compare two with 'stillframe diff'"
        )


def _beside(path: Location, name: str) -> Path:
    """Return the file for the snapshot or observation `name` of a store: next to the store, or in
    the current directory if that is in an object store."""
    beside = path if isinstance(path, Path) else Path(path.name)
    return beside.with_name(f"{path.stem}-{name}{SUFFIX}")


def _suffix_of(out: Path | None) -> str:
    """Return the suffix of an output file, which selects the format; that of a page without one."""
    suffix = SUFFIX if out is None else out.suffix
    if suffix not in (SUFFIX, ".svg", ".png"):
        raise UsageError(
            f"--out {out}: use a name that ends in .html, .svg or .png, which selects the format"
        )
    return suffix


def _picture(diagram: Diagram, suffix: str) -> bytes:
    """Return the content of a file that is a picture."""
    return svg.draw_png(diagram) if suffix == ".png" else svg.draw(diagram).encode()


def _write(out: Path, content: bytes, words: str, *, outside: Iterable[Location | None]) -> None:
    """Write a file, which must not be inside of what was read, and say so."""
    for inside in outside:
        if isinstance(inside, Path) and out.resolve().is_relative_to(inside.resolve()):
            raise UsageError(f"--out {out} is inside {inside}: give a place outside")
    write_atomically(out, [content], inputs=[])
    output.answer({"files": [out]})
    output.report(f"done: {out}: {words}, {quantities.size(len(content))}")


def _of_store(path: Location, options: ViewOptions, suffix: str) -> tuple[bytes, str, str]:
    """Return the content of the file, what it is in words, and what of it belongs into its name."""
    store, log = Store.open(path), options.event_log
    snapshot = _chosen(store, options.snapshot)
    if options.compare is not None:
        if suffix != SUFFIX:
            raise UsageError(
                f"--out {options.out}: a comparison is a page: use a name that ends in .html"
            )
        if log is not None:
            raise UsageError(
                "a comparison takes no --event-log: show each snapshot separately with it"
            )
        other = store.find(options.compare)
        return _compared(documents.diff_document(store, other, snapshot), other, snapshot)
    if suffix == SUFFIX:
        document = documents.snapshot_document(store, snapshot, log=log)
        output.say(*(f"{_CONTRADICTS}{one}" for one in document["contradictions"]))
        return _page(document, snapshot, path, "process", "message", "in transit")
    cut = cut_diagram.load(store.load(snapshot), log)
    output.say(*(f"{_CONTRADICTS}{one}" for one in cut.contradictions))
    for words in (cut.left_out, "" if log is not None and cut.steps else cut.note):
        if words:
            output.say(words)
    return _picture(cut.diagram, suffix), f"the cut of snapshot {snapshot}", str(snapshot)


def _of_pipeline(path: Location, options: ViewOptions, suffix: str) -> tuple[bytes, str, str]:
    if suffix != SUFFIX or options.event_log is not None:
        raise UsageError(
            f"{path} is a pipeline: its snapshots are shown as a page (.html), without --event-log"
        )
    pipeline = Pipeline(path)
    manifest = pipeline.latest() if options.snapshot is None else pipeline.find(options.snapshot)
    if options.compare is not None:
        other = pipeline.find(options.compare)
        document = documents.pipeline_diff_document(path, other, manifest)
        return _compared(document, other.snapshot, manifest.snapshot)
    document = documents.pipeline_snapshot_document(
        manifest, is_current=manifest.snapshot == pipeline.latest().snapshot
    )
    where = "in transit in logs" if manifest.topics else "in transit"
    return _page(document, manifest.snapshot, path, "participant", "record", where)


def _chosen(store: Store, name: str | None) -> SnapshotId:
    if name is not None:
        return store.find(name)
    entries, damages = store.listing()
    for damaged, damage in damages.items():
        if not entries or damaged.number > entries[-1].id.number:
            raise damage  # it may be the newest
    if not entries:
        command = shell_command("snapshot", store.path)
        raise UsageError(
            f"the store {store.path} holds no snapshot yet: '{command}' takes one while the system "
            "runs"
        )
    return entries[-1].id


def _page(
    document: dict[str, Any],
    snapshot: SnapshotId,
    path: Location,
    member: str,
    item: str,
    where: str,
) -> tuple[bytes, str, str]:
    text = self_contained_page.render(document, title=f"Snapshot {snapshot} of {path.name}")
    members = quantities.count(document["process_count"], member)
    items = quantities.count(document["message_count"], item)
    return text.encode(), f"snapshot {snapshot} of {members}, {items} {where}", str(snapshot)


def _compared(
    document: dict[str, Any], before: SnapshotId, after: SnapshotId
) -> tuple[bytes, str, str]:
    text = self_contained_page.render(document, title=f"From snapshot {before} to {after}")
    fields = quantities.count(document["field_count"], "field")
    channels = quantities.count(document["channel_count"], "channel")
    words = f"from {before} to {after}: they differ in {fields} and {channels}"
    return text.encode(), words, f"{before}-{after}"
