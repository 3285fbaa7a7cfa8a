"""``stillframe sim SCRIPT``: a scripted execution, rule by rule."""

import difflib
import importlib.resources
from pathlib import Path

from stillframe.cli import output
from stillframe.cli.command import end_with_no
from stillframe.cli.proof import Extras, serve
from stillframe.durable_files import write_atomically
from stillframe.errors import UsageError
from stillframe.sim import scenario

RUN_SUFFIX = ".run"


def script_path(name: str) -> Path | None:
    """Return the ``.run`` file that `name` means: a file, or one that comes with stillframe; None
    if it means a topology.

    Raises:
        UsageError: it means neither.
    """
    if name.endswith(RUN_SUFFIX):
        path = Path(name)
        if path.exists() and not path.is_file():
            raise UsageError(f"{name} is no regular file: a script is a text that ends in .run")
        if path.exists() or "/" in name:
            return path
    included = _included()
    path = included / (name if name.endswith(RUN_SUFFIX) else name + RUN_SUFFIX)
    if path.exists() and "/" not in name:
        return path
    if name.endswith(RUN_SUFFIX) or ":" not in name:
        raise UsageError(
            f"there is no script {name}: give a .run file, MODULE:TOPOLOGY, or one of those that "
            f"come with stillframe: {', '.join(included_names())}"
        )
    return None


def included_names() -> list[str]:
    """Return the names of the scripts that come with stillframe."""
    return sorted(found.stem for found in _included().glob(f"*{RUN_SUFFIX}"))


def is_included(path: Path) -> bool:
    """Return whether `path` is a script that comes with stillframe."""
    return path.is_relative_to(_included())


def _included() -> Path:
    """Return where the scripts are that come with stillframe."""
    return Path(str(importlib.resources.files("stillframe.sim") / "runs"))


def play_script(path: Path, extras: Extras, *, rewrite: bool, is_json: bool) -> None:
    """Play the script at `path`, and compare what happens with what the file says.

    Raises:
        typer.Exit: with 1; something else happened.
        UsageError: the file cannot be read or played.
    """
    if rewrite and is_included(path):
        raise UsageError(f"{path.name} comes with stillframe: copy it to rewrite it")
    text = read_script(path)
    played = play(path, text)
    if rewrite:
        write_atomically(path, [played.text().encode()])
    if extras.prove is None and is_json:
        output.put_json(
            {
                "blocks": [
                    {"commands": block.commands, "happened": lines}
                    for block, lines in zip(played.blocks, played.happened, strict=True)
                ],
                "is_as_written": not played.differing,
            }
        )
    elif extras.prove is None:
        output.put_lines(played.text().splitlines())
    serve(played.world, extras, is_json=is_json)
    if played.differing and not rewrite:
        changes = difflib.unified_diff(
            text.splitlines(),
            played.text().splitlines(),
            "as written",
            "as it happened",
            "",
            "",
            2,
            "",
        )
        output.say(*changes)
        end_with_no(f"something else happened than {path} says; if it is right: --rewrite")


def play(path: Path, text: str) -> scenario.Played:
    """Play `text`, which is that of the script at `path`.

    Raises:
        UsageError: it cannot be played; file and line are named.
    """
    try:
        return scenario.play_text(text)
    except UsageError as error:
        raise UsageError(f"{path.name}, {error}") from error


def read_script(path: Path) -> str:
    """Return the text of a script; of one that is too long as much as it takes to find out."""
    with path.open(encoding="utf-8") as file:
        try:
            return file.read(scenario.FILE_CHARACTER_MAX + 1)
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path} is no .run file: it is not text in UTF-8 ({error})"
            ) from error
