"""Former names of commands and options: each works until ``REMOVED_IN``, and prints the new one."""

from collections.abc import Collection

from stillframe.cli import output
from stillframe.public_names import REMOVED_IN

COMMANDS = {
    "drop": "delete",
    "history": "events",
    "certificates": "certs",
    "import": "trace import",
    "cuts": "trace cuts",
    "explore": "sim explore",
    "spark snapshot": "pipeline snapshot",
    "spark savepoint": "pipeline savepoint",
    "spark list": "pipeline list",
    "spark show": "pipeline show",
    "spark drop": "pipeline delete",
    "spark restore": "pipeline restore",
    "spark fork": "pipeline fork",
    "spark progress": "pipeline status",
    "spark audit": "store audit",
    "spark history": "store stats",
    "spark diff": "store diff",
    "spark detect": "store detect",
    "spark compact": "store compact",
    "spark assemble": "store assemble",
    "spark follow": "store follow",
    "spark verify": "log verify",
    "spark verify --clock": "log clock",
    "sim": "sim run",
}
"""The first words of a command line -> what they are now. ``sim`` and a script are not renamed."""
OPTIONS = {
    "--if-incomplete": "--on-incomplete",
    "--tolerate": "--max-abandoned",
    "--marker-wait": "--marker-linger",
    "--elsewhere": "--external",
    "--for": "--duration",
    "--log": "--event-log",
    "--fragments": "--fragment-dir",
    "--of": "--snapshot",
}
"""These hold for every command that has the new option."""
SPLIT = "spark"
"""The former group whose commands are in several groups now."""
_CLOCK = "--clock"


def rename_command(args: list[str]) -> list[str]:
    """Return a command line with the present name of its command, and print that if it differs."""
    if args[:2] == ["spark", "verify"] and (clock := _split_option(args[2:], _CLOCK)) is not None:
        event, rest = clock
        _announce(f"spark verify {_CLOCK}")
        _, rest = _split_option(rest, "--store") or ([], rest)  # a clock has no use for it
        return [*COMMANDS[f"spark verify {_CLOCK}"].split(), *rest, *event]
    for count in (2, 1):
        old = " ".join(args[:count])
        if old in COMMANDS and old != "sim":
            _announce(old)
            return [*COMMANDS[old].split(), *args[count:]]
    return args


def rename_sim(args: list[str]) -> list[str]:
    """Return the arguments of a ``sim`` without a subcommand and a script as those of ``sim``."""
    _announce("sim")
    return [*COMMANDS["sim"].split()[1:], *args]


def rename_options(args: list[str], known: Collection[str]) -> list[str]:
    """Return the arguments of a command that has the `known` options with their present names."""
    renamed: list[str] = []
    announced: set[str] = set()
    for index, arg in enumerate(args):
        if arg == "--":
            return [*renamed, *args[index:]]
        name, *value = arg.split("=", 1)
        new = OPTIONS.get(name, name)
        if new not in known or name in known:
            renamed.append(arg)
            continue
        if name not in announced:
            announced.add(name)
            _say(name, new)
        renamed.append("=".join((new, *value)))
    return renamed


def _announce(old: str) -> None:
    _say(old, COMMANDS[old])


def _say(old: str, new: str) -> None:
    output.say(f"'{old}' is now '{new}'; Stillframe {REMOVED_IN} will remove the old name")


def _split_option(args: list[str], option: str) -> tuple[list[str], list[str]] | None:
    """Return the value of an option, if it is there, and the other arguments."""
    for index, arg in enumerate(args):
        if arg == option:
            return args[index + 1 : index + 2], [*args[:index], *args[index + 2 :]]
        if arg.startswith(f"{option}="):
            return [arg.partition("=")[2]], [*args[:index], *args[index + 1 :]]
    return None
