"""Writes a trust store for Java with the certificate authorities that this machine trusts.

A Java from a wheel trusts only public authorities, which is not enough behind a company's proxy. The file is in the JKS
format, because every Java reads this format, and no tool is needed to write it: a header, an entry for each
certificate, a digest.
"""

import hashlib
import os
import ssl
import struct
from pathlib import Path

_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def write_truststore(file: Path) -> int:
    """Write a Java key store with the certificates of the authorities that this machine trusts. Return their number."""
    certificates = _trusted()
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", 2) + _text(f"authority-{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    # The key of the digest is public: the store contains no secret, so its password protects nothing.
    digest = hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body, usedforsecurity=False)
    file.write_bytes(body + digest.digest())
    return len(certificates)


def _trusted() -> list[bytes]:
    context = ssl.create_default_context()
    # The system's bundle is added, because an interpreter that was built elsewhere may search another path for it.
    for bundle in (os.environ.get("SSL_CERT_FILE", ""), *_BUNDLES):
        if bundle and Path(bundle).is_file():
            context.load_verify_locations(cafile=bundle)
            break
    return context.get_ca_certs(binary_form=True)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded
