"""Errors at the start: cause, evidence and the next step, and never a secret."""

import socket

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.outbox import harvest_config

from harvest_lib.errors import (
    ConfigError,
    DatabaseAccessDenied,
    DatabaseError,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
    OutboxTableError,
    TopicMissing,
)
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.postgres.translation import translate

pytestmark = pytest.mark.gate

CANARY = "canary-3f9a"


@pytest.fixture
def closed_port():
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def refused(outbox, bootstrap_servers, group_id):
    """Start a harvester that is expected to refuse, and return the error's text."""

    def start(error, dsn=None, **settings):
        harvest = Harvest(harvest_config(dsn or outbox.dsn, bootstrap_servers, group_id, **settings))
        with pytest.raises(error) as raised:
            harvest.start()
        assert type(raised.value) is error
        assert harvest.state is State.STOPPED
        assert raised.value.next_step
        assert CANARY not in str(raised.value)
        return str(raised.value)

    return start


def test_postgres_does_not_answer(refused, outbox, closed_port):
    text = refused(DatabaseUnavailable, make_conninfo(outbox.dsn, port=closed_port))
    assert str(closed_port) in text
    assert "refused" in text


def test_postgres_refuses_the_password(refused, outbox):
    assert "password authentication failed" in refused(DatabaseAccessDenied, make_conninfo(outbox.dsn, password=CANARY))


def test_a_refusal_that_is_not_known_is_shown_as_the_servers_answer(refused, outbox, unique):
    """As one in another language than English is not: libpq has no SQLSTATE for it."""
    role = unique("role")[:60]
    outbox.connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{CANARY}' CONNECTION LIMIT 0")
    try:
        text = refused(DatabaseUnavailable, make_conninfo(outbox.dsn, user=role, password=CANARY))
        assert "Postgres opens no session" in text
        assert "too many connections for role" in text
    finally:
        outbox.connection.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("severity", ["FATAL", "FATAL ", "ВАЖНО"], ids=["german", "french", "russian"])
def test_the_servers_answer_is_known_in_any_language(severity):
    said = f'connection failed: connection to server at "127.0.0.1", port 5432 failed: {severity}:  xxx »yyy«'
    assert translate(psycopg.OperationalError(said)).cause == "Postgres opens no session"


def test_there_is_no_such_database(refused, outbox):
    assert "nowhere" in refused(DatabaseError, make_conninfo(outbox.dsn, dbname="nowhere"))


def test_there_is_no_such_table(refused):
    assert "harvest init" in refused(OutboxTableError, outbox_table="absent")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("ALTER TABLE outbox DROP COLUMN leader_id", "leader_id is missing"),
        ("ALTER TABLE outbox ALTER COLUMN leader_id TYPE text", "leader_id is text, not uuid"),
    ],
)
def test_the_table_is_not_an_outbox_table(refused, outbox, change, complaint):
    outbox.connection.execute(change)
    assert complaint in refused(OutboxTableError)


@pytest.mark.parametrize("owner", ["outbox.id", "NONE"])
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("CACHE 20", "CACHE 1"),
        ("CYCLE", "NO CYCLE"),
        ("INCREMENT 50", "INCREMENT 1; before that"),
        ("CACHE 2 INCREMENT -1 MINVALUE -9 START 1", "CACHE 1 INCREMENT 1"),
    ],
)
def test_the_sequence_hands_out_ids_in_lots(refused, outbox, change, remedy, owner):
    """Two writers' ids would then not follow the order in which they lock the key and commit."""
    outbox.connection.execute(f"ALTER SEQUENCE outbox_id_seq {change} OWNED BY {owner}")
    assert f"ALTER SEQUENCE outbox_id_seq {remedy}" in refused(OutboxTableError)


@pytest.mark.parametrize("where", ["base_kafka_config", "producer_kafka_config"])
def test_librdkafka_does_not_take_a_setting(outbox, bootstrap_servers, group_id, where):
    settings = {"base_kafka_config": {"bootstrap.servers": bootstrap_servers}}
    settings[where] = {**settings.get(where, {}), "compression.type": "bogus"}
    with pytest.raises(ConfigError, match="bogus"):
        Harvest(harvest_config(outbox.dsn, bootstrap_servers, group_id, **settings)).start()


def test_the_user_lacks_a_privilege(refused, outbox, unique):
    role = unique("role")[:60]
    outbox.connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{CANARY}'")
    outbox.connection.execute(f"GRANT SELECT, DELETE ON outbox TO {role}")
    try:
        text = refused(DatabaseAccessDenied, make_conninfo(outbox.dsn, user=role, password=CANARY))
        assert 'GRANT UPDATE ("leader_id") ON "outbox" TO' in text
    finally:
        outbox.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.full
def test_kafka_does_not_answer(refused, closed_port):
    servers = f"127.0.0.1:{closed_port}"
    text = refused(KafkaUnavailable, base_kafka_config={"bootstrap.servers": servers})
    assert servers in text
    assert "refused" in text


def test_kafka_refuses_the_password(refused, stack):
    settings = {
        "bootstrap.servers": stack.kafka.sasl_bootstrap_servers,
        **stack.kafka.sasl_settings,
        "sasl.password": CANARY,
    }
    assert "sasl." in refused(KafkaAccessDenied, base_kafka_config=settings)


def test_kafka_takes_the_right_password(outbox, stack, bootstrap_servers, group_id):
    settings = {"bootstrap.servers": stack.kafka.sasl_bootstrap_servers, **stack.kafka.sasl_settings}
    outbox.fill(10)
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, base_kafka_config=settings)
    assert Harvest(config).drain(60).records == 10


def test_the_leader_topic_is_missing_and_may_not_be_made(refused, group_id):
    text = refused(TopicMissing, leadership="neli", create_leader_topic=False)
    assert f"harvest topics create {group_id}.neli --partitions 1" in text


def test_the_leader_topic_is_made_with_one_partition(outbox, admin, bootstrap_servers, group_id):
    Harvest(harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="neli")).drain(60)
    assert len(admin.list_topics(timeout=60).topics[f"{group_id}.neli"].partitions) == 1


def test_no_password_is_shown_anywhere(outbox, bootstrap_servers, group_id, caplog):
    """I10, for the life of a harvester that fails and one that works."""
    caplog.set_level("DEBUG")
    config = harvest_config(
        make_conninfo(outbox.dsn, password=CANARY),
        bootstrap_servers,
        group_id,
        base_kafka_config={"sasl.password": CANARY, "ssl.key.password": CANARY},
    )
    with pytest.raises(DatabaseAccessDenied) as raised:
        Harvest(config).start()
    shown = [
        repr(config),
        str(config),
        repr(raised.value),
        str(raised.value),
        repr(raised.value.__cause__),
        caplog.text,
    ]
    assert not [text for text in shown if CANARY in text]
    assert isinstance(raised.value.__cause__, psycopg.Error)
