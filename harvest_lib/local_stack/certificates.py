"""A certificate authority of one folder, and certificates that it signs: for servers of this machine, and for clients.

Keys are written for the owner's eyes only, and nowhere else. The authority is made once; what it signs is made anew
whenever it is asked for, so nothing expires while it is in use.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from harvest_lib.local_stack.state import make_folder, write_private

_AUTHORITY_DAYS = 3650
_DAYS = 365
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Where a certificate and its key are, each in PEM, and both in one file as Java wants them."""

    certificate: Path
    key: Path
    together: Path


class Authority:
    """An authority whose certificate is `ca.pem` in a folder."""

    def __init__(self, folder: Path) -> None:
        """Prepare; nothing is written yet."""
        self._folder = folder
        self._key_file = folder / "ca.key"
        self.certificate = folder / "ca.pem"

    def make(self) -> None:
        """Make the authority unless it is there."""
        make_folder(self._folder).chmod(0o700)
        if self._key_file.exists() and self.certificate.exists():
            return
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("harvest local authority")
        certificate = (
            _draft(name, key.public_key(), days=_AUTHORITY_DAYS)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(self.certificate, _pem(certificate))
        write_private(self._key_file, _key_pem(key))

    def files(self, name: str) -> Certificate:
        """Say where the certificate of a name is, or would be."""
        return Certificate(
            certificate=self._folder / f"{name}.pem",
            key=self._folder / f"{name}.key",
            together=self._folder / f"{name}.both.pem",
        )

    def issue(self, name: str, *, hosts: tuple[str, ...] = ()) -> Certificate:
        """Sign a certificate for `CN=name`: a client's, and a server's too if it has hosts; replaces an earlier one."""
        own = serialization.load_pem_private_key(self._key_file.read_bytes(), password=None)
        if not isinstance(own, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self._key_file} holds another kind of key than we make")
        authority = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        draft = (
            _draft(_name(name), key.public_key(), days=_DAYS)
            .issuer_name(authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key()), critical=False)
        )
        if hosts:
            draft = draft.add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
        files = self.files(name)
        certificate, key_text = _pem(draft.sign(own, hashes.SHA256())), _key_pem(key)
        write_private(files.certificate, certificate)
        write_private(files.key, key_text)
        write_private(files.together, key_text + certificate)
        return files


def _draft(subject: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
