"""``stillframe view`` on a store of observations: one as a page, or its cut as a picture."""

from pathlib import Path

from stillframe.cli import output, quantities
from stillframe.cli.options import ViewOptions
from stillframe.cli.view_store import SUFFIX, picture, suffix_of, write
from stillframe.errors import UsageError
from stillframe.pages import self_contained_page
from stillframe.pages.observation_document import draw_observation, observation_document
from stillframe.store.observations import ObservationReader


def show(path: Path, number: str | None, options: ViewOptions) -> None:
    """Write an observation in the store at `path` to a file; without a number, the newest."""
    _refuse(path, options)
    suffix = suffix_of(options.out)
    store = ObservationReader(path)
    found = store.load(store.newest() if number is None else store.find(number))
    manifest = found.manifest
    if suffix == SUFFIX:
        title = f"Observation {manifest.number} of {path.name}"
        content = self_contained_page.render(observation_document(found), title=title).encode()
    else:
        shown = draw_observation(found)
        content = picture(shown.diagram, suffix)
        if shown.left_out:
            output.say(shown.left_out)
    words = (
        f"observation {manifest.number} of {quantities.count(manifest.instance_count, 'instance')},"
        f" {quantities.count(manifest.open_count, 'open call')}, {manifest.quality}"
    )
    out = options.out or path.with_name(f"{path.stem}-{manifest.number}{SUFFIX}")
    write(out, content, words, outside=[path])


def _refuse(path: Path, options: ViewOptions) -> None:
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
