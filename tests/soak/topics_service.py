"""The service of the kill soak over Kafka: ``topics_service.py ROOT``.

It says ``joined`` when it has taken its place, and with each action how many orders it has booked.
On SIGTERM it leaves, and says ``stopped``. If Kafka does not answer, or another program has taken
its place, it says ``failed``, and must be started again.
"""

import signal
import sys

from stillframe.errors import Unavailable
from stillframe.pipeline import JoinedTopicService, Pipeline
from stillframe.storage.location import locate
from tests.soak.topics_shop import SERVICE, Receipts


def main(root: str) -> None:
    """Take the place of the service and book orders."""
    state = Receipts()
    try:
        with Pipeline(locate(root)).join_service(
            SERVICE, state=state, kind=JoinedTopicService
        ) as me:
            signal.signal(signal.SIGTERM, lambda *_: me.leave())
            print("joined", flush=True)
            for _, records in me:
                for record in records:
                    me.append(SERVICE, state.book(record.value or b""), record.key)
                print(state.count, flush=True)
    except Unavailable as error:
        print(error, file=sys.stderr)
        print("failed", flush=True)
        return
    print("stopped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
