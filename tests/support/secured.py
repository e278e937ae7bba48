"""A secured stack for tests: databases, grants and ACLs of one test, and the configurations of its users."""

import json
from contextlib import contextmanager

import psycopg
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.acls import bindings, filter_of
from support.outbox import read_topic
from support.waiting import eventually
from typer.testing import CliRunner

from harvest_lib import OutboxRecord, append
from harvest_lib.cli import app
from harvest_lib.config import HarvestConfig
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.outbox.parking import ParkedRecords

OUTBOX = OutboxTable(("outbox",))

MARK = {"source": "mark", "delivery": "barrier", "leadership": "neli"}
AUTO = {"source": "auto", "delivery": "auto", "leadership": "auto"}
SNAPSHOT = {"source": "snapshot", "delivery": "transactional", "leadership": "solo"}
MARK_BATCHES = {"source": "mark", "delivery": "transactional", "leadership": "solo"}
SEQUENCED = {"source": "snapshot", "delivery": "sequenced", "leadership": "solo"}
MARK_SEQUENCED = {"source": "mark", "delivery": "sequenced", "leadership": "solo"}


def variables(way):
    """Spell settings as variables."""
    return {f"HARVEST_{name.upper()}": str(value) for name, value in way.items()}


def printed(*arguments, **variables):
    """Return what a command prints."""
    result = CliRunner().invoke(app, arguments, env={name: str(value) for name, value in variables.items()})
    assert result.exit_code == 0, result.output
    return result.stdout


class Secured:
    """One test's share of the stack: a database and a name that topics and groups begin with."""

    def __init__(self, stack, name):
        self.stack, self.name = stack, name
        self.owner_dsn = make_conninfo(stack.dsn, dbname=name)
        self.topic = f"{name}.orders"
        self.admin = AdminClient(stack.kafka.operator_settings)
        with psycopg.connect(stack.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        self.owner = psycopg.connect(self.owner_dsn, autocommit=True)
        self._bindings = []

    def close(self):
        if self._bindings:
            for future in self.admin.delete_acls([filter_of(each) for each in self._bindings]).values():
                future.result(60)
        self.owner.close()
        with psycopg.connect(self.stack.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name)))

    def dsn(self, role):
        return self.stack.security.dsn(self.owner_dsn, role)

    def connect(self, role):
        return psycopg.connect(self.dsn(role), autocommit=True)

    def kafka(self, user, *, certificate=False):
        """Return a user's client settings: by certificate, or by password."""
        kafka, security = self.stack.kafka, self.stack.security
        if certificate:
            return security.kafka().by_certificate(user, kafka.tls_bootstrap_servers)
        settings = security.kafka().by_password(user, kafka.bootstrap_servers)
        return {**settings, "sasl.password": security.password(user)}

    def config(self, user="harvester", *, certificate=False, **settings):
        kafka = {**self.kafka(user, certificate=certificate), **settings.pop("base_kafka_config", {})}
        known = {
            "data_source": self.dsn(user),
            "leader_group_id": self.name,
            "session_timeout_seconds": 3.0,
            "delivery": "barrier",
            "leadership": "neli",
            "limits": {"heartbeat_timeout_seconds": 1.5, "io_error_backoff_seconds": 0.1},
        }
        return HarvestConfig(base_kafka_config=kafka, **{**known, **settings})

    def variables(self, **more):
        return {
            **variables(more),
            "HARVEST_LEADER_GROUP_ID": self.name,
            "HARVEST_DSN": self.owner_dsn,
            "HARVEST_BOOTSTRAP_SERVERS": self.stack.kafka.bootstrap_servers,
        }

    def grant(self, *arguments, **way):
        """Run what `harvest grants postgres` prints, as the owner."""
        self.owner.execute(printed("grants", "postgres", *arguments, **self.variables(**way)).encode())

    def kafka_json(self, user):
        return json.dumps(self.kafka(user))

    def make_topic(self, name=None, partitions=2):
        for future in self.admin.create_topics([NewTopic(name or self.topic, partitions)]).values():
            future.result(60)

    def permit(self, *topics, **way):
        """Put in what `harvest grants kafka` prints."""
        arguments = [word for topic in topics or (self.topic,) for word in ("--topic", topic)]
        self.put_in(printed("grants", "kafka", *arguments, "--json", **self.variables(**way)))

    def put_in(self, acls):
        """Put in what a command printed as JSON."""
        made = bindings(json.loads(acls))
        for future in self.admin.create_acls(made).values():
            future.result(60)
        self._bindings += [each for each in made if each not in self._bindings]
        for each in made:
            if each.restype == ResourceType.TOPIC and each.operation == AclOperation.CREATE:
                eventually(lambda each=each: self._may_create(each), "the brokers know the permission to create")

    def _may_create(self, permission):
        """Return True if a permission is known where topics are created, which lags behind its being stored."""
        admin = AdminClient(self.kafka(permission.principal.removeprefix("User:")))
        (future,) = admin.create_topics([NewTopic(permission.name, 1)], validate_only=True).values()
        try:
            future.result(60)
        except KafkaException as error:
            return error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED
        return True

    def make(self, way):
        """Make the tables and a topic."""
        if way["source"] == "mark":
            OUTBOX.create(self.owner)
            ParkedRecords(OUTBOX).create(self.owner)
        else:
            NativeTable(outbox=OUTBOX).create(self.owner)
        self.make_topic()

    def prepare(self, way, *arguments):
        """Make the tables and a topic, and grant what is printed for a way of harvesting."""
        self.make(way)
        self.grant(*arguments, **way)
        self.permit(**way)

    def write(self, count, *, role="writer", topic=None):
        with self.connect(role) as connection:
            records = [OutboxRecord(topic=topic or self.topic, key=f"k{n % 3}", value=f"v{n}") for n in range(count)]
            append(connection, records)

    def arrived(self, count):
        """Return what readers of committed records see, as a reader, once that is so many."""
        records = read_topic("", self.topic, isolation="read_committed", **self.kafka("reader"))
        return records if len(records) >= count else None

    @contextmanager
    def without(self, found):
        """Take away the permissions that `found` names while inside."""
        gone = [each for each in self._bindings if found(each)]
        assert gone
        for future in self.admin.delete_acls([filter_of(each) for each in gone]).values():
            future.result(60)
        try:
            yield
        finally:
            for future in self.admin.create_acls(gone).values():
                future.result(60)
