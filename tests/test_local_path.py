"""Addresses of other storage are refused wherever a path is taken; odd local names are not."""

from pathlib import Path

import pyarrow as pa
import pytest

from stillframe.errors import UsageError
from stillframe.eventlog.reading import parts
from stillframe.local_path import local_path
from stillframe.pipeline import Pipeline, channel
from stillframe.store.store import Store
from stillframe.tracefile import read
from tests.cli.conftest import Call, call, purses

__all__ = ["call"]

ADDRESSES = [
    *("s3://bucket/x", "s3a://bucket/x", "gs://bucket/x", "abfss://box@account/x"),
    *("hdfs://host:9000/x", "hdfs:///x", "file:///x", "dbfs:/x", "S3://bucket/x"),
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("kind", [str, Path])
def test_an_address_is_no_path(address: str, kind: type[str] | type[Path]) -> None:
    """A ``Path`` of it has lost a slash, and is refused as well."""
    with pytest.raises(UsageError, match=r"is an address, and .*: is not supported"):
        local_path(kind(address))


@pytest.mark.parametrize("path", ["a:b", "./a:b", "C:/x", "./s3:/x", "/s3:/x", "x/s3:/y", ":/x"])
def test_odd_local_names_stay_possible(path: str) -> None:
    """What only looks a little like an address is a path."""
    assert local_path(path) == Path(path)


def test_the_python_api_refuses_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And makes no directory for them."""
    monkeypatch.chdir(tmp_path)
    logs = [
        channel("sales", source="buy", targets=["book"], schema=pa.schema({"item": pa.string()}))
    ]
    shop = Pipeline.create("shop.pipeline", queries=["buy", "book"], channels=logs)
    address = "s3://bucket/x"
    for use in (
        lambda: Pipeline.create(address, queries=["buy", "book"], channels=logs),
        lambda: Pipeline(address),
        lambda: shop.fork("shop-1", address),
        lambda: Store.create(Path(address), description=purses.description),
        lambda: Store.open(Path(address)),
        lambda: Store.open_writer(Path(address)),
        lambda: parts(Path(address)),
        lambda: read(Path(address)),
    ):
        with pytest.raises(UsageError, match="is an address"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["shop.pipeline"]


@pytest.mark.parametrize(
    "command",
    [
        "run examples.bank:bank --store {}",
        "run examples.bank:bank --store x --log {}",
        "run examples.bank:bank --store x --fragments {}",
        "run examples.bank:bank --store x --tls {}",
        "list {}",
        "verify {}",
        "certificates {}",
        "import {}",
        "import x --out {}",
        "view {}",
        "view x --out {}",
        "watch {}",
        "spark list {}",
        "spark fork x shop-1 {}",
        "spark audit {}",
        "spark compact x --out {}",
        "spark assemble {} --out x",
        "spark verify {}",
        "spark verify x --store {}",
    ],
)
def test_every_command_refuses_addresses(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Exit 2 before anything else is looked at, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    result = call(*command.format("s3://bucket/x").split())
    assert result.exit_code == 2, result.output
    assert "is an address, and s3: is not supported" in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())
