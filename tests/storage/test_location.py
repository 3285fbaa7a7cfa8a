"""Locations: what a user may give, and what it means."""

import copy
import os
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.storage.location import ObjectPath, local_path, locate, location_of


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("runs", Path("runs")),
        ("/var/runs", Path("/var/runs")),
        ("C:/runs", Path("C:/runs")),
        ("file:///var/my%20runs", Path("/var/my runs")),
        ("file:/var/runs", Path("/var/runs")),
        ("file://localhost/var/runs", Path("/var/runs")),
        ("s3://bucket/a/b", ObjectPath("s3://bucket", "a/b")),
        ("s3a://bucket/a/b/", ObjectPath("s3://bucket", "a/b")),
        ("S3://bucket//a//b", ObjectPath("s3://bucket", "a/b")),
        (Path("s3://bucket/a"), ObjectPath("s3://bucket", "a")),
        ("s3://bucket", ObjectPath("s3://bucket", "")),
        ("gs://bucket/a", ObjectPath("gs://bucket", "a")),
        ("gcs://bucket/a", ObjectPath("gs://bucket", "a")),
        ("hdfs://host:8020/a", ObjectPath("hdfs://host:8020", "a")),
        ("hdfs://service/a/b", ObjectPath("hdfs://service", "a/b")),
        (
            "abfss://box@acme.dfs.core.windows.net/a",
            ObjectPath("abfss://box@acme.dfs.core.windows.net", "a"),
        ),
    ],
)
def test_what_an_address_means(given: str | Path, meant: Path | ObjectPath) -> None:
    """Two forms of an address mean the same place."""
    assert locate(given) == meant
    assert locate(meant) == meant


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ("hdfs:///x", "does not name a NameNode"),
        ("hdfs://me@host/x", "credentials in the environment"),
        ("hdfs://host:secret/x", "does not name a NameNode"),
        ("dbfs:/x", "not supported"),
        ("ftp://me:secret@host/x", "not supported"),
        ("s3://AKIAEXAMPLE:secret@bucket/x", "credentials in the environment"),
        ("s3://secret@bucket/x", "credentials in the environment"),
        ("s3://AKIAEXAMPLE:sec/secret@bucket/x", "credentials in the environment"),
        ("s3://AKIAEXAMPLE:secret/bucket", "credentials in the environment"),
        ("s3://bucket?X-Amz-Signature=secret", "without parameters"),
        ("abfss://box@acme.dfs.core.windows.net?sig=secret", "without parameters"),
        ("abfss://box@acme.dfs.core.windows.net?se=08:30&sig=secret", "without parameters"),
        ("hdfs://host?user=secret:1/x", "without parameters"),
        ("https://acme.blob.core.windows.net/box?sig=secret", "not supported"),
        ("s3://AKIAEXAMPLE:sec?ret/secret@bucket", "without parameters"),
        ("abfss://box:secret@acme.dfs.core.windows.net/x", "credentials in the environment"),
        ("abfss://box/x", "does not name a bucket"),
        ("s3:///x", "does not name a bucket"),
        ("s3://bucket/x?versionId=secret", "without parameters"),
        ("s3://bucket/../x", "no key may have"),
        ("s3://bucket/a\nb", "no key may have"),
        ("s3://bucket/" + "a" * 600, "give a shorter one"),
    ],
)
def test_what_is_refused(given: str, word: str) -> None:
    """With a sentence that repeats no secret."""
    with pytest.raises(UsageError, match=word) as refused:
        locate(given)
    assert "secret" not in str(refused.value)
    assert "AKIA" not in str(refused.value)


def test_an_object_is_no_local_file() -> None:
    """Nothing of ``os`` takes it by mistake."""
    place = locate("s3://bucket/a") / "b.json"
    assert isinstance(place, ObjectPath)
    with pytest.raises(TypeError):
        os.fspath(place)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="only a local file"):
        local_path(place)


def test_it_is_used_like_a_path() -> None:
    """Its parts, and what is below."""
    root = ObjectPath("s3://bucket", "runs")
    place = root / "snapshots" / "P1-1.json"
    assert str(place) == "s3://bucket/runs/snapshots/P1-1.json"
    assert (place.name, place.stem, place.suffix) == ("P1-1.json", "P1-1", ".json")
    assert place.parent.parent == root
    assert place.relative_to(root) == "snapshots/P1-1.json"
    assert place.with_name("x") == root / "snapshots" / "x"
    assert copy.deepcopy(place) == place
    with pytest.raises(ValueError, match="not below"):
        place.relative_to(ObjectPath("s3://other", "runs"))


@pytest.mark.parametrize("where", ["/var/s3:/x", "s3://bucket/a?b/" + "c" * 900, "memory://m"])
def test_a_location_is_made_of_its_text(where: str) -> None:
    """Also where the names below it are such as no user may give."""
    assert str(location_of(where)) == where
    assert isinstance(location_of(where), Path) == where.startswith("/")
