"""The messages of one gRPC call at one of its ends, and their headers.

The header of a request is metadata, and that of an answer is trailing metadata, which an error has,
too. Each message of a stream carries its own header: a field of protobuf at its end that no schema
has. Parsers ignore it, so a receiver that takes no part reads the message as it was.

A message passes other interceptors as an object. So its header is made in the step in which the
application sends it, and put into its bytes when gRPC serializes it. The header of one that arrives
is taken from its bytes, and accepted in the step in which the application is given it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stillframe.protocol.calls import AnswerHeader, RequestHeader
from stillframe.services.agent import GRPC, Agent, IncomingCall, Message, OutgoingCall
from stillframe.services.headers import LENGTH_MAX, NAME

Serializer = Callable[[Any], bytes] | None
Deserializer = Callable[[bytes], Any] | None
Metadata = Iterable[tuple[str, str | bytes]] | None
OfCall = TypeVar("OfCall", RequestHeader, AnswerHeader)
FIELD_NUMBER = 536_870_911
"""The highest number that a field of protobuf can have."""
_TAG = b"\xfa\xff\xff\xff\x0f"
"""What begins this field: its number, and that bytes with their length follow."""
_LENGTH_BYTES_MAX = 2


class Messages:
    """The messages of a call at one of its ends.

    Args:
        path: the path of the method.
        serializer: makes bytes of a message that is sent.
        deserializer: makes a message of bytes.
        is_answering: whether this end sends answers.
    """

    def __init__(
        self, path: str, serializer: Serializer, deserializer: Deserializer, *, is_answering: bool
    ) -> None:
        self.call: IncomingCall | OutgoingCall | None = None
        self.arrived = b""
        """The last message that has arrived, without its header."""
        self._path = path
        self._serializer = serializer
        self._deserializer = deserializer
        self._is_answering = is_answering
        self._header: str | None = None
        self._sent: deque[tuple[Any, bytes]] = deque()

    def to_observe(
        self, body: bytes, *, is_answer: bool, status: int = 0, request_body: bytes = b""
    ) -> Message:
        """Return a message as `carries` is given it."""
        return Message(
            method=GRPC,
            path=self._path,
            body=body,
            is_answer=is_answer,
            status=status,
            request_body=request_body,
        )

    def deserialize(self, received: bytes) -> Any:
        """Return a message that has arrived, without its header."""
        self.arrived, self._header = without_header(received)
        return self._deserializer(self.arrived) if self._deserializer else self.arrived

    def accept(self) -> None:
        """Accept the message that has arrived. Call this in the step in which the application is
        given it."""
        if self.call is not None and self.call.is_open:
            self.call.accept_message(self._header, self._path)

    def send(self, message: Any) -> Any:
        """Make the header of a message of a stream, and return the message."""
        if self.call is not None and self.call.is_open:
            body = self.encode(message)
            observed = self.to_observe(body, is_answer=self._is_answering)
            self.keep(message, with_header(body, self.call.send(observed)))
        return message

    def encode(self, message: Any) -> bytes:
        """Return a message as bytes, without a header."""
        body: bytes = self._serializer(message) if self._serializer else message
        return body

    def keep(self, message: Any, body: bytes) -> None:
        """Keep the bytes of a message until gRPC serializes it."""
        self._sent.append((message, body))

    def serialize(self, message: Any) -> bytes:
        """Return the bytes that are kept of a message. One that an interceptor has made has no
        header."""
        while self._sent:
            kept, body = self._sent.popleft()
            if kept is message:
                return body
        return self.encode(message)


def header_in(agent: Agent, kind: type[OfCall], metadata: Metadata) -> OfCall | None:
    """Return the header that metadata contains; count one that has not been signed."""
    for name, value in metadata or ():
        if name == NAME:
            header = agent.headers.decode(kind, value) if isinstance(value, str) else None
            if header is None:
                agent.ignored_count += 1
            return header
    return None


def with_header(body: bytes, header: str) -> bytes:
    """Return the bytes of a message with a header."""
    length = len(header)
    encoded = bytes([length]) if length < 0x80 else bytes([length & 0x7F | 0x80, length >> 7])
    return body + _TAG + encoded + header.encode()


def without_header(received: bytes) -> tuple[bytes, str | None]:
    """Return the bytes of a message without a header, and the header, if there is one."""
    first = max(0, len(received) - LENGTH_MAX - _LENGTH_BYTES_MAX - len(_TAG))
    place = received.rfind(_TAG, first)
    if place >= 0:
        body, rest = received[:place], received[place + len(_TAG) :]
        for size in range(1, _LENGTH_BYTES_MAX + 1):
            header = rest[size:]
            if header.isascii() and with_header(body, header.decode()) == received:
                return body, header.decode()
    return received, None
