"""The identity of a pool, as a process of another version may have published it."""

import json
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from harvest_lib.leadership.other_pools import OtherPools
from harvest_lib.leadership.pool import ConflictLog, Pool, conflict_in_group, conflict_on_outbox

pytestmark = pytest.mark.quick


def test_what_is_published_comes_back():
    pool = Pool(leadership="neli", group="orders", table="public.outbox")
    assert Pool.of_json(pool.as_json()) == pool


@pytest.mark.parametrize("value", [{"color": "red"}, {"group": 5}, {"group": None, "color": 5}])
def test_what_another_version_adds_or_spells_otherwise_is_left_out(value):
    assert Pool.of_json({"leadership": "neli", **value}) == Pool(leadership="neli")


@pytest.mark.parametrize("value", [None, [], "neli", {}, {"leadership": 5}])
def test_what_is_no_pool_is_none(value):
    assert Pool.of_json(value) is None


def test_text_is_cut():
    assert Pool.of_json({"leadership": "neli", "group": "x" * 5_000}).group == "x" * 300


OURS = Pool(
    leadership="neli",
    group="orders",
    leader_topic="orders.neli",
    cluster="c1",
    process="host-1",
    server="db:5432/shop",
    database="7421/5",
    table="public.outbox",
    subscription="default",
    delivery="transactional",
    fence="transactional ids of orders.default.checkpoint in c1",
)


@pytest.mark.parametrize(
    ("changes", "different", "on_outbox", "in_group"),
    [
        ({}, set(), None, None),
        ({"process": "host-2", "server": "10.0.0.1:6432/shop"}, set(), None, None),
        ({"leadership": "postgres"}, {"leadership"}, "harvests the subscription 'default'", None),
        ({"group": "billing"}, {"group"}, "harvests the subscription 'default'", None),
        ({"leader_topic": "x"}, {"leader_topic"}, "harvests the subscription 'default'", "stands in this election"),
        ({"cluster": "c2"}, {"cluster"}, "harvests the subscription 'default'", None),
        ({"cluster": ""}, set(), None, None),
        ({"delivery": "barrier", "fence": ""}, {"delivery", "fence"}, "delivers by 'barrier'", None),
        ({"fence": "transactional ids of x in c1"}, {"fence"}, "delivers by 'transactional'", None),
        ({"delivery": "", "fence": ""}, set(), None, None),
        ({"subscription": "second"}, {"subscription"}, "stands in this election", "stands in this election"),
        ({"subscription": "second", "group": "b"}, {"subscription", "group"}, None, "stands in this election"),
        ({"subscription": ""}, set(), None, None),
        ({"table": "public.billing"}, {"table"}, None, "stands in this election"),
        ({"database": "7421/6"}, {"database"}, None, "stands in this election"),
        ({"database": "7422/5"}, {"database"}, None, "stands in this election"),
        ({"database": "", "table": ""}, set(), None, None),
    ],
)
def test_what_two_processes_differ_in_decides_what_their_conflict_is(changes, different, on_outbox, in_group):
    theirs = replace(OURS, **changes)
    assert OURS.differences(theirs) == theirs.differences(OURS) == different
    for conflict, said in ((conflict_on_outbox, on_outbox), (conflict_in_group, in_group)):
        found = conflict(OURS, theirs)
        assert (found is not None) == (said is not None)
        if found is not None:
            assert said in found.cause
            assert str(theirs) in found.cause
            assert str(OURS) in found.evidence
            assert found.theirs == theirs.as_json()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster": "c2"}, "theirs is held in another Kafka cluster (c2, ours c1)"),
        ({"leadership": "postgres"}, "(theirs: `leadership: postgres` and `delivery: transactional`)"),
        ({"leadership": "postgres", "delivery": ""}, "(theirs: `leadership: postgres`)"),
    ],
)
def test_the_conflict_of_two_elections_names_what_is_to_be_made_alike(changes, words):
    assert words in str(conflict_on_outbox(OURS, replace(OURS, **changes)))


def test_a_conflict_with_one_process_is_logged_once(caplog):
    log, others = ConflictLog(), [replace(OURS, group="billing", process=f"host-{each}") for each in range(3)]
    for theirs in (*others, *others):
        log.log(conflict_on_outbox(OURS, theirs))
    assert [record.their_process for record in caplog.records] == ["host-0", "host-1", "host-2"]
    assert caplog.records[0].their_table == "public.outbox"


@pytest.mark.parametrize(("changes", "may_have_moved"), [({"database": "7422/5"}, True), ({"table": "x.y"}, False)])
def test_a_conflict_with_another_database_says_the_way_on_after_a_move(changes, may_have_moved):
    assert ("was moved" in conflict_in_group(OURS, replace(OURS, **changes)).next_step) == may_have_moved


@pytest.mark.parametrize(("group", "is_ours"), [("orders", True), ("billing", False)])
def test_a_word_in_the_leader_topic_concerns_the_group_that_it_names(group, is_ours):
    theirs = replace(OURS, group=group, database="7422/5")
    heard = OtherPools(OURS, {}, Producer).hear(json.dumps({"another_pool": theirs.as_json()}))
    assert (heard is not None) == is_ours
