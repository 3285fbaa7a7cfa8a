"""Addresses on which programs listen: host and port, as users write them."""

import ipaddress
from typing import Annotated

import msgspec

from stillframe.errors import UsageError, check_kind

LOOPBACK = "127.0.0.1"
COORDINATOR_PORT = 8640
"""Where a coordinator listens if only its address is given."""
_PORT_MAX = 65535


class Address(msgspec.Struct, frozen=True):
    """A host (an IP address, or a name that is looked up) and a TCP port; port 0 is any free one.

    A process says it to the others, so it must be the one at which they can reach it.
    """

    host: str
    port: Annotated[int, msgspec.Meta(ge=0, le=_PORT_MAX)]

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect."""
        return self.host == "localhost" or _ip_has(self.host, "is_loopback")

    @classmethod
    def parse(cls, text: str, *, port: int | None, may_be_any: bool = False) -> "Address":
        """Read ``10.0.0.1:8640``, ``[fd00::1]:8640``, ``bank.example:8640``; or without a port,
        which is `port` then: None if one must be written. It `may_be_any` if 0.0.0.0 or :: are
        allowed, all addresses of this machine. A UsageError says that it is no address."""
        check_kind("the address", text, str, "a string")
        host, colon, digits = text.rpartition(":")
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            colon, digits = rest[:1], rest[1:]
            is_written = bool(bracket) and (not rest or colon == ":")
        elif text.count(":") != 1:
            host, colon, digits, is_written = text, "", "", ":" not in text or _is_ip(text)
        else:
            is_written = True
        number = int(digits) if digits.isascii() and digits.isdigit() else None
        if not colon:
            number = port
        if not is_written or not _can_be_looked_up(host) or number is None:
            example = f"10.0.0.1:{port or COORDINATOR_PORT}"
            example = example if port is None else f"10.0.0.1 or {example}"
            raise UsageError(f"{text!r} is not an address: write for example {example}")
        if number > _PORT_MAX:
            raise UsageError(f"{text!r}: the highest port is {_PORT_MAX}")
        if not may_be_any and _ip_has(host, "is_unspecified"):
            raise UsageError(
                f"{text!r} is not an address at which other machines can reach this one: give "
                "that address"
            )
        return cls(host, number)


ANY_PORT = Address(LOOPBACK, 0)
"""The default address to listen on."""


def require_tls_off_loopback(listen: Address, certificates: str | None) -> None:
    """Raise a UsageError if other machines could connect to `listen` without TLS."""
    if certificates is None and not listen.is_loopback:
        raise UsageError(
            f"other machines could connect to {listen}: on addresses other than 127.0.0.1 and "
            "::1 TLS is required; give a directory of certificates with --tls ('stillframe "
            "certs' creates some)"
        )


def _can_be_looked_up(host: str) -> bool:
    try:
        is_name = bool(host.encode("idna"))
    except UnicodeError:  # two dots in a row, or a part with over 63 signs
        return False
    return is_name and host.isprintable() and not any(c.isspace() for c in host)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _ip_has(host: str, what: str) -> bool:
    return _is_ip(host) and bool(getattr(ipaddress.ip_address(host), what))
