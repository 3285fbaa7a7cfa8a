"""Whose program asks: on a machine of several users the page is its owner's alone."""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stillframe.watch.peers import may_ask, owner_of
from tests.watch.servers import a_server, ask
from tests.watch.test_server import store

__all__ = ["store"]

NOBODY = 65534


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_our_own_connections_are_ours(family: socket.AddressFamily, host: str) -> None:
    """Of one that nobody has, nobody is said to be the owner."""
    with socket.create_server((host, 0), family=family) as server:
        mine = server.getsockname()[:2]
        with socket.create_connection(mine) as client:
            peer = client.getsockname()[:2]
            assert owner_of(peer, mine) == os.geteuid()
            assert may_ask(peer, mine)
        assert owner_of((host, 1), mine) is None
        assert owner_of(("not an address", 1), mine) is None
        assert not may_ask((host, 1), mine)
        assert not may_ask(peer, mine)  # it is closed: nobody knows whose it was


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_machine_is_refused(store: Path) -> None:
    """It is told what to do; the owner is answered."""
    with a_server(store) as link:
        assert ask(link, "/api/snapshot/A-1")[0] == 200
        os.seteuid(NOBODY)  # whoever makes a socket owns it
        try:
            status, _, body = ask(link, "/api/snapshot/A-1")
            port = urlsplit(link).port
            assert port is not None
            with socket.socket(socket.AF_INET6) as mapped:
                mapped.connect(("::ffff:127.0.0.1", port))
                mapped.sendall(b"GET /api/snapshot/A-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                told = mapped.recv(2**16)
            with socket.create_connection(("127.0.0.1", port)) as half:
                half.sendall(b"GET /api/snapshot/A-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                half.shutdown(socket.SHUT_WR)
                closed = half.recv(2**16)
        finally:
            os.seteuid(0)
        assert status == 403
        assert b"--token-file" in body
        assert told.startswith(b"HTTP/1.1 403")
        assert not closed.startswith(b"HTTP/1.1 200")
