"""A crawl through a directory tree whose end no single process can detect: a diffusing computation.

Each process reads a directory, counts the lines of its Python files, and sends the subdirectories
to other processes. After the last directory, every process waits for another one. A snapshot shows
that no work is left, neither at a process nor in transit:

    stillframe run stillframe.examples.crawl:standard_library --store crawl --until termination
    stillframe show crawl SNAPSHOT
"""

import os
import sysconfig
import zlib
from pathlib import Path

from stillframe import Channel, Message, Process, Topology

CRAWLER_COUNT = 4


class Look(Message):
    """A directory to read."""

    path: str


class Crawler(Process):
    """A process that reads directories. It acts only on messages, so it is passive between them."""

    root: str = ""
    directory_count: int = 0
    file_count: int = 0
    line_count: int = 0

    def start(self) -> None:
        """Send the root directory, from the one process that has it."""
        if self.root:
            self._hand_on(self.root)

    def receive(self, channel: Channel, message: Look) -> None:
        """Count the lines in a directory, and send its subdirectories on."""
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
    """Return crawlers that start at `root`."""
    names = [f"C{number}" for number in range(1, CRAWLER_COUNT + 1)]
    return Topology.mesh({name: Crawler(root=root if name == "C1" else "") for name in names})


standard_library = crawl(sysconfig.get_paths()["stdlib"])
