"""From a pool of `neli` and `barrier` to one of `auto`: nothing is lost, repeated or reordered.

A process that chooses by `auto` does not start beside one that elects through Kafka, whatever that reads by; and the
delivery that it chooses goes on from where the other one stopped.
"""

import logging

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from support.outbox import Outbox, harvest_config, steps_back
from support.outbox import read_topic as read
from support.subscribed import Subscribed
from support.waiting import eventually

from harvest_lib.errors import CheckpointError, OutboxTableError, PoolConflict
from harvest_lib.harvester import preflight
from harvest_lib.harvester.assembly import pools
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.harvester.housekeeping import table_watch
from harvest_lib.outbox.relocation import Migration

pytestmark = pytest.mark.full

BEFORE = {"leadership": "neli", "delivery": "barrier"}
AUTO = {"leadership": "auto", "delivery": "auto"}


@pytest.fixture
def outbox(dsn, make_topic, bootstrap_servers, group_id):
    made = Subscribed(dsn, make_topic(), bootstrap_servers, group_id)
    yield made
    made.close()


@pytest.fixture
def plain(dsn, make_topic, bootstrap_servers, group_id):
    """A table of goharvest's layout."""
    made = Outbox(dsn, make_topic())
    made.servers, made.group = bootstrap_servers, group_id
    yield made
    made.close()


def member(outbox, **settings):
    return Harvest(harvest_config(outbox.dsn, outbox.servers, outbox.group, **settings))


def committed(outbox):
    return read(outbox.servers, outbox.topic, isolation="read_committed")


def started(caplog):
    return [record for record in caplog.records if record.getMessage() == "harvester_started"]


def refused(harvest):
    with pytest.raises(PoolConflict) as raised:
        harvest.start()
    assert harvest.state is State.STOPPED
    return raised.value


def test_what_was_chosen_and_why_is_in_the_log(outbox, caplog):
    caplog.set_level(logging.INFO)
    outbox.fill(3)
    with member(outbox, **AUTO, checkpoint_topic=f"{outbox.group}.made") as harvest:
        eventually(lambda: harvest.delivered_records == 3, "delivered")
        (said,) = started(caplog)
        assert (said.source, said.delivery, said.leadership) == ("snapshot", "transactional", "postgres")
        assert said.source_reason == "the table is native"
        assert "position" in said.delivery_reason
        assert "fences" in said.leadership_reason
        assert (harvest.config.source, harvest.config.delivery) == ("snapshot", "transactional")
    assert len(committed(outbox)) == 3


def test_on_goharvests_table_all_is_as_goharvest_does(plain, caplog):
    caplog.set_level(logging.INFO)
    plain.fill(3)
    with member(plain, **AUTO) as harvest:
        eventually(lambda: harvest.delivered_records == 3, "delivered")
    (said,) = started(caplog)
    assert (said.source, said.delivery, said.leadership) == ("mark", "barrier", "neli")
    assert plain.count() == 0


def test_a_rolling_restart_is_refused_while_the_former_pool_leads_and_goes_on_from_there(outbox):
    outbox.fill(50, keys=3)
    with member(outbox, **BEFORE, name="before") as before:
        eventually(lambda: before.delivered_records == 50, "delivered")
        conflict = refused(member(outbox, **AUTO))
        assert "before" in conflict.cause
        assert "`leadership: neli` and `delivery: barrier`" in conflict.next_step
        outbox.fill(50, keys=3)
        eventually(lambda: before.delivered_records == 100, "it was not disturbed")
    outbox.fill(50, keys=3)
    with member(outbox, **AUTO) as after:
        eventually(lambda: after.delivered_records == 50, "it goes on from there")
        eventually(lambda: outbox.shard().checkpoint.kept_in == "kafka", "the mirror says so a little later")
        assert "another pool" in str(refused(member(outbox, **BEFORE)))
    outbox.fill(50, keys=3)
    with member(outbox, **BEFORE) as back:
        eventually(lambda: back.delivered_records == 50, "and back")
    arrived = committed(outbox)
    assert sorted(each.outbox_id for each in arrived) == list(range(1, 201))
    assert steps_back(arrived) == 0


def test_a_pool_that_elects_through_kafka_is_found_by_its_group_where_it_has_no_row(outbox):
    """It marks the native table; or it is goharvest."""
    outbox.fill(20)
    with member(outbox, **BEFORE, source="mark", name="marking") as before:
        eventually(lambda: before.delivered_records == 20, "delivered")
        assert not outbox.subscriptions.shards()
        conflict = refused(member(outbox, **AUTO))
        assert "marking" in conflict.cause
        assert conflict.theirs["leadership"] == "neli"
        assert "`leadership: neli`" in conflict.next_step
        report = preflight.inspect(member(outbox, **AUTO).config)
        assert [each.cause for each in report.errors] == [conflict.cause]
        outbox.fill(20)
        eventually(lambda: before.delivered_records == 40, "it was not disturbed")
    outbox.fill(20)
    with member(outbox, **AUTO) as after:
        eventually(lambda: after.delivered_records == 20, "the rest is read")
        with pytest.raises(CheckpointError):
            member(outbox, **BEFORE, source="mark").start()
    assert sorted(each.outbox_id for each in committed(outbox)) == list(range(1, 61))


def test_where_the_group_may_not_be_seen_that_is_logged_and_nothing_else_changes(outbox, caplog, monkeypatch):
    def denied(*_, **__):
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    monkeypatch.setattr(pools, "members", denied)
    outbox.fill(3)
    with member(outbox, **AUTO) as harvest:
        eventually(lambda: harvest.delivered_records == 3, "delivered")
    (said,) = [each for each in caplog.records if each.getMessage() == "former_election_unknown"]
    assert said.group == outbox.group
    assert "Describe" in said.next_step
    report = preflight.inspect(member(outbox, **AUTO).config)
    assert [each.next_step for each in report.findings if "elect through it" in each.cause] == [said.next_step]
    assert "no process elects through Kafka" not in [what for _, what in report.passed]


def test_an_election_that_is_named_asks_no_group(outbox, monkeypatch):
    monkeypatch.setattr(pools, "members", lambda *_, **__: pytest.fail("it was asked"))
    with member(outbox, leadership="postgres", delivery="transactional"):
        pass


def test_who_chose_to_mark_ends_once_the_table_is_native_and_chooses_anew_at_its_restart(plain, monkeypatch):
    monkeypatch.setattr(table_watch, "EVERY_SECONDS", 0.1)
    plain.fill(20)
    harvest, standby = member(plain, **AUTO), member(plain, **AUTO)
    harvest.start()
    standby.start()
    eventually(lambda: harvest.delivered_records + standby.delivered_records == 20, "delivered")
    with psycopg.connect(plain.dsn, autocommit=True) as connection:
        Migration(outbox=plain.name).run(connection)
    plain.fill(20)
    for each in (harvest, standby):
        with pytest.raises(OutboxTableError, match="restart all processes of the pool"):
            each.await_stopped(60)
    with member(plain, **AUTO) as again:
        assert (again.config.source, again.config.leadership) == ("snapshot", "postgres")
        eventually(lambda: not again.in_flight_records and len(committed(plain)) >= 40, "the rest is delivered")
    assert len({each.outbox_id for each in committed(plain)}) == 40


def test_a_process_that_names_its_source_marks_on(plain, monkeypatch):
    monkeypatch.setattr(table_watch, "EVERY_SECONDS", 0.1)
    with member(plain, **AUTO, source="mark") as harvest:
        with psycopg.connect(plain.dsn, autocommit=True) as connection:
            Migration(outbox=plain.name).run(connection)
        plain.fill(20)
        eventually(lambda: harvest.delivered_records == 20, "delivered")
        assert not harvest.await_stopped(1)
