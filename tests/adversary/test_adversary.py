"""A role that may insert into the outbox, and no more, tries whatever it can: it costs others nothing.

Beside it an honest writer writes to its own topics, with the same keys. Whatever the adversary does: all that the
honest writer commits arrives within a bounded time, in the order of each key, and nothing that anybody rolled back
does; the harvester goes on as the same process, and its memory stays within a bound. Afterwards another process takes
over. The roles have what `harvest grants postgres` prints, the harvester's as well.

`ADVERSARY_SECONDS` is how long each of the long tests attacks, and `ADVERSARY_SEED` what attacks are made of. To find
out which of them it was, `ADVERSARY_WITHOUT` leaves kinds of them out, by comma: see `Targets.without`, and `keys`,
with which the honest writer has keys of its own.
"""

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain

import psycopg
import pytest
from adversary.attacks import LOCKS, PARTING, ROLLED_BACK, Targets, attacks, parting
from adversary.sessions import Adversary, Honest
from confluent_kafka import Consumer, TopicPartition
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.outbox import read_topic
from support.pool import Member
from support.waiting import eventually

from harvest_lib.consume import Sequencer, read_committed
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedRecords

pytestmark = pytest.mark.full

DELIVERIES = ["barrier", "pipelined", "transactional", "sequenced"]
WAYS = [f"{source} {delivery}" for source in ("mark", "snapshot", "transaction_id") for delivery in DELIVERIES]
QUICK = ["mark barrier", "snapshot pipelined", "transaction_id transactional"]
CHECKED = ["mark transactional", "snapshot sequenced"]
"""Runs with the constraints of `harvest init`, by which Postgres refuses what Kafka can never take."""
ALLOWED = ["mark sequenced", "snapshot transactional"]
"""Runs with writers held to their topics by `--allow`; the adversary tries those of the honest writer too."""

QUICK_SECONDS = 6.0
LONG_SECONDS = float(os.environ.get("ADVERSARY_SECONDS") or 600 / (len(WAYS) + len(ALLOWED)))
SEED = int(os.environ.get("ADVERSARY_SEED") or 1)
WITHOUT = frozenset(filter(None, os.environ.get("ADVERSARY_WITHOUT", "").split(",")))
ARRIVES_SECONDS = 60.0
"""So long after its commit, at most, a record is in Kafka: on a busy machine, behind all that the adversary wrote."""
MOST_BYTES = 400 << 20
"""Peak memory that the process may use. It has some 80 MB to begin with."""

SEGMENT_SIZE = 2_000
"""Small enough for the adversary to leave them all behind, by records and by ids that it draws."""

OUTBOX = OutboxTable(("outbox",))
PASSWORD = "only for tests"

CONFIG = """
harvest:
  baseKafkaConfig:
    bootstrap.servers: {servers}
  producerKafkaConfig:
    compression.type: lz4
  leaderGroupID: {group}
  dataSource: {dsn}
  source: {source}
  delivery: {delivery}
  leadership: neli
  sessionTimeout: 10s
  limits:
    heartbeatTimeout: 5s
    ioErrorBackoff: 100ms
"""


class Reader:
    """Reads what is committed of topics while it comes; `arrived` are by topic and key the values, and when."""

    def __init__(self, bootstrap_servers, topics, partitions):
        self.arrived, self.error = {}, None
        self._settings = {"bootstrap.servers": bootstrap_servers}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(topic, number), daemon=True)
            for topic in topics
            for number in range(partitions)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, topic, partition):
        try:
            for group in read_committed(self._settings, topic, partition, sequencer=Sequencer()):
                for message in group:
                    place = topic, message.record.key().decode()
                    found = message.record.value().decode(), time.monotonic()
                    with self._lock:
                        self.arrived.setdefault(place, []).append(found)
                if self._stop.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - it is looked at
            self.error = error

    def missing(self, committed):
        """Return what was committed and has not arrived, by topic and key."""
        with self._lock:
            arrived = {place: {value for value, _ in found} for place, found in self.arrived.items()}
        wanted = {place: [value for value, _ in found] for place, found in committed.items()}
        gone = {
            place: [each for each in found if each not in arrived.get(place, ())] for place, found in wanted.items()
        }
        return {place: found for place, found in gone.items() if found}

    def check(self, committed, *, once):
        """Each key's first occurrences are in the order of commits, all in time, and alone if `once`. Return how long
        the slowest took, in seconds."""
        assert set(self.arrived) == set(committed)
        for place, found in self.arrived.items():
            values = [value for value, _ in found]
            assert list(dict.fromkeys(values)) == [value for value, _ in committed[place]], place
            if once:
                assert len(values) == len(set(values)), place
        slowest = {place: self._slowest_seconds(place, dict(committed[place])) for place in self.arrived}
        assert max(slowest.values()) < ARRIVES_SECONDS, slowest
        return max(slowest.values())

    def _slowest_seconds(self, place, committed_at):
        """Return how long the slowest of them took, by the first copy of each."""
        first = dict(reversed(self.arrived[place]))
        return max(when - committed_at[value] for value, when in first.items())


class Tail:
    """Records that a topic gets from now on. All of it, much of which is large, is read once, at the end."""

    def __init__(self, bootstrap_servers, topic):
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": "tail", "enable.auto.commit": False}
        self._consumer = Consumer(settings)
        partitions = [
            TopicPartition(topic, each) for each in self._consumer.list_topics(topic, 10).topics[topic].partitions
        ]
        for each in partitions:
            each.offset = self._consumer.get_watermark_offsets(each, 10)[1]
        self._consumer.assign(partitions)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._consumer.close()

    def has_brought(self, key):
        """Return True if a record of the key came since the last call."""
        return any(each.key() == key.encode() for each in self._consumer.consume(1000, timeout=0.1) if not each.error())


@dataclass
class Field:
    """The setting of a run: an outbox, its topics, and the rights of each role."""

    dsn: str
    servers: str
    group: str
    source: str
    delivery: str
    make_topic: object
    folder: object
    allow: bool = False
    checks: bool = False
    """True if the table is native, whatever the source, and has constraints, as `harvest init` makes it. Otherwise it
    is as `--no-checks` has it; for the mark source, as `--goharvest` has it."""

    def __post_init__(self):
        self.honest_topics = tuple(self.make_topic(partitions=2) for _ in range(2))
        self.targets = Targets(
            own=self.make_topic(partitions=2),
            compacted=self.make_topic(partitions=1, **{"cleanup.policy": "compact"}),
            tiny=self.make_topic(partitions=1, **{"max.message.bytes": 2_000}),
            pools=(f"{self.group}.neli", f"{self.group}.default.checkpoint"),
            honest=self.honest_topics if self.allow else (),
            # A transaction that stays open stalls `transaction_id`, as its page says.
            without=WITHOUT | ({"prepared"} if self.source == "transaction_id" else set()),
        )
        self.roles = {part: f"{part}_{self.group[-8:]}" for part in ("harvester", "honest", "adversary")}
        self.config = self.folder / "harvest.yaml"
        self._write_config(self.dsn)
        with psycopg.connect(self.dsn, autocommit=True) as owner:
            if self.source == "mark" and not self.checks:
                OUTBOX.create(owner)
            else:
                NativeTable(outbox=OUTBOX, value_type="text", segment_size=SEGMENT_SIZE, has_checks=self.checks).create(
                    owner
                )
            ParkedRecords(OUTBOX).create(owner)
            for role in self.roles.values():
                owner.execute(
                    sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(PASSWORD))
                )
            owner.execute(self._printed().encode())
        self._write_config(self.dsn_of("harvester"))

    def dsn_of(self, part):
        return make_conninfo(self.dsn, user=self.roles[part], password=PASSWORD)

    def _write_config(self, dsn):
        self.config.write_text(
            CONFIG.format(
                servers=self.servers, group=self.group, dsn=f'"{dsn}"', source=self.source, delivery=self.delivery
            )
        )

    def _printed(self):
        """Return what `harvest grants postgres` prints."""
        roles, targets = self.roles, self.targets
        allowed = [
            *((roles["honest"], topic) for topic in self.honest_topics),
            *((roles["adversary"], topic) for topic in (targets.own, targets.compacted, targets.tiny)),
        ]
        options = ["--harvester", roles["harvester"], "--reader", ""]
        options += chain.from_iterable(("--writer", roles[part]) for part in ("honest", "adversary"))
        options += chain.from_iterable(("--allow", f"{role}={topic}") for role, topic in allowed if self.allow)
        command = [sys.executable, "-m", "harvest_lib.cli", "grants", "postgres", "-f", str(self.config), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def attack(self, seconds):
        """Attack for so long, and say what came of it."""
        listed, drawn = attacks(
            self.targets, SEED, 300, longest_hold_seconds=1.0 if self.source == "transaction_id" else min(20.0, seconds)
        )
        with psycopg.connect(self.dsn_of("adversary"), autocommit=True) as squatter:
            for statement in LOCKS if "locks" not in WITHOUT else ():
                squatter.execute(statement)
            try:
                return self._attack(listed, drawn, seconds)
            finally:
                _end_prepared(self.dsn)

    def _attack(self, listed, drawn, seconds):
        member = Member(self.config, self.folder / "harvester.log")
        try:
            eventually(lambda: member.leads or not member.alive, "the harvester leads")
            with Reader(self.servers, self.honest_topics, 2) as reader:
                honest = Honest(self.dsn_of("honest"), self.honest_topics, number=SEED)
                honest.keys = "own" if "keys" in WITHOUT else "key"
                with ExitStack() as running:
                    running.enter_context(honest)
                    adversary = running.enter_context(Adversary(self.dsn_of("adversary"), listed, drawn, number=SEED))
                    until = time.monotonic() + seconds
                    eventually(
                        lambda: (
                            (time.monotonic() > until and adversary.has_tried_all) or adversary.error or honest.error
                        ),
                        "all was tried",
                        seconds=seconds + 120,
                    )
                for each in (adversary, honest):
                    if each.error is not None:
                        raise each.error
                missing = partial(reader.missing, honest.committed)
                self._await_arrived(missing, member, reader)
                with Tail(self.servers, self.targets.own) as tail:
                    adversary.attack(parting(self.targets))
                    eventually(lambda: tail.has_brought(PARTING), "the last word arrives", seconds=ARRIVES_SECONDS)
                self._check_process(member)
                # Left behind for those who come after: in Postgres, and in the pool's own topics.
                assert member.end(30) == 0
                heir = Member(self.config, self.folder / "heir.log")
                try:
                    with honest:
                        eventually(lambda: heir.leads or not heir.alive, "the heir leads")
                    self._await_arrived(missing, heir, reader)
                    self._check_process(heir)
                finally:
                    self._end(heir)
            self._check(reader, honest, adversary)
            return adversary
        finally:
            self._end(member)

    def _end(self, member):
        """End it, and show what it said: `-rP` shows that also where all is well."""
        peak = _peak_bytes(member) if member.alive else 0
        code = member.end(30)
        said = "".join(line for line in member.lines() if '"records_held"' not in line)
        sys.stdout.write(f"peak {peak >> 20} MB, exit code {code}, log {member.log}\n{said[-20_000:]}")

    def _await_arrived(self, missing, member, reader):
        deadline = time.monotonic() + ARRIVES_SECONDS
        while left := missing():
            assert reader.error is None
            assert member.alive, f"the harvester ended with {member.process.returncode}; missing {_shortly(left)}"
            assert time.monotonic() < deadline, f"not arrived within {ARRIVES_SECONDS:g} s: {_shortly(left)}"
            time.sleep(0.1)

    def _check_process(self, member):
        assert member.alive
        assert sum(event["event"] == "harvester_started" for event in member.events()) == 1
        peak = _peak_bytes(member)
        sys.stdout.write(f"peak {peak >> 20} MB of {member.log}\n")
        assert peak < MOST_BYTES, f"{peak >> 20} MB"

    def _check(self, reader, honest, adversary):
        slowest = reader.check(honest.committed, once=self.delivery in {"transactional", "sequenced"})
        sys.stdout.write(
            f"honest: {honest.records} records, the slowest arrived after {slowest:.1f} s, the slowest transaction "
            f"took {honest.slowest_seconds:.1f} s; attacks: {sum(adversary.done.values())} done, "
            f"{sum(adversary.refused.values())} refused; {dict(adversary.done)}; {dict(adversary.refused)}\n"
        )
        for topic in (*self.honest_topics, self.targets.own, self.targets.compacted, self.targets.tiny):
            found = read_topic(self.servers, topic)
            assert found or topic in {self.targets.compacted, self.targets.tiny}
            assert not [each for each in found if (each.value or "").startswith(ROLLED_BACK)]
        # That all of it happened, and the checks had something to look at.
        assert len(honest.committed) == 12
        assert honest.rolled_back > 0
        assert honest.slowest_seconds < ARRIVES_SECONDS, "nobody keeps it from writing"
        for kind in ("Row", "Statement", "Undone", "commit", "rollback", "disconnect"):
            assert adversary.done[kind] > 0, (kind, adversary.done)
        assert any(kind.startswith("Statement") for kind in adversary.refused), adversary.refused
        if "unsendable" not in WITHOUT:
            assert (adversary.refused["Row: CheckViolation"] > 0) is self.checks, adversary.refused


def _end_prepared(dsn):
    """End transactions that were prepared: no database can be dropped that has some."""
    with psycopg.connect(dsn, autocommit=True) as owner:
        for (gid,) in owner.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall():
            owner.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


def _peak_bytes(member):
    with open(f"/proc/{member.process.pid}/status") as status:  # noqa: PTH123 - no file
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def _shortly(left):
    return {place: (len(found), found[:5]) for place, found in left.items()}


@pytest.fixture
def field(dsn, bootstrap_servers, group_id, make_topic, tmp_path):
    def make(way, **options):
        source, delivery = way.split()
        return Field(dsn, bootstrap_servers, group_id, source, delivery, make_topic, tmp_path, **options)

    return make


@pytest.mark.parametrize("way", QUICK)
def test_an_adversary_costs_the_others_nothing(field, way):
    field(way).attack(QUICK_SECONDS)


@pytest.mark.parametrize("way", CHECKED)
def test_nor_does_one_that_is_refused_what_kafka_never_takes(field, way):
    field(way, checks=True).attack(QUICK_SECONDS)


@pytest.mark.parametrize("way", ALLOWED[1:])
def test_nor_does_one_that_is_held_to_its_topics(field, way):
    adversary = field(way, allow=True).attack(QUICK_SECONDS)
    assert any("InsufficientPrivilege" in kind for kind in adversary.refused if kind.startswith("Row"))


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 300)
@pytest.mark.parametrize("way", WAYS)
def test_nor_does_one_that_goes_on(field, way):
    field(way).attack(LONG_SECONDS)


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 300)
@pytest.mark.parametrize("way", ALLOWED)
def test_nor_does_one_that_goes_on_and_is_held_to_its_topics(field, way):
    field(way, allow=True, checks=True).attack(LONG_SECONDS)
