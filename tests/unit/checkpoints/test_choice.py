"""Checkpoints in Kafka that no leader of the shard can have written, each with its reason."""

import time

import pytest

from harvest_lib.checkpoints.choice import CheckpointChoice
from harvest_lib.errors import ServerRegressed
from harvest_lib.outbox.identity import OutboxIdentity
from harvest_lib.record.checkpoint import OutboxCheckpoint

pytestmark = pytest.mark.quick

OURS = OutboxIdentity("7421", 5, 16400)
PREVIOUS, CURRENT = "100:100:", "120:125:122"
PAGE = {"source": "snapshot", "prev": PREVIOUS, "cur": CURRENT, "after": 7}
WRITTEN = {
    "generation": 3,
    "number": 9,
    "position": {"source": "snapshot", "prev": PREVIOUS},
    "identity": str(OURS),
    "subscription": "default",
    "shard": 1,
    "epoch": 4,
    "leader_id": "leader-4",
    "timeline": "1",
}
MIRROR = OutboxCheckpoint(generation=3, number=8, origin={"identity": str(OURS), "timeline": "1"}, kept_in="kafka")
OUR_SIDE = {
    "place": "here",
    "outbox": "5/shop/outbox",
    "identity": OURS,
    "subscription": "default",
    "shard": 1,
    "source": "snapshot",
    "timeline": "1",
    "leaders": {"4": "leader-4"},
    "difference": lambda record: "" if record["identity"] == str(OURS) else "table",
}


def reason(*, mirror=MIRROR, ours=(), without=(), **changes):
    """Return what is wrong with a record of ours that is changed so."""
    record = {name: value for name, value in {**WRITTEN, **changes}.items() if name not in without}
    return CheckpointChoice(**{**OUR_SIDE, "mirror": mirror, **dict(ours)}).judge(record)


def test_one_of_a_leader_that_postgres_remembers_counts():
    assert reason() == ""
    assert reason(position=None) == ""
    assert reason(position=PAGE) == ""


@pytest.mark.parametrize(
    "position",
    [
        {"source": "transaction_id", "transaction_id": 7, "id": 3},
        {"source": "snapshot"},
        {"source": "snapshot", "prev": "100"},
        {**PAGE, "cur": "125"},
        {**PAGE, "after": "x"},
        {**PAGE, "after": None},
        {name: value for name, value in PAGE.items() if name != "after"},
        {**PAGE, "deferred": ["x"]},
        {**PAGE, "retried": [None]},
        {**PAGE, "server": {"lsn": "0/x", "timeline": "1", "system": "7421"}},
        {**PAGE, "server": {"lsn": "0/5", "timeline": "z", "system": "7421"}},
        {**PAGE, "server": {"lsn": "0/5", "timeline": "1"}},
    ],
)
def test_a_position_that_the_source_cannot_go_on_from_is_refused(position):
    assert reason(position=position).startswith("its position is none of source snapshot: ")


@pytest.mark.parametrize(
    ("source", "position"),
    [
        ("transaction_id", {"transaction_id": 7}),
        ("transaction_id", {"transaction_id": "x", "id": 3}),
        ("transaction_id", {"transaction_id": 7, "id": None}),
        ("mark", {"ids": "x"}),
        ("mark", {}),
    ],
)
def test_so_it_is_for_other_sources(source, position):
    said = reason(position={"source": source, **position}, ours={"source": source})
    assert said.startswith(f"its position is none of source {source}: ")


def test_a_generation_that_is_still_to_come_is_refused():
    assert reason(generation=int(time.time()) + 90_000).startswith("its generation is ")
    assert reason(generation=int(time.time())) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epoch": 5}, "it is of epoch 5, which Postgres gave to no leader"),
        ({"leader_id": "leader-5"}, "it is of leader 'leader-5', but epoch 4 was that of leader-4"),
        ({"shard": 0}, "it is of subscription 'default', shard 0"),
        ({"subscription": "search"}, "it is of subscription 'search', shard 1"),
    ],
)
def test_one_that_no_leader_of_the_shard_wrote_is_refused(changes, said):
    assert reason(**changes).startswith(said)


@pytest.mark.parametrize(
    "case",
    [
        {"generation": 2},
        {"identity": "7421/5/99999"},
        {"number": 8, "mirror": OutboxCheckpoint(generation=3, number=8, origin=MIRROR.origin, kept_in="postgres")},
        {"ours": {"identity": None}},
        {"ours": {"timeline": "2"}},
    ],
)
def test_one_that_does_not_count_or_cannot_be_known_is_not_judged(case):
    assert reason(epoch=99, **case) == ""


@pytest.mark.parametrize("generation", [2, 3])
@pytest.mark.parametrize("mirror", [MIRROR, OutboxCheckpoint(generation=3, number=8)])
def test_a_record_that_names_no_outbox_is_refused(mirror, generation):
    unsigned = {"without": ["identity"], "outbox": "5/shop/outbox", "generation": generation}
    assert reason(**unsigned, mirror=mirror) == "it does not name the outbox that it is of"


# -- a row that went back with its server


def newest(*, kept_in="kafka", mirror_number=8, mirror_witness, kafka_witness):
    origin = {"identity": str(OURS), "timeline": "1", "witness": mirror_witness}
    position = {"source": "snapshot", "prev": PREVIOUS}
    mirror = OutboxCheckpoint(generation=3, number=mirror_number, position=position, origin=origin, kept_in=kept_in)
    record = {**mirror.as_json(), **WRITTEN, "witness": kafka_witness}
    return CheckpointChoice(**{**OUR_SIDE, "mirror": mirror}).newest(record)


def test_a_row_that_was_written_less_often_than_kafka_knows_went_back():
    assert newest(mirror_witness=20, kafka_witness=20).number == 9
    with pytest.raises(ServerRegressed, match="put back to an earlier time") as error:
        newest(mirror_witness=19, kafka_witness=20)
    assert "written 20 times" in error.value.evidence


def test_kafka_s_count_means_nothing_once_the_subscription_was_delivered_without_transactions():
    kept = newest(kept_in="postgres", mirror_number=10, mirror_witness=0, kafka_witness=20)
    assert kept.number == 10
