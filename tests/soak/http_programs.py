"""The HTTP shop that answers too early: ``python -m tests.soak.http_programs STORE PORT``."""

import asyncio
import sys
from pathlib import Path

from stillframe import JoinedProcess
from stillframe.examples.http_shop import Server


class NaiveServer(Server):
    """Answers as soon as it has taken an order."""

    async def until_safe(self, me: JoinedProcess) -> None:
        """Wait for nothing."""


if __name__ == "__main__":
    asyncio.run(NaiveServer(Path(sys.argv[1])).serve(int(sys.argv[2])))
