"""Makes a CA and certificates, for a test or a small system; a large one has a CA of its own.

DIRECTORY/ca.pem and ca-key.pem are the CA; each folder beside them is the directory of certificates
of one machine (``certificates.py``): ``coordinator``, which may speak for the coordinator and for
every process, and one for each process that is elsewhere.
"""

import contextlib
import datetime
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stillframe.errors import UsageError
from stillframe.model import ProcessId, check_process_id
from stillframe.runtime.network.certificates import (
    ANY_PROCESS,
    CA_FILE,
    CERTIFICATE_FILE,
    COORDINATOR,
    KEY_FILE,
    name_of,
)

CA_KEY_FILE = "ca-key.pem"
COORDINATOR_FOLDER = "coordinator"
CA_DAYS = 3650
CLOCK_SKEW = datetime.timedelta(hours=1)
"""So much earlier than now a certificate is valid: clocks differ."""
_HASH = hashes.SHA256()


class CertificateAuthority:
    """The CA of a directory: made if there is none yet."""

    def __init__(self, directory: Path) -> None:
        path, key_path = directory / CA_FILE, directory / CA_KEY_FILE
        if path.exists():
            self.certificate = x509.load_pem_x509_certificate(path.read_bytes())
            key = serialization.load_pem_private_key(key_path.read_bytes(), None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError(f"{key_path} was not made by stillframe")
            self.key = key
            return
        self.key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Stillframe CA")
        draft = (
            _draft(name, self.key, datetime.datetime.now(datetime.UTC) - CLOCK_SKEW, CA_DAYS)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_ca=True), critical=True)
        )
        self.certificate = draft.sign(self.key, _HASH)
        _write(key_path, _key_bytes(self.key), is_secret=True)
        _write(path, self.certificate.public_bytes(serialization.Encoding.PEM), is_secret=False)

    def issue(
        self, folder: Path, names: tuple[str, ...], valid_from: datetime.datetime, days: int
    ) -> None:
        """Write a new certificate for `names`, its key and the CA into `folder`."""
        key = ec.generate_private_key(ec.SECP256R1())
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _draft(_name(folder.name), key, valid_from, days)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
            .add_extension(authority_key, critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False
            )
            .sign(self.key, _HASH)
        )
        pem = serialization.Encoding.PEM
        folder.mkdir(exist_ok=True)
        _write(folder / KEY_FILE, _key_bytes(key), is_secret=True)
        _write(folder / CERTIFICATE_FILE, certificate.public_bytes(pem), is_secret=False)
        _write(folder / CA_FILE, self.certificate.public_bytes(pem), is_secret=False)


def issue_certificates(
    directory: Path,
    processes: Iterable[ProcessId],
    *,
    days: int,
    valid_from: datetime.datetime | None = None,
) -> tuple[Path, ...]:
    """Issue certificates for the coordinator's machine and for `processes` that are elsewhere. An
    existing CA signs again: so certificates are renewed, and processes added.

    Args:
        directory: of the CA.
        processes: those that are not on the coordinator's machine.
        days: how long the certificates are valid.
        valid_from: None for now, with an allowance for clocks that differ.

    Returns:
        The folders, one for each machine, to be copied there as they are.

    Raises:
        UsageError: a process id is invalid, or the files cannot be written.
    """
    valid_from = valid_from or datetime.datetime.now(datetime.UTC) - CLOCK_SKEW
    wanted: dict[str, tuple[str, ...]] = {COORDINATOR_FOLDER: (COORDINATOR, ANY_PROCESS)}
    for process in processes:
        if check_process_id(process) in wanted:
            raise UsageError(
                f"process {process!r} is named twice"
                if process != COORDINATOR_FOLDER
                else f"{process!r} is the folder of the coordinator's own: use another CA for a "
                "process of that name"
            )
        wanted[process] = (name_of(process),)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        authority = CertificateAuthority(directory)
        for folder, names in wanted.items():
            authority.issue(directory / folder, names, valid_from, days)
    except OSError as error:
        raise UsageError(f"{error.filename or directory}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the CA in {directory} cannot be used: {error}") from error
    return tuple(directory / folder for folder in wanted)


def _draft(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid_from: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
        .not_valid_after(valid_from + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoded: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return encoded


def _write(path: Path, content: bytes, *, is_secret: bool) -> None:
    """Write a file in one step; only its owner may read one that is secret."""
    partial = path.with_name(f".{path.name}.partial")
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    mode = 0o600 if is_secret else 0o644
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    partial.rename(path)
