"""The topic of checkpoints, and the choice of the one that counts: Kafka's, or its mirror in Postgres."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest_lib.checkpoints import topic
from harvest_lib.checkpoints.choice import CheckpointChoice
from harvest_lib.errors import CheckpointError, TopicTooSmall
from harvest_lib.record.checkpoint import OutboxCheckpoint
from harvest_lib.source.mark_batches import MOST_IDS, decode_ids, encode_ids

pytestmark = pytest.mark.quick

OURS = "5/shop/outbox"


def checkpoint(number, *, generation=0, kept_in="kafka"):
    return OutboxCheckpoint(generation=generation, number=number, position={"at": number}, kept_in=kept_in)


def record(number, *, generation=0, outbox=OURS):
    return {**checkpoint(number, generation=generation).as_json(), "outbox": outbox, "identity": outbox}


def decided(mirror, found):
    def difference(found):
        return "" if found["identity"] == OURS else "table"

    return CheckpointChoice(mirror=mirror, place="here", outbox=OURS, difference=difference).newest(found)


def test_a_topic_that_never_gets_its_partitions_is_waited_for_and_then_refused(monkeypatch):
    answers = iter([{"place": 1}] * 2)
    asked = SimpleNamespace(result=lambda _: None)
    admin = nullcontext(SimpleNamespace(create_partitions=lambda _: {"place": asked}))
    monkeypatch.setattr(topic, "_MAKE_SECONDS", 0.0)
    monkeypatch.setattr(topic, "topic_partitions", lambda _: next(answers))
    monkeypatch.setattr(topic, "AdminClient", lambda _: admin)
    with pytest.raises(TopicTooSmall):
        topic.ensure_checkpoint_topic({}, "place", 4)


NEW, NOT_IN_KAFKA = OutboxCheckpoint(generation=0), checkpoint(5, kept_in="postgres")
REWOUND = checkpoint(0, generation=2, kept_in="postgres")


@pytest.mark.parametrize(
    ("mirror", "found", "counts"),
    [
        pytest.param(checkpoint(3), record(7), checkpoint(7), id="Kafka is ahead of its mirror"),
        pytest.param(checkpoint(7), record(7), checkpoint(7), id="both are alike"),
        pytest.param(NEW, None, NEW, id="a new subscription has neither"),
        pytest.param(NOT_IN_KAFKA, None, NOT_IN_KAFKA, id="the first transaction after a delivery without"),
        pytest.param(NOT_IN_KAFKA, record(4), NOT_IN_KAFKA, id="transactions, then none, then transactions again"),
        pytest.param(NOT_IN_KAFKA, record(6), checkpoint(6), id="the first batch of them was not mirrored"),
        pytest.param(REWOUND, record(90, generation=1), REWOUND, id="a rewound subscription begins where it was put"),
    ],
)
def test_the_later_checkpoint_of_the_generation_counts(mirror, found, counts):
    assert decided(mirror, found) == counts


@pytest.mark.parametrize(
    ("mirror", "found", "words"),
    [
        pytest.param(checkpoint(3), None, ["behind its mirror", "rewind"], id="a topic that lost all records"),
        pytest.param(checkpoint(3), record(2), ["behind its mirror", "rewind"], id="a topic that lost records"),
        pytest.param(
            checkpoint(3, generation=1), record(9, generation=2), ["ahead of the database"], id="a restored database"
        ),
        pytest.param(
            checkpoint(3), record(9, outbox="5/shop/other"), ["another outbox", "5/shop/other"], id="a shared name"
        ),
    ],
)
def test_what_does_not_fit_stops_the_harvester(mirror, found, words):
    with pytest.raises(CheckpointError) as error:
        decided(mirror, found)
    assert all(word in str(error.value) for word in words)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=200))
def test_ids_survive_their_spelling(ids):
    assert decode_ids(encode_ids(ids)) == ids


def test_a_position_of_dense_ids_is_small():
    ids = list(range(5_000_000_000, 5_000_000_000 + MOST_IDS))
    assert len(encode_ids(ids)) < 2.1 * MOST_IDS
    sparse = [each * 99_999 for each in range(MOST_IDS)]
    assert len(encode_ids(sparse)) <= 256_000
