"""`harvest check` on real servers: every problem at once, each with its fix, and nothing changed."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.checked import RECORD, causes, goharvest, native_table
from support.servers import standby_of
from support.topics import configure_topic
from support.waiting import eventually
from trustme import CA

from harvest_lib.errors import CheckpointError, OutboxTableError
from harvest_lib.harvester import preflight
from harvest_lib.harvester.assembly.transactions import prepare_transactions
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.preflight import kafka as kafka_checks
from harvest_lib.harvester.preflight import postgres as postgres_checks
from harvest_lib.kafka_client import topic_partitions
from harvest_lib.local_stack.postgres import PostgresServer
from harvest_lib.outbox import OutboxTable, append
from harvest_lib.record import OutboxRecord

pytestmark = pytest.mark.gate

CANARY = "canary-77b1"


@pytest.fixture
def checked(harvest, servers):
    """Run the command; return its exit code and what it found, by JSON."""

    def check(*arguments, **variables):
        done = harvest("check", *arguments, "--json", **{**servers, **variables})
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    return check


@pytest.fixture
def role(native, dsn, unique):
    """A role without rights: its name, and how to connect as it."""
    name = unique("role")[:60]
    native.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(CANARY)))
    yield name, make_conninfo(dsn, user=name, password=CANARY)
    native.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_all_is_well(native, checked, make_topic, group_id, admin):
    topic = make_topic()
    code, found = checked("--topic", topic, HARVEST_DELIVERY="transactional", HARVEST_SHARDS="2")
    assert (code, found["ok"]) == (0, True)
    assert [each["severity"] for each in found["problems"]] == ["warning"], "the only broker"
    checks = {each["check"] for each in found["passed"]}
    known = {"columns", "sequence", "index", "grants", "row-level security", "transactions"}
    assert {*known, f"the topic {topic}"} <= checks
    assert [name for name in admin.list_topics(timeout=60).topics if name.startswith(group_id)] == [], "made nothing"


def test_everything_that_is_wrong_is_said_at_once(native, role, checked, make_topic):
    """A role without rights, a sequence that hands out lots, no index, two topics of three missing."""
    native.execute("ALTER SEQUENCE outbox_id_seq CACHE 10; DROP INDEX outbox_transaction_id_idx")
    topic = make_topic()
    native.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('in-the-outbox', 'k')")
    name, limited = role
    native.execute(sql.SQL("GRANT SELECT ON outbox TO {}").format(sql.Identifier(name)))
    code, found = checked("--topic", "missing", "--topic", topic, HARVEST_DSN=limited)
    assert (code, found["ok"]) == (4, False)
    said = [each for each in found["problems"] if topic not in each["cause"]]
    assert [each["severity"] for each in said] == ["error", "warning", "error", "error", "error"]
    parts = ("in lots", "no index", "lacks", "'in-the-outbox'", "'missing'")
    assert [part for part, each in zip(parts, said, strict=True) if part not in each["cause"]] == []
    assert CANARY not in json.dumps(found)
    lots, index, grants = (each["next_step"] for each in said[:3])
    native.execute(grants.removeprefix("as the owner: ").partition("; or run")[0].encode())
    native.execute(lots.encode())
    native.execute(index.partition(" (as the owner")[0].encode())
    _, found = checked("--topic", topic, HARVEST_DSN=limited)
    assert [each["cause"] for each in found["problems"] if "'in-the-outbox'" in each["cause"]]
    assert len(found["problems"]) == 2, "what was said is what mended it"


def test_a_sequence_that_will_end_or_come_again_is_said_in_time(native, inspected):
    native.execute("ALTER SEQUENCE outbox_id_seq AS integer CYCLE")
    report = inspected(source="snapshot")
    assert any("begins again at its end" in each for each in causes(report))
    (ends,) = [each for each in report.findings if "ends before its column" in each.cause]
    assert ends.severity == "warning"
    native.execute(ends.next_step.encode())
    native.execute("ALTER SEQUENCE outbox_id_seq NO CYCLE")
    report = inspected(source="snapshot")
    assert not [each for each in report.findings if "sequence" in each.cause]


def test_tables_that_a_crash_would_empty_are_refused_and_what_is_said_mends_them(native, inspected, servers, harvest):
    for each in ("TABLE outbox_from_0", "TABLE outbox_tail", "TABLE outbox_subscriptions", "SEQUENCE outbox_id_seq"):
        native.execute(f"ALTER {each} SET UNLOGGED")
    (refused,) = [each for each in inspected().findings if each.severity == "error"]
    assert "a crash of the server would empty" in refused.cause
    assert refused.evidence == "UNLOGGED: outbox_from_0, outbox_subscriptions, outbox_tail, outbox_id_seq"
    done = harvest("run", **servers)
    assert (done.returncode, refused.cause in done.stdout + done.stderr) == (4, True)
    native.execute(refused.next_step.partition(" (as the owner")[0].encode())
    assert causes(inspected()) == []


@pytest.mark.full
def test_two_servers_that_are_away_are_two_problems(checked):
    code, found = checked(
        HARVEST_DSN="host=127.0.0.1 port=1 dbname=shop user=bob password=" + CANARY,
        HARVEST_BOOTSTRAP_SERVERS="127.0.0.1:2",
    )
    assert code == 5
    assert [each["area"] for each in found["problems"]] == ["postgres", "kafka"]
    assert CANARY not in json.dumps(found)


@pytest.mark.full
def test_run_says_the_same_when_it_cannot_start(native, harvest, servers):
    native.execute("ALTER SEQUENCE outbox_id_seq CACHE 10")
    variables = {**servers, "HARVEST_BOOTSTRAP_SERVERS": "127.0.0.1:2"}
    for arguments in (("run",), ("run", "--drain")):
        done = harvest(*arguments, **variables)
        assert done.returncode == 4
        assert "hands out ids in lots" in done.stderr
        assert "Kafka at 127.0.0.1:2 does not answer" in done.stderr
        assert "2 errors, 0 warnings" in done.stderr
        assert "Traceback" not in done.stderr
    native.execute("ALTER SEQUENCE outbox_id_seq CACHE 1")
    done = harvest("run", **variables)
    assert done.returncode == 6
    assert done.stderr.count("does not answer") == 1


def test_a_subscription_that_another_pool_harvests_is_found_and_that_pool_is_not_told(
    native, inspected, configured, unique
):
    with Harvest(configured(leader_group_id=unique("other"))) as harvest:
        eventually(lambda: harvest.is_leader, "leads")
        eventually(lambda: causes(inspected()), "is found")
        (said,) = causes(inspected())
        assert "another pool harvests the subscription" in said
        assert native.execute("SELECT leader ? 'rival' FROM outbox_subscriptions").fetchall() == [(False,)]


@pytest.mark.parametrize("beside", ["billing_subscriptions, billing_parked_ids", ""], ids=["without", "with"])
def test_names_in_kafka_that_another_outbox_uses_are_found(native, inspected, configured, beside):
    """Without tables beside the outbox too: a start makes them, and then refuses."""
    native_table(native, "billing")
    if beside:
        native.execute(f"DROP TABLE {beside}")
    Harvest(configured(delivery="transactional")).drain(60)
    assert causes(inspected(delivery="transactional")) == []
    another = {"delivery": "transactional", "outbox_table": "billing"}
    (found,) = causes(inspected(**another))
    assert "belongs to another outbox" in found
    with pytest.raises(CheckpointError, match="belongs to another outbox"):
        Harvest(configured(**another)).start()


def test_what_writers_name_moves_no_cursor(dsn, harvest, servers):
    with psycopg.connect(dsn, autocommit=True) as connection:
        goharvest(connection)
        connection.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) "
            "VALUES (now(), E'a\\x1b[2J\\nok       kafka', 'k', '{}', '{}')"
        )
    done = harvest("check", **servers)
    assert done.returncode == 6
    assert "\x1b" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("ok       kafka'")] == []


FIVE = """\
harvest:
  baseKafkaConfg:
    bootstrap.servers: 127.0.0.1:1
  leaderGroupId: shop
  delivery: exactly
  shards: many
  password: {canary}
"""


def test_five_mistakes_of_a_file_are_five_problems(harvest, tmp_path):
    file = tmp_path / "shop.yaml"
    file.write_text(FIVE.format(canary=CANARY))
    done = harvest("check", "-f", str(file), "--json")
    found = json.loads(done.stdout)["problems"]
    assert done.returncode == 3
    assert [re.search(r"line (\d)", each["evidence"])[1] for each in found] == ["2", "4", "5", "6", "7"]
    shown = harvest("check", "-f", str(file))
    assert "5 errors, 0 warnings" in shown.stdout
    assert "Postgres and Kafka were not checked" in shown.stdout
    assert CANARY not in shown.stdout + done.stdout + shown.stderr + done.stderr


def test_a_missing_table_and_tables_beside_it(native, role, inspected):
    assert any("there is no table" in each for each in causes(inspected(outbox_table="absent")))
    native.execute("DROP TABLE outbox_parked_ids, outbox_subscriptions")
    (missing,) = [each for each in inspected(data_source=role[1]).errors if "beside" in each.cause]
    assert '"outbox_subscriptions", "outbox_parked_ids"' in missing.cause
    assert "harvest init" in missing.next_step
    assert causes(inspected()) == [], "the owner's harvester creates them"


def test_what_a_start_refuses_is_found_although_it_would_make_tables_first(native, inspected, configured):
    Harvest(configured()).drain(60)
    native.execute("DROP TABLE outbox_parked_ids")
    assert causes(inspected()) == []
    found = causes(inspected(shards=2))
    assert any("is divided into 1, not 2" in each for each in found), found
    native.execute("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('t', 'k'); DROP TABLE outbox_subscriptions")
    native.execute("UPDATE outbox SET transaction_id = '999999999'")
    assert any("this server cannot have written" in each for each in causes(inspected()))
    for refused in ({"shards": 2}, {}):
        with pytest.raises(OutboxTableError, match="this server cannot have written"):
            Harvest(configured(**refused)).start()


@pytest.mark.parametrize("make", [goharvest, native_table])
def test_the_index_that_is_needed_follows_the_source(dsn, inspected, make):
    with psycopg.connect(dsn, autocommit=True) as connection:
        make(connection)
    assert not any("no index" in each for each in causes(inspected(), "warning"))


def test_rows_that_are_hidden_are_an_error(native, role, inspected):
    name, limited = role
    native.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(sql.Identifier(name)))
    assert causes(inspected(data_source=limited)) == []
    native.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
    (said,) = causes(inspected(data_source=limited))
    assert "row-level security hides rows" in said


def test_a_standby_is_an_error(tmp_path, inspected):
    primary = PostgresServer(tmp_path / "primary", durable=False)
    primary.start()
    try:
        with psycopg.connect(primary.dsn, autocommit=True) as connection:
            native_table(connection)
        assert causes(inspected(data_source=primary.dsn)) == []
        standby = standby_of(primary, tmp_path / "standby")
        try:
            for attributes in ("read-write", "primary", "any"):
                (said,) = inspected(data_source=make_conninfo(standby.dsn, target_session_attrs=attributes)).errors
                assert "standby" in said.cause
                assert "name the primary" in said.next_step
        finally:
            standby.stop()
    finally:
        primary.stop()


def test_a_clock_that_is_off_is_a_warning(native, inspected, monkeypatch):
    assert not any("clock" in each for each in causes(inspected(), "warning"))
    real = postgres_checks.time.time
    monkeypatch.setattr(postgres_checks.time, "time", lambda: real() + 90)
    (said,) = [each for each in inspected().findings if each.area == "clock"]
    assert said.severity == "warning"
    assert "90" in said.cause
    assert "ahead of" in said.cause


def test_replicas_are_judged(native, inspected, configured, make_topic):
    starved = make_topic(**{"min.insync.replicas": 2})
    plain = make_topic()
    report = inspected(starved, plain)
    (said,) = [each for each in report.findings if starved in each.cause]
    assert (said.severity, "before 3.7" in said.cause) == ("warning", True)
    append(native, [OutboxRecord(topic=starved, key="k", value="v")])
    assert Harvest(configured()).drain(60).records == 1, "Kafka takes as many copies as there are"
    assert f"--topic {starved} --add-config min.insync.replicas=1" in said.next_step
    (warned,) = [each for each in report.findings if plain in each.cause]
    assert (warned.severity, warned.evidence) == ("warning", "replication factor 1")


def test_an_id_that_is_no_number_is_one_error(native, role, inspected):
    """Also for a role that may not read the sequence, so that the ids are read for how many are left."""
    name, limited = role
    OutboxTable.parse("plain").create(native)
    native.execute(RECORD.replace("INTO outbox", "INTO plain"))
    native.execute("ALTER TABLE plain ALTER id DROP DEFAULT, ALTER id TYPE text")
    native.execute(sql.SQL("GRANT SELECT ON plain TO {}").format(sql.Identifier(name)))
    report = inspected(data_source=limited, outbox_table="plain")
    (said,) = [each for each in report.errors if "not an outbox table" in each.cause]
    assert "id is text" in said.evidence
    assert [each for each in report.findings if "CREATE" in each.next_step and "INDEX" in each.next_step] == []


def test_a_topic_of_the_harvesters_own_takes_no_records(native, inspected, make_topic, group_id):
    topic = make_topic(**{"cleanup.policy": "compact"})
    assert causes(inspected(topic, delivery="transactional")) == []
    for settings in ({"checkpoint_topic": topic, "delivery": "transactional"}, {"leader_topic": topic}):
        (said,) = causes(inspected(topic, **settings))
        assert "belongs to the harvesters" in said


@pytest.mark.full
def test_what_a_start_does_by_itself_is_no_error(native, inspected, configured, make_topic, group_id):
    """It adds partitions for checkpoints, and has a transaction timeout of its own."""
    topic = make_topic(partitions=1, name=f"{group_id}.checkpoint", **{"cleanup.policy": "compact"})
    how = {"delivery": "transactional", "leadership": "postgres", "checkpoint_topic": topic, "shards": 3}
    how["producer_kafka_config"] = {"transaction.timeout.ms": 3_600_000}
    assert causes(inspected(**how)) == []
    append(native, [OutboxRecord(topic=make_topic(), key="k", value="v")])
    assert Harvest(configured(**how)).drain(60).records == 1


def test_a_compacted_topic_is_an_error_for_sequenced_delivery_alone(native, inspected, make_topic):
    topic = make_topic(**{"cleanup.policy": "compact"})
    assert causes(inspected(topic)) == []
    assert any("compacted" in each for each in causes(inspected(topic, delivery="sequenced")))


def test_own_topics_have_to_have_a_partition_for_each_shard(native, inspected, make_topic, group_id):
    make_topic(name=f"{group_id}.neli")
    (said,) = inspected(shards=3).errors
    assert "fewer partitions" in said.cause
    assert "--partitions 3" in said.next_step
    (said,) = inspected(leader_topic="elsewhere", create_leader_topic=False).errors
    assert "harvest topics create elsewhere" in said.next_step


def test_without_a_topic_it_says_that_none_was_checked(native, inspected):
    assert any("no topic" in each for each in causes(inspected(), "warning"))


def test_init_says_who_may_create_the_tables(role, harvest, dsn):
    name, limited = role
    done = harvest("init", "--table", "shop", HARVEST_DSN=limited)
    assert done.returncode == 5
    assert f"the user '{name}' may not create \"shop\"" in done.stderr
    assert f'GRANT CREATE ON SCHEMA "public" TO "{name}"' in done.stderr
    assert CANARY not in done.stderr
    done = harvest("init", "--table", "billing.outbox", HARVEST_DSN=dsn)
    assert done.returncode == 4
    assert 'schema "billing" does not exist' in done.stderr
    assert "CREATE SCHEMA" in done.stderr


# -- where it is shown


@pytest.mark.full
def test_a_narrow_terminal_and_one_without_utf_8_show_all(native, environment, servers):
    for more in ({"COLUMNS": "60"}, {"PYTHONIOENCODING": "ascii", "LC_ALL": "POSIX", "PYTHONUTF8": "0"}):
        done = subprocess.run(
            [sys.executable, "-m", "harvest_lib.cli", "check", "--topic", "no-such-topic"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**environment, **more, **servers},
            check=False,
        )
        assert done.returncode == 6, done.stderr
        assert "harvest topics create no-such-topic --partitions 6" in done.stdout


@pytest.mark.full
def test_certificates_that_expire_are_a_warning(native, inspected, tmp_path, monkeypatch):
    """Even where no server has been asked to look at them."""
    monkeypatch.setattr(kafka_checks, "topic_partitions", partial(topic_partitions, timeout_seconds=0.5))
    authority = CA()
    files = {}
    for name, days in {"soon": 5, "over": -1, "fine": 300}.items():
        issued = authority.issue_cert("us", not_after=datetime.now(UTC) + timedelta(days=days))
        files[name] = tmp_path / f"{name}.pem"
        issued.cert_chain_pems[0].write_to_path(files[name])
    (tmp_path / "authority.pem").write_bytes(authority.cert_pem.bytes())

    def warned(**settings):
        report = inspected(base_kafka_config=settings)
        found = [(each.cause, each.next_step) for each in report.findings if "certificate" in each.cause]
        return [cause for cause, next_step in found if "restart" in next_step], report.passed

    servers = {"bootstrap.servers": "127.0.0.1:2"}
    for name, said in {"soon": "expires soon", "over": "has expired"}.items():
        causes, _ = warned(**servers, **{"ssl.certificate.location": str(files[name])})
        assert causes == [f"the certificate of `ssl.certificate.location` {said}"]
    settings = {"ssl.certificate.location": str(files["fine"]), "ssl.ca.location": str(tmp_path / "authority.pem")}
    causes, passed = warned(**servers, **settings)
    assert causes == []
    assert {("configuration", f"the certificate of {setting}") for setting in settings} <= set(passed)


def test_a_checkpoint_topic_that_loses_checkpoints_is_a_warning(
    native, configured, make_topic, group_id, admin, caplog
):
    topic = make_topic(name=f"{group_id}.checkpoint")  # as it is made by default: old records are removed
    config = configured(delivery="transactional", checkpoint_topic=topic)

    def warned():
        return [each for each in preflight.inspect(config).findings if "removes old checkpoints" in each.cause]

    def logged():
        caplog.clear()
        prepare_transactions(config)
        found = [each for each in caplog.records if each.getMessage() == "checkpoints_removed"]
        return [(each.topic, each.cleanup_policy) for each in found]

    (said,) = warned()
    assert "'delete'" in said.evidence
    assert "cleanup.policy=compact" in said.next_step
    assert logged() == [(topic, "delete")]
    configure_topic(admin, topic, {"cleanup.policy": "compact"})
    eventually(lambda: warned() == [], "it is changed")
    assert logged() == []


@pytest.mark.full
@pytest.mark.parametrize("wrong", ["leader_group_id", "checkpoint_topic"])
def test_a_name_under_which_nothing_was_delivered_is_refused_before_its_topic_is_made(
    dsn, configured, bootstrap_servers, make_topic, group_id, wrong
):
    """By the check as by a start, though no process of the pool runs."""
    topic = make_topic()
    with psycopg.connect(dsn, autocommit=True) as connection:
        native_table(connection)
        append(connection, [OutboxRecord(topic=topic, key="k", value="v")])
    how = {"leadership": "solo", "delivery": "transactional", "source": "snapshot"}
    assert Harvest(configured(**how)).drain(60).records == 1
    other = configured(**how, **{wrong: f"{group_id}-wrong"})
    before = topic_partitions({"bootstrap.servers": bootstrap_servers})
    (error,) = preflight.inspect(other).errors
    assert "is not the topic that the subscription was delivered under" in error.cause
    with pytest.raises(CheckpointError, match="is not the topic that the subscription was delivered under"):
        Harvest(other).drain(60)
    assert topic_partitions({"bootstrap.servers": bootstrap_servers}) == before
    assert preflight.inspect(configured(**how)).errors == []
