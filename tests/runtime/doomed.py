"""A supervisor that will be killed: prints its processes' ids when a snapshot is published."""

import asyncio
import sys
from pathlib import Path

from stillframe.runtime.supervisor import Supervisor
from tests.runtime.watch import new_store, program, take


async def main() -> None:
    """Run until killed."""
    store = new_store(Path(sys.argv[1]), "rally")
    async with Supervisor(program("rally"), store) as system:
        await take(system)
        pids = [str(child.pid) for child in system.children.values()]
        sys.stdout.write(" ".join(pids) + "\n")
        sys.stdout.flush()
        await system.finished


if __name__ == "__main__":
    asyncio.run(main())
