"""Notes of `harvest status` besides the numbers: a pool that has not run yet, and the reason why nobody leads."""

import json
import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from support.native import Native
from support.outbox import harvest_config
from support.session_folder import session_folder
from support.waiting import eventually

from harvest_lib.harvester.harvest import Harvest
from harvest_lib.harvester.status import StatusReader
from harvest_lib.harvester.telemetry.outbox_sample import SampleReader
from harvest_lib.local_stack.stack import Stack
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.postgres.database import connect

pytestmark = pytest.mark.gate


@pytest.fixture
def untouched(request, parts):
    """A broker that no group has ever met: it has no coordinator for any."""
    with ExitStack() as held:
        state = held.enter_context(session_folder(request.session, parts, "test-untouched"))
        yield held.enter_context(Stack(state, fresh=True, durable=False, parts=parts))


def notes(outbox, config):
    with connect(outbox.dsn) as connection:
        return list(StatusReader(connection, config).leaders().notes)


@pytest.mark.full
def test_before_the_first_run_nobody_has_run_yet(untouched, harvest):
    with psycopg.connect(untouched.dsn, autocommit=True) as connection:
        OutboxTable.parse("outbox").create(connection)
    servers = {
        "HARVEST_DSN": untouched.dsn,
        "HARVEST_BOOTSTRAP_SERVERS": untouched.kafka.bootstrap_servers,
        "HARVEST_LEADER_GROUP_ID": "billing",
    }
    status = json.loads(harvest("status", "--json", **servers).stdout)
    assert status["kafka_trouble"] is None
    assert status["notes"] == ["no harvester of the group 'billing' has run yet: start one with `harvest run`"]
    assert (status["leader"], status["members"]) == (None, 0)
    config = harvest_config(untouched.dsn, untouched.kafka.bootstrap_servers, "billing", leadership="neli")
    Harvest(config).drain(60)
    status = json.loads(harvest("status", "--json", **servers).stdout)
    assert status["notes"] == ["no harvester of the group 'billing' runs now: start one with `harvest run`"]


@pytest.mark.parametrize("delivery", ["transactional", "sequenced"])
def test_a_marked_table_that_has_checkpoints_is_counted(outbox, bootstrap_servers, group_id, harvest, delivery):
    """goharvest's layout has no column by which a reader's lag could be counted."""
    outbox.fill(5)
    Harvest(harvest_config(outbox.dsn, bootstrap_servers, group_id, delivery=delivery)).drain(60)
    outbox.fill(3)
    servers = {
        "HARVEST_DSN": outbox.dsn,
        "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
        "HARVEST_LEADER_GROUP_ID": group_id,
    }
    done = harvest("status", "--json", **servers)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["backlog_records"] == 3
    assert [each["lag_records"] for each in json.loads(done.stdout)["subscriptions"]] == [3]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("time", ["-infinity", "infinity"])
@pytest.mark.parametrize("layout", ["goharvest", "native"])
def test_times_that_are_infinite_are_no_age(dsn, bootstrap_servers, group_id, harvest, layout, time):
    table = OutboxTable.parse("outbox")
    with psycopg.connect(dsn, autocommit=True) as connection:
        (NativeTable(outbox=table) if layout == "native" else table).create(connection)
        connection.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, kafka_header_values)"
            " VALUES (%s, 't', 'k', '{}', '{}')",
            (time,),
        )
        if layout == "native":
            connection.execute(
                "INSERT INTO outbox_subscriptions (subscription, shard, shards, source)"
                " VALUES ('default', 0, 1, 'snapshot')"
            )
    servers = {
        "HARVEST_DSN": dsn,
        "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
        "HARVEST_LEADER_GROUP_ID": group_id,
    }
    done = harvest("status", "--json", **servers)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (status["backlog_records"], status["oldest_age_seconds"]) == (1, 0)
    config = harvest_config(dsn, bootstrap_servers, group_id)
    with connect(dsn) as connection:
        assert StatusReader(connection, config).oldest_age_seconds() == 0
        sample = SampleReader(connection, config).sample()
    assert (sample.records, sample.age_seconds or 0) == (1, 0)


def test_a_leader_topic_that_is_deleted_is_named(outbox, bootstrap_servers, group_id, admin, caplog):
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="neli")
    with Harvest(config) as harvest:
        eventually(lambda: harvest.is_leader, "leads")
        eventually(lambda: notes(outbox, config) == [], "it is found to lead")
        for future in admin.delete_topics([config.leader_topic]).values():
            future.result(60)
        eventually(lambda: not harvest.is_leader, "fenced")
        eventually(lambda: harvest.measures.terms_ended.read().get(("0", "fenced")), "counted")
        eventually(
            lambda: [
                each
                for each in caplog.records
                if each.getMessage() == "election_troubled" and "does not exist" in each.reason
            ],
            "said",
        )
        assert any(f"the leader topic '{config.leader_topic}' does not exist" in each for each in notes(outbox, config))
        assert not any("has run yet" in each for each in notes(outbox, config))


def test_what_is_on_disk_and_who_holds_it_there(dsn, bootstrap_servers, group_id, harvest):
    native = Native(dsn, size=10)
    native.write(30)
    native.subscribe("1:1:", name="forgotten")
    assert len(eventually(native.closed, "closed")) == 3
    native.connection.execute("UPDATE outbox_segments SET closed_at = now() - interval '2 days'")
    servers = {
        "HARVEST_DSN": dsn,
        "HARVEST_BOOTSTRAP_SERVERS": bootstrap_servers,
        "HARVEST_LEADER_GROUP_ID": group_id,
        "HARVEST_DATABASE_LIMIT_BYTES": "1000000",
    }
    status = json.loads(harvest("status", "--json", **servers).stdout)
    taken = native.connection.execute(
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname ~ '^outbox_(from|tail)' AND relkind = 'r'"
    ).fetchone()
    assert (status["outbox_bytes"],) == taken
    assert status["database_bytes"] > 5_000_000
    assert status["database_limit_bytes"] == 1_000_000
    (note,) = [each for each in status["notes"] if "holds back" in each]
    assert note.startswith("the subscription 'forgotten' holds back 3 segments of 0.")
    shown = harvest("status", **servers).stdout
    size = f"{status['outbox_bytes'] / 1e6:,.1f} MB"
    assert f"{size}, of a database of" in shown
    assert "which may have 1.0 MB" in shown
    native.connection.execute("UPDATE outbox_subscriptions SET low_watermark = %s", (native.snapshot(),))
    assert "holds back" not in harvest("status", **servers).stdout
    native.connection.close()


RUNBOOKS = (Path(__file__).parents[3] / "docs" / "runbooks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("leadership", ["postgres", "solo", "neli"])
def test_the_process_that_leads_is_named_so_that_the_runbook_finds_it(dsn, bootstrap_servers, group_id, leadership):
    """By the name that its log and metrics have, with the id by which it is stopped, whatever elects."""
    Native(dsn, size=1_000_000).connection.close()
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership=leadership, shards=2)
    commands = set(re.findall(r"^kill -TERM .*\| jq -r \.leader \| (sed .*)\)\"$", RUNBOOKS, re.MULTILINE))
    assert len(commands) == 1
    with Harvest(config) as harvest, connect(dsn) as connection:
        eventually(lambda: list(harvest.led_shards) == [0, 1], "leads")
        leaders = eventually(lambda: named(connection, config), "each shard's leader is named")
    assert all(each.partition("@")[0] == config.name for each in leaders)
    found = subprocess.run(["bash", "-c", *commands], input=leaders[0], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(os.getpid())
    with connect(dsn) as connection:
        assert StatusReader(connection, config).leaders().by_shard == [None, None]


def named(connection, config):
    """Return the leaders, once each has written its name."""
    leaders = StatusReader(connection, config).leaders().by_shard
    return leaders if all(each and each.startswith(config.name) for each in leaders) else None
