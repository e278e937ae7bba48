"""The topic of checkpoints, and the choice of the one that counts: Kafka's, or its mirror in Postgres."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.checkpoints import topic
from harvest_lib.checkpoints.choice import CheckpointChoice
from harvest_lib.checkpoints.table import Checkpoint
from harvest_lib.errors import CheckpointError, TopicTooSmall
from harvest_lib.source.mark_batches import MOST_IDS, decode_ids, encode_ids

pytestmark = pytest.mark.quick

OURS = "5/shop/outbox"


def checkpoint(number, *, generation=0, kept_in="kafka"):
    return Checkpoint(generation=generation, number=number, position={"at": number}, kept_in=kept_in)


def record(number, *, generation=0, outbox=OURS):
    return {**checkpoint(number, generation=generation).as_json(), "outbox": outbox}


def decided(mirror, found):
    return CheckpointChoice(mirror=mirror, place="here", outbox=OURS).newest(found)


def test_a_topic_that_never_gets_its_partitions_is_waited_for_and_then_refused(monkeypatch):
    answers = iter([{"place": 1}] * 2)
    asked = SimpleNamespace(result=lambda _: None)
    admin = nullcontext(SimpleNamespace(create_partitions=lambda _: {"place": asked}))
    monkeypatch.setattr(topic, "_MAKE_SECONDS", 0.0)
    monkeypatch.setattr(topic, "topic_partitions", lambda _: next(answers))
    monkeypatch.setattr(topic, "AdminClient", lambda _: admin)
    with pytest.raises(TopicTooSmall):
        topic.ensure_checkpoint_topic({}, "place", 4)


def test_kafka_is_ahead_of_its_mirror():
    assert decided(checkpoint(3), record(7)) == checkpoint(7)
    assert decided(checkpoint(7), record(7)) == checkpoint(7)


def test_a_new_subscription_has_neither():
    begun = Checkpoint(generation=0)
    assert decided(begun, None) == begun


def test_the_first_batch_after_a_delivery_without_transactions():
    mirror = checkpoint(5, kept_in="postgres")
    assert decided(mirror, None) == mirror
    assert decided(mirror, record(4)) == mirror, "transactions, then none, then transactions again"
    assert decided(mirror, record(6)).position == {"at": 6}


def test_a_rewound_subscription_begins_where_it_was_put():
    rewound = checkpoint(0, generation=2, kept_in="postgres")
    assert decided(rewound, record(90, generation=1)) == rewound


@pytest.mark.parametrize("found", [None, record(2)])
def test_a_topic_that_lost_records_stops_the_harvester(found):
    with pytest.raises(CheckpointError, match="behind its mirror") as error:
        decided(checkpoint(3), found)
    assert "rewind" in error.value.next_step


def test_a_database_that_was_restored_stops_it_too():
    with pytest.raises(CheckpointError, match="ahead of the database"):
        decided(checkpoint(3, generation=1), record(9, generation=2))


def test_a_name_that_two_outboxes_share_stops_both():
    with pytest.raises(CheckpointError, match="another outbox") as error:
        decided(checkpoint(3), record(9, outbox="5/shop/other"))
    assert "5/shop/other" in str(error.value)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=200))
def test_ids_survive_their_spelling(ids):
    assert decode_ids(encode_ids(ids)) == ids


def test_a_position_of_dense_ids_is_small():
    ids = list(range(5_000_000_000, 5_000_000_000 + MOST_IDS))
    assert len(encode_ids(ids)) < 2.1 * MOST_IDS
    sparse = [each * 99_999 for each in range(MOST_IDS)]
    assert len(encode_ids(sparse)) <= 256_000
