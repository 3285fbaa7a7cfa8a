"""Machines in one: network namespaces with addresses of their own, and a wire that a test controls.

The wire is ours, not the kernel's: packets go through TUN devices, one for each machine, and a
thread hands them on, late, or not at all. So delay and loss need no ``sch_netem``, which not every
kernel has, and TCP meets them as it would meet them anywhere.
"""

import contextlib
import fcntl
import heapq
import ipaddress
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

TUN = Path("/dev/net/tun")
NETWORK = "10.201.7."
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_PACKET_BYTES_MAX = 2048
_TURN_S = 0.05


def why_impossible() -> str:
    """Return why there can be no machines here; an empty text if there can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    if not TUN.exists():
        return f"needs {TUN}"
    name = f"stillframe-{os.getpid()}-try"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    except FileNotFoundError:
        return "needs ip, of the package iproute2"
    if made.returncode:
        return f"needs network namespaces: {made.stderr.decode().strip()}"
    _ip("netns", "del", name)
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machine:
    """A network namespace whose only way out is the wire.

    Args:
        number: the last part of its address.
    """

    def __init__(self, number: int) -> None:
        self.name = f"stillframe-{os.getpid()}-{number}"
        self.device = f"sf{os.getpid()}x{number}"[:15]
        self.address = f"{NETWORK}{number}"
        self.wire = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        _ip("netns", "add", self.name)
        request = struct.pack("16sH22x", self.device.encode(), _IFF_TUN_NO_PI)
        fcntl.ioctl(self.wire, _TUNSETIFF, request)
        _ip("link", "set", self.device, "netns", self.name)
        self.ip("addr", "add", f"{self.address}/24", "dev", self.device)
        self.ip("link", "set", "lo", "up")
        self.connect()

    def ip(self, *words: str) -> None:
        """Call ``ip`` inside."""
        _ip("-n", self.name, *words)

    def connect(self) -> None:
        """Plug the cable in."""
        self.ip("link", "set", self.device, "up")

    def disconnect(self) -> None:
        """Pull the cable out: the machine itself notices."""
        self.ip("link", "set", self.device, "down")

    def command(self, *words: object) -> list[str]:
        """Return the words of a command that runs on this machine."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def close(self) -> None:
        """Take it away; its processes have ended before."""
        os.close(self.wire)  # its device goes with it
        _ip("netns", "del", self.name)


class Wire:
    """Hands packets on between machines.

    Args:
        machines: at its ends.
        delay_s: how late each packet comes, in seconds.
        loss: how many of a hundred do not come at all.
        seed: of the chance that chooses these.
    """

    def __init__(self, machines: list[Machine], *, delay_s: float, loss: float, seed: int) -> None:
        self.passed_count = 0
        self.lost_count = 0
        self._ends = {ipaddress.ip_address(m.address).packed: m.wire for m in machines}
        self._delay_s = delay_s
        self._loss = loss / 100
        self._chance = random.Random(seed)
        self._cuts: frozenset[frozenset[bytes]] = frozenset()
        self._under_way: list[tuple[float, int, bytes]] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self, *pairs: tuple[Machine, Machine]) -> None:
        """From now on lose every packet between the machines of these pairs, and no others."""
        packed = ipaddress.ip_address
        self._cuts = frozenset(
            frozenset({packed(a.address).packed, packed(b.address).packed}) for a, b in pairs
        )

    def close(self) -> None:
        """Hand nothing on any more."""
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        wires = list(self._ends.values())
        while not self._is_over:
            now = time.monotonic()
            while self._under_way and self._under_way[0][0] <= now:
                self._deliver(heapq.heappop(self._under_way)[2])
            wait_s = self._under_way[0][0] - now if self._under_way else _TURN_S
            for wire in select.select(wires, [], [], min(wait_s, _TURN_S))[0]:
                self._take(wire)

    def _take(self, wire: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := os.read(wire, _PACKET_BYTES_MAX):
                if packet[0] >> 4 != 4 or packet[16:20] not in self._ends:
                    continue  # what the kernel says of itself, such as IPv6's greetings
                if self._chance.random() < self._loss:
                    self.lost_count += 1
                    continue
                self.passed_count += 1
                due = time.monotonic() + self._delay_s
                heapq.heappush(self._under_way, (due, self.passed_count, packet))

    def _deliver(self, packet: bytes) -> None:
        source, target = packet[12:16], packet[16:20]
        if frozenset({source, target}) not in self._cuts:
            # A machine whose cable is out, or that has more than it can take, loses packets.
            with contextlib.suppress(OSError):
                os.write(self._ends[target], packet)


@contextlib.contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """Make so many machines, and take them away whatever happens."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(1, count + 1):
            made.append(Machine(number))
            stack.callback(made[-1].close)
        yield made
