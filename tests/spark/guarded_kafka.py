"""A broker that encrypts, checks who logs in, and lets each do only what an ACL allows."""

import contextlib
import datetime
import importlib
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.spark.flows import wait_until
from tests.spark.outside import kafka

_ADMIN: Any = importlib.import_module("confluent_kafka.admin")
"""It does not declare what it exports."""
PASSWORD = "b\"a\\ck'$1;{x} = #hunter2"
"""It has every character that some configuration takes for one of its own."""
ADMIN_PASSWORD = "admin-secret"
KEY_PASSWORD = "key-secret"
_JAAS = "org.apache.kafka.common.security"


class Authority:
    """Makes certificates."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        made = self._make(self._name, self._key.public_key(), is_ca=True)
        self.path = directory / "ca.pem"
        self.path.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: str | None = None) -> Path:
        """Make NAME.pem, with a certificate and its key, and return it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        how: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            how = serialization.BestAvailableEncryption(password.encode())
        pem = serialization.Encoding.PEM
        path = self._directory / f"{name}.pem"
        path.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, how)
            + self._make(subject, key.public_key(), is_ca=False).public_bytes(pem)
        )
        path.chmod(0o600)
        return path

    def _make(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_ca: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )


@dataclass(frozen=True)
class Guarded:
    """A broker with two listeners: for passwords, and for certificates."""

    directory: Path
    authority: Authority
    passwords: str
    certificates: str

    def login(self, name: str, **settings: str) -> Path:
        """Write a properties file, and return it. The words of a setting have _ for a dot."""
        lines = {name.replace("_", "."): value for name, value in settings.items()}
        lines.setdefault("ssl.ca.location", str(self.authority.path))
        path = self.directory / f"{name}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        path.chmod(0o600)
        return path

    def user(
        self,
        name: str,
        mechanism: str = "SCRAM-SHA-512",
        password: str = PASSWORD,
        user: str | None = None,
    ) -> Path:
        """Return the properties file NAME of a user, by default of the same name."""
        return self.login(
            name,
            security_protocol="SASL_SSL",
            sasl_mechanism=mechanism,
            sasl_username=user or name,
            sasl_password=password,
        )

    def holder(self, name: str, password: str | None = None) -> Path:
        """Return the properties file of the holder of a certificate."""
        pem = str(self.authority.issue(name, password))
        secret = {} if password is None else {"ssl_key_password": password}
        return self.login(
            name,
            security_protocol="SSL",
            ssl_certificate_location=pem,
            ssl_key_location=pem,
            **secret,
        )

    @property
    def admin_settings(self) -> dict[str, Any]:
        """The settings of a client that may do everything."""
        return {
            "bootstrap.servers": self.passwords,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.path),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": ADMIN_PASSWORD,
        }

    def add_users(self, *names: str) -> None:
        """Let users log in with `PASSWORD` and either SCRAM."""
        changes = [
            _ADMIN.UserScramCredentialUpsertion(
                name, _ADMIN.ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
            )
            for name in names
            for mechanism in (
                _ADMIN.ScramMechanism.SCRAM_SHA_256,
                _ADMIN.ScramMechanism.SCRAM_SHA_512,
            )
        ]
        admin = _ADMIN.AdminClient(self.admin_settings)
        for change in changes:  # of one user, a request may have one change
            _wait(admin.alter_user_scram_credentials([change]))

    def create_topics(self, *names: str, **config: str) -> None:
        """Create topics of two partitions. The words of a setting have _ for a dot."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        topics = [_ADMIN.NewTopic(name, 2, 1, config=settings) for name in names]
        admin = _ADMIN.AdminClient(self.admin_settings)
        _wait(admin.create_topics(topics))

    def allow(self, principal: str, topic: str, *operations: str) -> None:
        """Add ACLs of a topic: operations such as READ or DESCRIBE_CONFIGS."""
        self._add(_acls(_ADMIN.AclBinding, principal, topic, operations))

    def allow_prefix(self, principal: str, kind: str, prefix: str, *operations: str) -> None:
        """Add ACLs of all topics, or TRANSACTIONAL_IDs, whose names have a prefix."""
        place = (_ADMIN.ResourceType[kind], _ADMIN.ResourcePatternType.PREFIXED)
        self._add(_acls(_ADMIN.AclBinding, principal, prefix, operations, place))

    def _add(self, acls: Iterable[Any]) -> None:
        admin, added = _ADMIN.AdminClient(self.admin_settings), set(acls)
        _wait(admin.create_acls(list(added)))
        # The controller answers before a broker has heard of it.
        everything = _ADMIN.AclBindingFilter(
            _ADMIN.ResourceType.ANY,
            None,
            _ADMIN.ResourcePatternType.ANY,
            None,
            None,
            _ADMIN.AclOperation.ANY,
            _ADMIN.AclPermissionType.ANY,
        )
        wait_until(lambda: added <= set(admin.describe_acls(everything).result()))

    def revoke(self, principal: str, topic: str, *operations: str) -> None:
        """Remove ACLs of a topic."""
        admin = _ADMIN.AdminClient(self.admin_settings)
        removed = list(_acls(_ADMIN.AclBindingFilter, principal, topic, operations))
        _wait(admin.delete_acls(removed))
        wait_until(lambda: not any(admin.describe_acls(one).result() for one in removed))

    def produce(self, topic: str, values: Iterable[str]) -> None:
        """Write records, as another program."""
        producer = Producer(self.admin_settings)
        for value in values:
            producer.produce(topic, value)
        producer.flush()


def _wait(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result()


def _acls(
    kind: Any,
    principal: str,
    name: str,
    operations: Iterable[str],
    place: tuple[Any, Any] = (_ADMIN.ResourceType.TOPIC, _ADMIN.ResourcePatternType.LITERAL),
) -> Iterator[Any]:
    resource, pattern = place
    for operation in operations:
        yield kind(
            resource,
            name,
            pattern,
            principal,
            "*",
            _ADMIN.AclOperation[operation],
            _ADMIN.AclPermissionType.ALLOW,
        )


@contextlib.contextmanager
def guarded_kafka(directory: Path) -> Iterator[Guarded]:
    """Run such a broker. The user `plain` has `PASSWORD` and PLAIN; others are added."""
    authority = Authority(directory)
    scram = f"{_JAAS}.scram.ScramLoginModule required;"
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    users = f'user_admin="{ADMIN_PASSWORD}" user_plain="{quoted}"'
    own = f'username="admin" password="{ADMIN_PASSWORD}"'
    plain = f"{_JAAS}.plain.PlainLoginModule required {own} {users};"
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain.replace("\\", "\\\\"),
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.path),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    with kafka(directory, ("SASL_SSL", "SSL"), settings) as addresses:
        passwords, certificates = addresses.split(",")
        yield Guarded(directory, authority, passwords, certificates)
