"""A process whose fragments are written slowly. It has a module of its own: what it replaces brings
Arrow, which starts threads, and no other program should be loaded with it."""

import time
from typing import Any

from stillframe import Process, Topology
from stillframe.runtime.process import fragment_recorder as runtime_fragments
from stillframe.store.fragments import FragmentWriter


class SlowDisk(Process):
    """Its fragments take long to be written: longer than a second or two."""

    def start(self) -> None:
        """Let the disk be slow."""

        class Slow(FragmentWriter):
            def write(self, *arguments: Any, **options: Any) -> None:
                """Write after a while."""
                time.sleep(3.0)
                super().write(*arguments, **options)

        setattr(runtime_fragments, "FragmentWriter", Slow)  # noqa: B010 - it is not exported


slow_disk = Topology({"A": SlowDisk()}, [])
