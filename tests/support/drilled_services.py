"""Consumers and pipelines beside the pool of a drill: each is a service, and what goes wrong for it."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager, suppress

import psycopg
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from support.exhausted import provide_kafka_configs
from support.topics import configure_topic
from support.waiting import eventually

from harvest_lib.kafka_topics import create_topic

CONSUMER_JOB, PIPELINE_JOB = "harvest-consumer-flight-counts", "harvest-pipeline-copy"
FLIGHTS, ROWS = "flights", "rows"
KEPT_SECONDS = 90
"""A reader that lives says every minute when a record expires: more than a quarter of this is left then."""
COUNTS = ["python", "-m", "harvest_lib.examples.flight_counts"]
SLOT = "drilled"
IS_USED = """
SELECT 4 * safe_wal_size < pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)
FROM pg_replication_slots WHERE slot_name = %s
"""
IS_FREE = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s"
SERVICE = 'while :; do if [ -e "$0" ]; then timeout 4 "$@"; else "$@"; fi; sleep 0.2; done'
"""With a limit of its life for as long as the file exists whose name comes first."""
SYSTEMCTL = """#!/bin/sh
# What `systemctl restart` of the unit does here: the service is started again as it ends.
[ "$1 $2" = "restart {unit}@*" ] || exit 5
exec pkill -TERM -P {pid}
"""


@contextmanager
def service(drill, job, unit, command, limit=""):
    """Run a command, again as it ends, scraped under the name of the job. It is killed soon while a file exists, the
    limit."""
    drill.observe(job)  # under no other name before: what it was scraped as is remembered
    process = subprocess.Popen(
        ["/bin/bash", "-c", SERVICE, str(limit), *command],
        cwd=drill.config.parent,
        env={**drill.environment(), "HARVEST_LISTEN": drill.reader},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(drill.config.parent / f"{unit}.log").open("ab"),
        start_new_session=True,
    )
    drill.command("systemctl", SYSTEMCTL.format(unit=unit, pid=process.pid))
    try:
        yield process
    finally:
        end(process)


def end(process):
    """Kill a service, which nobody starts again."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def write(drill, topic, rows, **config):
    """Write rows into a topic, which is made if it is not there, and has this configuration from then on."""
    settings = {"bootstrap.servers": drill.system.kafka.bootstrap_servers}
    create_topic(settings, topic, partitions=1, config={})
    if config:
        configure_topic(AdminClient(settings), topic, config)
    producer = Producer(settings)
    for row in rows:
        producer.produce(topic, json.dumps(row), key=json.dumps({"id": row["id"]}))
    assert producer.flush(60) == 0


@contextmanager
def locked(drill, table):
    """A session has locked a table, and sits idle."""
    connection = psycopg.connect(drill.system.dsn)
    connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    try:
        yield
    finally:
        with suppress(psycopg.Error):
            connection.close()


@contextmanager
def counting(drill, limit=""):
    """A consumer counts flights, and is killed soon while the file of a limit exists."""
    drill.variables |= {
        "CONSUMER": COUNTS[-1],
        "HARVEST_DSN": drill.system.dsn,
        "HARVEST_BOOTSTRAP_SERVERS": drill.system.kafka.bootstrap_servers,
        "HARVEST_KAFKA_SETTINGS": "session.timeout.ms=6000",
        "HARVEST_LISTEN": drill.reader,
    }
    with service(drill, CONSUMER_JOB, "harvest-consumer", COUNTS, limit) as process:
        yield process


@contextmanager
def locked_counts(drill):
    """The transaction of a consumer waits for a session that sits idle."""
    write(drill, FLIGHTS, [{"id": 1}])
    with counting(drill):
        drill.await_said("harvest_consumer_transactions_total > 0")
        with locked(drill, "flight_counts"):
            write(drill, FLIGHTS, [{"id": 2}])
            yield


@contextmanager
def killed_counts(drill):
    """The only process of a consumer is killed. One that the runbook has started is ended in the end."""
    write(drill, FLIGHTS, [{"id": 3}])
    with counting(drill) as process:
        drill.await_said("harvest_consumer_shards > 0")
        end(process)
        yield


@contextmanager
def stopped_counts(drill):
    """A consumer that had read all is down for most of the time for which its topic keeps records."""
    provide_kafka_configs(drill)
    write(drill, FLIGHTS, [{"id": 5}], **{"retention.ms": str(KEPT_SECONDS * 1000)})
    with counting(drill) as process:
        drill.await_said(f"harvest:read_retention_seconds == {KEPT_SECONDS}")
        end(process)
        write(drill, FLIGHTS, [{"id": 6}])
        yield


@contextmanager
def limited_counts(drill):
    """A consumer is killed a while after each of its starts, as one with too little memory is."""
    write(drill, FLIGHTS, [{"id": 4}])
    limit = drill.config.parent / "limit"
    limit.touch()
    with counting(drill, limit=limit):
        yield


def lift_limit(drill):
    """Have it live, and see that it works."""
    (drill.config.parent / "limit").unlink()
    drill.await_said(
        "avg_over_time(harvest_consumer_shards[10s]) > 0 and count_over_time(harvest_consumer_shards[10s]) > 8"
    )


@contextmanager
def copying(drill, on_error, reader=None):
    """A pipeline copies rows from a topic, or by another reader, into a table, and into a file."""
    folder = drill.config.parent
    with psycopg.connect(drill.system.dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS copied")
        connection.execute("CREATE TABLE copied (id int PRIMARY KEY)")
    topic = f"{ROWS}-{folder.parent.name}-{folder.name}"
    write(drill, topic, [{"id": 1}])
    kafka = {"bootstrap.servers": drill.system.kafka.bootstrap_servers}
    declared = {
        "name": "copy",
        "folder": str(folder / "copy"),
        "reader": reader or {"adaptor": "kafka", "kafka": kafka, "topics": [topic], "content": "data"},
        "writers": {
            "copy": {
                "adaptor": "postgres",
                "data_source": drill.system.dsn,
                "table": "public.copied",
                "on_error": on_error,
            },
            "lake": {"adaptor": "file", "path": str(folder / "lake.jsonl")},
        },
    }
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(declared))
    file.chmod(0o600)
    drill.variables |= {"HARVEST_LISTEN": drill.reader}
    command = ["harvest", "pipeline", "run", "-f", str(file)]
    with service(drill, PIPELINE_JOB, "harvest-pipeline", command) as process:
        drill.await_said('harvest_pipeline_writer_position{writer="copy"} > 0')
        yield topic, process


@contextmanager
def locked_copy(drill):
    """A writer waits for a session that sits idle."""
    with copying(drill, "stop") as (topic, _), locked(drill, "copied"):
        write(drill, topic, [{"id": 2}])
        yield


@contextmanager
def refused_row(drill):
    """A row has a field for which its table has no column, and the writer stops alone."""
    with copying(drill, "stop_writer") as (topic, _):
        write(drill, topic, [{"id": 2, "tail": "N14228"}])
        yield


def add_column(drill):
    """Give the table the column."""
    with psycopg.connect(drill.system.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE copied ADD COLUMN tail text")


@contextmanager
def killed_copy(drill):
    """A pipeline is killed, and nobody starts it again."""
    with copying(drill, "stop") as (_, process):
        end(process)
        yield


@contextmanager
def limited_slot(drill):
    """A writer waits, and Postgres has kept three quarters of what it may for the slot."""
    reader = {"adaptor": "postgres", "data_source": drill.system.dsn, "slot": SLOT, "tables": ["public.origin"]}
    with psycopg.connect(drill.system.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE origin (id int PRIMARY KEY)")
        connection.execute("INSERT INTO origin VALUES (1)")
        connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '128MB'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            with copying(drill, "stop", reader), locked(drill, "copied"):
                connection.execute("INSERT INTO origin VALUES (2)")

                def is_used():
                    connection.execute("SELECT pg_logical_emit_message(false, 'drill', repeat('x', 4000000))")
                    return connection.execute(IS_USED, (SLOT,)).fetchone()[0]

                eventually(is_used, "three quarters are used")
                yield
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")
            eventually(lambda: connection.execute(IS_FREE, (SLOT,)).fetchone()[0], "the slot is left")
            connection.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
            connection.execute(f"DROP PUBLICATION {SLOT}")
            connection.execute("DROP TABLE origin")
