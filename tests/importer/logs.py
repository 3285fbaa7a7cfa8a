"""Executions with known clocks, for the tests of the importer."""

import random

from stillframe.importer.clocks import ClockedEvent
from stillframe.trace import Trace

HOSTS = ("a", "b", "c", "d")


def log_of(*rows: tuple[str, dict[str, int]]) -> list[ClockedEvent]:
    """Return events of these hosts and clocks, one on each line."""
    return [
        ClockedEvent(line, host, clock, f"{host} at {line}")
        for line, (host, clock) in enumerate(rows, 1)
    ]


def chance_log(seed: int, event_count: int, *, is_stated: bool) -> list[ClockedEvent]:
    """Return an execution in which hosts act by chance and messages overtake each other.

    Args:
        seed: which one.
        event_count: how long.
        is_stated: whether the log says what was sent and received.
    """
    chance = random.Random(seed)
    clocks: dict[str, dict[str, int]] = {host: {} for host in HOSTS}
    under_way: list[tuple[str, str, dict[str, int], int]] = []
    events = []
    for line in range(1, event_count + 1):
        host = chance.choice(HOSTS)
        clock = clocks[host]
        clock[host] = clock.get(host, 0) + 1
        event = ClockedEvent(line, host, {}, f"{host} at {line}")
        waiting = [message for message in under_way if message[1] == host]
        if waiting and chance.random() < 0.6:
            message = chance.choice(waiting)
            under_way.remove(message)
            for other, count in message[2].items():
                clock[other] = max(clock.get(other, 0), count)
            if is_stated:
                event.received_from, event.content = message[0], message[3]
        elif chance.random() < 0.6:
            target = chance.choice(HOSTS)
            under_way.append((host, target, dict(clock), line))
            if is_stated:
                event.sent_to, event.content = target, line
        event.clock = dict(clock)
        events.append(event)
    return events


def clocks_of(trace: Trace) -> dict[str, list[dict[str, int]]]:
    """Return the vector clocks of a trace as a log would have them, without zeros."""
    return {
        process: [
            {p: count for p, count in zip(trace.processes, clock, strict=True) if count}
            for clock in line
        ]
        for process, line in trace.clocks().items()
        if line
    }


def clocks_in(events: list[ClockedEvent]) -> dict[str, list[dict[str, int]]]:
    """Return the vector clocks of a log, host by host, in the order of its events."""
    lines: dict[str, list[dict[str, int]]] = {}
    for event in sorted(events, key=lambda event: event.clock[event.host]):
        clock = {host: count for host, count in event.clock.items() if count}
        lines.setdefault(event.host, []).append(clock)
    return lines
