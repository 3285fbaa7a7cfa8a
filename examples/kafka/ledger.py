"""The service `ledger`, which books every change of the totals."""

import argparse
import json

from examples.kafka.flows import Ledger
from examples.processes import READY
from stillframe import Pipeline
from stillframe.pipeline import JoinedTopicService


def run(pipeline: str) -> None:
    """Book the totals, until the program is stopped."""
    ledger = Ledger()
    with Pipeline(pipeline).join_service("ledger", state=ledger, kind=JoinedTopicService) as me:
        print(READY, flush=True)
        for _, totals in me:
            for record in totals:
                entry = ledger.book(json.loads(record.value or b""))
                me.append("entries", json.dumps(entry), key=entry["carrier"])


def main() -> None:
    """Run the service from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline")
    run(parser.parse_args().pipeline)


if __name__ == "__main__":
    main()
