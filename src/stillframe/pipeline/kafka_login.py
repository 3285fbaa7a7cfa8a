"""The login of a pipeline's programs to Kafka: one file, for Kafka's clients and for Spark.

The environment variable `VARIABLE` names it. Each of its lines is ``NAME=VALUE``, empty, or a
comment after ``#``. The names are those of librdkafka; a file that a line names may be relative to
the directory of this one. Nothing is escaped: a value is all that follows the first ``=``, without
spaces around it.

No description of a pipeline has it. Each connection reads it again, and no error here contains a
value that may be secret.
"""

import os
import re
from pathlib import Path

from stillframe.errors import UsageError
from stillframe.secret_files import read_text

VARIABLE = "STILLFRAME_KAFKA"
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
"""The mechanisms, and what logs in with them in Java."""
_PROTOCOL, _MECHANISM = "security.protocol", "sasl.mechanism"
_USER, _PASSWORD = "sasl.username", "sasl.password"
_CA, _CERTIFICATE = "ssl.ca.location", "ssl.certificate.location"
_KEY, _KEY_PASSWORD = "ssl.key.location", "ssl.key.password"
_SASL = (_MECHANISM, _USER, _PASSWORD)
_TLS = (_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD)
_NAMES = (_PROTOCOL, *_TLS, *_SASL)
_HIDDEN = "a secret:"
"""Precedes a key in an option of Spark, and PEM allows it. In the plans that it shows, Spark hides
an option whose name or value has such a word (``spark.redaction.regex``)."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CERTIFICATES = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def client_settings() -> dict[str, str]:
    """Return the settings with which a client of librdkafka logs in; UsageError if the file cannot
    be used."""
    return dict(_read())


def spark_settings() -> dict[str, str]:
    """Return the options with which Spark's source and sink for Kafka log in.

    Certificates and keys are in them as text: executors need no file. UsageError if the file, or
    one that it names, cannot be used.
    """
    given = _read()
    found = {name: given[name] for name in (_PROTOCOL, _MECHANISM) if name in given}
    if _USER in given:
        found["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{_MODULES[given[_MECHANISM]]} required "
            f"username={_quoted(given[_USER])} password={_quoted(given[_PASSWORD])};"
        )
    if _CA in given:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.certificates"] = _certificates(given, _CA)
    if _KEY in given:
        found["ssl.keystore.type"] = "PEM"
        found["ssl.keystore.certificate.chain"] = _certificates(given, _CERTIFICATE)
        found["ssl.keystore.key"] = _private_key(given)
    return {f"kafka.{name}": value for name, value in found.items()}


def identity() -> str:
    """Return who this program is to Kafka, for errors."""
    given = _read()
    if _USER in given:
        return f"user {given[_USER]}"
    return f"the holder of {given[_CERTIFICATE]}" if _CERTIFICATE in given else "anyone"


def where() -> str:
    """Return where to look if the login fails, for errors."""
    path = os.environ.get(VARIABLE)
    return f"{path}, the file that {VARIABLE} names" if path else f"a file that {VARIABLE} names"


def _read() -> dict[str, str]:
    """Return the settings in the file, checked; none without a file."""
    if not (name := os.environ.get(VARIABLE)):
        return {}
    path = Path(name)
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path, is_secret=True).splitlines(), start=1):
        setting, separator, value = (part.strip() for part in line.partition("="))
        if not setting or setting.startswith("#"):
            continue
        # It is not shown: it could be part of a password with a line break.
        if not separator or setting not in _NAMES:
            raise UsageError(
                f"line {number} of {path} sets none of the settings that it may have: "
                f"{', '.join(_NAMES)}"
            )
        if setting in found:
            raise UsageError(f"{path} sets {setting} twice: remove one line")
        if not value or _CONTROL.search(value):
            raise UsageError(f"{path}: {setting} is empty or has a control character: mend it")
        found[setting] = value
    _check(path, found)
    for setting in (_CA, _CERTIFICATE, _KEY):
        if setting in found:
            found[setting] = str(path.absolute().parent / found[setting])
    if _KEY in found:
        read_text(Path(found[_KEY]), is_secret=True)
    return found


def _check(path: Path, found: dict[str, str]) -> None:
    """Raise UsageError unless these settings are a way to log in."""
    protocol = found[_PROTOCOL] = found.get(_PROTOCOL, "").upper()
    if protocol not in _PROTOCOLS:
        raise UsageError(f"{path}: set {_PROTOCOL} to one of {', '.join(_PROTOCOLS)}")
    has_sasl, has_tls = protocol.startswith("SASL"), protocol.endswith("SSL")
    for names, fits in ((_SASL, has_sasl), (_TLS, has_tls)):
        if not fits and (extra := [name for name in names if name in found]):
            raise UsageError(
                f"{path}: {extra[0]} has no effect with {_PROTOCOL}={protocol}: remove it, or "
                f"choose another {_PROTOCOL}"
            )
    if has_sasl and (missing := [name for name in _SASL if name not in found]):
        raise UsageError(f"{path}: {_PROTOCOL}={protocol} needs {missing[0]}, which is not set")
    if has_sasl and found[_MECHANISM] not in _MODULES:
        raise UsageError(
            f"{path}: this {_MECHANISM} is not supported; there are: {', '.join(_MODULES)}"
        )
    for one, other in ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE), (_KEY_PASSWORD, _KEY)):
        if one in found and other not in found:
            raise UsageError(f"{path}: {one} needs {other}, which is not set")


def _quoted(value: str) -> str:
    """Return a value as a configuration of JAAS has it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _certificates(given: dict[str, str], name: str) -> str:
    found = _CERTIFICATES.findall(read_text(Path(given[name]), is_secret=False))
    if not found:
        raise UsageError(f"{given[name]} ({name}) has no certificate in PEM")
    return "\n".join(found)


def _private_key(given: dict[str, str]) -> str:
    """Return the key as Kafka's clients for Java read it on every Java: without a password, and in
    PKCS #8."""
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "a certificate for Spark needs the extra 'tls': pip install 'stillframe[tls]'"
        ) from error
    password = given.get(_KEY_PASSWORD)
    try:
        key = serialization.load_pem_private_key(
            read_text(Path(given[_KEY]), is_secret=True).encode(),
            None if password is None else password.encode(),
        )
    except (TypeError, ValueError):
        raise UsageError(
            f"{given[_KEY]} ({_KEY}) has no private key in PEM that can be read with this "
            f"{_KEY_PASSWORD}, or without one"
        ) from None
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    return f"{_HIDDEN}\n{text}"
