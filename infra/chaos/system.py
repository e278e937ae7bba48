"""The system that receives the faults: Postgres, a Kafka cluster, and harvesters with their own links to both."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from harvest_lib.clock import boot_seconds
from harvest_lib.config.choices import ReadingMode, choose
from harvest_lib.kafka_topics import create_topic
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.local_stack.ports import keep_ports
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.local_stack.process import tail
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedRecords
from infra.chaos.following import Following
from infra.chaos.history.events import FailoverLoss, Park, RecreatedTopic
from infra.chaos.link import Links
from infra.chaos.member import Member
from infra.chaos.network_path import NetworkPath
from infra.chaos.role import Role
from infra.harvester import Harvester
from infra.processes import end_in_order, require_up
from infra.waiting import until

TOPIC = "chaos"
PARTITIONS = 8
SESSION_SECONDS = 6.0
"""A silent leader is replaced after this time. A leader that cannot prove its leadership stops after half of it."""
_MEMBERS = 3
GROUP = "chaos"
_OUTBOX = OutboxTable(("outbox",))
_READY_SECONDS = 60.0

Source = Literal["mark", "snapshot", "transaction_id"]
Delivery = Literal["barrier", "pipelined", "transactional", "sequenced"]
HandOver = Literal["native", "python"]
Election = Literal["auto", "neli", "postgres"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMode:
    """Source of the outbox, delivery to Kafka, implementation of the hand-over, and election of the leader."""

    source: Source = "snapshot"
    delivery: Delivery = "transactional"
    hand_over: HandOver = "native"
    election: Election = "auto"

    @property
    def exactly_once(self) -> bool:
        """True if the delivery promises no duplicates to readers of committed records."""
        return self.delivery in {"transactional", "sequenced"}

    @property
    def elects_by_kafka(self) -> bool:
        """True if a consumer group elects the leader, not a lock in Postgres."""
        chosen = choose(None, source=self.source, delivery=self.delivery, leadership=self.election)
        return chosen.leadership == "neli"

    def __str__(self) -> str:
        elected = "" if self.election == "auto" else f", {self.election}"
        return f"{self.source}/{self.delivery}, {self.hand_over}{elected}"


class System:
    """The servers, the harvesters and the links between them. `running` starts and stops it."""

    def __init__(
        self,
        folder: Path,
        parts: Path,
        links: Links,
        mode: SystemMode,
        brokers: int,
        *,
        session_seconds: float = SESSION_SECONDS,
        listens: bool = False,
    ) -> None:
        """Prepare; nothing is started yet. If `listens` is true, harvesters serve their metrics."""
        self.mode = mode
        self._session_seconds = session_seconds
        self.folder, self.history = folder, folder / "history"
        self.members = [Member(f"member{number}", links, brokers, folder) for number in range(1, _MEMBERS + 1)]
        if listens:
            ports = keep_ports(folder / "metrics.json", [member.name for member in self.members])
            for member in self.members:
                member.listen(ports[member.name])
        self.postgres = PostgresServer(folder)
        self.role = Role(_OUTBOX, ReadingMode.of(mode.source, mode.delivery), lambda: self.dsn)
        """The harvesters' role."""
        self.servers = [self.postgres]
        """All Postgres servers that the run has had, standbys included."""
        self.happened: list[FailoverLoss | RecreatedTopic | Park] = []
        """Effects of faults on records. An effect is removed when it is written into the history."""
        self.following: Following
        """The reader that follows the topic; set when the reader has begun."""
        self.topic_made_at = 0.0
        """Time of the request to create the current topic, by the boot clock. The topic has no older record."""
        self.make_room: Callable[[Path], object] = lambda _folder: None
        """Called with the empty folder of each added server."""
        self.kafka = KafkaCluster(folder, brokers=brokers, parts=parts, detours=self._detours())

    def move_members(self, paths: Sequence[NetworkPath]) -> None:
        """Put each harvester at the far end of its own network path. Call it before anything is started."""
        for member, path in zip(self.members, paths, strict=True):
            member.move(path)
        self.kafka.detours = self._detours()

    def _detours(self) -> dict[str, list[int | str]]:
        return {member.name: [f"{link.host}:{link.port}" for link in member.kafka] for member in self.members}

    @property
    def dsn(self) -> str:
        """Connection string of writers. It bypasses all links."""
        return self.postgres.dsn

    @property
    def leader(self) -> Member | None:
        """The member with the newest term among the members whose process is alive, None if no member leads."""
        leads = [(lead.at, member) for member in self.members if (lead := member.lead) is not None]
        return max(leads, key=lambda each: each[0])[1] if leads else None

    def start(self) -> None:
        """Start the servers, create the table and the topic, and start all harvesters."""
        self.kafka.prepare()
        self.postgres.start()
        self.kafka.spawn()  # starts slowly, while the outbox is created
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            self._make_outbox(connection)
        self.move_to(self.postgres)
        self.kafka.await_ready()
        self.make_topic()
        for member in self.members:
            for number, link in enumerate(member.kafka, 1):
                link.forward_to("127.0.0.1", self.kafka.ports[f"{member.name}-{number}"])
            self.start_member(member)

    def make_topic(self) -> None:
        """Create the topic of the records."""
        self.topic_made_at = boot_seconds()
        create_topic(
            {"bootstrap.servers": self.kafka.bootstrap_servers}, TOPIC, partitions=PARTITIONS, config=self._topic_config
        )

    def move_to(self, postgres: PostgresServer) -> None:
        """Make this server the target of writers and of the harvesters' links from now on."""
        self.postgres = postgres
        for member in self.members:
            member.postgres.forward_to("127.0.0.1", postgres.port)

    def start_member(self, member: Member) -> None:
        """Start a new harvester process of a member whose last process has ended."""
        member.start(self._config(member), self.mode.hand_over)

    def await_leader(self, seconds: float = _READY_SECONDS) -> Member:
        """Wait until a harvester leads. Raises StackError."""
        return until(
            lambda: self.leader,
            seconds,
            f"no harvester led within {seconds:.0f} s",
            evidence=lambda: ", ".join(f"{each.name} {'is up' if each.is_up else 'is down'}" for each in self.members),
            next_step="read the logs of the harvesters, beside the history",
        )

    def await_cluster(self) -> None:
        """Wait until the cluster answers and all replicas are in sync. Raises StackError."""
        until(
            lambda: self.kafka.answers() and not self._under_replicated(),
            _READY_SECONDS,
            "the brokers did not come together again",
            next_step="read their logs",
        )

    def await_members(self, seconds: float = _READY_SECONDS) -> None:
        """Wait until all harvesters have started. Raises StackError if that takes too long or a harvester has ended by
        itself, as a harvester may do at its start if a server is unavailable."""

        def starting() -> list[Member]:
            return [member for member in self.members if not member.is_started]

        until(
            lambda: not starting(),
            seconds,
            f"not all harvesters started within {seconds:.0f} s",
            evidence=lambda: "; ".join(f"{each.name}: {_last_words(each)}" for each in starting()),
            next_step="read the logs of the harvesters, beside the history",
            watched=[self.require_all_up],
        )
        self.require_all_up()

    @property
    def _harvesters(self) -> list[Harvester]:
        return [member.harvester for member in self.members if member.harvester is not None]

    def require_all_up(self) -> None:
        """Raise StackError if a harvester has ended by itself."""
        for harvester in self._harvesters:
            require_up(harvester.process, lines=2)

    def end(self) -> None:
        """Request all harvesters to stop. Raises StackError if a harvester does not stop in order."""
        self.require_all_up()
        end_in_order(self._harvesters)

    def stop(self) -> None:
        """End all processes, harvesters first."""
        for member in self.members:
            member.heal()
        for harvester in self._harvesters:
            harvester.process.begin_stop()
        for harvester in self._harvesters:
            harvester.process.stop()
        self.kafka.resume()
        self.kafka.kill()
        for server in self.servers:
            server.resume()
            server.stop()

    def _under_replicated(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        try:
            topics = admin.list_topics(timeout=2).topics.values()
        except KafkaException:
            return True
        return any(
            len(partition.isrs) < len(partition.replicas) for topic in topics for partition in topic.partitions.values()
        )

    def _make_outbox(self, connection: psycopg.Connection[Any]) -> None:
        if self.mode.source == "mark":
            _OUTBOX.create(connection)
            ParkedRecords(_OUTBOX).create(connection)
        else:
            NativeTable(outbox=_OUTBOX).create(connection)
        connection.execute("ALTER TABLE outbox ALTER COLUMN kafka_value TYPE text")  # for values too large for Kafka
        self.role.make()

    @property
    def _topic_config(self) -> dict[str, str]:
        if self.mode.exactly_once:
            return {}
        # Only the broker can refuse records that a frozen leader's client sends as it thaws.
        return {"message.timestamp.before.max.ms": str(int((self._session_seconds - 1) * 1000))}

    def operator_config(self) -> Path:
        """Write a configuration for operator commands, whose addresses bypass all links, and return its file."""
        file = self.folder / "operator.yaml"
        file.write_text(self._yaml(self.kafka.bootstrap_servers, self.dsn))
        file.chmod(0o600)
        return file

    def _config(self, member: Member) -> str:
        postgres = member.postgres
        return self._yaml(
            ",".join(f"{link.host}:{link.port}" for link in member.kafka),
            make_conninfo(self.role.dsn(self.dsn), host=postgres.host, port=postgres.port, connect_timeout=3),
        )

    def _yaml(self, bootstrap_servers: str, dsn: str) -> str:
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": bootstrap_servers, "reconnect.backoff.max.ms": 1000},
            "producerKafkaConfig": {"compression.type": "lz4"},
            "leaderGroupID": GROUP,
            "dataSource": dsn,
            "source": self.mode.source,
            "delivery": self.mode.delivery,
            "leadership": self.mode.election,
            "sessionTimeout": f"{self._session_seconds:.0f}s",
            "limits": {"heartbeatTimeout": f"{self._session_seconds * 500:.0f}ms", "ioErrorBackoff": "200ms"},
        }
        return yaml.safe_dump({"harvest": harvest})


def _last_words(member: Member) -> str:
    return tail(member.harvester.process.log, lines=2) if member.harvester is not None else "never started"


@contextmanager
def running(
    folder: Path,
    parts: Path,
    mode: SystemMode,
    brokers: int,
    prepare: Iterable[Callable[["System"], AbstractContextManager[None]]] = (),
    *,
    session_seconds: float = SESSION_SECONDS,
    listens: bool = False,
) -> Iterator[System]:
    """Start the system, yield it when a harvester leads and all harvesters have started, and end all processes at the
    end. Each context in `prepare` is entered once, before the start."""
    with Links() as links, ExitStack() as prepared:
        system = System(folder, parts, links, mode, brokers, session_seconds=session_seconds, listens=listens)
        for each in dict.fromkeys(prepare):
            prepared.enter_context(each(system))
        try:
            system.start()
            system.await_leader()
            system.await_members()
            yield system
        finally:
            system.stop()
