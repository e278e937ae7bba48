"""Audits beside the pool of a drill, of topics of their own: what they find, and their metrics for Prometheus."""

import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.exhausted import INSERT
from support.waiting import eventually

from harvest_lib.kafka_topics import create_topic

JOB = "node"
LOST, DOUBLED, MISSING = "audited-lost", "audited-doubled", "audited-missing"
SOUND, ANOMALIES, OF_KAFKA = 0, 1, 6
"""Exit codes of an audit."""


def settings_of(drill):
    return {"bootstrap.servers": drill.system.kafka.bootstrap_servers, "log_level": 0}


def deliver(drill, topic):
    """Make a topic, and have the pool deliver a record to it; return that as it is in Kafka."""
    create_topic(settings_of(drill), topic, partitions=1, config={})
    with psycopg.connect(drill.system.dsn) as connection:
        connection.execute(INSERT, (topic,))
    return first(drill, topic)


def first(drill, topic):
    """Return the first record of a topic that there is."""
    reader = Consumer({**settings_of(drill), "group.id": "drill", "auto.offset.reset": "earliest"})
    try:
        reader.assign([TopicPartition(topic, 0)])
        return eventually(lambda: reader.poll(0.5), "it is delivered")
    finally:
        reader.close()


@contextmanager
def audited(drill, topic):
    """Serve the metrics of a topic's audits; return the function that audits it, and returns the exit code.

    No node_exporter is installed here. It serves such a file as it is, among its own metrics: so does this server.
    """
    file = drill.config.parent / "audit.prom"
    drill.variables["METRICS"] = str(file)

    class Textfile(BaseHTTPRequestHandler):
        def do_GET(self):
            page = file.read_bytes() if file.exists() else b""
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_):
            pass

    def audit():
        command = ["harvest_lib.cli", "audit", "-f", drill.config, "--topic", topic, "--metrics-file", file]
        return subprocess.run([sys.executable, "-m", *command], env=drill.environment(), check=False).returncode

    host, port = drill.reader.split(":")
    with ThreadingHTTPServer((host, int(port)), Textfile) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield audit
        finally:
            server.shutdown()
            serving.join()


@contextmanager
def records_deleted(drill):
    """Somebody deletes a record that was delivered. What the runbook sends again arrives."""
    sent = deliver(drill, LOST)
    with audited(drill, LOST) as audit:
        assert audit() == SOUND
        drill.observe(JOB)
        drill.await_said('harvest_audit_findings{finding="lost"} == 0')
        place = TopicPartition(LOST, 0, sent.offset() + 1)
        admin = AdminClient(settings_of(drill))
        admin.delete_records([place])[place].result(60)
        eventually(lambda: audit() == ANOMALIES, "the pool's checkpoint has passed it")
        yield
        assert first(drill, LOST).value() == sent.value()


@contextmanager
def records_copied(drill):
    """Another program sends a record again as it is: with the header of the term that had sent it."""
    sent = deliver(drill, DOUBLED)
    producer = Producer(settings_of(drill))
    producer.produce(DOUBLED, sent.value(), sent.key(), headers=sent.headers())
    assert producer.flush(60) == 0
    with audited(drill, DOUBLED) as audit:
        assert audit() == ANOMALIES
        drill.observe(JOB)
        yield


@contextmanager
def topic_not_there(drill):
    """An audit is of a topic that there is not."""
    with audited(drill, MISSING) as audit:
        assert audit() == OF_KAFKA
        drill.observe(JOB)
        yield


def deliver_to_missing(drill):
    """Make the topic, with a record that can be compared."""
    deliver(drill, MISSING)
