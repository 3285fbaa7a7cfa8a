"""Certificates: what a process shows on a connection, and what it asks to be shown.

A directory holds three files: `CA_FILE`, who may sign; `CERTIFICATE_FILE`, ours, with those that
lead to the CA; `KEY_FILE`, its key. A certificate names whom it may speak for, as DNS names in its
subjectAltName: ``P1.process.stillframe`` for the process P1, ``*.process.stillframe`` for every
process, ``coordinator.stillframe`` for the coordinator. An agent shows the name of its service
instead of that of a process, and its collector that of the coordinator. The names are compared sign
by sign; where a machine is has no part in it, so machines may move.

The files are looked at for every connection, and read again when they have changed: they can be
renewed while the system runs.
"""

import datetime
import os
import ssl
from pathlib import Path

import msgspec

from stillframe.errors import Refused, UsageError, text_of
from stillframe.model import ProcessId

CA_FILE = "ca.pem"
CERTIFICATE_FILE = "cert.pem"
KEY_FILE = "key.pem"
COORDINATOR = "coordinator.stillframe"
ANY_PROCESS = "*.process.stillframe"
MAKE_NEW = "create a new one (for a test: stillframe certs)"
_COMPLAINTS = {
    "expired": "it has expired",
    "not yet valid": "it is not yet valid",
    "self-signed": "its CA is not in our ca.pem",
    "self signed": "its CA is not in our ca.pem",
    "local issuer": "its CA is not in our ca.pem",
    "purpose": "it cannot be used for both ends of a connection (extendedKeyUsage)",
}
"""What OpenSSL says of a certificate that the other end showed -> what we say."""
_ALERTS = {
    "EXPIRED": "it reports that the certificate has expired",
    "UNKNOWN_CA": "our CA is not in its ca.pem",
    "CERTIFICATE_REQUIRED": "it received no certificate",
    "CERTIFICATE": "it does not accept the certificate",
    "DECRYPT_ERROR": "it does not accept the certificate",
    "VERSION": "it does not use TLS 1.3",
}
"""What the other end's alert says of the certificate that we showed -> what we say."""
_made: dict[tuple[Path, bool], tuple[tuple[tuple[int, ...], ...], ssl.SSLContext]] = {}
"""By directory and side: what the three files were, and what was made of them."""


class Validity(msgspec.Struct, frozen=True):
    """The content of a certificate: its names, and the time for which it is valid."""

    names: tuple[str, ...]
    valid_from: datetime.datetime
    valid_until: datetime.datetime

    def __str__(self) -> str:
        names = ", ".join(self.names) or "no process"
        return f"for {names}, valid from {_time(self.valid_from)} to {_time(self.valid_until)}"


def _time(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def name_of(process: ProcessId | None) -> str:
    """Return the name that a certificate must have to speak for `process`; None: the
    coordinator."""
    return COORDINATOR if process is None else f"{process}.process.stillframe"


def check_speaks_for(names: frozenset[str], process: ProcessId | None) -> None:
    """Raise Refused unless a certificate with `names` may speak for `process`; None is the
    coordinator."""
    name = name_of(process)
    if name not in names and (process is None or ANY_PROCESS not in names):
        shown = ", ".join(sorted(names)[:10]) or "no process"
        raise Refused(
            f"its certificate is for {ascii(shown)[1:-1]}, not for {name}: give it one with "
            "that name in its subjectAltName"
        )


def read_own(directory: Path) -> Validity:
    """Read our certificate; raises a UsageError if a file is missing or invalid, or the extra
    ``tls`` is not installed."""
    try:
        from cryptography import x509  # noqa: PLC0415 - an extra: only who uses TLS needs it
    except ImportError as error:
        raise UsageError("TLS needs the extra 'tls': pip install 'stillframe[tls]'") from error
    path = directory / CERTIFICATE_FILE
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise UsageError(f"the certificate {path} cannot be read: {error.strerror}") from error
    except x509.ExtensionNotFound as error:
        raise UsageError(
            f"the certificate {path} has no subjectAltName: it must identify its holder, for "
            f"example as {name_of('P1')}; {MAKE_NEW}"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not a certificate in PEM: {text_of(error)}") from error
    return Validity(
        tuple(names.get_values_for_type(x509.DNSName)),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def check_own(directory: Path, process: ProcessId | None) -> None:
    """Raise a UsageError, with the file and what to do, unless our files are complete, valid now
    and speak for `process`. Call it before connecting or listening, where the file can be named."""
    validity, path = read_own(directory), directory / CERTIFICATE_FILE
    now = datetime.datetime.now(datetime.UTC)
    if now >= validity.valid_until:
        raise UsageError(f"the certificate {path} has expired: it is {validity}; {MAKE_NEW}")
    if now < validity.valid_from:
        raise UsageError(
            f"the certificate {path} is not yet valid: it is {validity}; the clock of this "
            "machine shows "
            f"{_time(now)}: is it right? If so, {MAKE_NEW}"
        )
    try:
        check_speaks_for(frozenset(validity.names), process)
    except Refused as error:
        raise UsageError(f"the certificate {path} is {validity}: {error}") from error
    try:
        _ = context(directory, is_listening=False)
    except OSError as error:
        raise UsageError(explain_unreadable(directory, error)) from error


def explain_unreadable(directory: Path, error: OSError) -> str:
    """Return which file of `directory` kept `context` from its work, and why."""
    for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
        try:
            _ = (directory / name).read_bytes()
        except OSError as reason:
            return f"{directory / name} cannot be read: {reason.strerror}"
    return (
        f"the files {CA_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} of {directory} do not belong "
        f"together: {error.strerror or error}; copy all three again"
    )


def context(directory: Path, *, is_listening: bool) -> ssl.SSLContext:
    """Return the TLS context of one end: TLS 1.3, certificates at both ends; raises an OSError if
    the files cannot be read or do not fit (``explain_unreadable`` says which)."""
    files = (directory / CA_FILE, directory / CERTIFICATE_FILE, directory / KEY_FILE)
    # To read them takes most of what a stranger who only connects costs, and handlers wait for it.
    found = tuple((s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in map(os.stat, files))
    known = _made.get((directory, is_listening))
    if known is not None and known[0] == found:
        return known[1]
    side = ssl.PROTOCOL_TLS_SERVER if is_listening else ssl.PROTOCOL_TLS_CLIENT
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # the names are ours to check: they say who, not where
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(files[0])
    made.load_cert_chain(files[1], files[2])
    if is_listening:
        made.num_tickets = 0  # no session is taken up again: every connection shows certificates
    _made[directory, is_listening] = (found, made)
    return made


def subject_names(tls: ssl.SSLObject) -> frozenset[str]:
    """Return the DNS names of the certificate that the other end showed."""
    certificate = tls.getpeercert() or {}
    pairs = certificate.get("subjectAltName", ())
    return frozenset(str(pair[1]) for pair in pairs if pair[0] == "DNS")


def refusal(error: ssl.SSLError, directory: Path) -> Refused:
    """Return in our words why TLS ended the connection: we refused the other end, or it us."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message
        known = next((ours for part, ours in _COMPLAINTS.items() if part in said), said)
        return Refused(
            f"its certificate is refused: {known} ({directory / CA_FILE}); give it another "
            f"{CERTIFICATE_FILE}"
        )
    reason = error.reason or str(error)
    if "DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return Refused("it presented no certificate: start it with --tls and its own directory")
    for alert, meaning in _ALERTS.items():
        if "ALERT" in reason and alert in reason:
            return Refused(
                f"the other end refused our certificate {directory / CERTIFICATE_FILE}: "
                f"{meaning}; it is {_own_words(directory)}"
            )
    if reason in {"HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL"}:
        return Refused("it does not use TLS 1.3: both ends need --tls")
    return Refused(f"TLS failed: {reason}")


def _own_words(directory: Path) -> str:
    try:
        return str(read_own(directory))
    except UsageError as error:
        return str(error)
