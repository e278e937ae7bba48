"""Postgres is put back to an earlier moment, and the writers go on; the harvester is started again and again.

Whatever a start finds, nothing is skipped: what is in the table is delivered, or each start halts and names the
command, however long the log has become meanwhile. After the command everything is delivered.
"""

import uuid

import psycopg
import pytest
from support.native_outbox import NativeOutbox
from support.outbox import Outbox, harvest_config, read_topic
from support.restoring import LOG, WAYS, quiet_server
from support.waiting import eventually

from harvest_lib.errors import CheckpointError, ServerRegressed
from harvest_lib.harvester import preflight
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable
from harvest_lib.source import Selection, server_identity
from harvest_lib.source.server_identity import lsn_number
from harvest_lib.subscriptions.admin import Subscriptions
from harvest_lib.subscriptions.shards import trouble_notes

pytestmark = pytest.mark.full

STARTS = 4
INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, '{}', '{}')
"""


@pytest.fixture
def server(tmp_path):
    with quiet_server(tmp_path / "server") as made:
        yield made


class Restorable:
    """An outbox whose server is put back, and its harvesters."""

    def __init__(self, server, way, folder, topic, servers, group, *, source, delivery):
        self.server, self.topic, self.servers = server, topic, servers
        self.way = WAYS[way](server, folder)
        self.is_native = source != "mark"
        (NativeOutbox if self.is_native else Outbox)(server.dsn, topic).close()
        self._config = {"source": source, "delivery": delivery, "leadership": "solo"}
        self._group = group

    def harvest(self):
        return Harvest(harvest_config(self.server.dsn, self.servers, self._group, **self._config))

    def write(self, number, what):
        """Commit so many transactions with one record each, of contents that do not come again."""
        values = [f"{what} {uuid.uuid4()}" for _ in range(number)]
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            for value in values:
                connection.execute(INSERT, (self.topic, f"key-{uuid.uuid4().int % 20}", value))
        return values

    def log(self):
        with psycopg.connect(self.server.dsn) as connection:
            return lsn_number(connection.execute(LOG).fetchone()[0])

    def outgrow(self, log):
        """Have the log pass a place, with transactions enough to pass those of before as well."""
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            for _ in range(300):
                connection.execute("SELECT pg_current_xact_id()")
            while lsn_number(connection.execute(LOG).fetchone()[0]) <= log:
                connection.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 100000))")

    def arrived(self):
        return {record.value for record in read_topic(self.servers, self.topic, isolation="read_committed")}

    def drain(self):
        self.harvest().drain(60)

    def rewind(self, to="mirror"):
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            name = OutboxTable.parse("outbox")
            Subscriptions(connection, name, Selection(table=name.identifier)).rewind("default", to=to)

    def timeline(self):
        with psycopg.connect(self.server.dsn) as connection:
            return server_identity.timeline(connection)

    def count(self):
        """Return how many records were ever written."""
        with psycopg.connect(self.server.dsn) as connection:
            return connection.execute("SELECT last_value FROM outbox_id_seq").fetchone()[0]

    def witness(self):
        """Return how often the row is known to be written where checkpoints are Kafka's, else None."""
        if self._config["delivery"] != "transactional":
            return None
        with psycopg.connect(self.server.dsn) as connection:
            query = "SELECT (checkpoint ->> 'witness')::bigint FROM outbox_subscriptions"
            return connection.execute(query).fetchone()[0]

    def forget_witness(self):
        """Have the row say no more that it was put back, as if that had been within the last fifth of a second."""
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute("""UPDATE outbox_subscriptions SET checkpoint = checkpoint || '{"witness": 1000000}'""")

    def notes(self):
        """Return what `harvest status` notes of the subscription."""
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            name = OutboxTable.parse("outbox")
            return trouble_notes(Subscriptions(connection, name, Selection(table=name.identifier)).shards())

    def check(self):
        """Return the causes that `harvest check` finds."""
        report = preflight.inspect(harvest_config(self.server.dsn, self.servers, self._group, **self._config))
        return [each.cause for each in report.errors]

    def lose(self, lost=10, new=25):
        """Deliver some records, put the server back to before them, and write others; return how long the log was, and
        these."""
        self.write(20, "both")
        with self.harvest() as harvest:
            eventually(lambda: harvest.delivered_records == 20, "the first are delivered")
            self.way.save()
            saved = self.witness()
            self.write(lost, "lost")
            if saved is not None:  # what is put back by less than a fifth of a second is not known
                eventually(lambda: self.write(1, "lost") and self.witness() > saved, "the row was written since")
                self.write(1, "lost")
            eventually(lambda: len(self.arrived()) == self.count(), "the others are delivered")
        log = self.log()
        self.way.restore()
        written = self.write(new, "new")
        return log, written


@pytest.fixture
def restorable(server, tmp_path, make_topic, bootstrap_servers, group_id, way, source, delivery):
    folder = tmp_path / "saved"
    folder.mkdir()
    for each in (tmp_path, folder):
        each.chmod(0o755)
    return Restorable(server, way, folder, make_topic(4), bootstrap_servers, group_id, source=source, delivery=delivery)


READING = ("snapshot", "transaction_id", "mark")
DELIVERIES = ("transactional", "sequenced", "pipelined", "barrier")


def is_quick(way, source, delivery):
    return (way, source, delivery) == ("cold copy", "snapshot", "transactional")


MATRIX = [
    pytest.param(way, source, delivery, marks=[pytest.mark.gate] if is_quick(way, source, delivery) else [])
    for way in WAYS
    for source in READING
    for delivery in DELIVERIES
]


@pytest.mark.parametrize(("way", "source", "delivery"), MATRIX)
def test_nothing_is_skipped_however_late_it_starts(restorable, delivery):
    """The log and the transactions have long passed the checkpoint when it starts first."""
    log, written = restorable.lose()
    restorable.outgrow(log)
    written += restorable.write(20, "later")
    if delivery == "transactional":
        for _ in range(STARTS):
            with pytest.raises((ServerRegressed, CheckpointError)) as refused:
                restorable.drain()
            assert "harvest subscriptions rewind default --to mirror" in refused.value.next_step
            assert refused.value.evidence
        assert not restorable.arrived().intersection(written)
        restorable.rewind()
    restorable.drain()
    assert set(written) <= restorable.arrived()
    written += restorable.write(5, "last")
    restorable.drain()
    assert set(written) <= restorable.arrived(), "and it goes on"


@pytest.mark.parametrize("delivery", ["transactional"])
@pytest.mark.parametrize("source", READING)
@pytest.mark.parametrize("way", ["cold copy"])
def test_a_refusal_is_remembered_until_an_operator_decides(restorable, source):
    """The log was short when it was found; whether the row's witness tells by then does not matter."""
    log, written = restorable.lose(lost=60, new=1)
    restorable.forget_witness()
    with pytest.raises((ServerRegressed, CheckpointError)) as found:
        restorable.drain()
    restorable.outgrow(log)
    for _ in range(STARTS):
        with pytest.raises(ServerRegressed) as refused:
            restorable.drain()
        assert "found at" in refused.value.evidence
        assert "harvest subscriptions rewind default --to mirror" in refused.value.next_step
    (note,) = restorable.notes()
    assert "harvest subscriptions rewind default --to mirror" in note
    assert found.value.cause in restorable.check()
    restorable.rewind()
    assert restorable.notes() == []
    restorable.drain()
    assert set(written) <= restorable.arrived()


@pytest.mark.parametrize(("source", "delivery"), [("snapshot", "transactional"), ("mark", "transactional")])
@pytest.mark.parametrize("way", ["point in time"])
def test_a_timeline_whose_number_comes_again_is_another(restorable):
    """Both recoveries make timeline 2: the archive does not know the first."""
    restorable.write(20, "both")
    restorable.drain()
    restorable.way.save()
    restorable.way.restore()
    assert restorable.timeline() == "00000002"
    restorable.write(20, "first branch")
    restorable.drain()
    assert len(restorable.arrived()) == 40
    log = restorable.log()
    restorable.way.restore(is_earlier=True)
    assert restorable.timeline() == "00000002"
    restorable.outgrow(log)
    written = restorable.write(20, "second branch")
    restorable.forget_witness()
    for _ in range(2):
        with pytest.raises(ServerRegressed, match="number of another timeline"):
            restorable.drain()
    restorable.rewind()
    restorable.drain()
    assert set(written) <= restorable.arrived()
