"""Emulators of Google Cloud Storage and Azure at night: fake-gcs-server and Azurite.

A test finds them as any user's program does: in the variables that the libraries of Google and the
emulator of Microsoft name.
"""

import base64
import hashlib
import hmac
import http.client
import json
import secrets
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from urllib.parse import quote

import pytest

from tests.faulty_proxy import LOOPBACK, FaultyProxy, Handler, faulty_proxy
from tests.s3_servers import SERVERS, running

AZURITE = SERVERS / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
FAKE_GCS = SERVERS / "fake-gcs-server"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite has one account, whose key is in Microsoft's manual."""
GOOGLE = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_BASE_URL")
AZURE = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_ENDPOINT")


class _AsJson(Handler):
    """Uploads and copies in Google's interface for XML, which fake-gcs-server does not have, as
    they are in that for JSON. Their conditions and results are translated, and all else passed
    on."""

    def forward(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request; return the answer."""
        self.headers.replace_header("Host", f"{LOOPBACK}:{self.server.target_port}")
        if self.command != "PUT":
            return super().forward(body)
        self.command = "POST"
        bucket, _, name = self.path.removeprefix("/").partition("/")
        if "x-goog-copy-source" in self.headers:
            of, _, source = self.headers["x-goog-copy-source"].partition("/")
            source = quote(source, safe="%")
            self.path = f"/storage/v1/b/{of}/o/{source}/copyTo/b/{bucket}/o/{name}"
            return super().forward(body)
        self.path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        if "x-goog-if-generation-match" in self.headers:
            self.path += f"&ifGenerationMatch={self.headers['x-goog-if-generation-match']}"
        response, content = super().forward(body)
        if response.status == 200:
            made = json.loads(content)
            response.headers["ETag"] = f'"{made["etag"]}"'
            response.headers["x-goog-generation"] = made["generation"]
        return response, content


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    """One server for all tests of a process, behind a proxy."""
    with (
        running(
            lambda port: [
                *(FAKE_GCS, "-backend", "memory", "-scheme", "http", "-log-level", "error"),
                *("-host", LOOPBACK, "-port", str(port), "-public-host", f"{LOOPBACK}:{port}"),
            ],
            tmp_path_factory.mktemp("gcs"),
        ) as port,
        faulty_proxy(port, handler=_AsJson) as proxy,
    ):
        yield proxy


@pytest.fixture
def fake_gcs_bucket(fake_gcs: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket of an emulator of Google Cloud Storage, as a user gives it; at night."""
    for name in GOOGLE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{LOOPBACK}:{fake_gcs.port}")
    name = f"test-{secrets.token_hex(6)}"
    request = urllib.request.Request(
        f"http://{LOOPBACK}:{fake_gcs.port}/storage/v1/b",
        data=json.dumps({"name": name}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()
    return f"gs://{name}"


@pytest.fixture
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server for one test: after ten minutes Azurite looks for garbage, and answers
    nothing for half a minute and more."""
    with running(
        lambda port: [
            *("node", AZURITE, "--silent", "--disableTelemetry", "--inMemoryPersistence"),
            *("--blobHost", LOOPBACK, "--blobPort", str(port)),
        ],
        tmp_path_factory.mktemp("azurite"),
    ) as port:
        yield port


@pytest.fixture
def azurite_bucket(azurite: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty container of an emulator of Azure, as a user gives it; at night."""
    for name in AZURE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://{LOOPBACK}:{azurite}")
    name = f"test-{secrets.token_hex(6)}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    signed = "\n".join(["PUT", *[""] * 11, *(f"{n}:{v}" for n, v in headers.items()), resource])
    digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    address = f"http://{LOOPBACK}:{azurite}/{ACCOUNT}/{name}?restype=container"
    request = urllib.request.Request(address, headers=headers, method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    return f"abfss://{name}@{ACCOUNT}.dfs.core.windows.net"
