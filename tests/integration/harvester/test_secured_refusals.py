"""Refusals by secured servers, the messages for them, and secrets, which no message shows."""

import base64
import json
import subprocess
import sys

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.secured import AUTO, MARK, MARK_BATCHES, OUTBOX, SEQUENCED, SNAPSHOT
from support.waiting import eventually

from harvest_lib import OutboxRecord, append
from harvest_lib.errors import (
    DatabaseAccessDenied,
    DatabaseUnavailable,
    KafkaAccessDenied,
    KafkaUnavailable,
    TopicMissing,
)
from harvest_lib.harvester import preflight
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.status import StatusReader
from harvest_lib.local_stack.certificates import Authority
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.postgres.database import connect
from harvest_lib.subscriptions.admin import Subscriptions

pytestmark = pytest.mark.full

CANARY = "canary-8d1e-never-elsewhere"


@pytest.fixture
def foreign(tmp_path):
    """An authority that the servers do not know, and a certificate of it for the harvester's name."""
    authority = Authority(tmp_path / "foreign")
    authority.make()
    return authority


def refused(config, error):
    """Start a harvester that is expected to fail, and return what it says."""
    with pytest.raises(error) as raised:
        Harvest(config).drain(20)
    assert type(raised.value) is error
    assert raised.value.evidence
    assert raised.value.next_step
    return str(raised.value)


# -- who is not let in


def test_a_wrong_password_and_a_wrong_authority_to_postgres(secured, foreign):
    secured.prepare(SNAPSHOT)
    dsn = secured.dsn("harvester")
    said = refused(secured.config(data_source=make_conninfo(dsn, password=CANARY), **SNAPSHOT), DatabaseAccessDenied)
    assert "password authentication failed" in said
    assert CANARY not in said
    other = make_conninfo(dsn, sslrootcert=str(foreign.certificate))
    said = refused(secured.config(data_source=other, **SNAPSHOT), DatabaseUnavailable)
    assert "certificate verify failed" in said
    assert "sslrootcert" in said


def test_a_wrong_password_to_kafka(secured):
    secured.prepare(SNAPSHOT)
    said = refused(secured.config(base_kafka_config={"sasl.password": CANARY}, **SNAPSHOT), KafkaAccessDenied)
    assert "invalid credentials" in said
    assert CANARY not in said


@pytest.mark.parametrize("certificate", [False, True], ids=["authority", "client"])
def test_a_wrong_authority_to_kafka(secured, foreign, certificate):
    """Ours of the broker, and the broker's of us: a certificate by the right name does not help."""
    secured.prepare(SNAPSHOT)
    forged = foreign.issue("harvester")
    settings = (
        {"ssl.certificate.location": str(forged.certificate), "ssl.key.location": str(forged.key)}
        if certificate
        else {"ssl.ca.location": str(foreign.certificate)}
    )
    config = secured.config(certificate=certificate, base_kafka_config=settings, **SNAPSHOT)
    said = refused(config, KafkaUnavailable)
    assert "TLS" in said
    assert "certificate" in said
    assert "ssl.ca.location" in said


# -- who lacks a grant or an ACL


@pytest.mark.parametrize(
    ("way", "missing", "evidence"),
    [
        (MARK, "DELETE ON outbox", 'GRANT DELETE ON "outbox" TO "harvester"'),
        (MARK, "INSERT ON outbox_parked", 'GRANT INSERT ON "outbox_parked" TO "harvester"'),
        (SNAPSHOT, "SELECT ON outbox", 'GRANT SELECT ON "outbox" TO "harvester"'),
        (SNAPSHOT, "UPDATE ON outbox_subscriptions", 'ON "outbox_subscriptions" TO "harvester"'),
        (SNAPSHOT, "UPDATE (leader) ON outbox_subscriptions", 'ON "outbox_subscriptions" TO "harvester"'),
        (SNAPSHOT, "SELECT ON outbox_parked_ids", 'GRANT SELECT ON "outbox_parked_ids" TO "harvester"'),
        (SNAPSHOT, "INSERT (transaction_id) ON outbox_parked_ids", 'ON "outbox_parked_ids" TO "harvester"'),
        (MARK_BATCHES, "INSERT ON outbox_parked", 'GRANT INSERT ON "outbox_parked" TO "harvester"'),
    ],
)
def test_a_missing_grant(secured, way, missing, evidence):
    secured.prepare(way)
    secured.owner.execute(f"REVOKE {missing} FROM harvester")
    secured.write(1)
    config = secured.config(**{**way, "leadership": "solo"})
    said = refused(config, DatabaseAccessDenied)
    assert "GRANT" in said
    assert evidence in said
    assert any("GRANT" in each.next_step for each in preflight.inspect(config).errors)
    secured.grant(**way)
    assert Harvest(config).drain(60).records == 1


def test_a_missing_acl_to_make_a_topic(secured):
    secured.prepare(SNAPSHOT)
    with secured.without(lambda acl: acl.name.endswith(".checkpoint")):
        said = refused(secured.config(**SNAPSHOT), TopicMissing)
    assert "authorization failed" in said.lower()
    assert "harvest grants kafka" in said


@pytest.mark.parametrize(
    ("ending", "operations", "error", "words"),
    [
        (".checkpoint", {"CREATE", "WRITE", "READ", "DESCRIBE"}, TopicMissing, "and may not create it"),
        (".checkpoint", {"WRITE"}, KafkaAccessDenied, "lacks Write on the topic"),
        (".checkpoint", {"READ"}, KafkaAccessDenied, "lacks Read on the topic"),
        (".checkpoint.", {"WRITE", "DESCRIBE"}, KafkaAccessDenied, "lacks Write, Describe on the transactional-id"),
    ],
    ids=["create", "write", "read", "transactional-id"],
)
def test_transactions_that_are_not_permitted_are_refused_at_the_start(secured, ending, operations, error, words):
    """With the grant that is missing, and the delivery that needs none; never by another delivery in its place."""
    secured.prepare(AUTO)
    config = secured.config(**AUTO)
    with secured.without(lambda acl: acl.name.endswith(ending) and acl.operation.name in operations):
        said = eventually(lambda: refusal(config, error), "it is refused")
        assert words in said
        assert "kafka-acls.sh" in said or "harvest grants kafka" in said
        assert "or deliver without transactions: `delivery: barrier`" in said
        found = preflight.inspect(config, [secured.topic]).errors
        assert any("`delivery: barrier`" in each.next_step for each in found)
    secured.write(1)
    assert eventually(lambda: drained(config), "it is permitted again") == 1


def refusal(config, error):
    """Return what a start is refused with; empty while the brokers do not know yet what was taken away."""
    try:
        Harvest(config).drain(60)
    except error as refused:
        return str(refused)
    return ""


def drained(config):
    """Return how many records were delivered; 0 while the brokers do not know yet what was permitted."""
    try:
        return Harvest(config).drain(60).records
    except (KafkaAccessDenied, TopicMissing):
        return 0


@pytest.mark.parametrize(
    ("ending", "operation", "event", "reason"),
    [
        (".orders", "WRITE", "batch_failed", "Topic authorization failed"),
        (".checkpoint.", "WRITE", "batch_failed", "Transactional Id authorization failed"),
    ],
)
def test_an_acl_that_goes_missing_while_it_runs(secured, caplog, ending, operation, event, reason):
    """It is waited out, nothing is lost, and the log says what is refused."""
    secured.prepare(SNAPSHOT)
    with Harvest(secured.config(**SNAPSHOT)) as harvest:
        secured.write(2)
        eventually(lambda: harvest.delivered_records == 2, "delivered")
        with secured.without(lambda acl: acl.name.endswith(ending) and acl.operation.name in (operation, "DESCRIBE")):
            secured.write(3)
            eventually(lambda: said(caplog, event, reason) or harvest.state.value != "running", "said")
            assert harvest.delivered_records == 2
        eventually(lambda: harvest.delivered_records == 5, "delivered once it may")
    eventually(lambda: secured.arrived(5), "committed")


@pytest.mark.parametrize(("ending", "operation"), [(".neli", "WRITE"), ("", "READ")], ids=["heartbeat", "group"])
def test_an_election_that_may_not_be_held_says_so(secured, caplog, ending, operation):
    secured.prepare(MARK)
    lacks = secured.name + ending
    secured.make_topic(f"{secured.name}.neli", partitions=1)
    with (
        secured.without(lambda acl: acl.name == lacks and acl.operation.name == operation),
        Harvest(secured.config(**MARK)) as harvest,
    ):
        eventually(lambda: said(caplog, "election_troubled", "authorization failed"), "said")
        assert not harvest.is_leader
        if ending:  # who may not join has no way to say so
            notes = eventually(lambda: troubles(secured.config(**MARK)), "shown by `harvest status`")
            assert "Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)" in notes[0]
            assert harvest._config.name in notes[0]
    repeated = [each for each in caplog.records if each.getMessage() == "election_troubled"]
    assert len({each.reason for each in repeated}) == len(repeated), "each kind once"


def troubles(config):
    with connect(config.data_source.conninfo()) as connection:
        return [each for each in StatusReader(connection, config).leaders().notes if "authorization failed" in each]


def said(caplog, event, reason):
    return any(
        record.getMessage() == event and reason in str(getattr(record, "reason", getattr(record, "reasons", "")))
        for record in caplog.records
    )


# -- limits of writers


def test_a_writer_writes_what_it_may_and_nothing_else(secured):
    secured.prepare(SNAPSHOT, "--writer", "writer", "--allow", f"writer={secured.topic}")
    secured.write(1)
    with pytest.raises(DatabaseAccessDenied, match="row-level security"):
        secured.write(1, topic="invoices")
    columns = "create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values"
    values = f"now(), '{secured.topic}', 'k', '{{}}', '{{}}'"
    for column, value in {"id": "7", "transaction_id": "'3'", "leader_id": "gen_random_uuid()"}.items():
        statement = f"INSERT INTO outbox ({columns}, {column}) VALUES ({values}, {value})"  # noqa: S608 - ours
        with secured.connect("writer") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)
    for statement in ("SELECT FROM outbox", "DELETE FROM outbox", "SELECT setval('outbox_id_seq', 1)"):
        with secured.connect("writer") as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)
    assert Harvest(secured.config(**SNAPSHOT)).drain(60).records == 1  # the rules by row let the harvester see all


def test_a_harvester_that_may_not_read_the_segments_delivers(secured, environment):
    """`harvest status` says what it does not know then, and with which grant it would."""
    secured.prepare(SNAPSHOT)
    secured.owner.execute("REVOKE SELECT ON outbox_segments FROM harvester")
    secured.write(2)
    assert Harvest(secured.config(**SNAPSHOT)).drain(60).records == 2
    settings = {**SNAPSHOT, "data_source": secured.dsn("harvester")}

    def notes():
        shown = environment_output(secured, environment, settings, {}, "status", "--json")
        return json.loads(shown[shown.index("{") : shown.rindex("}") + 1])["notes"]

    (unknown,) = (note for note in notes() if "segments" in note)
    secured.owner.execute(unknown[unknown.index("GRANT SELECT ON ") :])
    assert not [note for note in notes() if "segments" in note]
    secured.owner.execute("REVOKE SELECT ON outbox_segments FROM harvester")
    secured.grant(**SNAPSHOT)
    assert not [note for note in notes() if "segments" in note]


def test_a_harvester_leads_its_own_subscriptions_only(secured):
    secured.prepare(SNAPSHOT, "--subscription", "default")
    assert Harvest(secured.config(**SNAPSHOT)).drain(60).records == 0
    other = secured.config(**{**SNAPSHOT, "delivery": "barrier"}, subscription="search")
    assert "row-level security" in refused(other, DatabaseAccessDenied)
    assert [each.name for each in Subscriptions(secured.owner, OUTBOX, None).shards()] == ["default"]


# -- names and texts that are up to something


HOSTILE = [
    "a'; DROP TABLE canary; --",
    'b"; DROP TABLE canary; --',
    "c%s%(x)s",
    "d\nDROP TABLE canary;",
    "é\u202e$$;{}\\",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_a_name(secured, name):
    """As table and role in the grants, and as key, value and header of a record; topic and subscription are refused."""
    secured.owner.execute("CREATE TABLE canary ()")
    table = OutboxTable((name,))
    NativeTable(outbox=table).create(secured.owner)
    role = f"{name} {secured.name[-8:]}"
    secured.owner.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    secured.make_topic()
    try:
        secured.grant(
            "--table",
            name,
            "--writer",
            role,
            "--allow",
            f"{role}={secured.topic}",
            "--subscription",
            "default",
            **SNAPSHOT,
        )
        secured.grant("--table", name, "--writer", "writer", "--harvester", role, **SNAPSHOT)
        secured.grant("--table", name, **SNAPSHOT)
        secured.owner.execute(
            sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(f"{role} of harvest"), table.identifier)
        )
        secured.owner.execute(sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(table.identifier))
        for beside in (table.subscriptions, table.parked_ids):
            secured.owner.execute(sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(beside.identifier))
        secured.permit(**SNAPSHOT)
        record = OutboxRecord(topic=secured.topic, key=name, value=name, headers=[(name, name)])
        columns = "create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values"
        insert = sql.SQL("INSERT INTO {} ({}) SELECT now(), {}, {}, array[{}], array[{}]").format(
            table.identifier, sql.SQL(columns), *[sql.Literal(name)] * 4
        )
        with secured.connect("writer") as connection:
            append(connection, [record], table=name)
            connection.execute(insert)  # past `append`, which refuses such a topic
        config = secured.config(**SNAPSHOT, outbox_table=name, parking="skip")
        assert Harvest(config).drain(60).records == 1
        (found,) = eventually(lambda: secured.arrived(1), "committed")
        assert (found.key, found.value, found.headers) == (name, name, [(name, name.encode())])
        reasons = secured.owner.execute(sql.SQL("SELECT reason FROM {}").format(table.parked_ids.identifier)).fetchall()
        assert reasons == [("the topic's name is not legal in Kafka",)]
        assert secured.owner.execute("SELECT to_regclass('canary') IS NOT NULL").fetchone() == (True,)
    finally:
        secured.owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


# -- secrets


def test_no_secret_is_said_whatever_is_turned_on(secured, environment):
    """I10: the passwords that the servers take, under the loudest settings there are, of librdkafka too."""
    secured.prepare(SNAPSHOT)
    secured.write(3)
    secret = secured.stack.security.password("harvester")
    settings = {**SNAPSHOT, "data_source": make_conninfo(secured.dsn("harvester"), password=secret)}
    loud = {"debug": "all"}
    shown = [environment_output(secured, environment, settings, loud, *command) for command in COMMANDS]
    assert "3 records in" in shown[0]
    assert "SASL" in shown[0]  # it was loud
    config = secured.config(base_kafka_config=loud, **settings)
    harvest = Harvest(config)
    shown += [repr(config), str(config), json.dumps(config.redacted()), repr(config.base_kafka_config), repr(harvest)]
    shown += [repr(harvest._terms._meter), repr(harvest._leadership)]
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    assert not [text for text in shown if secret in text or encoded in text]


COMMANDS = [("run", "--drain", "--log-level", "debug"), ("status", "--json")]


def environment_output(secured, environment, settings, loud, *command):
    """Return all that a command says."""
    variables = {
        **secured.variables(**{name: settings[name] for name in SNAPSHOT}),
        "HARVEST_DSN": settings["data_source"],
        "HARVEST_BASE_KAFKA_CONFIG": json.dumps({**secured.kafka("harvester"), **loud}),
    }
    done = subprocess.run(
        [sys.executable, "-m", "harvest_lib.cli", *command],
        capture_output=True,
        text=True,
        timeout=60,
        env={**environment, **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "way", [MARK, SNAPSHOT, MARK_BATCHES, SEQUENCED], ids=["mark", "batches", "mark_batches", "sequenced"]
)
def test_a_topic_that_we_may_not_write_to_costs_its_own_records_only(secured, way):
    """It may exist or not: anybody may name it."""
    secured.prepare(way)
    secured.make_topic(f"{secured.name}.denied")
    secured.write(1, topic=f"{secured.name}.denied")
    with Harvest(secured.config(**way)) as harvest:
        with secured.connect("writer") as connection:
            append(connection, [OutboxRecord(topic=f"{secured.name}.none", key="none", value="v")])
            append(connection, [OutboxRecord(topic=secured.topic, key=f"good-{n}", value="v") for n in range(5)])
        eventually(lambda: harvest.delivered_records == 5, "the others are delivered")
        table = "outbox_parked" if way["source"] == "mark" else "outbox_parked_ids"
        found = eventually(
            lambda: len(rows := secured.owner.execute(f"SELECT reason FROM {table}").fetchall()) == 2 and rows,  # noqa: S608 - ours
            "those are parked",
        )
    assert all("may not write to the topic" in reason for (reason,) in found)
