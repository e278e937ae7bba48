"""A drill for each alert: it fires in a real Prometheus, the commands of its runbook are run as they are, and it ends.

The times of the rules are divided, by as much as the drill says. The drill does an operator's part outside of the
runbook (creates a topic, has a service restarted).
"""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from support import drilled_audits as audits
from support import drilled_services as services
from support.drilled import drilled, due
from support.exhausted import (
    INSERT,
    expiring,
    full_segment,
    partitions_added,
    renew_certificate,
    small_limit,
    stuck_reader,
)
from support.machine import require
from support.runbooks import filled, runbook, sections
from support.waiting import eventually

from harvest_lib.kafka_topics import create_topic
from harvest_lib.local_stack.state import default_state, make_folder
from infra.chaos.alert_matrix import SESSION_SECONDS, await_scraped, scaled_rules_of_run
from infra.chaos.commands import harvest
from infra.chaos.faults import FAULTS
from infra.chaos.prometheus import prometheus_lacking
from infra.chaos.system import SystemMode
from infra.chaos.under_load import under_load

pytestmark = pytest.mark.full

ALERTS = list(scaled_rules_of_run()[1])
READS = SystemMode(source="snapshot", delivery="transactional", election="neli")
WAITS = SystemMode(source="transaction_id", delivery="transactional", election="neli")
REPEATS = SystemMode(source="snapshot", delivery="barrier")
MISSING = "nowhere"
PAUSED_SECONDS, PAUSED_EVERY_SECONDS = 2.0, 3.0
"""More than a leader's time to be heard, half of the session timeout; less than what the runbook sets."""
TEN_HOURS, AN_HOUR = timedelta(hours=10), timedelta(hours=1)
"""Within a tenth of 14 days, and of two."""
PUBLISHED = Path(__file__).parents[2] / "docs" / "alerts.md"
NOT_DRILLED = re.compile(r"^## Drills\n(?P<list>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@contextmanager
def idle_in_transaction(drill):
    """A session has written, and sits idle."""
    connection = psycopg.connect(drill.system.dsn)
    connection.execute("SELECT pg_current_xact_id()")
    try:
        yield
    finally:
        with suppress(psycopg.Error):
            connection.close()


@contextmanager
def slow_to_postgres(drill):
    """All that the leader asks of Postgres takes long."""
    link = drill.system.await_leader().postgres
    link.delay(4.0)
    drill.is_supervised = True
    try:
        yield
    finally:
        link.heal()
        drill.is_supervised = False


@contextmanager
def cut_off_from_postgres(drill):
    """The leader, and nobody else, does not reach Postgres."""
    drill.is_supervised = True
    with FAULTS["postgres-cut"].inject(drill.system, None, None):
        yield
    drill.is_supervised = False


@contextmanager
def no_leader_topic(drill):
    """Somebody has deleted the topic by which the pool elects."""
    admin = AdminClient({"bootstrap.servers": drill.system.kafka.bootstrap_servers, "log_level": 0})
    names = [name for name in admin.list_topics(timeout=60).topics if name.endswith(".neli")]
    assert len(names) == 1, names
    admin.delete_topics(names, request_timeout=10)[names[0]].result()
    yield


@contextmanager
def pool_killed(drill):
    """All processes are killed. Processes that the runbook has started are ended before they are started again."""
    with FAULTS["pool-killed"].inject(drill.system, None, None):
        yield
        drill.end()


@contextmanager
def rights_revoked(drill):
    """The role of the harvesters may do nothing with any table."""
    drill.system.role.revoke()
    yield


@contextmanager
def paused_machine(drill):
    """The machine of the pool stands still for longer than a leader may be silent, again and again."""
    over = threading.Event()

    def tell(number):
        for pid in [member.harvester.process.pid for member in drill.system.members]:
            with suppress(ProcessLookupError):
                os.kill(pid, number) if pid else None

    def pause():
        while not over.wait(PAUSED_EVERY_SECONDS):
            tell(signal.SIGSTOP)
            over.wait(PAUSED_SECONDS)
            tell(signal.SIGCONT)

    pausing = threading.Thread(target=pause)
    pausing.start()
    drill.is_supervised = True
    try:
        yield
    finally:
        over.set()
        pausing.join()
        drill.restore()


@contextmanager
def no_topic(drill):
    """A record is for a topic that there is not."""
    with psycopg.connect(drill.system.dsn) as connection:
        connection.execute(INSERT, (MISSING,))
    yield


def create_missing_topic(drill):
    create_topic({"bootstrap.servers": drill.system.kafka.bootstrap_servers}, MISSING, partitions=1, config={})


@contextmanager
def forgotten_subscription(drill):
    """A subscription that nobody harvests, and a segment that was closed long ago."""
    config = drill.system.operator_config()
    harvest("subscriptions", "add", "forgotten", "--from", "beginning", "-f", config)
    harvest("segments", "rotate", "-f", config)
    with psycopg.connect(drill.system.dsn, autocommit=True) as connection:

        def is_closed():
            harvest("segments", "drop", "--yes", "-f", config)  # none is old enough, and what is full is closed
            aged = "UPDATE outbox_segments SET closed_at = closed_at - interval '2 days' WHERE closed_at IS NOT NULL"
            return connection.execute(aged).rowcount

        eventually(is_closed, "a segment is closed")
    yield


@contextmanager
def cut_off_from_kafka(drill):
    """The leader does not hear whether Kafka has what it sent."""
    with FAULTS["kafka-unheard"].inject(drill.system, None, None):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """An alert, what fires it, and the step of its runbook that is for that. `corrects` is what is done
    before it."""

    alert: str
    inject: Callable[..., AbstractContextManager[None]]
    mode: SystemMode = READS
    step: int = 0
    factor: float = 10.0
    corrects: Callable[..., None] = nullcontext

    def __str__(self):
        return f"{self.alert}-{self.step}"


DRILLS = [
    Drill(alert="HarvestDown", inject=pool_killed),
    Drill(alert="HarvestPostgresAway", inject=rights_revoked),
    Drill(alert="HarvestRecordsParked", inject=no_topic, step=1),
    Drill(alert="HarvestRecordsParked", inject=no_topic, corrects=create_missing_topic),
    Drill(alert="HarvestBacklogOld", inject=slow_to_postgres, factor=30.0),
    Drill(alert="HarvestLeadershipFlaps", inject=paused_machine, factor=15.0),
    Drill(alert="HarvestNoLeader", inject=no_leader_topic),
    Drill(alert="HarvestSegmentsHeld", inject=forgotten_subscription, factor=100.0),
    Drill(alert="HarvestDatabaseFills", inject=full_segment, factor=100.0),
    Drill(alert="HarvestDatabaseFills", inject=small_limit, step=1, factor=100.0),
    Drill(alert="HarvestUnreadExpires", inject=stuck_reader, factor=100.0),
    Drill(alert="HarvestUnreadExpires", inject=services.stopped_counts, step=1, factor=100.0),
    Drill(alert="HarvestCertificateExpires", inject=partial(expiring, lasts=TEN_HOURS), corrects=renew_certificate),
    Drill(alert="HarvestCertificateExpiresSoon", inject=partial(expiring, lasts=AN_HOUR), corrects=renew_certificate),
    Drill(alert="HarvestAuditAnomalies", inject=audits.records_deleted, factor=700.0),
    Drill(alert="HarvestAuditDuplicates", inject=audits.records_copied, factor=700.0),
    Drill(alert="HarvestAuditFailed", inject=audits.topic_not_there, corrects=audits.deliver_to_missing),
    Drill(alert="HarvestConsumerStuck", inject=services.locked_counts),
    Drill(alert="HarvestConsumerDown", inject=services.killed_counts),
    Drill(alert="HarvestRestarts", inject=services.limited_counts, corrects=services.lift_limit),
    Drill(alert="HarvestPipelineStuck", inject=services.locked_copy),
    Drill(alert="HarvestPipelineWriterStopped", inject=services.refused_row, corrects=services.add_column),
    Drill(alert="HarvestPipelineDown", inject=services.killed_copy),
    Drill(alert="HarvestSlotExpires", inject=services.limited_slot, factor=100.0),
    Drill(alert="HarvestNoProgress", inject=cut_off_from_postgres, step=1),
    Drill(alert="HarvestPartitionsAdded", inject=partitions_added, factor=700.0),
    Drill(alert="HarvestNoProgress", mode=WAITS, inject=idle_in_transaction),
    Drill(alert="HarvestCheckpointStale", mode=WAITS, inject=idle_in_transaction, step=1),
    Drill(alert="HarvestPossibleDuplicates", mode=REPEATS, inject=cut_off_from_kafka, factor=30.0),
]
"""Drills of one mode are beside each other: they have one pool. Dropping parked records comes before their topic,
adding partitions last: that alert lasts for a day, which a smaller factor makes too long for the drill after it."""


def test_each_alert_is_drilled_or_it_is_said_why_not():
    left = set(re.findall(r"^- `(\w+)`: .+", NOT_DRILLED.search(PUBLISHED.read_text())["list"], re.MULTILINE))
    assert {drill.alert for drill in DRILLS} | left == set(ALERTS)
    assert not {drill.alert for drill in DRILLS} & left, "it is drilled"


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_says_what_it_means_how_to_look_and_what_to_do(alert):
    book = runbook(sections()[alert])
    assert book.look
    assert book.steps


def test_a_placeholder_is_a_label_of_the_alert():
    labels = {"topic": "orders", "shard": "0"}
    assert filled("harvest park list --topic TOPIC --yes", labels) == "harvest park list --topic orders --yes"
    assert filled("kill -TERM 7; psql -c 'SELECT 1 FROM x'", labels) == "kill -TERM 7; psql -c 'SELECT 1 FROM x'"
    with pytest.raises(KeyError):
        filled("harvest subscriptions remove SUBSCRIPTION", labels)


@pytest.fixture(scope="module")
def pools():
    """Pools under load, one at a time; the next mode ends the one before."""
    require(prometheus_lacking(), "prometheus")
    running = {}

    def of(mode):
        if mode not in running:
            for context, _ in running.values():
                context.__exit__(None, None, None)
            running.clear()
            folder = make_folder(default_state() / "chaos" / f"drills-{mode.source}-{time.strftime('%H%M%S')}")
            context = under_load(
                folder.resolve(),
                default_state(),
                mode,
                brokers=1,
                rate=100.0,
                threads=2,
                seed=0,
                prepare=(),
                session_seconds=SESSION_SECONDS,
                listens=True,
            )
            running[mode] = context, context.__enter__()
        return running[mode][1]

    yield of
    for context, _ in running.values():
        context.__exit__(None, None, None)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("drill", DRILLS, ids=str)
def test_the_runbook_ends_the_alert(pools, tmp_path, drill):
    load = pools(drill.mode)
    with drilled(load, tmp_path, drill.factor) as (watched, rules):
        fires_seconds, ends_seconds = due(rules[drill.alert])
        await_scraped(watched.prometheus, len(load.system.members))
        with drill.inject(watched):
            labels = watched.await_firing(drill.alert, fires_seconds)
            watched.follow(drill.alert, drill.step, labels, ends_seconds, drill.corrects)
    load.recover()
    load.system.await_members()
