"""Files that are no text in UTF-8: recognized by their first bytes, and refused with the command
that converts them."""

import re

from stillframe.errors import UsageError

BOM = b"\xef\xbb\xbf"
"""Begins some files in UTF-8; it is no part of their text."""
_CONVERT = "not UTF-8: convert it with iconv -t UTF-8 -f"
_FORMS = (
    (rb"\x1f\x8b", "is compressed: uncompress it first, with gunzip"),
    (rb"\x28\xb5\x2f\xfd", "is compressed: uncompress it first, with unzstd"),
    (rb"\xfd7zXZ\0", "is compressed: uncompress it first, with unxz"),
    (rb"BZh[1-9]1AY&SY", "is compressed: uncompress it first, with bunzip2"),
    (rb"PK\x03\x04", "is a zip file: extract its files first, with unzip"),
    (rb"\xff\xfe\0\0|\0\0\xfe\xff", f"is UTF-32, {_CONVERT} UTF-32"),
    (rb"\xff\xfe|\xfe\xff", f"is UTF-16, {_CONVERT} UTF-16"),
    (rb"[^\0]\0", f"is UTF-16, {_CONVERT} UTF-16LE"),
    (rb"\0[^\0]", f"is UTF-16, {_CONVERT} UTF-16BE"),
)
_COMPILED = [(re.compile(begin, re.DOTALL), what) for begin, what in _FORMS]


def check_form(name: str, begin: bytes) -> None:
    """Raise a UsageError if a file, which errors call `name`, begins like a known form that is no
    text in UTF-8."""
    for pattern, what in _COMPILED:
        if pattern.match(begin):
            raise UsageError(f"{name} {what}")
