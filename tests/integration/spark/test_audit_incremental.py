"""Audits that go on from the last one: they say what a full one says, and read only what came since."""

import time
import uuid
from dataclasses import asdict
from itertools import count

import pytest
from confluent_kafka.admin import NewTopic
from support.audited import RECORDS, of_one_key, write
from support.waiting import eventually

from harvest_lib.audit import results
from harvest_lib.errors import ConfigError
from harvest_lib.outbox import OutboxTable
from harvest_lib.record.header import HEADER_NAME, stamp
from harvest_lib.sequencing import message_id
from harvest_lib.sequencing.message_id import Clock, Flag, new_producer_id, pack
from harvest_lib.source import server_identity
from harvest_lib.spark.audit.kafka_side import SparkTopics
from harvest_lib.spark.audit.run import _require_server
from harvest_lib.spark.audit.stages import Stages
from harvest_lib.spark.audit.state import AuditStateError, Mark, Past
from harvest_lib.spark.seen_rows import seen_rows

pytestmark = [pytest.mark.full, pytest.mark.spark]

FINDINGS = ("lost", "duplicates", "reorderings", "unknown")


class Since:
    """An outbox that is audited in full and from a state, and must be the same; `read` is what the state's audits read
    of Kafka."""

    def __init__(self, native, folder, monkeypatch):
        self.native, self.folder, self.read = native, folder, []
        real = Stages.compare

        def compare(stages, logs, *others, **more):
            found = real(stages, logs, *others, **more)
            self.read.append(found.numbers["read"])
            return found

        monkeypatch.setattr(Stages, "compare", compare)

    def audit(self, **how):
        return self.native.audit(audit_id="since", state=self.folder, **how)

    def require_same(self):
        """Audit by the state and in full; return the numbers, which must agree, and how many messages were read."""
        found = self.audit()
        (read,) = self.read
        whole = self.native.audit(audit_id="whole")
        self.read.clear()
        assert numbers(found) == numbers(whole)
        for table in FINDINGS:
            of = {"since": set(), "whole": set()}
            for audit_id, *finding in self.native.findings(table):
                of[audit_id].add(tuple(finding))
            assert of["since"] == of["whole"], table
        return found, read


def numbers(summary):
    return {
        name: value
        for name, value in asdict(summary).items()
        if name not in {"audit_id", "at", "backlog_age_seconds"} and not name.startswith("delay")
    }


@pytest.fixture
def since(native, tmp_path, monkeypatch):
    return Since(native, tmp_path / "state", monkeypatch)


def test_anomalies_across_the_boundary_are_found_as_by_a_full_audit(since):
    native, outbox = since.native, since.native.outbox
    native.deliver()
    found, _ = since.require_same()
    assert (found.committed, found.ok) == (RECORDS, True)

    first, second, *_, last = of_one_key(native.log())
    low, high = RECORDS + 1, RECORDS + 2
    write(outbox, last.key, last.key)
    native.produce(last)  # the last record of the range before, once more
    native.produce(second)  # an old one
    native.produce(first, leader=uuid.uuid4())
    native.produce(last, outbox_id=high, value=b"v")
    native.produce(last, outbox_id=10**9)
    native.produce(last, header=[("other", b"1")])
    found, read = since.require_same()
    assert read == 6
    assert (found.duplicates_adjacent, found.duplicates_separated, found.duplicates_cross_epoch) == (1, 1, 1)
    assert (found.backlog_records, found.unknown, found.foreign_messages, found.reordered) == (1, 1, 1, 0)

    outbox.connection.execute("UPDATE outbox_subscriptions SET low_watermark = pg_current_snapshot()")
    native.produce(last, outbox_id=10**9)
    found, _ = since.require_same()
    assert (found.backlog_records, found.lost) == (0, 1)
    assert (found.unknown, found.duplicates_adjacent) == (1, 2)

    native.produce(last, outbox_id=low, value=b"v")  # after those that were written later
    found, _ = since.require_same()
    assert (found.lost, found.reordered, found.duplicates_adjacent) == (0, 1, 2)


def test_a_key_that_had_a_gap_has_it_in_later_audits_too(since):
    native, outbox = since.native, since.native.outbox
    write(outbox, "strange", "whole")
    outbox.harvest(delivery="pipelined").drain(60)
    native.produce(next(each for each in native.log() if each.key == "strange"), outbox_id=10**9)
    since.audit()
    write(outbox, "whole")
    outbox.harvest(delivery="pipelined").drain(60)
    since.read.clear()
    found, read = since.require_same()
    assert (read, found.unknown, found.reordered, found.keys, found.keys_with_gaps) == (1, 1, 0, 2, 1)


def test_only_what_came_since_is_read(since):
    since.native.deliver()
    since.audit()
    since.audit()
    since.native.deliver(7)
    found = since.audit()
    assert since.read == [RECORDS, 0, 7]
    assert (found.records, found.committed, found.ok) == (RECORDS + 7, RECORDS + 7, True)
    assert since.audit(full=True).records == RECORDS + 7
    assert since.read[-1] == RECORDS + 7


def test_what_comes_while_an_audit_reads_is_counted_once(since, monkeypatch):
    outbox, real, looks = since.native.outbox, SparkTopics.settled_logs, count()

    def deliver(key):
        write(outbox, key)
        outbox.harvest(delivery="pipelined").drain(60)

    def logs(topics):
        if next(looks) == 0:
            found = real(topics)
            deliver("between the first look and the snapshot")
            return found
        deliver("after the snapshot")
        return real(topics)

    deliver("early")
    with monkeypatch.context() as patch:
        patch.setattr(SparkTopics, "settled_logs", logs)
        during = since.audit()
    assert (during.records, during.committed, during.ok) == (3, 2, True)
    since.read.clear()
    found, read = since.require_same()
    assert (found.records, found.committed, found.ok, read) == (3, 3, True, 2)


def test_an_audit_that_died_leaves_the_state_that_was(since, monkeypatch):
    since.native.deliver()
    since.audit()
    since.native.produce(since.native.log()[0])
    with monkeypatch.context() as patch:
        patch.setattr(results, "promote", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            since.audit()
    since.read.clear()
    found, read = since.require_same()
    assert read == 1
    assert found.duplicates_adjacent + found.duplicates_separated == 1


def test_a_state_of_a_topic_that_was_recreated_is_refused_until_it_is_forgotten(since, admin):
    outbox = since.native.outbox
    since.native.deliver()
    since.audit()
    admin.delete_topics([outbox.topic])[outbox.topic].result(60)
    eventually(lambda: partitions(admin, outbox.topic) == 0, "the topic is gone")
    admin.create_topics([NewTopic(outbox.topic, 4)])[outbox.topic].result(60)
    eventually(lambda: partitions(admin, outbox.topic) == 4, "it is there again")
    with pytest.raises(AuditStateError, match=r"was recreated[\s\S]*--full"):
        since.audit()
    assert since.audit(full=True).lost == RECORDS


def test_a_server_that_lacks_what_was_audited_is_refused(since, tmp_path):
    """However long its log has become: the rows tell that are there for those that were."""
    outbox, table = since.native.outbox, OutboxTable.parse("outbox")
    write(outbox, "a", "b")
    connection = outbox.connection
    server = server_identity.place(connection).as_json()
    (snapshot,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    seen = seen_rows(connection, table, snapshot, 0)

    def require(**other):
        mark = Mark(ends={}, snapshot=snapshot, seen=seen, server={**server, **other})
        _require_server(connection, table, Past(mark=mark, numbers={}, generations=[1], folder=tmp_path))

    require()
    for other in ({"system": "1"}, {"lsn": "FFFFFFFF/0"}):
        with pytest.raises(AuditStateError, match=r"may lack records[\s\S]*--full"):
            require(**other)
    write(outbox, "c")
    require()
    connection.execute("UPDATE outbox SET create_time = now() WHERE id = (SELECT min(id) FROM outbox)")
    with pytest.raises(AuditStateError, match=r"may lack records[\s\S]*--full"):
        require()


def test_an_outbox_whose_rows_are_purged_has_no_state(purged, tmp_path):
    purged.promote(1)
    with pytest.raises(ConfigError, match="whose rows are deleted"):
        purged.audit(state=tmp_path)


def test_of_a_sequenced_topic_what_is_pending_is_not_there_until_it_is_acknowledged(since):
    native = since.native
    native.deliver(delivery="sequenced")
    found, _ = since.require_same()
    assert (found.records, found.committed, found.foreign_messages, found.ok) == (RECORDS, RECORDS, 0, True)

    last = of_one_key(native.log())[-1]
    clock, sender = Clock(time.time_ns), new_producer_id()
    pending = clock.tick()
    send(
        native,
        last,
        pack(sender, pending, Flag.CONTINUE_TXN),
        header=(HEADER_NAME, stamp(uuid.uuid4())(last.outbox_id)),
    )
    since.audit()
    since.read.clear()
    found, _ = since.require_same()
    assert (found.records, found.ok) == (RECORDS, True)
    send(native, last, pack(sender, clock.tick(), Flag.ACK_TXN))
    found, _ = since.require_same()
    assert (found.records, found.duplicates_cross_epoch, found.foreign_messages) == (RECORDS + 1, 1, 0)
    send(
        native,
        last,
        pack(sender, pending, Flag.CONTINUE_TXN),
        header=(HEADER_NAME, stamp(uuid.uuid4())(last.outbox_id)),
    )
    send(native, last, pack(sender, clock.tick(), Flag.ACK_TXN))
    found, _ = since.require_same()
    assert found.records == RECORDS + 1, "a message that was sent again is not there twice"


def send(native, like, own_id, *, header=None):
    headers = [(message_id.HEADER_NAME, own_id), *([header] if header else [])]
    native.producer.produce(native.outbox.topic, like.value, like.key, like.partition, headers=headers)
    native.producer.flush()


def partitions(admin, topic):
    found = admin.list_topics(timeout=60).topics.get(topic)
    return len(found.partitions) if found else 0
