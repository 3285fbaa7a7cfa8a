"""The headers of requests, answers and messages of streams: text that is signed.

A header is a line of ASCII: the version, the fields of the structure in ``protocol.calls``, and a
message authentication code, separated by semicolons. A program that does not have the secret of a
system can neither make one nor change one. The code of a message covers the name of its stream,
too, so that a message of another stream does not pass for one of this. A header that a stranger has
copied can be sent again: it has an old colour, which has no effect, and a call that is accepted
twice is named. TLS prevents that.
"""

import base64
import hashlib
import hmac
import re
from typing import TypeVar

from stillframe.protocol.activities import NUMBER_MAX
from stillframe.protocol.calls import AnswerHeader, CallId, MessageHeader, RequestHeader

NAME = "stillframe"
"""The name of the header in HTTP, and of the metadata in gRPC."""
LENGTH_MAX = 320
COLOUR_MAX = NUMBER_MAX // 2
"""The highest colour: no collector counts so far."""
VERSION = "1"
_CODE_BYTES = 16
_INSTANCE = r"([A-Za-z0-9_.-]{1,80})"
_COUNT = r"([0-9]{1,16})"

Header = RequestHeader | AnswerHeader | MessageHeader
_PERSON: dict[type, bytes] = {
    RequestHeader: b"sf-request-1",
    AnswerHeader: b"sf-answer-1",
    MessageHeader: b"sf-message-1",
}
_FIELDS: dict[type, re.Pattern[str]] = {
    kind: re.compile(";".join([VERSION, *fields]))
    for kind, fields in {
        RequestHeader: [_COUNT, _INSTANCE, _COUNT],
        AnswerHeader: [_COUNT, _INSTANCE, _INSTANCE, *[_COUNT] * 4],
        MessageHeader: [_COUNT, _INSTANCE, *[_COUNT] * 2],
    }.items()
}
OfHeader = TypeVar("OfHeader", bound=Header)


class HeaderCodec:
    """Writes and reads headers.

    Args:
        secret: the secret that the instances of a system share.
    """

    def __init__(self, secret: bytes) -> None:
        key = hashlib.sha256(secret).digest()
        # BLAKE2 is a keyed hash function; `person` keeps one kind from passing for another. To copy
        # one that has read its key takes less time than to make one.
        self._keyed = {
            kind: hashlib.blake2b(digest_size=_CODE_BYTES, key=key, person=person)
            for kind, person in _PERSON.items()
        }

    def encode(self, header: Header, stream: str = "") -> str:
        """Return a header as text.

        Args:
            header: the header.
            stream: the name of the stream that a message belongs to.
        """
        match header:
            case RequestHeader():
                call = header.call
                body = f"{VERSION};{header.colour};{call.caller};{call.number}"
            case AnswerHeader():
                call = header.call
                body = (
                    f"{VERSION};{header.colour};{header.instance};{call.caller};{call.number};"
                    f"{header.sent_count};{header.number};{header.accepted_count}"
                )
            case MessageHeader():
                body = (
                    f"{VERSION};{header.colour};{header.instance};{header.sent_count};"
                    f"{header.number}"
                )
        return f"{body};{self._code(type(header), body, stream)}"

    def decode(self, kind: type[OfHeader], text: str, stream: str = "") -> OfHeader | None:
        """Return the header that `text` contains; None if it was not made with the secret, or for
        another stream."""
        body, _, code = text.rpartition(";")
        if len(text) > LENGTH_MAX or not text.isascii():
            return None
        if not hmac.compare_digest(code, self._code(kind, body, stream)):
            return None
        found = _FIELDS[kind].fullmatch(body)
        header = _made(kind, found.groups()) if found is not None else None
        return header if isinstance(header, kind) else None

    def _code(self, kind: type, body: str, stream: str) -> str:
        made = self._keyed[kind].copy()
        made.update((f"{body};{stream}" if stream else body).encode())
        return base64.urlsafe_b64encode(made.digest()).decode().rstrip("=")


def _made(kind: type, fields: tuple[str, ...]) -> Header | None:
    """Return the header of a kind with these fields; None if a number is too high."""
    colour, name, *rest = fields
    caller = rest.pop(0) if kind is AnswerHeader else name
    counts = [int(colour), *map(int, rest)]
    if max(counts) > NUMBER_MAX or counts[0] > COLOUR_MAX:
        return None
    if kind is RequestHeader:
        return RequestHeader(counts[0], CallId(name, counts[1]))
    if kind is AnswerHeader:
        call = CallId(caller, counts[1])
        return AnswerHeader(counts[0], name, counts[2], call, counts[3], counts[4])
    return MessageHeader(counts[0], name, counts[1], counts[2])
