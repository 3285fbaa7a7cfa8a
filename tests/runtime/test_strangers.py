"""What does not belong here is refused with a reason, and the system goes on."""

import asyncio
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe import Topology
from stillframe.protocol import wire
from stillframe.protocol.handshake import Hello
from stillframe.runtime import control
from stillframe.runtime.network.acceptor import REPORT_COUNT_MAX
from tests.runtime.links import SECRET
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Sink, Source
from tests.runtime.rally import beside_players
from tests.runtime.stranger import changed, stranger

SEED = 1985


def hello_of_a(system: LocalSystem, target: str | None) -> Hello:
    """Return what A rightly says to `target`."""
    return system.credentials("A").hello(target)


SAME = changed()
OTHER_SECRET = bytes(32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "secret", "reason"),
    [
        (changed(source="Z"), SECRET, "no channel from 'Z' to B; known sources: A"),
        (changed(source="C"), SECRET, "no channel from 'C' to B; known sources: A"),
        (changed(target="C"), SECRET, "this is B, not C: the address is out of date"),
        (changed(topology_hash="f" * 64), SECRET, "start every process from the same topology"),
        (changed(epoch=0), SECRET, "epoch 0 has ended: this is epoch 1"),
        (changed(epoch=2), SECRET, "epoch 2 has not begun: this is epoch 1"),
        (SAME, OTHER_SECRET, "wrong secret: this is not a process of this run"),
    ],
)
def test_a_process_refuses_what_does_not_belong_to_it(
    tmp_path: Path, change: Callable[[Hello], Hello], secret: bytes, reason: str
) -> None:
    """A hello that is wrong in one point is declined with that point, and reported."""

    async def body(system: LocalSystem) -> None:
        async with stranger(system.members["B"].port) as other:
            assert reason in await other.knock(change(hello_of_a(system, "B")), secret)
        await system.until(lambda: len(system.troubles()) == 1)
        assert system.troubles()[0].startswith("a connection from 127.0.0.1:")
        assert "to B was closed: " in system.troubles()[0]
        assert reason in system.troubles()[0]

    beside_players(tmp_path, body)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "secret", "reason"),
    [
        (changed(source="Z"), SECRET, "from 'Z' to the coordinator; known sources: A, B, C"),
        (changed(target="C"), SECRET, "this is the coordinator, not C"),
        (changed(topology_hash="f" * 64), SECRET, "start every process from the same topology"),
        (changed(epoch=2), SECRET, "epoch 2 has not begun: this is epoch 1"),
        (SAME, OTHER_SECRET, "wrong secret: this is not a process of this run"),
    ],
)
def test_the_coordinator_refuses_what_does_not_belong_to_it(
    tmp_path: Path, change: Callable[[Hello], Hello], secret: bytes, reason: str
) -> None:
    """A hello that is wrong in one point is declined with that point, and reported."""

    async def body(system: LocalSystem) -> None:
        async with stranger(system.port) as other:
            assert reason in await other.knock(change(hello_of_a(system, None)), secret)
        await system.until(lambda: len(system.troubles()) == 1)
        assert "to the coordinator was closed: " in system.troubles()[0]
        assert reason in system.troubles()[0]

    beside_players(tmp_path, body)


def test_who_takes_the_place_of_a_process_that_is_there_is_sent_away(tmp_path: Path) -> None:
    """Also one that knows the secret, if it is new; the process keeps its place."""

    async def body(system: LocalSystem) -> None:
        async with stranger(system.port) as other:
            assert await other.knock(hello_of_a(system, None), SECRET) == ""
            reason = "process 'A' has joined already: each process can join once"
            assert await other.say(control.JoinRequest()) == control.Dismissed(reason)
        await system.until(lambda: len(system.troubles()) == 1)
        assert f"the connection of A to the coordinator was closed: {reason}" in system.troubles()

    beside_players(tmp_path, body)


def test_who_speaks_before_it_has_come_in_is_sent_away(tmp_path: Path) -> None:
    """The first word is whether one is new; anything else ends the connection, and no process."""

    async def body(system: LocalSystem) -> None:
        async with stranger(system.port) as other:
            assert await other.knock(hello_of_a(system, None), SECRET) == ""
            assert await other.say(control.Ready()) is None
        await system.until(lambda: len(system.troubles()) == 1)
        assert "sent a message before it reported whether it is new" in system.troubles()[0]

    beside_players(tmp_path, body)


TOO_LARGE = struct.pack("!IB", 2**31, wire.Kind.GREETING)
WRONG_KIND = struct.pack("!IB", 10, wire.Kind.MESSAGES) + bytes(9)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["B", "the coordinator"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(
            TOO_LARGE, "2147483648 bytes arrived; at most 4096 are allowed", id="too large"
        ),
        pytest.param(WRONG_KIND, "kind 2 arrived where only GREETING is allowed", id="wrong kind"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", "not Stillframe's wire format", id="http"),
        pytest.param(
            struct.pack("!IB", 20, wire.Kind.GREETING)
            + b"STFR"
            + wire.VERSION.to_bytes(2, "big")
            + bytes(13),
            "a GREETING frame cannot be read",
            id="no greeting",
        ),
    ],
)
def test_bytes_that_are_no_greeting_close_the_connection(
    tmp_path: Path, place: str, data: bytes, reason: str
) -> None:
    """Before the handshake is over nothing large or foreign is taken in, and it is said why."""

    async def body(system: LocalSystem) -> None:
        port = system.port if place == "the coordinator" else system.members[place].port
        async with stranger(port) as other:
            other.write(data)
            assert await other.hear() is None
        await system.until(lambda: len(system.troubles()) == 1)
        assert f"to {place} was closed: " in system.troubles()[0]
        assert reason in system.troubles()[0]

    beside_players(tmp_path, body)


def test_a_frame_that_is_cut_short_harms_nobody(tmp_path: Path) -> None:
    """Half a greeting, then the end of the connection: nothing happens."""

    async def body(system: LocalSystem) -> None:
        half = wire.encode_greeting(hello_of_a(system, "B"))[:30]
        for port in (system.port, *(member.port for member in system.members.values())):
            async with stranger(port) as other:
                other.write(half)
        await system.take()
        assert system.troubles() == []

    beside_players(tmp_path, body)


def test_random_bytes_at_every_port_harm_nobody(tmp_path: Path) -> None:
    """Snapshots go on while random bytes come to all ports; every connection is refused, and said
    to be as long as there are not too many."""
    chance = random.Random(SEED)

    async def send(port: int) -> None:
        async with stranger(port) as other:
            other.write(chance.randbytes(chance.randrange(5, 2000)))
            assert await other.hear() is None

    async def body(system: LocalSystem) -> None:
        ports = [system.port, *(member.port for member in system.members.values())]
        doors = [
            system.coordinator.membership.acceptor,
            *(m.acceptor for m in system.members.values()),
        ]
        for round_number in range(1, 11):
            async with asyncio.TaskGroup() as group:
                for port in ports * 3:
                    group.create_task(send(port))
                group.create_task(system.take())
            goal = round_number * len(ports) * 3
            await system.until(lambda goal=goal: sum(d.refused_count for d in doors) == goal)  # type: ignore[misc]
        assert len(system.troubles()) == len(doors) * REPORT_COUNT_MAX

    beside_players(tmp_path, body)


def test_nonsense_from_a_process_ends_its_connection(tmp_path: Path) -> None:
    """Who is let in to the coordinator and then talks nonsense is dropped, with the reason."""

    async def main() -> None:
        topology = Topology({"A": Source(limit=3), "B": Sink()}, [("A", "B")])
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path) as system:
            line = system.members["A"]._connection
            assert line.transport is not None
            line.transport.write(wire.encode_control({"type": "Nonsense"}))
            await system.until(lambda: bool(system.departed))
            assert (
                "the connection of A to the coordinator was closed: its message cannot be"
                in (system.troubles()[0])
            )

    asyncio.run(main())


def test_a_second_connection_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """Who proves to be A is welcomed; when it goes, A itself connects anew, and nothing is lost."""

    async def body(system: LocalSystem) -> None:
        async with stranger(system.members["B"].port) as other:
            assert await other.knock(hello_of_a(system, "B"), SECRET) == ""
        assert system.troubles() == []

    beside_players(tmp_path, body)
