"""The fixtures themselves: a database and topics of one's own on servers set up as promised."""

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg.conninfo import conninfo_to_dict
from support.waiting import eventually

from harvest_lib.local_stack import Stack

pytestmark = pytest.mark.gate


def test_the_database_is_empty_and_as_in_production_but_for_the_disk(dsn, stack: Stack):
    with psycopg.connect(dsn) as connection:
        settings = {
            name: connection.execute("SELECT current_setting(%s)", [name]).fetchone()[0]
            for name in ("wal_level", "fsync", "synchronous_commit", "server_encoding", "listen_addresses")
        }
        tables = connection.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone()
    assert settings == {
        "wal_level": "logical",
        "fsync": "off",
        "synchronous_commit": "on",
        "server_encoding": "UTF8",
        "listen_addresses": "127.0.0.1",
    }
    assert tables == (0,)


def test_a_wrong_postgres_password_is_refused(stack: Stack):
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(stack.dsn, password="wrong")


def test_topics_take_records_and_are_not_made_by_mention(make_topic, unique, bootstrap_servers):
    reports = []
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "message.timeout.ms": 60_000, "topic.metadata.propagation.max.ms": 500}
    )
    for topic in (make_topic(partitions=3), unique("missing")):
        producer.produce(topic, b"value", on_delivery=lambda error, _: reports.append(error))
    producer.flush(60)
    assert [report is None for report in reports] == [True, False]


def test_sasl_takes_the_right_password_only(stack: Stack, make_topic):
    assert stack.kafka
    topic = make_topic()
    said, reports = [], []
    producer = Producer({**stack.kafka.sasl_settings, "log_level": 0}, error_cb=said.append)
    producer.produce(topic, b"value", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(60) == 0
    assert reports == [None]
    assert not any("uthentication" in error.str() for error in said)
    other = Producer({**stack.kafka.sasl_settings, "sasl.password": "wrong", "log_level": 0}, error_cb=said.append)
    other.produce(topic, b"value", on_delivery=lambda error, _: reports.append(error))

    def is_refused():
        other.poll(0.1)
        return any("uthentication" in error.str() for error in said)

    eventually(is_refused, "the password is refused")
    other.purge()
    assert other.flush(60) == 0
    assert len(reports) == 2
    assert reports[1] is not None, "nothing was taken"
    other.close()
    producer.close()


def test_nothing_shows_the_password(stack: Stack):
    password = conninfo_to_dict(stack.dsn)["password"]
    assert password
    assert password in (stack.state / "stack.json").read_text()
    assert password not in stack.to_json() + repr(stack)
    assert (stack.state / "stack.json").stat().st_mode & 0o777 == 0o600
    for log in (stack.state / "logs").glob("*.log"):
        assert str(password) not in log.read_text()
