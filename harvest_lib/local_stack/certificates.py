"""A certificate authority in a folder, and certificates that it signs: for servers of this machine, and for clients.

Keys are written only to this folder, and only their owner can read them. The authority is created once; each call of
`issue` creates a new certificate.
"""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from trustme import CA

from harvest_lib.local_stack.state import make_folder, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The files of a certificate and its key in PEM. `together` is a file with both, as Java needs it."""

    certificate: Path
    key: Path
    together: Path


class Authority:
    """An authority whose certificate is `ca.pem` in a folder."""

    def __init__(self, folder: Path) -> None:
        """Only set the paths. Nothing is written yet."""
        self._folder = folder
        self._key_file = folder / "ca.key"
        self.certificate = folder / "ca.pem"

    def make(self) -> None:
        """Create the authority's certificate and key unless both exist."""
        make_folder(self._folder).chmod(0o700)
        if self._key_file.exists() and self.certificate.exists():
            return
        authority = CA()
        write_private(self.certificate, authority.cert_pem.bytes().decode())
        write_private(self._key_file, authority.private_key_pem.bytes().decode())

    def files(self, name: str) -> Certificate:
        """Return the paths of the certificate of a name. The files may not exist yet."""
        return Certificate(
            certificate=self._folder / f"{name}.pem",
            key=self._folder / f"{name}.key",
            together=self._folder / f"{name}.both.pem",
        )

    def issue(self, name: str, *, hosts: tuple[str, ...] = ()) -> Certificate:
        """Sign a certificate for `CN=name`, with a server's host names `hosts`. The new certificate replaces an earlier
        certificate of the name."""
        authority = CA.from_pem(self.certificate.read_bytes(), self._key_file.read_bytes())
        # Without hosts, `name` is the only alternative name, because OpenSSL refuses an empty list.
        issued, files = authority.issue_cert(*(hosts or (name,)), common_name=name), self.files(name)
        key = _pkcs8(issued.private_key_pem.bytes())
        chain = "".join(each.bytes().decode() for each in issued.cert_chain_pems)
        write_private(files.certificate, chain)
        write_private(files.key, key)
        write_private(files.together, key + chain)
        return files


def _pkcs8(key: bytes) -> str:
    """Return a private key in PKCS #8, the only format that Java reads."""
    return load_pem_private_key(key, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
