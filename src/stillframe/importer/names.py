"""Process ids for the hosts of a log."""

import re
from collections import Counter
from collections.abc import Iterable

from stillframe.errors import UsageError
from stillframe.model import ProcessId, check_process_id

_NAME_LENGTH_MAX = 64
_SHOWN_CHARS_MAX = 80
_FOREIGN = re.compile(r"[^A-Za-z0-9_.]+")
_DIGITS = re.compile(r"([0-9]+)")


def name_processes(hosts: Iterable[str]) -> dict[str, ProcessId]:
    """Return a process id for each host: its own name where that can be, else one like it.

    The hosts come in natural order: ``p2`` before ``p10``.
    """
    ordered = sorted(hosts, key=_counting_order)
    names = {host: host for host in ordered if _can_name_a_process(host)}
    taken = set(names)
    twin_counts: Counter[str] = Counter()
    for host in ordered:
        if host not in names:
            names[host] = _free_name(host, taken, twin_counts)
            taken.add(names[host])
    return {host: names[host] for host in ordered}


def show_host(host: str) -> str:
    """Return a host for a message, in quotes and shortened: it may be any text."""
    if len(host) > _SHOWN_CHARS_MAX:
        host = f"{host[: _SHOWN_CHARS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
    return repr(host)


def _can_name_a_process(host: str) -> bool:
    try:
        check_process_id(host)
    except UsageError:
        return False
    return True


def _free_name(host: str, taken: set[str], twin_counts: Counter[str]) -> ProcessId:
    name = _FOREIGN.sub("-", host).strip("-.")
    if not name[:1].isalpha():
        name = f"P{name}"
    name = name[:_NAME_LENGTH_MAX].rstrip("-.")
    candidate = name
    while candidate in taken:
        twin_counts[name] += 1
        ending = f"-{twin_counts[name] + 1}"
        candidate = name[: _NAME_LENGTH_MAX - len(ending)].rstrip("-.") + ending
    return check_process_id(candidate)


def _counting_order(host: str) -> tuple[list[tuple[int, str]], str]:
    parts = _DIGITS.split(host)
    for index in range(1, len(parts), 2):
        parts[index] = parts[index].lstrip("0")
    return [(len(p) if index % 2 else 0, p) for index, p in enumerate(parts)], host
