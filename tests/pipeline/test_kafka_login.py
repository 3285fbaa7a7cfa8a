"""How programs log in to Kafka: the file that a variable names, for Kafka's clients and Spark."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from stillframe.errors import UsageError
from stillframe.pipeline.kafka_login import (
    VARIABLE,
    client_settings,
    identity,
    spark_settings,
    where,
)

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
SECRET = 'b"a\\ck = #x'
PLAIN = f"""\
# who we are
security.protocol = sasl_ssl

sasl.mechanism=PLAIN
sasl.username=alice
sasl.password={SECRET}
"""
PLAIN_SETTINGS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": SECRET,
}

PEM = serialization.Encoding.PEM
PKCS8, OLDER = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL
OPEN, LOCKED = serialization.NoEncryption(), serialization.BestAvailableEncryption(b"hunter2")
MADE = ec.generate_private_key(ec.SECP256R1())
KEY = MADE.private_bytes(PEM, PKCS8, OPEN).decode()

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the file, and names it in the variable."""

    def write_one(text: str, mode: int = 0o600) -> Path:
        path = tmp_path / "login.properties"
        path.write_text(text)
        path.chmod(mode)
        monkeypatch.setenv(VARIABLE, str(path))
        return path

    return write_one


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_file(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, programs connect without a login."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert client_settings() == spark_settings() == {}
    assert identity() == "anyone"
    assert where() == f"a file that {VARIABLE} names"


def test_password(write: Write) -> None:
    """A client gets the password as it is, Spark as a quoted value of JAAS."""
    path = write(PLAIN)
    assert client_settings() == PLAIN_SETTINGS
    assert spark_settings() == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
        'required username="alice" password="b\\"a\\\\ck = #x";',
    }
    assert identity() == "user alice"
    assert where() == f"{path}, the file that {VARIABLE} names"


@pytest.mark.parametrize(
    "key",
    [MADE.private_bytes(PEM, PKCS8, LOCKED), MADE.private_bytes(PEM, OLDER, LOCKED)],
    ids=["pkcs8", "older"],
)
def test_certificate(key: bytes, write: Write, tmp_path: Path) -> None:
    """Spark gets certificates and keys as text, the key after a word for which Spark hides it and
    without its password; paths are relative to the file."""
    (tmp_path / "ca.pem").write_text(f"the CA\n{CERTIFICATE}\n{CERTIFICATE}\n")
    own = tmp_path / "own.pem"
    own.write_text(f"{key.decode()}\n{CERTIFICATE}\n")
    own.chmod(0o600)
    write(
        "security.protocol=SSL\nssl.ca.location=ca.pem\nssl.certificate.location=own.pem\n"
        f"ssl.key.location={own}\nssl.key.password=hunter2\n"
    )
    assert client_settings() == {
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(own),
        "ssl.key.location": str(own),
        "ssl.key.password": "hunter2",
    }
    assert spark_settings() == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": f"{CERTIFICATE}\n{CERTIFICATE}",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CERTIFICATE,
        "kafka.ssl.keystore.key": f"a secret:\n{KEY}",
    }
    assert identity() == f"the holder of {own}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"set security.protocol to one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("security.protocol=hunter2", r"set security.protocol to one of PLAINTEXT"),
        (f"{PLAIN}hunter2\n", r"line 7 of .* sets none of the settings .*: security.protocol, ssl"),
        (f"{PLAIN}hunter2=x\n", r"line 7 of .* sets none of the settings .*sasl.password$"),
        (f"{PLAIN}sasl.password=hunter2\n", r"sets sasl.password twice: remove one line"),
        (PLAIN.replace(SECRET, ""), r"sasl.password is empty or has a control character"),
        (PLAIN.replace(SECRET, "hun\x00ter2"), r"sasl.password is empty or has a control char"),
        (PLAIN.replace("sasl_ssl", "SSL"), r"sasl.mechanism has no effect with .*=SSL: remove it"),
        ("security.protocol=PLAINTEXT\nssl.ca.location=x", r"ssl.ca.location has no effect"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN", r"needs sasl.username, which is not"),
        (PLAIN.replace("PLAIN", "OAUTHBEARER"), r"sasl.mechanism is not supported.*: PLAIN, SCRAM"),
        ("security.protocol=SSL\nssl.certificate.location=x", r"needs ssl.key.location, which is"),
        ("security.protocol=SSL\nssl.key.location=x", r"needs ssl.certificate.location, which is"),
        ("security.protocol=SSL\nssl.key.password=hunter2", r"needs ssl.key.location, which is"),
        ("security.protocol=SSL\n" + "#" * 2**16, r"is no regular file of up to 65536 bytes"),
    ],
)
def test_wrong_file(text: str, message: str, write: Write) -> None:
    """A file that cannot be right is refused, and the error says what to change and no secret."""
    path = write(text)
    with pytest.raises(UsageError, match=message) as caught:
        client_settings()
    assert str(path) in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o666])
def test_readable_by_others(mode: int, write: Write) -> None:
    """A file that other users can read or change is refused; the error has the command."""
    path = write(PLAIN, mode)
    with pytest.raises(UsageError, match=rf"by other users, .* secret: chmod 600 {path}$"):
        client_settings()


def test_readable_by_the_group(write: Write) -> None:
    """The group may read a file of root, and no other."""
    path = write(PLAIN, 0o640)
    if path.stat().st_uid == 0:
        assert client_settings() == PLAIN_SETTINGS
    else:
        with pytest.raises(UsageError, match="chmod 600"):
            client_settings()


def test_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that does not exist, is a directory, a pipe or no text is refused at once."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"none cannot be read: No such file or directory$"):
        client_settings()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match=r"Is a directory$"):
        client_settings()
    os.mkfifo(tmp_path / "pipe", 0o600)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "pipe"))
    with pytest.raises(UsageError, match=r"is no regular file"):
        client_settings()
    (tmp_path / "bytes").touch(0o600)
    (tmp_path / "bytes").write_bytes(b"\xff")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "bytes"))
    with pytest.raises(UsageError, match=r"is not a text in UTF-8$"):
        client_settings()


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (f"{CERTIFICATE}\n", 0o600, r"\(ssl.key.location\) has no private key in PEM that"),
        (f"{KEY}\n", 0o600, r"\(ssl.certificate.location\) has no certificate in PEM"),
        (f"{KEY}\n{CERTIFICATE}\n", 0o604, r"can be read or changed by other users"),
        (
            MADE.private_bytes(PEM, PKCS8, LOCKED).decode() + CERTIFICATE,
            0o600,
            r"has no private key in PEM that can be read",
        ),
    ],
    ids=["no key", "no certificate", "open to others", "locked"],
)
def test_wrong_key(content: str, mode: int, message: str, write: Write, tmp_path: Path) -> None:
    """A key or certificate that Java could not use is refused, as is a key that others can read."""
    own = tmp_path / "own.pem"
    own.write_text(content)
    own.chmod(mode)
    write(f"security.protocol=SSL\nssl.certificate.location={own}\nssl.key.location={own}\n")
    with pytest.raises(UsageError, match=message):
        spark_settings()
