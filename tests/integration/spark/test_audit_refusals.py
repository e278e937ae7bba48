"""Missing prerequisites of an audit by Spark: reported before Spark starts where that can be, and without secrets."""

import os
import socket
import subprocess
import sys
import uuid

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo
from support.audited import KEYS, RECORDS
from support.spark import all_jars

from harvest_lib.errors import (
    ConfigError,
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
    OutboxTableError,
    TopicMissing,
    TransactionOpen,
)
from harvest_lib.spark.audit import Business, audit
from harvest_lib.spark.session import JARS_VARIABLE

pytestmark = [pytest.mark.full, pytest.mark.spark]


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_credentials_of_kafka_reach_spark_and_wrong_ones_are_told(native, stack):
    if stack.kafka is None:
        pytest.skip("an outside Kafka has no SASL listener of ours")
    native.outbox.fill(RECORDS, keys=KEYS)
    native.outbox.harvest(delivery="pipelined").drain(60)
    assert native.audit(kafka=stack.kafka.sasl_settings).records == RECORDS
    with pytest.raises(KafkaAccessDenied) as caught:
        native.audit(kafka={**stack.kafka.sasl_settings, "sasl.password": "canary"})
    assert "canary" not in str(caught.value)


def test_what_is_not_there_is_told_before_spark_starts(native, monkeypatch):
    monkeypatch.setattr("harvest_lib.spark.audit.run.spark_session", None)
    dsn = native.outbox.dsn
    with pytest.raises(TopicMissing, match="nowhere"):
        audit(dsn=dsn, kafka={"bootstrap.servers": native.servers}, topics=["nowhere"])
    with pytest.raises(KafkaUnavailable):
        native.audit(kafka={"bootstrap.servers": f"127.0.0.1:{closed_port()}"})
    with pytest.raises(DatabaseUnavailable):
        native.audit(
            dsn=make_conninfo(dsn, host="127.0.0.1", hostaddr="127.0.0.1", port=closed_port(), password="canary")
        )
    with pytest.raises(DatabaseAccessDenied) as caught:
        native.audit(dsn=make_conninfo(dsn, user="nobody_at_all", password="canary"))
    assert "canary" not in str(caught.value)
    with pytest.raises(OutboxTableError, match="nowhere"):
        native.audit(outbox="nowhere")
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE other AS SELECT 1 AS id")
    with pytest.raises(OutboxTableError, match="not an outbox"):
        native.audit(outbox="other")


def test_an_open_transaction_is_told_before_spark_starts(native, monkeypatch, unique):
    """Records after it would be taken for lost."""
    monkeypatch.setattr("harvest_lib.spark.audit.run.spark_session", None)
    monkeypatch.setattr("harvest_lib.spark.audit.kafka_side._OPEN_SECONDS", 0.0)
    producer = Producer({"bootstrap.servers": native.servers, "transactional.id": unique("hangs")})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(native.outbox.topic, b"never", partition=0)
    assert producer.flush(60) == 0
    with pytest.raises(TransactionOpen, match="a transaction is open in partition 0"):
        native.audit()
    producer.abort_transaction(60)
    producer.close()


def test_a_business_table_that_does_not_fit_is_named(purged, monkeypatch):
    monkeypatch.setattr("harvest_lib.spark.audit.run.spark_session", None)
    with pytest.raises(OutboxTableError, match="bookings"):
        purged.audit(business=Business(table="bookings"))
    with pytest.raises(ConfigError, match="'tail_number'"):
        purged.audit(business=Business(id_column="tail_number"))
    with pytest.raises(ConfigError, match="'none'"):
        purged.audit(business=Business(id_column="none"))
    purged.outbox.connection.execute("ALTER TABLE flights_batches DROP COLUMN promoted_at")
    with pytest.raises(ConfigError, match="not a ledger"):
        purged.audit()


def test_a_table_without_the_privilege_to_read_it(native, monkeypatch):
    monkeypatch.setattr("harvest_lib.spark.audit.run.spark_session", None)
    outbox, name = native.outbox, f"reader_{uuid.uuid4().hex[:8]}"
    outbox.connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'canary'")
    try:
        with pytest.raises(DatabaseAccessDenied) as caught:
            native.audit(dsn=make_conninfo(outbox.dsn, user=name, password="canary"))
        assert "canary" not in str(caught.value)
    finally:
        outbox.connection.execute(f"DROP ROLE {name}")


def test_without_java_the_command_says_so_and_leaves_nothing(native, tmp_path):
    native.deliver()
    place = ("--dsn", native.outbox.dsn, "--bootstrap-servers", native.servers, "--topic", native.outbox.topic)
    done = subprocess.run(
        [sys.executable, "-m", "harvest_lib.spark.audit", *place],
        env=os.environ | {"JAVA_HOME": str(tmp_path / "none"), JARS_VARIABLE: ",".join(map(str, all_jars()))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (ConfigError.exit_code, "")
    assert "error: Spark's Java process did not start" in done.stderr
    assert "next step: install Java 17 or 21" in done.stderr
    assert "Traceback" not in done.stderr
    rows = "SELECT (SELECT count(*) FROM harvest_audit.summary) + (SELECT count(*) FROM harvest_audit.staging)"
    assert native.outbox.connection.execute(rows).fetchone() == (0,)
