"""`harvest check` finds each fault that a harvester refuses to start with, and nothing else."""

from functools import partial

import psycopg
import pytest
from support.checked import RECORD, causes, goharvest, native_table

from harvest_lib.errors import HarvestError
from harvest_lib.harvester import preflight
from harvest_lib.harvester.harvest import Harvest

pytestmark = pytest.mark.gate


def native_with_a_reader(connection):
    native_table(connection)
    connection.execute(
        "INSERT INTO outbox_subscriptions (subscription, shard, shards, source) VALUES ('search', 0, 1, 'snapshot')"
    )


def parked_elsewhere(connection):
    goharvest(connection)
    connection.execute("CREATE TABLE outbox_parked (id bigint)")


NO = "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$"
RAISES, SKIPS = NO.format("RAISE 'no';"), NO.format("RETURN NULL;")

NEVER_MARKED = "CREATE TRIGGER no BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION no()"
NEVER_PURGED = "CREATE TRIGGER no BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION no()"
NEVER_COMMITTED = """
CREATE CONSTRAINT TRIGGER no AFTER INSERT ON outbox_subscriptions DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION no()
"""
NEVER_KEPT = "CREATE TRIGGER no BEFORE INSERT ON outbox_subscriptions FOR EACH ROW EXECUTE FUNCTION no()"
REFERRED_TO = "CREATE TABLE invoice (record bigint REFERENCES outbox)"
PUBLISHED = "CREATE PUBLICATION everything FOR TABLE outbox"
NULLABLE = "ALTER TABLE outbox ALTER COLUMN {} DROP NOT NULL"


def altered_by(*statements, make=goharvest):
    """Return a maker of a table with a record, and with a change that its owner has made."""
    return partial(_altered, statements=statements, make=make)


def _altered(connection, statements, make):
    make(connection)
    for statement in statements:
        connection.execute(statement)
    connection.execute(RECORD)
    if REFERRED_TO in statements:
        connection.execute("INSERT INTO invoice SELECT id FROM outbox")


@pytest.mark.gate(cases=6)
@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (altered_by(RAISES, NEVER_MARKED), {}, "refused a statement"),
        (altered_by(RAISES, NEVER_PURGED), {}, "refused a statement"),
        (altered_by(SKIPS, NEVER_MARKED), {}, "from being marked and purged"),
        (altered_by(SKIPS, NEVER_PURGED), {"delivery": "transactional"}, "from being marked and purged"),
        (altered_by(REFERRED_TO), {}, "refused a statement"),
        (altered_by(PUBLISHED, "ALTER TABLE outbox REPLICA IDENTITY NOTHING"), {}, "refused a statement"),
        (altered_by(NULLABLE.format("kafka_topic")), {}, "without kafka_topic"),
        (altered_by(NULLABLE.format("kafka_header_keys"), make=native_table), {}, "without kafka_header_keys"),
        (altered_by(RAISES, NEVER_COMMITTED, make=native_table), {}, "refused a statement"),
        (altered_by(SKIPS, NEVER_KEPT, make=native_table), {}, "does not keep"),
        (goharvest, {"producer_kafka_config": {"linger.ms": 600_000}, "delivery": "auto"}, "linger.ms"),
        (native_table, {"producer_kafka_config": {"linger.ms": 600_000}, "delivery": "auto"}, "linger.ms"),
        (goharvest, {}, ""),
        (goharvest, {"shards": 2}, "`mark` has one writer"),
        (goharvest, {"source": "snapshot"}, "does not name the transaction"),
        (goharvest, {"source": "mark", "delivery": "transactional"}, ""),
        (native_with_a_reader, {}, ""),
        (native_with_a_reader, {"source": "mark"}, "would delete records that they"),
        (native_with_a_reader, {"source": "mark", "delivery": "transactional"}, "would delete records that they"),
        (native_with_a_reader, {"source": "mark", "delivery": "sequenced"}, "would delete records that they"),
        (parked_elsewhere, {"source": "mark"}, "does not have the columns"),
        (parked_elsewhere, {"source": "mark", "delivery": "transactional"}, "does not have the columns"),
        (parked_elsewhere, {"source": "mark", "parking": "stop"}, ""),
        (partial(native_table, name="100%s of it"), {"outbox_table": "100%s of it"}, ""),
    ],
)
def test_it_finds_what_a_harvester_refuses_to_start_with(dsn, configured, make, settings, said):
    with psycopg.connect(dsn, autocommit=True) as connection:
        make(connection)
    config = configured(**settings)
    found = [each for each in causes(preflight.inspect(config)) if "the topic 'orders'" not in each]
    refused = ""
    try:
        Harvest(config).drain(60)
    except HarvestError as error:
        refused = error.cause
    assert found == ([refused] if refused else [])
    assert said in refused
    assert bool(said) == bool(refused)
