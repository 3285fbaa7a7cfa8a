"""The service `feed`, which replays the flights of a year, and sends each of them twice."""

import argparse
import json
import time

from examples.flights.tables import read_flights
from examples.kafka.flows import FLIGHT, SENT_COUNT, Replay
from examples.processes import READY
from stillframe import Pipeline
from stillframe.pipeline import JoinedTopicService

FLIGHTS_AT_ONCE = 250


def run(pipeline: str, flight_count: int, pause_at: int, flights_per_s: float) -> None:
    """Append the remaining flights, then leave the pipeline.

    Args:
        pipeline: its address.
        flight_count: how many flights there are in all.
        pause_at: after how many the feed waits until it is stopped.
        flights_per_s: how fast they come.
    """
    flights = read_flights(flight_count).select(FLIGHT.names)
    state = Replay()
    with Pipeline(pipeline).join_service("feed", state=state, kind=JoinedTopicService) as me:
        print(READY, flush=True)
        began, first = time.monotonic(), state.flight_count
        while state.flight_count < flight_count:
            count = min(FLIGHTS_AT_ONCE, pause_at - state.flight_count)
            new = flights.slice(state.flight_count, count).to_pylist()
            # The records and the new state are one action: a snapshot has all of it or nothing.
            for flight in new * SENT_COUNT:
                me.append("flights", json.dumps(flight), key=flight["carrier"])
            state.flight_count += len(new)
            due = began + (state.flight_count - first) / flights_per_s
            is_waiting = state.flight_count == pause_at < flight_count
            me.receive(timeout_s=None if is_waiting else max(0.0, due - time.monotonic()))


def main() -> None:
    """Run the service from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline")
    parser.add_argument("--flights", type=int, required=True)
    parser.add_argument("--pause-at", type=int, required=True)
    parser.add_argument("--per-second", type=float, required=True)
    arguments = parser.parse_args()
    run(arguments.pipeline, arguments.flights, arguments.pause_at, arguments.per_second)


if __name__ == "__main__":
    main()
