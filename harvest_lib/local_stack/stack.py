"""The local stack: a Postgres, a Kafka cluster, and services that use both. They start and end together.

    with Stack() as stack:
        connect(stack.dsn), Producer({"bootstrap.servers": stack.bootstrap_servers})

Servers that the environment names (HARVEST_DSN, HARVEST_BOOTSTRAP_SERVERS) replace the stack's own servers. Only one
stack at a time can use a state folder. On Linux the servers end with the process that started them, even if that
process is killed. The servers' data stays for the next run. Start the stack from a thread that lives as long as the
stack, because the kernel ends the servers when that thread ends.
"""

import os
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.conninfo import parameters_of, shown
from harvest_lib.errors import StackError
from harvest_lib.local_stack.circumstances import explained
from harvest_lib.local_stack.description import Description, Server, process_started
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.local_stack.secure import Security
from harvest_lib.local_stack.state import default_state, locked, make_folder

_OUTSIDE_SECONDS = 10


class Services(Protocol):
    """Services that use the servers of a stack. They start after the servers, and end before the servers."""

    def start(self, *, dsn: str, bootstrap_servers: str) -> None:
        """Start all services and wait until they serve. Raises StackError. After an error, `stop` ends the services
        that run."""

    def revive(self) -> list[str]:
        """Restart the services that ended by themselves, and return their names."""

    def stop(self) -> None:
        """End all services. No effect if none runs."""

    def describe(self) -> tuple[Server, ...]:
        """Return the running services with their addresses."""

    def notes(self) -> dict[str, str]:
        """Return additional lines to display about the services, by title."""


class Stack:
    """A context manager that runs Postgres and Kafka."""

    def __init__(
        self,
        state: Path | None = None,
        postgres: str = "18",
        kafka: str = "4.3.1",
        brokers: int = 1,
        *,
        fresh: bool = False,
        durable: bool = True,
        parts: Path | None = None,
        secure: bool = False,
        acls: bool = False,
        services: Services | None = None,
    ) -> None:
        """Only set the parameters. Nothing is written or started yet.

        `state` is the folder for data and logs (`.harvest` by default), and `parts` the folder for downloads such as
        jars (the state folder by default). `fresh` removes the data of earlier runs first. Without `durable` Postgres
        does not wait for the disk, and Kafka is not `optimized`. With `secure` the servers accept only clients that use
        TLS and authenticate, see the module `secure`; raises StackError if the environment names other servers. `acls`:
        see `KafkaCluster`. `services` are started after the servers.
        """
        self.state = (state or default_state()).resolve()
        self.postgres: PostgresServer | None = None
        self.kafka: KafkaCluster | None = None
        self._outside_dsn = os.environ.get("HARVEST_DSN", "")
        self._outside_servers = os.environ.get("HARVEST_BOOTSTRAP_SERVERS", "")
        self.security = Security(self.state, version=postgres, parts=parts) if secure else None
        if self.security:
            _check_alone([*filter(None, (self._outside_dsn, self._outside_servers))])
        if not self._outside_dsn:
            tls = self.security.tls() if self.security else None
            self.postgres = PostgresServer(self.state, version=postgres, durable=durable, tls=tls)
        if not self._outside_servers:
            self.kafka = KafkaCluster(
                self.state,
                version=kafka,
                brokers=brokers,
                parts=parts,
                security=self.security.kafka() if self.security else None,
                acls=acls,
                optimized=durable,
            )
        self._services = services
        self._fresh = fresh
        self._held = ExitStack()
        self._holds = False

    @property
    def dsn(self) -> str:
        """The Postgres connection string, password included."""
        return self.postgres.dsn if self.postgres else self._outside_dsn

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap servers of Kafka."""
        return self.kafka.bootstrap_servers if self.kafka else self._outside_servers

    def start(self) -> None:
        """Start the servers that the environment does not name, and wait until all servers answer.

        Raises StackError if another process uses the state folder or a server does not start. After an error none of
        the servers runs.
        """
        try:
            self._hold_folder()
            (self.state / "stack.json").unlink(missing_ok=True)
            if self._fresh:
                self._wipe()
            self._start_servers()
            if self._services:
                self._services.start(dsn=self.dsn, bootstrap_servers=self.bootstrap_servers)
            self.describe().save(self.state)
        except (OSError, StackError) as error:
            self._abandon()
            shown = explained(error, self.state)
            if shown is error:
                raise
            raise shown from error
        except BaseException:
            self._abandon()
            raise

    def stop(self) -> None:
        """Stop the servers of this stack. Kill servers that do not end in time. No effect if no server runs."""
        try:
            if self._services:
                self._services.stop()
            if self.kafka:
                self.kafka.begin_stop()
            if self.postgres:
                self.postgres.stop()
            if self.kafka:
                self.kafka.stop()
            if self.state.is_dir():
                (self.state / "stack.json").unlink(missing_ok=True)
        finally:
            self._holds = False
            self._held.close()

    def revive(self) -> list[str]:
        """Restart the servers and services that ended by themselves, and return their names."""
        names = []
        if self.postgres and self.postgres.pid is None:
            self.postgres.start()
            names.append("postgres")
        if self.kafka:
            ended = [number for number, broker in enumerate(self.kafka.brokers, 1) if broker.pid is None]
            for number in ended:
                self.kafka.start_broker(number)
            if ended:
                self.kafka.await_ready()
            names += [f"kafka-{number}" for number in ended]
        if self._services:
            names += self._services.revive()
        if names:
            self.describe().save(self.state)
        return names

    def mend(self) -> list[str]:
        """Let servers that a test froze continue, and restart servers that ended. Return the names of the restarted
        servers. If no server has ended, no network connection is made."""
        if self.postgres:
            self.postgres.resume()
        if self.kafka:
            self.kafka.resume()
        return self.revive()

    def describe(self) -> Description:
        """Return the running servers with their addresses, as in `stack.json`."""
        servers = []
        if self.postgres and self.postgres.pid:
            servers.append(
                Server(name="postgres", version=self.postgres.version, pid=self.postgres.pid, port=self.postgres.port)
            )
        for number, broker in enumerate(self.kafka.brokers if self.kafka else [], 1):
            if self.kafka and broker.pid:
                port = self.kafka.port(number)
                servers.append(Server(name=broker.name, version=self.kafka.version, pid=broker.pid, port=port))
        return Description(
            dsn=self.dsn,
            bootstrap_servers=self.bootstrap_servers,
            servers=(*servers, *(self._services.describe() if self._services else ())),
            pid=os.getpid(),
            started=process_started(os.getpid()) or 0,
            secure=str(self.security.folder) if self.security else "",
            notes=self._services.notes() if self._services else {},
        )

    def to_json(self) -> str:
        """Return the description as JSON, with the password hidden."""
        return self.describe().to_json()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def __repr__(self) -> str:
        """Return a text with the folder and without secrets."""
        return f"Stack({str(self.state)!r})"

    def _hold_folder(self) -> None:
        make_folder(self.state)
        if not self._held.enter_context(locked(self.state / "lock", wait=False)):
            raise StackError(
                "another process holds a stack in this state folder",
                evidence=str(self.state),
                next_step="end it with `harvest down`, or name another folder in HARVEST_HOME",
            )
        self._holds = True

    def _abandon(self) -> None:
        """Stop the started servers. If another process uses the state folder, do nothing."""
        with suppress(OSError):  # the caller raises the first error, which has the cause
            if self._holds:
                self.stop()
        self._held.close()

    def _start_servers(self) -> None:
        if self.security:
            self.security.make()
        if self.kafka:
            self.kafka.prepare()  # formats Kafka's data in the background, while Postgres initializes its own data
        if self.postgres:
            self.postgres.spawn()
        if self.kafka:
            self.kafka.spawn()
        if self.postgres:
            self.postgres.await_ready()
        else:
            _check_postgres(self._outside_dsn)
        if self.kafka:
            self.kafka.await_ready()
        else:
            _check_kafka(self._outside_servers)
        if self.security and self.postgres and self.kafka:
            self.security.admit(self.postgres.dsn)
            self.security.write_settings(
                self.postgres.dsn,
                by_password=self.kafka.bootstrap_servers,
                by_certificate=self.kafka.tls_bootstrap_servers,
            )

    def _wipe(self) -> None:
        # The files of `harvest platform` are removed too, because they belong to the data of this Postgres.
        for pattern in ("postgres-*", "kafka-*", "dagster", "airflow", "prometheus", "passwords", "secure"):
            for path in self.state.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def _check_alone(others: list[str]) -> None:
    if others:
        raise StackError(
            "a secured stack is Postgres and Kafka of its own, and nothing beside them",
            evidence=f"{len(others)} of HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS were given",
            next_step="unset the variables",
        )


def _check_postgres(dsn: str) -> None:
    parameters = parameters_of(dsn, field="HARVEST_DSN")
    try:
        psycopg.connect(**parameters, connect_timeout=_OUTSIDE_SECONDS).close()
    except psycopg.Error as error:
        raise StackError(
            "the Postgres named in HARVEST_DSN cannot be used",
            evidence=f"{shown(dsn)}: {error}",
            next_step="correct HARVEST_DSN, or unset it to start a server",
        ) from error


def _check_kafka(servers: str) -> None:
    try:
        with AdminClient({"bootstrap.servers": servers, "log_level": 0}) as admin:
            admin.list_topics(timeout=_OUTSIDE_SECONDS)
    except KafkaException as error:
        raise StackError(
            "the Kafka named in HARVEST_BOOTSTRAP_SERVERS cannot be used",
            evidence=f"{servers}: {error.args[0].str()}",
            next_step="correct HARVEST_BOOTSTRAP_SERVERS, or unset it to start a cluster",
        ) from error
