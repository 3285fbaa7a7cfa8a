"""Makes a CA and certificates, for a test or a small system; a large one has its own CA.

DIRECTORY/ca.pem and ca-key.pem are the CA; each folder next to them is the directory of
certificates of one machine (``certificates.py``): ``coordinator``, which may speak for the
coordinator and for every process, and one for each process that is elsewhere.
"""

import datetime
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stillframe.durable_files import replace_durably
from stillframe.errors import UsageError, text_of
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
_PEM = serialization.Encoding.PEM


def issue_certificates(
    directory: Path,
    processes: Iterable[ProcessId],
    *,
    days: int,
    valid_from: datetime.datetime | None = None,
) -> tuple[Path, ...]:
    """Issue certificates for the coordinator's machine and for `processes` that are elsewhere;
    return the folders, one for each machine, to be copied there as they are.

    An existing CA in `directory` signs again: so certificates are renewed, and processes added.
    They are valid for `days` from `valid_from`; None is now, with an allowance for clocks that
    differ. A UsageError if a process id is invalid, or the files cannot be written.
    """
    valid_from = valid_from or datetime.datetime.now(datetime.UTC) - CLOCK_SKEW
    wanted: dict[str, tuple[str, ...]] = {COORDINATOR_FOLDER: (COORDINATOR, ANY_PROCESS)}
    for process in processes:
        if check_process_id(process) in wanted:
            raise UsageError(
                f"process {process!r} is named twice"
                if process != COORDINATOR_FOLDER
                else f"the directory {process!r} is reserved for the coordinator: use another "
                "CA for a process of that name"
            )
        wanted[process] = (name_of(process),)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        authority = _authority(directory)
        for folder, names in wanted.items():
            _issue(*authority, directory / folder, names, valid_from=valid_from, days=days)
    except OSError as error:
        raise UsageError(f"{error.filename or directory}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the CA in {directory} cannot be used: {text_of(error)}") from error
    return tuple(directory / folder for folder in wanted)


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the CA of a directory; it is made if there is none yet."""
    path, key_path = directory / CA_FILE, directory / CA_KEY_FILE
    if path.exists():
        known = serialization.load_pem_private_key(key_path.read_bytes(), None)
        if not isinstance(known, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_path} was not created by stillframe")
        return x509.load_pem_x509_certificate(path.read_bytes()), known
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Stillframe CA")
    certificate = (
        _draft(name, name, key, datetime.datetime.now(datetime.UTC) - CLOCK_SKEW, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .sign(key, _HASH)
    )
    _write_key(key_path, key)
    replace_durably(path, certificate.public_bytes(_PEM), mode=0o644)
    return certificate, key


def _issue(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    folder: Path,
    names: tuple[str, ...],
    *,
    valid_from: datetime.datetime,
    days: int,
) -> None:
    """Write a new certificate for `names`, its key and the CA into `folder`."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    dns_names = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    certificate = (
        _draft(_name(folder.name), authority.subject, key, valid_from, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
        .add_extension(issuer, critical=False)
        .add_extension(dns_names, critical=False)
        .sign(authority_key, _HASH)
    )
    folder.mkdir(exist_ok=True)
    _write_key(folder / KEY_FILE, key)
    replace_durably(folder / CERTIFICATE_FILE, certificate.public_bytes(_PEM), mode=0o644)
    replace_durably(folder / CA_FILE, authority.public_bytes(_PEM), mode=0o644)


def _draft(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    valid_from: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
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


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a key in one step; only its owner may read it."""
    kind, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    replace_durably(path, key.private_bytes(_PEM, kind, secret), mode=0o600)
