"""`harvest subscriptions` as operators and scripts call it."""

import json

import psycopg
import pytest
from support.subscribed import Subscribed

from harvest_lib.cli.status import StatusReadings
from harvest_lib.harvester.status import StatusReader
from harvest_lib.outbox import OutboxTable

pytestmark = pytest.mark.gate


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(partitions=2), bootstrap_servers, group_id)
    yield made
    made.close()


@pytest.fixture
def subscriptions(harvest, reaper, outbox):
    """Run a command that succeeds; return what it says."""

    def run(command, *arguments):
        done = harvest("subscriptions", command, *arguments, "-f", str(reaper))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def listed(subscriptions):
    return json.loads(subscriptions("list", "--json"))


def test_a_subscription_from_its_beginning_to_its_end(outbox, subscriptions):
    assert "no subscriptions" in subscriptions("list")
    outbox.fill(30)
    assert "added: eu, 2 shards, source snapshot, from 1:1:" in subscriptions(
        "add", "eu", "--topic", f"{outbox.topic}, refunds", "--keys", "^key-", "--shards", "2"
    )
    first, second = listed(subscriptions)
    assert (first["name"], first["shard"], second["shard"], first["shards"]) == ("eu", 0, 1, 2)
    assert first["lag_records"] + second["lag_records"] == 30
    assert not first["lag_is_estimate"]
    assert (first["topics"], first["keys"], first["low_watermark"]) == (
        [outbox.topic, "refunds"],
        "^key-",
        "1:1:",
    )
    assert (first["leader_id"], first["is_led"], first["number"], first["kept_in"]) == (None, False, 1, "postgres")
    outbox.harvest(subscription="eu", shards=2).drain(60)
    assert [each["lag_records"] for each in listed(subscriptions)] == [0, 0]
    text = subscriptions("list")
    assert "0/2" in text
    assert "1/2" in text
    assert "gone" in text
    assert "it has no leader now" in subscriptions("rewind", "eu", "--to", "beginning")
    assert sum(each["lag_records"] for each in listed(subscriptions)) == 30
    assert "with 30 records not delivered" in subscriptions("remove", "eu", "--yes")
    assert listed(subscriptions) == []


def test_what_does_not_fit_is_said_with_its_exit_code(outbox, harvest, reaper):
    def refused(*arguments):
        done = harvest("subscriptions", *arguments, "-f", str(reaper))
        return done.returncode, done.stderr

    code, said = refused("rewind", "nobody", "--to", "now", "--yes")
    assert code == 8
    assert "there is no subscription 'nobody'" in said
    code, said = refused("add", "s", "--keys", "(")
    assert code == 3
    assert "regular expression" in said
    for topics in ("orders,", ",", "no such"):
        code, said = refused("add", "s", "--topic", topics)
        assert code == 2
        assert "cannot name a topic" in said
    code, said = refused("add", "s", "--from", "tomorrow")
    assert code == 2
    assert refused("add", "s")[0] == 0
    outbox.connection.execute("UPDATE outbox_subscriptions SET shards = 2")
    code, said = refused("reshard", "s", "--shards", "3", "--timeout", "0")
    assert code == 8
    assert "were never led" in said


def test_status_shows_who_reads_the_table(outbox, subscriptions, harvest, reaper):
    outbox.fill(3)
    subscriptions("add", "audit")
    status = json.loads(harvest("status", "-f", str(reaper), "--json").stdout)
    (audit,) = status["subscriptions"]
    assert (audit["name"], audit["lag_records"]) == ("audit", 3)
    assert "audit" in harvest("status", "-f", str(reaper)).stdout


def test_status_tells_how_fast_a_table_goes_that_is_not_purged_and_who_leads_each_shard(
    outbox, harvest, reaper, monkeypatch
):
    config = outbox.harvest(shards=2)._config
    outbox.fill(1)
    outbox.harvest(shards=2).drain(60)  # the subscription is there
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        look = StatusReadings(connection, OutboxTable.parse("outbox"), config)
        outbox.fill(400)
        outbox.harvest(shards=2).drain(60)
        seen = look.next()
        assert seen.records_per_second > 0
        with monkeypatch.context() as patched:  # too much for a look each second
            patched.setattr(StatusReader, "sizes", None)
            patched.setattr(StatusReader, "held", None)
            after = look.next()
        assert after.records_per_second == 0
        assert after.outbox_bytes == seen.outbox_bytes > 0
        monkeypatch.setattr("harvest_lib.cli.status._SLOW_EVERY_SECONDS", 0.0)
        outbox.fill(4_000)
        assert look.next().outbox_bytes > seen.outbox_bytes
    assert seen.leaders == [None, None]


BROKEN = {
    "another shape": '{"broken": true}',
    "a list": "[1]",
    "a position that is none": '{"generation": 0, "number": 1, "position": {"prev": "x"}, "kept_in": "postgres"}',
    "no place in it": '{"generation": 0, "number": 1, "position": {"server": 5}, "kept_in": "postgres"}',
}


@pytest.mark.full
@pytest.mark.parametrize("kind", BROKEN)
def test_an_unreadable_checkpoint_costs_its_own_subscription_only(outbox, subscriptions, harvest, reaper, kind):
    for name in ("bad", "good", "gone"):
        subscriptions("add", name)
    change = "UPDATE outbox_subscriptions SET checkpoint = %s WHERE subscription IN ('bad', 'gone')"
    outbox.connection.execute(change, (BROKEN[kind],))
    outbox.fill(3)
    assert outbox.harvest(subscription="good").drain(60).records == 3
    listing = harvest("subscriptions", "list", "-f", str(reaper))
    assert listing.returncode == 0
    assert "unreadable" in listing.stdout
    said = "the checkpoint of the subscription 'bad', shard 0, in Postgres cannot be read"
    mended = "`harvest subscriptions rewind bad --to beginning|now|SNAPSHOT`"
    assert said in listing.stderr
    assert mended in listing.stderr
    trouble = {each["name"]: bool(each["checkpoint_trouble"]) for each in listed(subscriptions)}
    assert trouble == {"bad": True, "good": False, "gone": True}
    status = json.loads(harvest("status", "-f", str(reaper), "--json").stdout)
    assert any(said in note and mended in note for note in status["notes"])
    for refused in (("rewind", "bad", "--to", "mirror"), ("reshard", "bad", "--shards", "2")):
        done = harvest("subscriptions", *refused, "-f", str(reaper))
        assert done.returncode == 8
        assert said in done.stderr
        assert "rewind bad --to beginning|now|SNAPSHOT" in done.stderr
    subscriptions("rewind", "good", "--to", "beginning")
    subscriptions("reshard", "good", "--shards", "2")
    subscriptions("remove", "gone", "--yes")
    subscriptions("rewind", "bad", "--to", "beginning")
    assert not any(each["checkpoint_trouble"] for each in listed(subscriptions))
    assert outbox.harvest(subscription="bad").drain(60).records == 3


def test_a_harvester_names_its_own_unreadable_checkpoint(outbox, subscriptions, harvest, reaper):
    subscriptions("add", "default")
    outbox.connection.execute("UPDATE outbox_subscriptions SET checkpoint = '[1]'")
    done = harvest("run", "-f", str(reaper), "--drain", HARVEST_SOURCE="snapshot")
    assert done.returncode == 8
    assert "'default', shard 0" in done.stderr
    assert "harvest subscriptions rewind default --to beginning|now|SNAPSHOT" in done.stderr


def test_removing_says_what_stays_in_kafka(outbox, subscriptions):
    outbox.harvest(delivery="transactional").drain(60)
    assert "harvest subscriptions add default --from" in subscriptions("remove", "default", "--yes")
    outbox.harvest().drain(60)
    assert "Kafka" not in subscriptions("remove", "default", "--yes")
