"""Access from outside, as anybody has it: run a command, fill an outbox, read a topic."""

import time

from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from harvest_lib.cli import app as command_line

FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT clock_timestamp(), %s, 'key', 'value', '{Seq}', ARRAY[g::text] FROM generate_series(1, %s) AS g
"""
BAD_TOPIC = "no topic!"
"""Kafka has none of that name: its records are parked."""


def run(*arguments):
    """Run `harvest` with these arguments, and return what it prints."""
    done = CliRunner().invoke(command_line, list(map(str, arguments)))
    assert done.exit_code == 0, f"harvest {arguments}: {done.exception!r} {done.output}"
    return done.stdout


def read_all(bootstrap_servers, topic, partitions=1):
    """Return the committed records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "looks",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ended = [], set()
    deadline = time.monotonic() + 60
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{topic} is read to its end"
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message)
        elif message is not None:
            ended.add(message.partition())
    consumer.close()
    return found
