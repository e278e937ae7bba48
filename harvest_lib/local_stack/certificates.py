"""A certificate authority in a folder, and certificates that it signs: for servers of this machine, and for clients.

Only the owner can read keys, and they are written nowhere else. The authority is made once, certificates on each call.
"""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from trustme import CA

from harvest_lib.local_stack.state import make_folder, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Files of a certificate and its key, each in PEM, and both together in the file that Java needs."""

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
        authority = CA()
        write_private(self.certificate, authority.cert_pem.bytes().decode())
        write_private(self._key_file, authority.private_key_pem.bytes().decode())

    def files(self, name: str) -> Certificate:
        """Return where the certificate of a name is, or would be."""
        return Certificate(
            certificate=self._folder / f"{name}.pem",
            key=self._folder / f"{name}.key",
            together=self._folder / f"{name}.both.pem",
        )

    def issue(self, name: str, *, hosts: tuple[str, ...] = ()) -> Certificate:
        """Sign a certificate for `CN=name`, and for the hosts of a server; replaces an earlier certificate."""
        authority = CA.from_pem(self.certificate.read_bytes(), self._key_file.read_bytes())
        # Each has an alternative name: OpenSSL refuses an empty list of them.
        issued, files = authority.issue_cert(*(hosts or (name,)), common_name=name), self.files(name)
        key = _pkcs8(issued.private_key_pem.bytes())
        chain = "".join(each.bytes().decode() for each in issued.cert_chain_pems)
        write_private(files.certificate, chain)
        write_private(files.key, key)
        write_private(files.together, key + chain)
        return files


def _pkcs8(key: bytes) -> str:
    """Return a key in the only format that Java reads."""
    return load_pem_private_key(key, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
