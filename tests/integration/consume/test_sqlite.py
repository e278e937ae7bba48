"""A shard's state in SQLite, recorded to a real Kafka: the next owner finds the committed state."""

import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from io import BytesIO
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from support.recorded import SHARD, Machines, asked, change, checkpoint
from support.waiting import eventually

from harvest_lib.consume import Intent, Message, ProducerState, read_uncommitted
from harvest_lib.consume.recovery_log import LogPlace, play_back
from harvest_lib.errors import CheckpointError, KafkaUnavailable

pytestmark = pytest.mark.gate

WHOLE = checkpoint(
    offset=7,
    producers=(ProducerState(producer=5, acknowledged=9, begin=3),),
    intents=(Intent(topic="derived", partition=1, id=b"i" * 16),),
)


@pytest.fixture
def settings(bootstrap_servers):
    return {"bootstrap.servers": bootstrap_servers}


@pytest.fixture
def log(make_topic):
    return make_topic(**{"cleanup.policy": "compact"})


@pytest.fixture
def store(settings, log, tmp_path):
    """Make stores of one shard, each on a machine of its own."""
    machines = Machines(settings, log, tmp_path)
    yield machines
    machines.close()


class HookedProducer:
    """Makes producers that call `at_init` before they fence, `before` and `after` around each commit."""

    def __init__(self):
        self.at_init = self.before = self.after = lambda producer: None

    def __call__(self, settings):
        outer = self

        class Telling(Producer):
            def init_transactions(self, *timeout):
                outer.at_init(self)
                super().init_transactions(*timeout)

            def commit_transaction(self, *timeout):
                outer.before(self)
                super().commit_transaction(*timeout)
                outer.after(self)

        return Telling(settings)


def dumped(connection):
    """Return all that is in a database, but for the store's own."""
    return [line for line in connection.iterdump() if "consumers" not in line]


def watermarks(settings, log, isolation="read_committed"):
    consumer = Consumer({**settings, "group.id": "asks", "isolation.level": isolation})
    try:
        return consumer.get_watermark_offsets(TopicPartition(log, 0), 10)
    finally:
        consumer.close()


def keys(settings, log):
    """Return the keys of all records that are committed, as they stand."""
    begin, end = watermarks(settings, log)
    batches = read_uncommitted(settings, log, 0, begin=begin, end=end)
    return [message.record.key().decode() for batch in batches for message in batch]


def test_state_schema_checkpoint_and_what_was_parked_move_to_another_machine(store, tmp_path):
    first = store()
    assert first.restore() == checkpoint()
    state = first.begin()
    state.execute("CREATE TABLE totals (key TEXT PRIMARY KEY, n INT)")
    state.execute("CREATE INDEX by_n ON totals (n)")
    state.execute("INSERT INTO totals VALUES ('a', 1), ('b', 2)")
    record = SimpleNamespace(key=lambda: b"k", value=lambda: None, headers=lambda: [("h", b"\x00"), ("none", None)])
    first.park(Message(6, None, record), "ValueError: no")
    assert first.commit(WHOLE)
    assert [each for each in (tmp_path / "machine-0").rglob("*") if each.is_file()] == []  # a cache without a name
    second = store()
    assert second.restore() == WHOLE
    assert asked(second, "SELECT key FROM totals INDEXED BY by_n WHERE n = 2") == [("b",)]
    assert asked(second, 'SELECT topic, "offset", key, value, headers, reason FROM consumers_parked') == [
        ("orders", 6, b"k", None, '[["h", "00"], ["none", null]]', "ValueError: no")
    ]


def test_what_is_rolled_back_leaves_nothing_even_if_sqlite_had_written_it_out(store):
    first = store()
    first.restore()
    change(first, "CREATE TABLE t (a)", offset=1)
    state = first.begin()
    state.execute("PRAGMA cache_size = 5")
    state.executemany("INSERT INTO t VALUES (?)", ((bytes(2_000),) for _ in range(200)))
    first.rollback()
    change(first, "INSERT INTO t VALUES ('kept')", offset=2)
    second = store()
    assert second.restore() == checkpoint(2)
    assert asked(second, "SELECT a FROM t") == [("kept",)]
    assert asked(second, "PRAGMA integrity_check") == [("ok",)]


def test_a_database_that_shrinks_leaves_the_log_too_and_may_grow_again(settings, store, log):
    first = store()
    first.restore()
    fill = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) "
        "INSERT INTO t SELECT i, zeroblob(3000) FROM n"
    )
    change(first, "CREATE TABLE t (a, b)", fill)
    ((large,),) = asked(first, "PRAGMA page_count")
    change(first, "DELETE FROM t WHERE a > 10")
    ((small,),) = asked(first, "PRAGMA page_count")
    assert small < large / 10
    gone = [key for key in keys(settings, log) if key not in ("head", "author") and int(key) > small]
    # Each came once, and went once; Kafka may have compacted the first away.
    assert len({*gone}) == large - small
    assert large - small <= len(gone) <= 2 * (large - small)
    place, played = LogPlace(log=log, shard=SHARD), BytesIO()
    play_back(settings, place, begin=0, end=watermarks(settings, log)[1], database=played)
    assert played.getvalue() == first.begin().serialize()  # byte for byte, and no longer than that
    first.rollback()
    second = store()
    second.restore()
    assert asked(second, "PRAGMA page_count") == [(small,)]
    change(second, "DELETE FROM t", fill)
    third = store()
    third.restore()
    assert asked(third, "SELECT count(*), sum(a), sum(length(b)) FROM t") == [(300, 45_150, 900_000)]
    assert asked(third, "PRAGMA integrity_check") == [("ok",)]


STATEMENTS = [
    "INSERT OR REPLACE INTO {table} VALUES ({key}, {number}, zeroblob({size}))",
    "UPDATE {table} SET b = b + 1, c = hex(b) WHERE a % 7 = {key} % 7",
    "DELETE FROM {table} WHERE a BETWEEN {key} AND {key} + {size} % 100",
    "CREATE INDEX IF NOT EXISTS {table}_b ON {table} (b, c)",
    "DROP INDEX IF EXISTS {table}_b",
    "PRAGMA user_version = {number}",
]


def test_it_is_what_a_plain_database_is_after_the_same_statements(store):
    dice = random.Random(20_261_122)
    kept, plain = store(), sqlite3.connect(":memory:", isolation_level=None)
    kept.restore()
    plain.execute("PRAGMA auto_vacuum = FULL")
    change(kept, "CREATE TABLE t0 (a INTEGER PRIMARY KEY, b, c)")
    plain.execute("CREATE TABLE t0 (a INTEGER PRIMARY KEY, b, c)")
    tables, offset = ["t0"], 0
    for number in range(1, 151):
        statements = []
        for _ in range(dice.randint(1, 6)):
            table, key, size = dice.choice(tables), dice.randint(1, 400), dice.choice([9, 1_050, 30_001])
            statements.append(dice.choice(STATEMENTS).format(table=table, key=key, size=size, number=number))
        if number % 30 == 0:
            tables.append(f"t{number}")
            statements.append(f"CREATE TABLE t{number} AS SELECT * FROM t0")  # noqa: S608 - names of ours
        is_kept = dice.random() < 0.8
        state = kept.begin()
        state.execute("PRAGMA cache_size = 20")  # so that it writes pages out before the end
        plain.execute("BEGIN")
        for statement in statements:
            state.execute(statement)
            plain.execute(statement)
        if is_kept:
            offset = number
            assert kept.commit(checkpoint(number))
            plain.execute("COMMIT")
        else:
            if number % 30 == 0:
                tables.pop()
            kept.rollback()
            plain.execute("ROLLBACK")
        if number % 50 == 0:
            kept = store()
            assert kept.restore() == checkpoint(offset)
            assert dumped(kept.begin()) == dumped(plain)
            kept.rollback()
            assert asked(kept, "PRAGMA user_version") == plain.execute("PRAGMA user_version").fetchall()
            assert asked(kept, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.full
def test_playing_back_does_not_depend_on_what_was_compacted(settings, make_topic, store):
    quick = {"segment.ms": 500, "min.cleanable.dirty.ratio": 0.001, "max.compaction.lag.ms": 500}
    log = make_topic(**{"cleanup.policy": "compact", **quick})
    first = store(log=log)
    first.restore()
    change(first, "CREATE TABLE t (n)", "INSERT INTO t VALUES (0)")
    written = 0

    def is_compacted():
        nonlocal written
        written += 1
        change(first, "UPDATE t SET n = n + 1", offset=written)
        return keys(settings, log).count("head") < written / 2

    eventually(is_compacted, "Kafka has compacted the log", seconds=100)
    second = store(log=log)
    assert second.restore() == checkpoint(written)
    assert asked(second, "SELECT n FROM t") == [(written,)]


KILLED = """
    import sys
    from pathlib import Path
    from confluent_kafka import Producer
    from harvest_lib.consume.checkpoint import Checkpoint, ShardId
    from harvest_lib.consume.sqlite_store import SqliteStore

    class Held(Producer):
        is_held = False

        def commit_transaction(self, *timeout):
            if Held.is_held:
                self.flush(30)
                print("about to commit", flush=True)
                sys.stdin.read()
            super().commit_transaction(*timeout)

    SHARD = ShardId("counts", "orders", 0)
    servers, directory, log = sys.argv[1:]
    store = SqliteStore(
        Path(directory), {"bootstrap.servers": servers}, SHARD, log=log, provider=Held,
    )
    store.restore()
    store.begin().execute("CREATE TABLE t (a)")
    store.commit(Checkpoint(shard=SHARD, offset=1))
    store.begin().execute("INSERT INTO t VALUES ('lost')")
    Held.is_held = True
    store.commit(Checkpoint(shard=SHARD, offset=2))
"""


def test_a_process_killed_between_both_commits_leaves_the_state_before(settings, store, log, tmp_path):
    arguments = [settings["bootstrap.servers"], str(tmp_path / "killed"), log]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "about to commit\n"
        finally:
            process.send_signal(signal.SIGKILL)
    assert list((tmp_path / "killed").iterdir()) == []
    after = store()
    assert after.restore() == checkpoint(1)
    assert asked(after, "SELECT * FROM t") == []


def test_what_is_committed_until_the_fence_stands_is_seen(store):
    reported = HookedProducer()
    old, new = store(), store(provider=reported)
    old.restore()
    change(old, "CREATE TABLE t (a)", offset=1)
    reported.at_init = lambda _producer: change(old, "INSERT INTO t VALUES ('late')", offset=2)
    assert new.restore() == checkpoint(2)
    assert asked(new, "SELECT a FROM t") == [("late",)]


def test_who_is_frozen_with_all_pages_in_the_log_commits_nothing_later(store):
    reported = HookedProducer()
    old, new = store(provider=reported), store()
    old.restore()
    change(old, "CREATE TABLE t (a)", offset=1)

    def taken_over(producer):
        assert producer.flush(60) == 0
        assert new.restore() == checkpoint(1)

    reported.before = taken_over
    old.begin().execute("INSERT INTO t VALUES ('T2')")
    assert old.commit(checkpoint(2)) is False
    change(new, "INSERT INTO t VALUES ('T2 of New')", offset=3)
    third = store()
    assert third.restore() == checkpoint(3)
    assert asked(third, "SELECT a FROM t") == [("T2 of New",)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_where_the_outcome_is_not_known_restoring_tells(store, is_committed):
    reported = HookedProducer()
    first = store(provider=reported)
    first.restore()
    change(first, "CREATE TABLE t (a)", offset=1)

    def lost(_producer):
        reported.before = reported.after = lambda _producer: None
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "lost"))

    if is_committed:
        reported.after = lost
    else:
        reported.before = lost
    first.begin().execute("INSERT INTO t VALUES (1)")
    with pytest.raises(KafkaUnavailable, match="not known"):
        first.commit(checkpoint(2))
    assert first.restore() == checkpoint(2 if is_committed else 1)
    assert asked(first, "SELECT count(*) FROM t") == [(int(is_committed),)]


def test_who_is_overtaken_while_it_restores_is_told(store):
    reported = HookedProducer()
    late, new = store(provider=reported), store()

    def overtaken(_producer):
        new.restore()
        change(new, "CREATE TABLE t (a)", offset=1)

    reported.before = overtaken
    with pytest.raises(CheckpointError, match="taken over by another owner"):
        late.restore()
    change(new, "INSERT INTO t VALUES (1)", offset=2)


def test_an_error_amid_recording_leaves_no_transaction_open(settings, store, log, monkeypatch):
    first = store()
    first.restore()

    def torn(found):
        yield 1, bytes(found.page_size)
        first._recorder._producer.flush(60)
        raise OSError("cannot read")

    monkeypatch.setattr(first, "_images", torn)
    first.begin().execute("CREATE TABLE t (a)")
    with pytest.raises(OSError, match="cannot read"):
        first.commit(checkpoint(1))
    eventually(lambda: watermarks(settings, log) == watermarks(settings, log, "read_uncommitted"), "it was aborted")
    second = store()
    assert second.restore() == checkpoint()
