"""A server process with its output in a log file. The module `child` starts the server, so that the server never
outlives this process.

Start the server from a thread that lives as long as the server, because the kernel ends the server with that thread.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from harvest_lib.errors import StackError
from harvest_lib.local_stack import child
from harvest_lib.local_stack.log_evidence import said_since, telling, tells_taken_address
from harvest_lib.local_stack.state import make_folder, private_log

_POLL_SECONDS = 0.02
_KILL_SECONDS = 10
_STANDS_STILL = {"T", "t", "Z", "X"}
"""States in /proc of a thread that does not run: stopped (T), stopped by a tracer (t), ended (Z, X)."""
_LOG_BYTES = 16 * 1024 * 1024


class ServerProcess:
    """A server that can be started, stopped, killed, frozen and started again under the same name."""

    def __init__(
        self,
        name: str,
        *,
        log: Path,
        stop_signals: Mapping[signal.Signals, float],
        end_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Only set the parameters. Nothing is started yet.

        `stop` sends the `stop_signals` in order, and waits for the given seconds after each, before it sends SIGKILL.
        The kernel sends `end_signal` when this process dies.
        """
        self.name = name
        self.log = log
        self._stop_signals = stop_signals
        self._end_signal = end_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def said(self) -> str:
        """The text that the process has logged since its last start; at most the last 512 KiB."""
        return said_since(self.log, self._log_start)

    @property
    def found_port_taken(self) -> bool:
        """True if the process has ended because its port was in use."""
        return self._process is not None and self.pid is None and tells_taken_address(self.said)

    @property
    def pid(self) -> int | None:
        """The process's id; None if it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def spawn(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str],
        user: "Identity | None" = None,
        paths: Sequence[Path] = (),
    ) -> None:
        """Start the command without waiting. With `user` the command runs as that user, and can read `paths` even if
        the user may not enter the folders above them."""
        make_folder(self.log.parent)
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.old"))
        with private_log(self.log) as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                through_child(command, end_signal=self._end_signal, user=user, paths=paths),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C at the terminal reaches only this process, which then stops the server
                cwd="/",
            )

    def await_ready(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Wait until `ready()` returns True. Raises StackError, with errors from the log, if the process ends before
        that or `seconds` have passed."""
        deadline = time.monotonic() + seconds
        while not ready():
            self.require_running()
            if time.monotonic() > deadline:
                raise self._failed(f"{self.name} was not ready within {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def require_running(self) -> None:
        """Raise StackError, with errors from the log, if the process has ended while it was starting."""
        if self.pid is None:
            code = self._process.returncode if self._process else None
            raise self._failed(f"{self.name} ended while it started (exit code {code})")

    def begin_stop(self) -> None:
        """Request the process to end, without waiting, so that several processes can end at the same time."""
        if self._process and self._process.poll() is None:
            self.resume()
            self._process.send_signal(next(iter(self._stop_signals)))

    def stop(self) -> None:
        """End the process by its stop signals, then by SIGKILL. No effect if it does not run."""
        if self._process is None:
            return
        for number, seconds in self._stop_signals.items():
            if self._process.poll() is not None:
                break
            self.resume()
            self._process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End the process and all its descendants by SIGKILL, as in a crash."""
        if self._process is None:
            return
        try:
            family = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        self._process.kill()
        self._process.wait()
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        deadline = time.monotonic() + _KILL_SECONDS
        while any(_runs(member) for member in family) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._process = None

    def suspend(self) -> None:
        """Freeze the process by SIGSTOP, and wait until all of its threads have stopped. On a busy machine other
        threads continue for a moment after the first thread has stopped."""
        if self.pid is None:
            return
        psutil.Process(self.pid).suspend()
        deadline = time.monotonic() + _KILL_SECONDS
        while not _stands_still(self.pid):
            if time.monotonic() > deadline:
                raise self._failed(f"{self.name} did not stand still {_KILL_SECONDS} s after SIGSTOP")
            time.sleep(_POLL_SECONDS)

    def resume(self) -> None:
        """Let a frozen process continue."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def _failed(self, cause: str) -> StackError:
        return StackError(cause, evidence=telling(self.said), next_step=f"read {self.log}, then run `harvest up` again")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Identity:
    """The user as which a server runs if this process is root."""

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid

    def reaches(self, path: Path) -> bool:
        """Return True if the user has execute permission for the path and every folder above it."""
        for place in (path.resolve(), *path.resolve().parents):
            status = place.stat()
            if status.st_uid == self.uid:
                bit = 0o100
            elif status.st_gid == self.gid:
                bit = 0o010
            else:
                bit = 0o001
            if not status.st_mode & bit:
                return False
        return True


def through_child(
    command: Sequence[str | Path],
    *,
    end_signal: signal.Signals = signal.SIGKILL,
    user: Identity | None = None,
    paths: Sequence[Path] = (),
) -> list[str]:
    """Return a command that runs `command` through `child`, so that `command` ends when this process ends. With `user`,
    `command` runs as that user, and can read `paths` even if the user may not enter the folders above them."""
    wrapped = [sys.executable, "-I", "-S", str(Path(child.__file__).resolve()), "--parent", str(os.getpid())]
    wrapped += ["--signal", str(int(end_signal))]
    if user:
        wrapped += ["--user", f"{user.uid}:{user.gid}"]
        if not all(user.reaches(path) for path in (Path(command[0]), *paths)):
            wrapped += ["--reach"]
    return [*wrapped, "--", *(str(part) for part in command)]


def _stands_still(pid: int) -> bool:
    """Return True if all threads of a process are stopped or ended."""
    return all(_state(task) in _STANDS_STILL for task in Path(f"/proc/{pid}/task").glob("*"))


def _state(task: Path) -> str:
    """Return the state letter of a thread from /proc; `X` (ended) if the thread does not exist any more."""
    try:
        return (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def tail(log: Path, lines: int = 5) -> str:
    """Return the last lines of a log, joined into a single line. Only the last 16 KiB are read."""
    if not log.exists():
        return "its log is empty"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16384))
        text = file.read().decode(errors="replace")
    return " | ".join(line.strip() for line in text.splitlines()[-lines:]) or "its log is empty"
