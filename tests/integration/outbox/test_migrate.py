"""`harvest migrate` on a real Postgres: under load, killed at each step, and with all that a table may carry."""

import random
import threading
import time
import uuid
from collections import defaultdict
from itertools import pairwise

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.lock_timeouts import Locking
from support.psql import psql
from support.waiting import eventually

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import OutboxTableError
from harvest_lib.harvester.assembly.preconditions import Preconditions
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.outbox.parking import ParkedRecords
from harvest_lib.outbox.relocation import Migration, Restamping
from harvest_lib.outbox.segments import Segments, drop_passed, ensure_segments
from harvest_lib.outbox.short_locks import LOCK_TIMEOUT_SECONDS
from harvest_lib.record import OutboxRecord
from harvest_lib.source import MarkSource

pytestmark = pytest.mark.gate

STEPS = ["column", "index", "bound", "validate", "swap", "moved"]
KEYS = 8


class Killed(Exception):
    """The process ends here."""


class Plain:
    """A table of goharvest's layout."""

    def __init__(self, dsn, name="outbox"):
        self.dsn, self.name = dsn, name
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.table = OutboxTable.parse(name)
        self.table.create(self.connection)
        ParkedRecords(self.table).create(self.connection)

    def write(self, records, connection=None):
        append(connection or self.connection, [OutboxRecord(topic="t", key="k", value="v")] * records, table=self.name)

    def migrate(self, **options):
        return Migration(outbox=self.table, segment_size=100, **options).run(self.connection)

    def one(self, statement, *values):
        return self.connection.execute(statement, values or None).fetchone()[0]


@pytest.fixture
def plain(dsn):
    made = Plain(dsn)
    yield made
    made.connection.close()


def die_after(step):
    def die(reached):
        if reached == step:
            raise Killed

    return die


def test_a_table_becomes_native_and_keeps_its_rows(plain):
    plain.write(250)
    assert plain.migrate() == ["column", "index", "bound", "validate", "swap", "jump"]
    plain.write(5)
    plain.table.check(plain.connection)
    plain.table.check_native(plain.connection)
    assert plain.one("SELECT count(*) FROM outbox") == 255
    assert plain.one("SELECT count(DISTINCT transaction_id) FROM outbox") == 2
    bounds = [(each.lower, each.upper) for each in Segments(plain.table).read(plain.connection)]
    assert bounds[0][0] is None
    assert bounds[-1][1] is None
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert len(bounds) == 6
    assert plain.one("SELECT count(*) FROM pg_constraint WHERE conname = 'harvest_cut'") == 0
    assert plain.migrate() == []


def test_rows_are_neither_rewritten_nor_read_under_a_lock(plain):
    plain.write(10)
    before = plain.one("SELECT pg_relation_filenode('outbox')")
    said = []
    plain.connection.add_notice_handler(lambda notice: said.append(notice.message_primary))
    plain.connection.execute("SET client_min_messages = debug1")
    plain.migrate()
    assert plain.one("SELECT pg_relation_filenode('outbox_from_0')") == before
    assert any("implied by existing constraints" in message for message in said)


class Load:
    """Writers that lock a key's row before they insert its next version, and a harvester that marks and purges."""

    def __init__(self, plain, writers):
        self.plain = plain
        self.stop, self.errors, self.written = threading.Event(), [], []
        self.delivered = defaultdict(list)
        plain.connection.execute("CREATE TABLE aggregate (key int PRIMARY KEY, version int NOT NULL DEFAULT 0)")
        plain.connection.execute("INSERT INTO aggregate SELECT g FROM generate_series(0, %s) AS g", (KEYS - 1,))
        self.writers = [threading.Thread(target=self._guarded, args=(self._write, n)) for n in range(writers)]
        self.harvester = threading.Thread(target=self._guarded, args=(self._harvest,))

    def _guarded(self, work, *arguments):
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, it counts
            self.errors.append(error)

    def _write(self, seed):
        dice = random.Random(seed)
        with psycopg.connect(self.plain.dsn) as connection:
            while not self.stop.is_set():
                key = dice.randrange(KEYS)
                (version,) = connection.execute(
                    "UPDATE aggregate SET version = version + 1 WHERE key = %s RETURNING version", (key,)
                ).fetchone()
                append(connection, [OutboxRecord(topic="t", key=str(key), value=str(version))])
                connection.rollback() if dice.random() < 0.1 else connection.commit()
                self.written.append(None)
                time.sleep(0.001)

    def _harvest(self):
        source = MarkSource(self.plain.dsn, self.plain.table.identifier, self.plain.table.parked.identifier)
        source.open(uuid.uuid4())
        rows = []
        while rows or any(writer.is_alive() for writer in self.writers) or self._waiting():
            rows = source.fetch(100, [row[0] for row in rows]).rows
            for row in rows:
                self.delivered[row[2]].append(int(row[3]))
            time.sleep(0.002)
        source.close()

    def _waiting(self):
        with psycopg.connect(self.plain.dsn) as connection:
            return connection.execute("SELECT EXISTS (SELECT FROM outbox)").fetchone()[0]

    def __enter__(self):
        for thread in (*self.writers, self.harvester):
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in (*self.writers, self.harvester):
            thread.join(60)

    def wait_for_more(self, records=50):
        enough = len(self.written) + records
        eventually(lambda: self.errors or len(self.written) >= enough, "they write on")


def test_writers_wait_no_longer_than_the_lock_timeout(plain):
    plain.write(10)
    with Locking.connect(plain.dsn, autocommit=True) as connection:
        connection.watch()
        Migration(outbox=plain.table, segment_size=100).run(connection)
        timeouts = connection.timeouts
    assert set(timeouts) == {f"{int(LOCK_TIMEOUT_SECONDS * 1000)}ms"}


@pytest.mark.parametrize("kill", [False, True])
def test_nothing_is_lost_and_nobody_refused_while_others_write_and_harvest(plain, kill):
    with Load(plain, writers=4) as load:
        load.wait_for_more()
        for step in STEPS if kill else []:
            with pytest.raises(Killed):
                plain.migrate(after=die_after(step))
            load.wait_for_more()
        plain.migrate()
        load.wait_for_more()
    assert load.errors == []
    committed = dict(plain.connection.execute("SELECT key::text, version FROM aggregate").fetchall())
    assert {key: load.delivered[key] for key in committed} == {
        key: list(range(1, version + 1)) for key, version in committed.items()
    }
    assert plain.table.kind(plain.connection) == "native"


@pytest.mark.parametrize("step", STEPS)
def test_killed_after_any_step_it_goes_on(plain, step):
    plain.write(20)
    with pytest.raises(Killed):
        plain.migrate(after=die_after(step))
    plain.write(20)
    plain.migrate()
    plain.write(20)
    assert plain.one("SELECT count(*) FROM outbox") == 60
    assert plain.migrate() == []
    assert plain.one("SELECT min(id) FROM outbox WHERE id > 40") > 1_000_000


def test_a_broken_index_is_rebuilt(plain):
    """An index as a killed CREATE INDEX CONCURRENTLY leaves it behind."""
    plain.write(5)
    with pytest.raises(Killed):
        plain.migrate(after=die_after("index"))
    plain.connection.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_from_0_transaction_id_idx'::regclass"
    )
    assert plain.migrate()[:2] == ["broken index", "index"]


def test_all_that_belongs_to_the_table_survives(plain, dsn, unique):
    owner, reader, column_reader = (unique(name)[:60] for name in ("owner", "reader", "column"))
    connection = plain.connection
    connection.execute(
        f"""
        CREATE ROLE "{owner}"; CREATE ROLE "{reader}" LOGIN PASSWORD 'p'; CREATE ROLE "{column_reader}";
        GRANT CREATE ON SCHEMA public TO "{owner}";
        ALTER TABLE outbox OWNER TO "{owner}";
        GRANT SELECT, INSERT ON outbox TO "{reader}" WITH GRANT OPTION;
        GRANT USAGE ON SEQUENCE outbox_id_seq TO "{reader}";
        GRANT UPDATE (leader_id), SELECT (id) ON outbox TO "{column_reader}";
        GRANT SELECT ON outbox TO PUBLIC;
        ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO "{column_reader}";
        COMMENT ON TABLE outbox IS 'it''s ours';
        COMMENT ON COLUMN outbox.kafka_key IS 'the aggregate';
        ALTER TABLE outbox ADD COLUMN note text CHECK (note <> 'bad');
        CREATE INDEX by_note ON outbox (note);
        ALTER TABLE outbox ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
        CREATE POLICY mine ON outbox AS PERMISSIVE FOR ALL TO "{reader}", PUBLIC
          USING (kafka_topic <> 'hidden') WITH CHECK (kafka_topic <> 'forbidden');
        CREATE TABLE fired (what text);
        CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
          AS $$BEGIN INSERT INTO fired VALUES (TG_ARGV[0]); RETURN NEW; END$$;
        CREATE TRIGGER row_one AFTER INSERT ON outbox FOR EACH ROW WHEN (NEW.kafka_key <> 'q')
          EXECUTE FUNCTION fire('row');
        CREATE TRIGGER statement_one AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION fire('statement');
        CREATE TRIGGER "Off" BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION fire('off');
        ALTER TABLE outbox DISABLE TRIGGER "Off";
        """  # noqa: S608 - names of this test's own
    )

    def described():
        acl = "SELECT array(SELECT acl::text FROM unnest(relacl) AS acl ORDER BY 1), pg_get_userbyid(relowner)"
        return [
            connection.execute(statement).fetchall()
            for statement in (
                f"{acl}, relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = 'outbox'::regclass",
                "SELECT attname, attacl::text, col_description(attrelid, attnum), attnotnull FROM pg_attribute "
                "WHERE attrelid = 'outbox'::regclass AND attnum > 0 AND attname <> 'transaction_id' ORDER BY attname",
                "SELECT obj_description('outbox'::regclass)",
                "SELECT policyname, permissive, roles, cmd, qual, with_check FROM pg_policies "
                "WHERE tablename = 'outbox'",
                "SELECT tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'outbox'::regclass "
                "ORDER BY 1",
                "SELECT pg_get_serial_sequence('outbox', 'id')",
            )
        ]

    before = described()
    try:
        indexes = "SELECT count(*) FROM pg_index WHERE indrelid = '{}'::regclass"
        plain.migrate()
        assert described() == before
        assert plain.one(indexes.format("outbox")) == plain.one(indexes.format("outbox_from_0")) == 3
        with psycopg.connect(make_conninfo(dsn, user=reader, password="p"), autocommit=True) as writer:
            plain.write(1, writer)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                writer.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('forbidden', 'k')")
        assert [row[0] for row in connection.execute("SELECT what FROM fired ORDER BY 1")] == ["row", "statement"]
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("INSERT INTO outbox (kafka_topic, kafka_key, note) VALUES ('t', 'k', 'bad')")
    finally:
        connection.execute(f'REASSIGN OWNED BY "{owner}" TO CURRENT_USER')
        for role in (owner, reader, column_reader):
            connection.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_an_owner_without_other_rights_can_do_it_all(plain, dsn, unique):
    owner = unique("owner")[:60]
    plain.connection.execute(f'CREATE ROLE "{owner}" LOGIN PASSWORD \'p\'; GRANT CREATE ON SCHEMA public TO "{owner}"')
    try:
        with psycopg.connect(make_conninfo(dsn, user=owner, password="p"), autocommit=True) as connection:
            table = OutboxTable.parse("owned")
            table.create(connection)
            plain.connection.execute("GRANT SELECT ON owned TO pg_read_all_data")
            append(connection, [OutboxRecord(topic="t", key="k", value="v")] * 5, table="owned")
            Migration(outbox=table).run(connection)
            append(connection, [OutboxRecord(topic="t", key="k", value="v")] * 5, table="owned")
            table.check(connection)
            connection.execute(
                "INSERT INTO owned_subscriptions (subscription, shard, shards, source, low_watermark) "
                "VALUES ('s', 0, 1, 'snapshot', pg_current_snapshot())"
            )
            assert ensure_segments(connection, table, ahead=6).made == 2
            assert drop_passed(connection, table, keep_seconds=0).dropped == ["owned_from_0"]
            assert connection.execute("SELECT count(*) FROM owned").fetchone() == (5,)
    finally:
        plain.connection.execute(f'DROP OWNED BY "{owner}"; DROP ROLE "{owner}"')


def test_the_old_table_can_be_dropped_and_the_sequence_stays(plain):
    plain.write(20)
    plain.migrate()
    plain.write(1)
    plain.connection.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source, low_watermark) "
        "VALUES ('s', 0, 1, 'snapshot', pg_current_snapshot())"
    )
    assert drop_passed(plain.connection, plain.table, keep_seconds=0).dropped == ["outbox_from_0"]
    plain.write(1)
    assert plain.one("SELECT count(*) FROM outbox") == 2


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        ("CREATE VIEW shown AS SELECT * FROM outbox", "the view shown reads it"),
        ("CREATE TABLE child (parent bigint REFERENCES outbox)", "foreign key"),
        ("CREATE UNIQUE INDEX one ON outbox (kafka_key)", "unique index one"),
        ("CREATE PUBLICATION p FOR TABLE outbox", "publication p"),
        ("ALTER TABLE outbox ALTER id TYPE integer", "its id is integer"),
        ("ALTER TABLE outbox ADD transaction_id bigint", "transaction_id of type bigint"),
        ("ALTER TABLE outbox ADD transaction_id xid8", "default"),
        ("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "no primary key"),
        ("ALTER TABLE outbox ALTER id DROP DEFAULT, ALTER id ADD GENERATED ALWAYS AS IDENTITY", "IDENTITY"),
        ("ALTER SEQUENCE outbox_id_seq CACHE 10", "CACHE 10"),
        ("CREATE TABLE other () INHERITS (outbox)", "other inherits"),
        ("ALTER TABLE outbox ADD CONSTRAINT few CHECK (id < 9) NOT VALID", "the constraint few was never validated"),
    ],
)
def test_what_a_native_table_cannot_have_is_named_before_anything_is_changed(plain, change, evidence):
    plain.connection.execute(change)
    columns = "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'outbox'::regclass"
    before = plain.one(columns)
    with pytest.raises(OutboxTableError, match=evidence):
        plain.migrate()
    assert plain.one(columns) == before


@pytest.mark.parametrize("name", ['Mixed "Case"', "100%s %(x)s %", "{table}", "billing.Outbox", "n" * 49])
def test_names_of_any_kind(dsn, name):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA billing")
    plain = Plain(dsn, name)
    plain.write(3)
    plain.migrate()
    plain.write(3)
    assert plain.one(sql.SQL("SELECT count(*) FROM {}").format(plain.table.identifier)) == 6
    plain.connection.close()


def test_the_command_migrates_and_prints(harvest, plain, dsn):
    plain.write(10)
    printed = harvest("migrate", "--print", HARVEST_DSN=dsn)
    assert printed.returncode == 0, printed.stderr
    assert plain.table.kind(plain.connection) == "goharvest"
    psql(dsn, printed.stdout)
    assert plain.table.kind(plain.connection) == "native"
    plain.write(1)
    assert plain.one("SELECT max(id) FROM outbox") > 1_000_000
    done = harvest("migrate", HARVEST_DSN=dsn)
    assert done.returncode == 0, done.stderr
    assert "is already native" in done.stdout
    assert "already native" in harvest("migrate", "--print", HARVEST_DSN=dsn).stdout
    missing = harvest("migrate", "--table", "absent", HARVEST_DSN=dsn)
    assert missing.returncode == 4


# -- restamp


@pytest.fixture
def restored(plain):
    """A native table some of whose rows have transactions that this server has not reached."""
    plain.migrate()
    plain.write(30)
    plain.connection.execute(
        "UPDATE outbox SET transaction_id = (pg_current_xact_id()::text::bigint + 1_000_000_000 - id %% 7)::text::xid8 "
        "WHERE id %% 3 <> 0".replace("%%", "%")
    )
    return plain


def test_records_of_another_server_are_restamped_in_the_order_of_their_ids(restored):
    restamping = Restamping(outbox=restored.table, batch_records=4)
    with pytest.raises(OutboxTableError, match="--restamp"):
        restamping.check_not_needed(restored.connection)
    own = restored.one("SELECT array_agg(id || ':' || transaction_id ORDER BY id) FROM outbox WHERE id % 3 = 0")
    assert restamping.run(restored.connection) == 20
    restamping.check_not_needed(restored.connection)
    read = "SELECT array_agg(id ORDER BY transaction_id, id) = array_agg(id ORDER BY id) FROM outbox WHERE id % 3 <> 0"
    assert restored.one(read)
    assert restored.one("SELECT array_agg(id || ':' || transaction_id ORDER BY id) FROM outbox WHERE id % 3 = 0") == own
    assert restamping.run(restored.connection) == 0


def test_restamping_that_was_killed_restamps_the_rest_although_the_server_has_passed_them(restored):
    """The numbers of the server rise, so what is foreign is noted first."""
    restored.connection.execute("CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no'; END$$")
    restored.connection.execute(
        "UPDATE outbox SET transaction_id = (pg_current_xact_id()::text::bigint + 15)::text::xid8 WHERE id % 3 <> 0"
    )
    first_bad = restored.one("SELECT (array_agg(id ORDER BY id))[9] FROM outbox WHERE id % 3 <> 0")
    restored.connection.execute(
        f"CREATE TRIGGER fail BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.id = {first_bad}) EXECUTE FUNCTION fail()"
    )
    restamping = Restamping(outbox=restored.table, batch_records=4)
    with pytest.raises(Exception, match="no"):
        restamping.run(restored.connection)
    restored.connection.execute("DROP TRIGGER fail ON outbox")
    for _ in range(30):
        restored.connection.execute("SELECT pg_current_xact_id()")
    with pytest.raises(OutboxTableError, match="restamp"):
        restamping.check_not_needed(restored.connection)
    named = {"source": "snapshot", "leadership": "solo"}
    preconditions = Preconditions(HarvestConfig(data_source=restored.dsn, **named), restored.table)
    with pytest.raises(OutboxTableError, match="restamp"):
        preconditions.require(restored.connection)
    assert restamping.run(restored.connection) == 12
    restamping.check_not_needed(restored.connection)


def test_a_subscription_at_work_is_a_reason_not_to_restamp(harvest, restored, dsn):
    restored.connection.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source) VALUES ('billing', 0, 1, 'snapshot')"
    )
    refused = harvest("migrate", "--restamp", HARVEST_DSN=dsn)
    assert refused.returncode == 4
    assert "'billing', shard 0" in refused.stderr
    assert "20 records" in harvest("migrate", "--restamp", "--force", HARVEST_DSN=dsn).stdout
