"""The proxy that makes requests to an S3 server fail."""

import http.client
import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.faulty_proxy import (
    CUT_AFTER,
    CUT_BEFORE,
    LOOPBACK,
    SILENT_AFTER,
    TRUNCATED,
    Answer,
    Fault,
    faulty_proxy,
    nth,
)

BODY = b"0123456789" * 10_000
Kept = dict[str, tuple[bytes, dict[str, str]]]


class Keeper(http.server.BaseHTTPRequestHandler):
    """A server that keeps what is put, with its headers."""

    protocol_version = "HTTP/1.1"
    kept: Kept

    def do_PUT(self) -> None:
        """Keep."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.kept[self.path] = body, dict(self.headers)
        self.answer(b"")

    def do_GET(self) -> None:
        """Return."""
        self.answer(self.kept[self.path][0])

    do_HEAD = do_GET  # noqa: N815 - its name

    def answer(self, body: bytes) -> None:
        """Answer with an entity tag."""
        self.send_response_only(200)
        self.send_header("ETag", '"abc"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def kept() -> Kept:
    """What the server has."""
    return {}


@pytest.fixture
def port(kept: Kept) -> Iterator[int]:
    """The port of a running server."""
    handler = type("One", (Keeper,), {"kept": kept})
    with http.server.ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def client(port: int, timeout_s: float = 60) -> http.client.HTTPConnection:
    """Return a connection, which is made again when it was closed."""
    return http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)


def test_what_no_fault_meets_goes_through_unchanged(port: int, kept: Kept) -> None:
    """Bodies, headers, paths and the length that a HEAD reports, on one connection."""
    with faulty_proxy(port) as proxy:
        one = client(proxy.port)
        one.request("PUT", "/a%2Fb?x=1", BODY, {"Host": "signed:1", "X-Amz-Date": "now"})
        assert one.getresponse().read() == b""
        one.request("HEAD", "/a%2Fb?x=1")
        head = one.getresponse()
        assert (head.read(), head.headers["Content-Length"]) == (b"", str(len(BODY)))
        one.request("GET", "/a%2Fb?x=1")
        got = one.getresponse()
        assert (got.read(), got.headers["ETag"]) == (BODY, '"abc"')
        one.close()
        assert [request.method for request in proxy.requests] == ["PUT", "HEAD", "GET"]
    body, headers = kept["/a%2Fb?x=1"]
    assert body == BODY
    assert (headers["Host"], headers["X-Amz-Date"]) == ("signed:1", "now")


@pytest.mark.parametrize(
    ("fault", "is_kept"),
    [(CUT_BEFORE, False), (CUT_AFTER, True)],
    ids=["before", "after"],
)
def test_a_connection_is_cut_before_or_after_the_request(
    port: int, kept: Kept, fault: Fault, is_kept: bool
) -> None:
    """The client cannot tell which; only the second request is met."""
    with faulty_proxy(port, nth(2, fault)) as proxy:
        one = client(proxy.port)
        one.request("PUT", "/first", b"1")
        assert one.getresponse().read() == b""
        one.request("PUT", "/second", b"2")
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            one.getresponse()
        one.close()
        one.request("PUT", "/third", b"3")
        assert one.getresponse().read() == b""
        one.close()
    assert ("/second" in kept) == is_kept
    assert {"/first", "/third"} <= kept.keys()


def test_a_response_can_be_lost_on_an_open_connection(port: int, kept: Kept) -> None:
    """The server has carried the request out, and the client waits until its time limit."""
    with faulty_proxy(port, nth(1, SILENT_AFTER)) as proxy:
        one = client(proxy.port, timeout_s=0.2)
        one.request("PUT", "/first", b"1")
        with pytest.raises(TimeoutError):
            one.getresponse()
        one.close()
    assert "/first" in kept


@pytest.mark.parametrize("is_forwarded", [False, True])
@pytest.mark.parametrize(("status", "code"), [(503, b"SlowDown"), (412, b"PreconditionFailed")])
def test_an_error_is_answered_instead(
    port: int, kept: Kept, status: int, code: bytes, is_forwarded: bool
) -> None:
    """In the words of S3, and the connection stays open."""
    fault = Fault(status, is_forwarded=is_forwarded)
    with faulty_proxy(port, nth(1, fault)) as proxy:
        one = client(proxy.port)
        one.request("PUT", "/first", b"1")
        response = one.getresponse()
        assert response.status == status
        assert code in response.read()
        assert ("/first" in kept) == is_forwarded
        one.request("PUT", "/first", b"1")
        assert one.getresponse().status == 200
        one.close()


def test_a_body_is_truncated(port: int) -> None:
    """Its length is that of all of it, and half of it comes."""
    with faulty_proxy(port, nth(2, TRUNCATED)) as proxy:
        one = client(proxy.port)
        one.request("PUT", "/first", BODY)
        assert one.getresponse().read() == b""
        one.request("GET", "/first")
        with pytest.raises(http.client.IncompleteRead) as caught:
            one.getresponse().read()
        one.close()
        assert caught.value.partial == BODY[: len(BODY) // 2]


def test_an_answer_is_delayed_until_its_time_or_the_end(port: int) -> None:
    """A test that ends waits for no delay."""
    with faulty_proxy(port, nth(1, Fault(Answer.WHOLE, delay_s=600))) as proxy:
        one = client(proxy.port, timeout_s=0.2)
        one.request("PUT", "/first", b"1")
        with pytest.raises(TimeoutError):
            one.getresponse()
        one.close()
        proxy.plan = nth(2, Fault(Answer.WHOLE, delay_s=0.01))
        one.request("PUT", "/first", b"1")
        assert one.getresponse().read() == b""
        one.close()
