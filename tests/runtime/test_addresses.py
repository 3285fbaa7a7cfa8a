"""Addresses as people write them, and which are open to other machines."""

import asyncio

import pytest

from stillframe.errors import UsageError
from stillframe.runtime.network.addresses import Address, require_tls_off_loopback
from stillframe.runtime.network.connection import Connection
from stillframe.runtime.process.link import connect


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:8640", Address("10.0.0.1", 8640)),
        ("10.0.0.1", Address("10.0.0.1", 7)),
        ("[fd00::1]:1", Address("fd00::1", 1)),
        ("[fd00::1]", Address("fd00::1", 7)),
        ("fd00::1", Address("fd00::1", 7)),
        ("bank-0.bank:65535", Address("bank-0.bank", 65535)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_an_address_is_read(text: str, address: Address) -> None:
    """With a port or without, as a number or a name; what is printed can be read again."""
    assert Address.parse(text, port=7) == address
    assert Address.parse(str(address), port=None) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":1", "a:", "a:b", "a b:1", "[::1", "[::1]1", "a:1:2", "10.0.0.1:-1"),
        *("10.0.0.1:65536", "0.0.0.0:1", "::", "10.0.0.1:²", "10.0.0..1", "a..b:1", "a" * 64),
        "a\0b",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The error repeats what was written; an address that is every address is none."""
    with pytest.raises(UsageError) as caught:
        Address.parse(text, port=7)
    assert repr(text) in str(caught.value)


def test_a_port_can_be_demanded() -> None:
    """Where no port is known, one must be written."""
    with pytest.raises(UsageError, match=r"'10.0.0.1' is not an address: .* 10.0.0.1:8640"):
        Address.parse("10.0.0.1", port=None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_tls(host: str) -> None:
    """Nobody else's machine can connect there."""
    require_tls_off_loopback(Address(host, 1), None)


@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1", "localhost.example", "128.0.0.1"])
def test_any_other_address_needs_tls(host: str) -> None:
    """Without certificates it is refused, with what to do; with them it is not."""
    with pytest.raises(UsageError, match="TLS is required; give a directory"):
        require_tls_off_loopback(Address(host, 1), None)
    require_tls_off_loopback(Address(host, 1), "certificates")


def test_a_host_that_can_be_no_name_cannot_be_reached() -> None:
    """A process said that it listens there: whoever connects to it says so, and tries again."""

    async def main() -> None:
        with pytest.raises(OSError, match="its name cannot be resolved: "):
            await connect(Connection(), Address("a..b", 1), None, None)

    asyncio.run(main())
