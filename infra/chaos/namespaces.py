"""Linux namespaces of the calling thread: changes in them do not affect the rest of the machine. They need root.

The kernel removes a namespace when no process is in it or holds it open, so a run leaves nothing behind, however it
ends. A process is in the namespaces of the thread that started it.
"""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NEW_MOUNTS = 0x00020000
_NEW_NETWORK = 0x40000000
_HOW = "run it as root on Linux, in a container with the capability SYS_ADMIN"


def mounts_lacking() -> str | None:
    """Return the reason why the run cannot have its own file systems, None if it can."""
    return _lacking_of(_NEW_MOUNTS, "mount", "mount")


def networks_lacking() -> str | None:
    """Return the reason why the run cannot have its own networks, None if it can."""
    return _lacking_of(_NEW_NETWORK, "ip", "iproute2")


@functools.cache
def _lacking_of(kind: int, program: str, package: str) -> str | None:
    if not has_program(program):
        return f"there is no `{program}`: install {package} (`make machine` does so as root on Debian)"
    name = "mnt" if kind == _NEW_MOUNTS else "net"
    try:
        with _apart(kind, name), tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            if kind == _NEW_NETWORK:
                run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
            else:
                run("mount", "--make-rprivate", "/")
                run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
                run("umount", folder)
    except (OSError, AttributeError) as error:
        return f"a namespace of the run's own is unavailable ({error}): {_HOW}"
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` fails here ({error.stderr.strip()}): {_HOW}"
    return None


@contextmanager
def own_mounts() -> Iterator[None]:
    """Within this context the calling thread, and each process that it starts, has its own mounts."""
    with _apart(_NEW_MOUNTS, "mnt"):
        run("mount", "--make-rprivate", "/")
        yield


class Network:
    """A network namespace. At first it has only a loopback device, which is down."""

    def __init__(self) -> None:
        with _apart(_NEW_NETWORK, "net"):
            self._held = os.open(_current("net"), os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within this context the calling thread, and each process that it starts, is in this network. Sockets stay in
        the network in which they were made."""
        before = os.open(_current("net"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(self._held, _NEW_NETWORK)
            try:
                yield
            finally:
                _enter(before, _NEW_NETWORK)
        finally:
            os.close(before)

    def ip(self, *arguments: str) -> None:
        """Run `ip` in this network. Raises CalledProcessError."""
        with self.inside():
            run("ip", *arguments)

    def tc(self, *arguments: str) -> None:
        """Run `tc` in this network. Raises CalledProcessError."""
        with self.inside():
            run("tc", *arguments)

    def adopt(self, device: str, *, of: "Network") -> None:
        """Move a device from the network `of` into this network."""
        with of.inside():
            run("ip", "link", "set", device, "netns", f"/proc/{os.getpid()}/fd/{self._held}")

    def close(self) -> None:
        """Release the namespace; the kernel removes it when no process is in it."""
        os.close(self._held)


@contextmanager
def _apart(kind: int, name: str) -> Iterator[None]:
    before, folder = os.open(_current(name), os.O_RDONLY | os.O_CLOEXEC), Path.cwd()
    try:
        _call("unshare", kind)
        try:
            yield
        except BaseException:
            with suppress(OSError):  # other threads may prevent the return; the first error is the one to report
                _back(before, kind, folder)
            raise
        _back(before, kind, folder)
    finally:
        os.close(before)


def _back(handle: int, kind: int, folder: Path) -> None:
    _enter(handle, kind)
    os.chdir(folder)  # entering a mount namespace moves the process to its root


def _current(name: str) -> Path:
    return Path(f"/proc/thread-self/ns/{name}")


def _enter(handle: int, kind: int) -> None:
    _call("setns", handle, kind)


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # `os` has both from Python 3.12 on
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def has_program(name: str) -> bool:
    """Return True if a program of that name is on the `PATH` or in `/usr/sbin` or `/sbin`."""
    return shutil.which(name, path=_path()) is not None


def run(*command: str) -> str:
    """Run a program, also from `/usr/sbin` and `/sbin`, and return its output. Raises CalledProcessError."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": _path()})
    return done.stdout


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"  # many users' PATH lacks both folders
