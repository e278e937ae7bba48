"""The harvesters of tests under least privilege: in Postgres they are a role that has what `harvest grants postgres`
prints, in Kafka a user who has what `harvest grants kafka` prints, and neither has more.

Only where the variable says so, see `make test-least`; `support.least_modules` says of which tests.
"""

import json
import os
import secrets
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.acls import bindings, filter_of
from support.waiting import eventually

from harvest_lib.cli.grants import elected, reading_mode
from harvest_lib.cli.options import configuration
from harvest_lib.errors import DatabaseError, HarvestError, OutboxTableError
from harvest_lib.grants import Grants
from harvest_lib.grants.kafka import harvester_acls
from harvest_lib.local_stack.kafka_security import SASL_USER
from harvest_lib.outbox import OutboxTable, create_beside
from harvest_lib.outbox.parking import ParkedRecords

LIMITED = bool(os.environ.get("TEST_LEAST_PRIVILEGE"))
HARVESTER, READER = "least_harvester", "least_reader"
TOPICS = ("topic_*", "later_*", "orders", "n*", "N*")
"""Those that tests name in outboxes. Those of election and checkpoints, which have grants of their own, are others."""

_PASSWORD = secrets.token_urlsafe()
_MAKE = """
DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
ALTER ROLE {role} PASSWORD {password}
"""


class _Broker:
    """The broker of a stack, where it takes no more than what was granted from those who come by SASL."""

    def __init__(self, cluster):
        self.settings = cluster.sasl_settings
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})  # outlives them
        self._granted = set()

    def grant(self, config):
        """Put in what is printed for a configuration, and wait until it holds."""
        reads_group = config.leadership == "auto"
        with suppress(OutboxTableError, DatabaseError):  # the harvester will say so
            config = elected(config)
        printed = harvester_acls(config, f"User:{SASL_USER}", TOPICS, reads_group=reads_group)
        acls = {acl for acl in printed if acl not in self._granted}
        if not acls:
            return
        self._granted |= acls
        made = bindings([acl.as_json() for acl in acls])
        for future in self._admin.create_acls(made).values():
            future.result(60)
        eventually(lambda: all(self._holds(each) for each in made), "what was granted holds")

    def revoke(self):
        """Take away what was granted to a test."""
        if not self._granted:
            return
        for future in self._admin.delete_acls([filter_of(each) for each in self._made()]).values():
            future.result(60)
        self._granted.clear()

    def _made(self):
        return bindings([acl.as_json() for acl in self._granted])

    def _holds(self, binding):
        return bool(self._admin.describe_acls(filter_of(binding)).result(60))


class _Session:
    """State of this run: brokers by their addresses, and the number of harvesters that have started so."""

    def __init__(self):
        self.brokers = {}
        self.harvesters = 0


SESSION = _Session()


@contextmanager
def limiting(stack):
    """Inside, harvesters come to this stack's broker by SASL, and have there what is printed for them."""
    if LIMITED:
        SESSION.brokers[stack.bootstrap_servers] = _Broker(stack.kafka)
    try:
        yield
    finally:
        SESSION.brokers.pop(stack.bootstrap_servers, None)


def end_of_test():
    """Take away what was granted to the test."""
    for broker in SESSION.brokers.values():
        broker.revoke()


def limited(config):
    """Return what a configuration has to have instead for least privilege: fields and values."""
    if not LIMITED:
        return {}
    dsn = config.data_source.conninfo()
    fields = {"data_source": limited_dsn(dsn, config)} if conninfo_to_dict(dsn).get("host") == "127.0.0.1" else {}
    kafka = config.base_kafka_config
    if broker := SESSION.brokers.get(kafka["bootstrap.servers"]):
        broker.grant(config)
        fields["base_kafka_config"] = {**kafka, **broker.settings}
    return fields


def limited_dsn(dsn, config, role=HARVESTER):
    """Return how a role connects, with its grants on the outbox, if there is one; `dsn` itself where nobody answers."""
    try:
        connection = psycopg.connect(dsn, autocommit=True)
    except psycopg.OperationalError:
        return dsn  # nor will anybody answer the harvester
    table = OutboxTable.parse(config.outbox_table)
    with connection:
        for each in (HARVESTER, READER):
            names = {"role": sql.Identifier(each), "password": sql.Literal(_PASSWORD)}
            connection.execute(sql.SQL(_MAKE).format(**names))
        try:
            table.kind(connection)
        except OutboxTableError:
            return make_conninfo(dsn, user=role, password=_PASSWORD)
        mode = reading_mode(config, table)
        # As the owner has to, where these are not made with the outbox.
        if not mode.marks:
            create_beside(connection, table)
        if mode.parks_rows and not mode.keeps_checkpoints and role == HARVESTER:
            ParkedRecords(table).create(connection)
        grants = Grants(
            outbox=table,
            mode=replace(mode, parks_rows=mode.parks_rows and table.parked.exists(connection)),
            harvester=HARVESTER,
            reader=READER,
            writers={},
            has_column_mapping=config.columns is not None,
        )
        connection.execute(grants.script().encode())
    return make_conninfo(dsn, user=role, password=_PASSWORD)


def variables(arguments, environment):
    """Return the variables that a command needs beside others for least privilege: `run` as harvester, `status` and
    `audit` as reader; none for what is the owner's work."""
    if not LIMITED or arguments[0] not in {"run", "status", "audit"}:
        return {}
    words = [str(each) for each in arguments]
    file = next((Path(words[place + 1]) for place, word in enumerate(words) if word == "-f"), None)
    try:
        with mock.patch.dict(os.environ, environment, clear=True):
            config = configuration(file).harvest
    except HarvestError:
        return {}  # the command says what is wrong with it
    if arguments[0] != "run":
        return {"HARVEST_DSN": limited_dsn(config.data_source.conninfo(), config, READER)}
    found = limited(config)
    SESSION.harvesters += 1
    spelled = {"HARVEST_DSN": found.get("data_source", "")}
    if "base_kafka_config" in found:
        spelled["HARVEST_BASE_KAFKA_CONFIG"] = json.dumps(dict(found["base_kafka_config"]))
    return {name: text for name, text in spelled.items() if text}


@contextmanager
def watched(harvester, *, in_kafka):
    """Inside, no harvester starts that may do more than it has to, `in_kafka` too or in Postgres alone."""
    start = harvester.start

    def checked(harvest):
        config = harvest._config
        source = conninfo_to_dict(config.data_source.conninfo())
        if source.get("host") == "127.0.0.1":
            assert source.get("user") in {HARVESTER, "harvester"}, "this harvester comes to Postgres as the owner"
        if in_kafka:
            assert "security.protocol" in config.base_kafka_config, "this harvester may do everything in Kafka"
        SESSION.harvesters += 1
        return start(harvest)

    with mock.patch.object(harvester, "start", checked):
        yield
