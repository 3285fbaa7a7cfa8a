"""TLS on every connection: who may speak for whom, and what both ends say when they refuse."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe.errors import Refused, StillframeError, UsageError
from stillframe.runtime import control
from stillframe.runtime.network import certificates
from stillframe.runtime.network.acceptor import Acceptor
from stillframe.runtime.network.addresses import ANY_PORT, LOOPBACK, Address
from stillframe.runtime.network.connection import Credentials
from stillframe.runtime.process.link import connect
from stillframe.runtime.process.process_runtime import CoordinatorConnection, ProcessRuntime
from tests.runtime.certificate_dirs import everybody, foreign, make, papers, shifted, smuggled
from tests.runtime.local import LocalSystem
from tests.runtime.rally import beside_players, players
from tests.runtime.stranger import stranger


async def knock(me: Credentials, address: Address, target: str | None) -> str:
    """Connect to `target` with the certificates of `me`, and return why it came to nothing; the
    connection's end without a word is an empty text."""
    line = CoordinatorConnection(me, control.JoinRequest)
    try:
        await connect(line, address, me.certificates, target)
        heard = await line.received.get()
        assert heard is None or isinstance(heard, StillframeError), heard
        return str(heard or "")
    finally:
        line.close()
        await line.closed.wait()


def test_a_system_speaks_tls_on_every_connection(tmp_path: Path) -> None:
    """Snapshots are taken as ever, and every connection has shown a certificate of TLS 1.3."""

    async def body(system: LocalSystem) -> None:
        names = frozenset({"coordinator.stillframe", "*.process.stillframe"})
        for member in system.members.values():
            assert member._connection.shown_names == names
            assert member._connection.transport._tls.version() == "TLSv1.3"  # type: ignore[union-attr]
        assert system.troubles() == []

    beside_players(tmp_path, body, certificates=everybody())


REFUSALS = [
    pytest.param(
        lambda: shifted(-20), "it has expired", "reports that the certificate has expired", id="old"
    ),
    pytest.param(
        lambda: shifted(20), "it is not yet valid", "does not accept the certificate", id="young"
    ),
    pytest.param(smuggled, "CA is not in our ca.pem", "our CA is not in its ca.pem", id="foreign"),
]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["B", "the coordinator"])
@pytest.mark.parametrize(("directory", "here", "there"), REFUSALS)
def test_a_bad_certificate_is_refused_with_words_at_both_ends(
    tmp_path: Path, place: str, directory: Callable[[], Path], here: str, there: str
) -> None:
    """Who shows it is told why, which file it is and until when it is valid; the end that refuses
    it reports it once."""

    async def body(system: LocalSystem) -> None:
        is_coordinator = place == "the coordinator"
        port = system.port if is_coordinator else system.members[place].port
        me = Credentials("A", 1, "", b"", str(directory()))
        reason = await knock(me, Address(LOOPBACK, port), None if is_coordinator else place)
        assert f"refused our certificate {directory() / 'cert.pem'}" in reason
        assert there in reason
        assert "it is for A.process.stillframe, valid from" in reason
        await system.until(lambda: bool(system.troubles()))
        (trouble,) = system.troubles()
        assert f"to {place} was closed: its certificate is refused: " in trouble
        assert here in trouble

    beside_players(tmp_path, body, certificates=everybody())


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        pytest.param(lambda: shifted(-20), "it has expired", id="old"),
        pytest.param(lambda: shifted(20), "it is not yet valid", id="young"),
        pytest.param(smuggled, "its CA is not in our ca.pem", id="foreign"),
        pytest.param(lambda: papers() / "B", "is for B.process.stillframe, not for A", id="other"),
    ],
)
def test_who_connects_refuses_a_bad_certificate_too(
    directory: Callable[[], Path], why: str
) -> None:
    """An impostor at the address of A hears no word; both ends say why."""

    async def main() -> None:
        said: list[str] = []
        me = Credentials("B", 1, "", b"", str(papers() / "B"))
        acceptor = Acceptor(lambda: CoordinatorConnection(me, control.JoinRequest), said.append)
        address = await acceptor.open(ANY_PORT, str(directory()))
        async with asyncio.timeout(20):
            assert why in await knock(me, address, "A")
        acceptor.close()

    asyncio.run(main())


def test_a_certificate_speaks_for_nobody_else(tmp_path: Path) -> None:
    """The holder of C's certificate who says that it is A is refused, at both doors."""

    async def body(system: LocalSystem) -> None:
        hash_ = system.topology.description.hash
        me = Credentials("A", 1, hash_, b"", str(papers() / "C"))
        for place, port in (("B", system.members["B"].port), (None, system.port)):
            reason = await knock(me, Address(LOOPBACK, port), place)
            assert "its certificate is for C.process.stillframe, not for A" in reason
        await system.until(lambda: len(system.troubles()) == 2)
        assert all("not for A.process.stillframe" in words for words in system.troubles())

    beside_players(tmp_path, body, certificates=everybody())


@pytest.mark.parametrize("place", ["B", "the coordinator"])
def test_who_shows_no_certificate_or_speaks_no_tls_is_refused(tmp_path: Path, place: str) -> None:
    """Neither comes as far as the first greeting; it is said what is missing."""

    async def body(system: LocalSystem) -> None:
        port = system.port if place == "the coordinator" else system.members[place].port
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname = False
        bare.load_verify_locations(papers() / "ca.pem")
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=bare)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            await reader.read()
        writer.transport.abort()
        async with stranger(port) as other:
            other.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await other.hear() is None
        await system.until(lambda: len(system.troubles()) == 2)
        assert "it presented no certificate: start it with --tls" in system.troubles()[0]
        assert "it does not use TLS 1.3: both ends need --tls" in system.troubles()[1]

    beside_players(tmp_path, body, certificates=everybody())


def test_tls_to_who_speaks_none_ends_with_words(tmp_path: Path) -> None:
    """A process with certificates at a system without: both ends say what is wrong."""

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(players(), tmp_path) as system:
            me = Credentials("A", 1, "", b"", str(everybody()))
            reason = await knock(me, system.address, None)
            assert reason in {"", "it does not use TLS 1.3: both ends need --tls"}
            await system.until(lambda: bool(system.troubles()))
            assert (
                "the other end uses TLS and this one does not: both need certificates"
                in system.troubles()[0]
            )

    asyncio.run(main())


@pytest.mark.parametrize(
    ("directory", "words"),
    [
        (lambda: shifted(-20), "cert.pem has expired: it is for A.process.stillframe, valid from"),
        (lambda: shifted(20), "cert.pem is not yet valid: it is for A.process.stillframe"),
        (lambda: papers() / "B", "is for B.process.stillframe, valid from"),
        (lambda: papers() / "D", "cert.pem cannot be read: No such file or directory"),
    ],
)
def test_a_process_does_not_start_with_bad_certificates_of_its_own(
    directory: Callable[[], Path], words: str
) -> None:
    """Here the file can be named, and until when it was valid: nothing is connected."""

    async def main() -> None:
        me = Credentials("A", 0, "", b"", str(directory()))
        with pytest.raises(UsageError) as caught:
            await ProcessRuntime(me, Address(LOOPBACK, 1), ANY_PORT).connect()
        assert words in str(caught.value)

    asyncio.run(main())


def test_files_that_do_not_fit_each_other_are_named(tmp_path: Path) -> None:
    """A key of another certificate, or a missing CA: the error says which file to look at."""
    for name in ("ca.pem", "cert.pem"):
        (tmp_path / name).write_bytes((papers() / "A" / name).read_bytes())
    (tmp_path / "key.pem").write_bytes((papers() / "B" / "key.pem").read_bytes())
    with pytest.raises(UsageError, match=r"do not belong together: .*; copy all three again"):
        certificates.check_own(tmp_path, "A")
    (tmp_path / "key.pem").write_bytes((papers() / "A" / "key.pem").read_bytes())
    certificates.check_own(tmp_path, "A")
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(UsageError, match=r"ca.pem cannot be read: No such file"):
        certificates.check_own(tmp_path, "A")


def test_files_are_read_again_only_when_they_have_changed(tmp_path: Path) -> None:
    """To read them costs more than all else that a stranger can ask for; a renewed certificate is
    shown on the next connection, and one that is gone on none."""
    make(tmp_path, "A")
    for is_listening in (False, True):
        first = certificates.context(tmp_path / "A", is_listening=is_listening)
        assert certificates.context(tmp_path / "A", is_listening=is_listening) is first
    other = certificates.context(tmp_path / "coordinator", is_listening=True)
    assert other is not first
    make(tmp_path, "A")
    renewed = certificates.context(tmp_path / "A", is_listening=True)
    assert renewed is not first
    (tmp_path / "A" / "key.pem").unlink()
    with pytest.raises(FileNotFoundError):
        certificates.context(tmp_path / "A", is_listening=True)


def test_names_are_compared_sign_by_sign() -> None:
    """No case is ignored, no part of a name is enough, and processes are not the coordinator."""
    certificates.check_speaks_for(frozenset({"P1.process.stillframe"}), "P1")
    certificates.check_speaks_for(frozenset({"*.process.stillframe"}), "P.1")
    certificates.check_speaks_for(frozenset({"coordinator.stillframe"}), None)
    for names, process in (
        ({"p1.process.stillframe"}, "P1"),
        ({"*.stillframe", "P*.process.stillframe", "P1.process.stillframe.example"}, "P1"),
        ({"*.process.stillframe"}, None),
        ({"coordinator.stillframe"}, "coordinator"),
        (set[str](), "P1"),
    ):
        with pytest.raises(Refused, match="not for"):
            certificates.check_speaks_for(frozenset(names), process)


def test_certificates_are_renewed_by_the_same_ca(tmp_path: Path) -> None:
    """A second call keeps the CA and makes new certificates; keys are for their owner alone; what
    was signed before and after trusts each other."""
    from stillframe.runtime.network.certificate_authority import issue_certificates  # noqa: PLC0415 - only with the extra

    issue_certificates(tmp_path, ("A",), days=1)
    authority, first = (tmp_path / "ca.pem").read_bytes(), certificates.read_own(tmp_path / "A")
    folders = issue_certificates(tmp_path, ("A", "B"), days=30)
    assert [folder.name for folder in folders] == ["coordinator", "A", "B"]
    assert (tmp_path / "ca.pem").read_bytes() == authority
    second = certificates.read_own(tmp_path / "A")
    assert second.names == first.names == ("A.process.stillframe",)
    assert (second.valid_until - first.valid_until).days == 29
    modes = {
        p.relative_to(tmp_path).as_posix(): p.stat().st_mode & 0o777
        for p in tmp_path.rglob("*key.pem")
    }
    assert modes == dict.fromkeys(
        ["ca-key.pem", "coordinator/key.pem", "A/key.pem", "B/key.pem"], 0o600
    )
    for folder in folders:
        certificates.check_own(folder, None if folder.name == "coordinator" else folder.name)
    with pytest.raises(UsageError, match="named twice"):
        issue_certificates(tmp_path, ("A", "A"), days=1)
    with pytest.raises(UsageError, match="is reserved for the coordinator"):
        issue_certificates(tmp_path, ("coordinator",), days=1)
    (tmp_path / "ca-key.pem").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="cannot be used"):
        issue_certificates(tmp_path, ("A",), days=1)


def test_foreign_papers_are_whole() -> None:
    """The certificates that are refused above are refused for their CA alone."""
    certificates.check_own(foreign(), "A")
