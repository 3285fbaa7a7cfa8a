"""Targets in one form: those that a user lists, and those to which clients send requests."""

import ipaddress
import re
from urllib.parse import urlsplit

from stillframe.errors import UsageError
from stillframe.runtime.network.addresses import Address

_OF_HTTP = {"http": 80, "https": 443}
_OF_GRPC = re.compile(r"(dns:(///)?|ipv4:|ipv6:)(?P<address>[^/,]+:[0-9]+)", re.IGNORECASE)
_OTHER_OF_GRPC = re.compile(
    r"(unix|unix-abstract|vsock|xds|dns|ipv4|ipv6):(?![0-9]+\Z).+", re.IGNORECASE
)
"""Names that gRPC looks up in other ways, and lists of addresses."""


def target_named(text: str) -> str:
    """Return the target that a text names: ``host:port`` in lower case, and with an IPv6 address in
    brackets. A target of gRPC that is no single host and port stays as it is.

    Raises:
        UsageError: it is no target.
    """
    try:
        return _target(text)
    except (UsageError, ValueError) as error:
        raise UsageError(
            f"{text!r} is not a target: write host:port, as the client uses it, such as bank:8000"
        ) from error


def _target(text: str) -> str:
    scheme, is_url, _ = text.partition("://")
    if is_url and scheme.lower() in _OF_HTTP:
        url = urlsplit(text)
        if url.path not in ("", "/") or url.query or url.fragment or "@" in url.netloc:
            raise UsageError("it has more than an address")
        host, port = url.hostname or "", url.port or _OF_HTTP[url.scheme]
    else:
        of_grpc = _OF_GRPC.fullmatch(text)
        if of_grpc is None and _OTHER_OF_GRPC.match(text):
            return text
        written = of_grpc["address"] if of_grpc else text
        address = Address.parse(written, port=None, may_be_any=True)
        host, port = address.host, address.port
    if not host or not port:
        raise UsageError("it has no host, or port 0")
    return target_at(host, port)


def target_at(host: str, port: int) -> str:
    """Return the target at a host and port."""
    if ":" not in host:
        return f"{host.lower()}:{port}"
    return f"[{ipaddress.ip_address(host)}]:{port}"
