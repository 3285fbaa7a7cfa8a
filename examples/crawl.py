"""A crawl through a directory tree that nobody knows to be finished: a diffusing computation.

Each process looks at a directory, counts the lines of its Python files, and hands the directories
in it on to others. When all have been looked at, every process just waits for more. A snapshot sees
that there is none, neither at a process nor on its way:

    stillframe run examples.crawl:standard_library --store crawl --every 100ms --until termination
    stillframe show crawl SNAPSHOT
"""

import os
import sysconfig
import zlib
from pathlib import Path

from stillframe import Channel, Message, Process, Topology

CRAWLER_COUNT = 4


class Look(Message):
    """Look at this directory."""

    path: str


class Crawler(Process):
    """Looks at directories; does nothing by itself, and so is passive whenever it is not asked."""

    root: str = ""
    directory_count: int = 0
    file_count: int = 0
    line_count: int = 0

    def start(self) -> None:
        """Ask for the first directory, at the one process that knows which that is."""
        if self.root:
            self._hand_on(self.root)

    def receive(self, channel: Channel, message: Look) -> None:
        """Count what is in a directory, and hand on what lies below it."""
        self.directory_count += 1
        with os.scandir(message.path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self._hand_on(entry.path)
                elif entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                    self.line_count += Path(entry.path).read_bytes().count(b"\n")
                    self.file_count += 1

    def _hand_on(self, path: str) -> None:
        target = self.outgoing[zlib.crc32(os.fsencode(path)) % len(self.outgoing)]
        self.send(target, Look(path))


def crawl(root: str) -> Topology:
    """Return crawlers that begin with `root`."""
    names = [f"C{number}" for number in range(1, CRAWLER_COUNT + 1)]
    return Topology.mesh({name: Crawler(root=root if name == "C1" else "") for name in names})


standard_library = crawl(sysconfig.get_paths()["stdlib"])
