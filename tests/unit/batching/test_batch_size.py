"""Sizes of pages and batches."""

import random
import threading
import uuid

import pytest
from support.rows import row

from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.assembly.engine import Callbacks, Engine
from harvest_lib.leadership import Term
from harvest_lib.outbox import OutboxTable

pytestmark = pytest.mark.quick


def rows(count, value="v"):
    return [row(each, "k", value=value) for each in range(count)]


def of_large_records():
    size = BatchSize()
    size.measured(rows(2, "v" * 1_000_000), 500)
    return size


def test_a_small_batch_that_is_late_stays_large_enough_to_show_other_topics():
    """Else a topic that takes nothing would be all that is ever read, and the others would wait for it for ever."""
    size = BatchSize()
    size.measured(rows(1), 500)
    size.late(1)
    assert size.records == 1_000


def test_a_late_batch_of_large_headers_becomes_smaller_though_its_values_are_empty():
    size = BatchSize()
    size.measured([(each, "t", "k", None, ["trace"], ["x" * 800]) for each in range(2_000)], 2_000)
    size.late(1_000)
    assert size.records == 500


def test_a_small_page_does_not_make_the_next_ones_small():
    """More than fits a page takes several statements, when something has come that stood still for a while."""
    size = BatchSize()
    first = size.page
    size.measured(rows(1), 500)
    assert size.page >= first


def test_a_page_of_large_values_makes_the_next_one_small_at_once():
    size = BatchSize()
    size.measured(rows(3, "v" * 100_000), 500)
    assert size.page == 19


def test_pages_grow_under_a_backlog():
    size, pages = BatchSize(), []
    for _ in range(4):
        size.measured(rows(size.page), size.page)
        pages.append(size.page)
    assert pages == [1_000, 2_000, 2_000, 2_000]


@pytest.mark.parametrize("takes", [1, 7, 2_500, 60_000])
def test_batches_that_kafka_does_not_take_in_time_become_small_enough(takes):
    """As under a quota of the brokers. They grow again, and at most every fourth is too large."""
    size, late, went = of_large_records(), 0, 0
    for _ in range(200):
        if size.records > takes:
            size.late(size.records)
            late += 1
        else:
            went += size.records
            size.done(size.records, full=True)
    assert late <= 16 + 200 // 4
    assert went >= 100 * min(takes, 50_000) // 2


def test_batches_grow_again_once_kafka_takes_them():
    size, batches = of_large_records(), 0
    for _ in range(20):
        size.late(size.records)
    assert size.records == 1
    while size.records < 50_000:
        size.done(size.records, full=True)
        batches += 1
    assert batches < 60


def test_a_batch_that_is_late_while_one_record_is_in_doubt_is_halved_too():
    size = of_large_records()
    size.refused(800)
    size.late(400)
    assert size.records == 200
    size.done(200, full=True)
    assert size.is_doubtful
    assert size.records <= 250


def test_the_next_term_of_a_shard_begins_with_what_the_last_one_learned():
    """Records in doubt end a term, as in `pipelined`: each would try a batch that is too large."""
    named = {"leadership": "solo", "source": "snapshot", "delivery": "pipelined"}
    engine = Engine(HarvestConfig(**named, data_source="host=127.0.0.1 port=1 dbname=x"), OutboxTable.parse("outbox"))
    stopping = threading.Event()
    stopping.set()
    callbacks = Callbacks(emit=lambda _: None, delivered=lambda _: None)
    loops = [engine.loop(Term(uuid.uuid4(), shard=shard), stopping, callbacks) for shard in (0, 0, 1)]
    loops[0]._ports.size.measured(rows(2, "v" * 1_000_000), 500)
    loops[0]._ports.size.late(100)
    assert [loop._ports.size.records for loop in loops] == [50, 50, 1_000]
    loops[0]._ports.troubles.blame("away", "no leader")
    assert [loop._ports.troubles.reason("away") for loop in loops] == ["no leader", "no leader", ""]


@pytest.mark.parametrize(
    ("source", "delivery", "most"),
    [("snapshot", "transactional", 150_000), ("snapshot", "pipelined", 50_000), ("mark", "transactional", 50_000)],
)
def test_only_a_transaction_that_purges_nothing_grows_beyond_what_may_be_in_kafka_twice(source, delivery, most):
    named = {"leader_group_id": "orders", "leadership": "solo", "source": source, "delivery": delivery}
    config = HarvestConfig(
        **named, data_source="host=127.0.0.1 dbname=x", base_kafka_config={"bootstrap.servers": "127.0.0.1:1"}
    )
    size = Engine(config, OutboxTable.parse("outbox"))._sizes[0]
    for _ in range(20):
        size.done(size.records, full=True)
    assert size.records == most
    size.measured(rows(2, "v" * 200), 2)
    size.late(size.records)
    for _ in range(20):
        size.done(size.records, full=True)
    assert size.records == 50_000, "a broker that was late with a larger one would be late again and again"


def test_where_single_records_fail_by_chance_batches_become_so_small_that_most_go():
    """As under goharvest's own test, which fails two of a hundred."""
    dice, size, went, batches = random.Random(1), BatchSize(), 0, 400
    size.measured(rows(500), 500)
    for _ in range(batches):
        if dice.random() < 0.98**size.records:
            went += size.records
            size.done(size.records, full=True)
        else:
            size.late(size.records)
    assert went > 10 * batches


def test_a_topic_that_takes_nothing_is_tried_with_enough_others_again_and_again():
    size, tried = BatchSize(), []
    size.measured(rows(500), 500)
    for _ in range(30):
        tried.append(size.records)
        size.late(size.records)
    assert tried[:4] == [1_000, 1_000, 1_000, 500]
    assert tried.count(1_000) >= 9
    assert min(tried) >= 8


def test_an_idle_loop_looks_less_and_less_often_until_a_batch_is_committed():
    size, waited, pauses = BatchSize(), 0.0, []
    while waited < 5.0:
        pauses.append((waited, pause := size.pause()))
        waited += pause
    assert pauses[0] == (0.0, 0.002)
    assert all(pause <= 0.065 for at, pause in pauses if at < 0.5), "a record that comes soon does not wait for long"
    assert all(pause == 0.1 for at, pause in pauses if at > 3.5), "an idle leader costs little"
    size.done(1, full=False)
    assert size.pause() == 0.002
