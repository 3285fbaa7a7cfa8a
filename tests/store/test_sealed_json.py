"""Sealed files: one way to write each content, and any other is refused."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from stillframe.errors import Damaged
from stillframe.store.sealed_json import FORMAT, read_sealed, seal


class Content(msgspec.Struct, forbid_unknown_fields=True):
    """Something to seal."""

    format: int = FORMAT
    text: str = 'ä"}, '
    figure: float = 1.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sealed file."""
    path = tmp_path / "sealed.json"
    path.write_bytes(seal(Content()))
    return path


def test_what_was_sealed_is_read(path: Path) -> None:
    """The content comes back, and the file is JSON for everybody."""
    assert read_sealed(path, Content) == Content()
    plain = msgspec.json.decode(path.read_bytes())
    assert plain["content"] == {"format": FORMAT, "text": 'ä"}, ', "figure": 1.0}
    assert len(plain["hash"]) == 64


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"1.0", b"1.00"),
        (b'"figure":', b'"figure": '),
        (b'{"content"', b'{ "content"'),
        (b'"hash"', b'"Hash"'),
        (b"}", b"} "),
        (b'{"content":', b'{"content":{},"content":'),
    ],
)
def test_the_same_in_other_bytes_is_refused(path: Path, old: bytes, new: bytes) -> None:
    """Another spelling of the same JSON is a change."""
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(Damaged, match=r"sealed\.json was changed"):
        read_sealed(path, Content)


def test_upper_case_digits_of_the_hash_are_a_change(path: Path) -> None:
    """There is one way to write a hash."""
    content, mark, digest = path.read_bytes().rpartition(b'"hash":')
    path.write_bytes(content + mark + digest.upper())
    with pytest.raises(Damaged, match=r"sealed\.json was changed"):
        read_sealed(path, Content)


class Other(msgspec.Struct, forbid_unknown_fields=True):
    """Something else, sealed as well."""

    format: int


def test_a_sealed_file_of_another_kind_is_refused(path: Path) -> None:
    """A right hash over the wrong content does not help."""
    with pytest.raises(Damaged, match=r"has invalid content: .*unknown field"):
        read_sealed(path, Other)


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None])
def test_what_no_version_wrote_is_refused(path: Path, version: object) -> None:
    """Versions are whole numbers from 1, so anything else is no older version, but damage."""
    content = msgspec.json.encode({"format": version})
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(b'{"content":%b,"hash":"%b"}' % (content, digest))
    with pytest.raises(Damaged, match=r"has invalid content: Expected `int.* `\$\.format`"):
        read_sealed(path, Other)


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """A directory with the name of a sealed file is a missing file."""
    with pytest.raises(Damaged, match="is missing"):
        read_sealed(tmp_path, Content)
