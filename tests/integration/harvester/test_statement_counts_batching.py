"""Cost of harvesting in batches at both ends, by count: a gate that the machine's mood does not move."""

import json
from itertools import count

import psycopg
import pytest
from confluent_kafka import Producer
from support.native import Native
from support.outbox import harvest_config, read_topic
from support.waiting import eventually

from harvest_lib.batching import batch, term_checkpoints
from harvest_lib.batching.batch_size import BatchSize
from harvest_lib.harvester.harvest import Harvest

pytestmark = pytest.mark.gate

RECORDS = 10_000
WARM_UP = 10
_TICK_SECONDS = 0.01
"""Time between two looks at the clock: a drain takes about a second, as on a machine that does nothing else."""
_PAUSE_SECONDS = 2.0
"""Between two polls of an empty outbox. The stop of a drain ends it: a slow machine polls no more often."""

TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
WRITTEN = """
SELECT sum(n_tup_ins + n_tup_upd + n_tup_del),
       sum(n_tup_upd + n_tup_del) FILTER (WHERE relname ~ '^outbox_(from|tail)'),
       sum(n_dead_tup) FILTER (WHERE relname ~ '^outbox_(from|tail)')
FROM pg_stat_user_tables
"""
VACUUMS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"
LOG = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


class Requests:
    """A provider of producers that say, when they are closed, how many requests of each kind they made."""

    def __init__(self):
        self.made = {}

    def __call__(self, settings):
        return Counting(settings, self.made)


class Counting:
    def __init__(self, settings, made):
        self._made, self._heard = made, 0
        self._producer = Producer({**settings, "statistics.interval.ms": 50, "stats_cb": self._hear})

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def __len__(self):
        return len(self._producer)

    def _hear(self, text):
        self._heard += 1
        stats = json.loads(text)
        for broker in stats["brokers"].values():
            for kind, number in broker["req"].items():
                if number:
                    self._made[stats["name"], broker["name"], kind] = number

    def close(self):
        until = self._heard + 2  # the next may have been made before the last requests
        eventually(lambda: self._producer.poll(0.05) and self._heard >= until, "it says what it has sent")
        return self._producer.close()


@pytest.fixture
def counted_time(monkeypatch):
    """Have time go by with the work alone, so that what recurs by time recurs as often on a machine that is slow."""
    times = count(1)
    for module in (batch, term_checkpoints):
        monkeypatch.setattr(module, "boot_seconds", lambda: next(times) * _TICK_SECONDS)
    monkeypatch.setattr(BatchSize, "pause", lambda _self: _PAUSE_SECONDS)


def counts(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = [connection.execute(each).fetchone() for each in (TRANSACTIONS, WRITTEN, LOG)]
    return [int(count or 0) for counted in found for count in counted]


@pytest.fixture
def without_vacuum(dsn):
    """Leave the log to the test: the server's own vacuums write into it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
        try:
            eventually(lambda: connection.execute(VACUUMS).fetchone() == (0,), "no vacuum runs")
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET autovacuum")
            connection.execute("SELECT pg_reload_conf()")


@pytest.fixture
def outbox(dsn, make_topic, without_vacuum):
    """A native outbox with ten thousand records of a thousand keys."""
    native = Native(dsn, size=1_000_000)
    native.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "SELECT %s, 'key-' || g %% 1000, repeat('x', 200) FROM generate_series(1, %s) g",
        (make_topic(partitions=4), RECORDS),
    )
    native.connection.execute("VACUUM ANALYZE outbox")
    native.connection.execute("CHECKPOINT")
    return native


@pytest.mark.quick
@pytest.mark.parametrize(
    ("delivery", "most"),
    [("transactional", (145, 20, 700_000)), ("pipelined", (140, 20, 700_000)), ("barrier", (160, 40, 1_200_000))],
)
@pytest.mark.usefixtures("counted_time")
def test_what_a_drain_costs_the_database(outbox, bootstrap_servers, group_id, delivery, most):
    transactions, written, wal_bytes = most
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, leadership="solo", delivery=delivery)
    before = counts(outbox.dsn)
    assert Harvest(config).drain(60).records == RECORDS
    spent = [after - start for after, start in zip(counts(outbox.dsn), before, strict=True)]
    done, rows, outbox_rows, dead, wal = spent
    assert done <= transactions, "statements and transactions together: pages, barriers, checkpoints, housekeeping"
    assert rows <= written
    assert (outbox_rows, dead) == (0, 0), "nothing is written to the outbox"
    assert wal <= wal_bytes
    batches = outbox.connection.execute("SELECT (checkpoint ->> 'number')::int FROM outbox_subscriptions").fetchone()[0]
    assert batches <= 12, "Kafka transactions, or flushes: batches grow under a backlog"


@pytest.mark.parametrize(("delivery", "produces", "others"), [("transactional", 60, 60), ("pipelined", 60, 20)])
def test_what_a_drain_costs_kafka(outbox, bootstrap_servers, group_id, delivery, produces, others):
    """Records travel by the hundred; a transaction costs one request that names partitions and one that ends it.

    The producer lingers until a batch is flushed: so batches do not end earlier where the machine is slow.
    """
    config = harvest_config(
        outbox.dsn,
        bootstrap_servers,
        group_id,
        leadership="solo",
        delivery=delivery,
        producer_kafka_config={"linger.ms": 500},
    )
    requests = Requests()
    assert Harvest(config, kafka_producer_provider=requests).drain(60).records == RECORDS
    spent = {}
    for (_, _, kind), number in requests.made.items():
        spent[kind] = spent.get(kind, 0) + number
    assert 4 <= spent.pop("Produce") <= produces
    assert sum(spent.values()) <= others, spent


@pytest.mark.full
@pytest.mark.parametrize("delivery", ["barrier", "pipelined"])
def test_what_is_retried_of_few_keys_goes_in_runs(dsn, bootstrap_servers, group_id, make_topic, unique, delivery):
    """Redelivery costs about as much as delivery: so keys that are written on are caught up with."""
    topic, keys, each = unique("later"), 6, 200
    native = Native(dsn, size=1_000_000)
    native.connection.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "SELECT %s, 'key-' || g %% %s, repeat('x', 200) FROM generate_series(1, %s) g",
        (topic, keys, keys * each),
    )
    config = harvest_config(dsn, bootstrap_servers, group_id, leadership="solo", delivery=delivery)
    assert Harvest(config).drain(60).records == 0
    parked = "SELECT count(*) FROM outbox_parked_ids"
    assert native.connection.execute(parked).fetchone()[0] == keys * each
    make_topic(name=topic, partitions=2)
    native.connection.execute("UPDATE outbox_parked_ids SET retry = true WHERE NOT held")
    before, numbers = counts(dsn), []
    number = "SELECT (checkpoint ->> 'number')::int FROM outbox_subscriptions"
    numbers.append(native.connection.execute(number).fetchone()[0])
    assert Harvest(config).drain(60).records == keys * each
    numbers.append(native.connection.execute(number).fetchone()[0])
    assert native.connection.execute(parked).fetchone()[0] == 0
    done = counts(dsn)[0] - before[0]
    runs = each if delivery == "barrier" else 3  # under the barrier a key has one record in a batch
    assert numbers[1] - numbers[0] <= runs + 10
    assert done <= 3 * runs + 300, "pages, checkpoints, and some looks a second at what is parked"
    ids = {}
    for record in read_topic(bootstrap_servers, topic):
        ids.setdefault(record.key, []).append(record.outbox_id)
    assert len(ids) == keys
    assert all(found == sorted(found) for found in ids.values())
