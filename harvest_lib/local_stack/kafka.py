"""A Kafka cluster of one or three KRaft brokers: Java processes on 127.0.0.1, each both broker and controller.

Every broker has two listeners: `bootstrap_servers` without authentication, and `sasl_bootstrap_servers` with SASL/PLAIN
for a user with a generated password. Detours are additional listeners that advertise other addresses, so that a proxy
can break connections. A secured cluster has other listeners instead, see `kafka_security`. Topics are not created
automatically. Topics are replicated to all brokers. Data persists between runs. Each combination of version, number of
brokers, and secured or unsecured has its own data.
"""

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harvest_lib.errors import StackError
from harvest_lib.local_stack.jars import kafka_jars, resolve
from harvest_lib.local_stack.java import argument_file, find_java, java_environment
from harvest_lib.local_stack.kafka_configuration import broker_properties
from harvest_lib.local_stack.kafka_security import OPERATOR, SASL_USER, KafkaSecurity, unsecured_settings
from harvest_lib.local_stack.log_evidence import telling
from harvest_lib.local_stack.ports import accepts, keep_ports, occupant
from harvest_lib.local_stack.process import ServerProcess, through_child
from harvest_lib.local_stack.state import make_private, write_private

VERSIONS = ("4.3.1", "3.9.1")

_READY_SECONDS = 180
_STARTS = 3
_STOP_SECONDS = 10

_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1",)  # the process ends before optimized code would pay off
_LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "-Dlog4j2.disable.jmx=true",
)


class KafkaCluster:
    """A Kafka cluster. Its data is below the folder `state`, its jars and Java below `parts`."""

    def __init__(
        self,
        state: Path,
        *,
        version: str = "4.3.1",
        brokers: int = 1,
        parts: Path | None = None,
        detours: Mapping[str, Sequence[int | str]] | None = None,
        security: KafkaSecurity | None = None,
        acls: bool = False,
        optimized: bool = True,
    ) -> None:
        """Only set the parameters. Nothing is written or started yet.

        `detours` maps a name to the advertised ports of 127.0.0.1 (or addresses) of an additional listener, a port for
        each broker. Your proxy must forward these ports to `ports["name-1"]`, `ports["name-2"]` and so on. Clients of
        this listener do not authenticate. With `security` the cluster has only the listeners of `security`. With `acls`
        an authenticated client has only granted rights, and a client without authentication has all rights. Without
        `optimized` a broker uses less CPU in its first minutes, and more later.
        """
        if version not in VERSIONS:
            raise StackError(f"Kafka {version} is not supported", next_step=f"choose one of {', '.join(VERSIONS)}")
        if brokers not in (1, 3):
            raise StackError(f"a cluster of {brokers} brokers is not supported", next_step="choose 1 or 3 brokers")
        self.version = version
        self.brokers = [
            ServerProcess(
                f"kafka-{number}",
                log=state / "logs" / f"kafka-{number}.log",
                stop_signals={signal.SIGTERM: _STOP_SECONDS},
            )
            for number in range(1, brokers + 1)
        ]
        """The processes, broker 1 first. They may be killed or frozen individually; `start_broker` restarts one."""
        self.ports: dict[str, int] = {}
        self.detours: Mapping[str, Sequence[int | str]] = dict(detours or {})
        """The `detours` of the constructor. They may be changed before `prepare`."""
        self._parts = parts or state
        self._security = security
        self._acls = acls
        self._options = _JVM if optimized else (*_JVM, *_SHORT_LIVED)
        self._folder = state / f"kafka-{version}-{brokers}{'-secure' if security else ''}"
        self._formatting: list[tuple[int, subprocess.Popen[str]]] = []
        self._java: list[str | Path] = []
        self._starts = 0
        """Number of starts since the cluster was last ready. Clients may know the ports of a cluster that was ready, so
        the ports must not change after that."""

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap servers of the listener without authentication. In a secured cluster: of the listener for SCRAM."""
        return ",".join(f"127.0.0.1:{self.port(number)}" for number in self._numbers)

    @property
    def sasl_bootstrap_servers(self) -> str:
        """Bootstrap servers for SASL/PLAIN."""
        return ",".join(f"127.0.0.1:{self.ports[f'sasl-{number}']}" for number in self._numbers)

    @property
    def tls_bootstrap_servers(self) -> str:
        """Bootstrap servers of the listener for clients with a certificate, in a secured cluster."""
        return ",".join(f"127.0.0.1:{self.ports[f'tls-{number}']}" for number in self._numbers)

    @property
    def operator_settings(self) -> dict[str, str]:
        """The client settings of a user with all rights: in a secured cluster the user `operator`, in an unsecured
        cluster the anonymous user."""
        if self._security is None:
            return {"bootstrap.servers": self.bootstrap_servers}
        return self._security.by_certificate(OPERATOR, self.tls_bootstrap_servers)

    def port(self, number: int) -> int:
        """Return the port of a broker's first listener. Call `prepare` first."""
        return self.ports[f"{self._roles[0]}-{number}"]

    @property
    def sasl_settings(self) -> dict[str, str]:
        """The client settings for the SASL/PLAIN listener, password included."""
        return {
            "bootstrap.servers": self.sasl_bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": SASL_USER,
            "sasl.password": self._identity()["password"],
        }

    def start(self) -> None:
        """Start all brokers and wait until they answer."""
        self.prepare()
        self.spawn()
        self.await_ready()

    def prepare(self) -> None:
        """Download jars, choose ports and write the configuration. Start to format new data folders in the background;
        formatting takes about a second."""
        java_home = find_java(self._parts)
        jars = resolve(kafka_jars(self.version), self._parts)
        self._java = [java_home / "bin" / "java", *self._options, *_LOGGING, "-cp", os.pathsep.join(map(str, jars))]
        make_private(self._folder)
        names = [f"{role}-{number}" for number in self._numbers for role in self._roles]
        self.ports = keep_ports(self._folder / "ports.json", names)
        for number in self._numbers:
            write_private(self._properties(number), self._configuration(number))
            data = self.data(number)
            if not (data / "meta.properties").exists():
                shutil.rmtree(data, ignore_errors=True)
                arguments = [*_SHORT_LIVED, *self._java[1:], "kafka.tools.StorageTool", "format"]
                arguments += ["--config", self._properties(number), "--cluster-id", self._identity()["cluster"]]
                arguments += self._security.format_arguments() if self._security else []
                # The arguments are in a file, because every user of the machine can read a command line.
                write_private(self._format_file(number), argument_file(arguments))
                formatting = subprocess.Popen(
                    through_child([self._java[0], f"@{self._format_file(number)}"]),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                self._formatting.append((number, formatting))

    def spawn(self) -> None:
        """Start all brokers without waiting until they answer; call `prepare` first."""
        while self._formatting:
            self._finish_formatting(*self._formatting.pop())
        self._starts += 1
        for number in self._numbers:
            self.start_broker(number)

    def start_broker(self, number: int) -> None:
        """Start a broker, by its number from 1, without waiting until it answers."""
        command = [*self._java, "kafka.Kafka", self._properties(number)]
        self.brokers[number - 1].spawn(command, environment=java_environment())

    def await_ready(self) -> None:
        """Wait until every broker has joined and answers clients. If another process took a chosen port, and clients
        cannot know the ports yet, restart the cluster on other ports. Raises StackError."""
        while True:
            try:
                self._await_brokers()
            except StackError as error:
                taken = [each for each in self.brokers if each.found_port_taken]
                if not taken:
                    raise
                if not 0 < self._starts < _STARTS:
                    raise self._port_taken(error) from error
                self.kill()
                self.prepare()
                self.spawn()
            else:
                self._starts = 0
                return

    def _await_brokers(self) -> None:
        def ready() -> bool:
            for broker in self.brokers:
                broker.require_running()
            return all(accepts(self.port(number)) for number in self._numbers) and self.answers()

        self.brokers[0].await_ready(ready, seconds=_READY_SECONDS)

    def _port_taken(self, error: StackError) -> StackError:
        occupants = "; ".join(filter(None, map(occupant, self.ports.values())))
        return StackError(
            f"{error.cause}, since another process has a port of it",
            evidence=f"{occupants}; {error.evidence}" if occupants else error.evidence,
            next_step="end that process, then start it again",
        )

    def _finish_formatting(self, number: int, formatting: subprocess.Popen[str]) -> None:
        try:
            output, _ = formatting.communicate(timeout=_READY_SECONDS)
        except subprocess.TimeoutExpired:
            self._give_up_formatting(number, formatting)
            output = f"it was not done within {_READY_SECONDS} s"
        finally:
            self._format_file(number).unlink(missing_ok=True)
        if formatting.returncode != 0:
            shutil.rmtree(self.data(number), ignore_errors=True)
            raise StackError(
                f"the data of Kafka broker {number} could not be made",
                evidence=telling(output),
                next_step="remove it with `harvest up --fresh`",
            )

    def _give_up_formatting(self, number: int, formatting: subprocess.Popen[str]) -> None:
        formatting.kill()
        formatting.communicate()
        self._format_file(number).unlink(missing_ok=True)
        shutil.rmtree(self.data(number), ignore_errors=True)

    def answers(self) -> bool:
        """Return True if a client sees all brokers in this cluster's metadata. Return False if another cluster answers
        on the same ports."""
        with AdminClient({**self.operator_settings, "log_level": 0}) as admin:
            try:
                seen = admin.list_topics(timeout=2)
            except KafkaException:
                return False
        return seen.cluster_id == self._identity()["cluster"] and len(seen.brokers) == len(self.brokers)

    def begin_stop(self) -> None:
        """Request all brokers to shut down, without waiting."""
        for broker in self.brokers:
            broker.begin_stop()

    def stop(self) -> None:
        """Shut all brokers down at the same time, and kill brokers that do not end."""
        while self._formatting:
            self._give_up_formatting(*self._formatting.pop())
        self.begin_stop()
        for broker in self.brokers:
            broker.stop()

    def kill(self) -> None:
        """Kill all brokers, as in a crash."""
        for broker in self.brokers:
            broker.kill()

    def suspend(self) -> None:
        """Freeze all broker processes by SIGSTOP."""
        for broker in self.brokers:
            broker.suspend()

    def resume(self) -> None:
        """Let frozen brokers continue."""
        for broker in self.brokers:
            broker.resume()

    @property
    def _numbers(self) -> range:
        return range(1, len(self.brokers) + 1)

    @property
    def _roles(self) -> tuple[str, ...]:
        if self._security:
            return ("sasl", "tls", "controller")
        return ("plain", "sasl", "controller", *self.detours)

    def data(self, number: int) -> Path:
        """Return the folder with a broker's data."""
        return self._folder / f"broker-{number}"

    def _properties(self, number: int) -> Path:
        return self._folder / f"broker-{number}.properties"

    def _format_file(self, number: int) -> Path:
        return self._folder / f"format-{number}.arguments"

    def _identity(self) -> Mapping[str, str]:
        """Return the cluster's id and the SASL user's password. They are generated once and stored in a file."""
        file = self._folder / "identity.json"
        if not file.exists():
            # The first byte is zero, because the tool would parse an id that begins with '-' as an option.
            cluster = base64.urlsafe_b64encode(bytes(1) + uuid.uuid4().bytes[1:]).decode().rstrip("=")
            write_private(file, json.dumps({"cluster": cluster, "password": secrets.token_urlsafe(24)}))
        identity: Mapping[str, str] = json.loads(file.read_text())
        return identity

    def _configuration(self, number: int) -> str:
        listeners = {role.upper(): f"127.0.0.1:{self.ports[f'{role}-{number}']}" for role in self._roles}
        advertised = {role: address for role, address in listeners.items() if role != "CONTROLLER"}
        for name, detour in self.detours.items():
            place = detour[number - 1]
            advertised[name.upper()] = place if isinstance(place, str) else f"127.0.0.1:{place}"
        return broker_properties(
            number,
            data=self.data(number),
            controllers=[self.ports[f"controller-{voter}"] for voter in self._numbers],
            listeners=listeners,
            advertised=advertised,
            access=(
                self._security.settings()
                if self._security
                else unsecured_settings(self._roles, self._identity()["password"], acls=self._acls)
            ),
            start_seconds=_READY_SECONDS,
        )
