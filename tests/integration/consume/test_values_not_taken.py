"""Values that an application hands over and that no store takes: each is its message's, which alone is parked."""

import json
import math
from dataclasses import dataclass
from decimal import Decimal

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.consuming import Counting, Running
from support.raw_headers import write_raw_header
from support.recorded import Machines
from support.waiting import eventually

from harvest_lib.consume import Checkpoint, KeyValueStore, create_key_values, create_tables
from harvest_lib.errors import DatabaseError

pytestmark = pytest.mark.gate

GOOD = [1, "é", None, {"a": [1.5, True]}, 10**30, "\u2028", []]
TEXTS = ["\0", "a\0b", "\ud800", "x\udfff", "\0\ud800"]
NO_VALUES = [*TEXTS, math.nan, math.inf, {"k": "\0"}, {"\ud800": 1}, {"\0": 1}, object(), b"bytes", {1, 2}, 10**5000]


def nested():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


@dataclass(frozen=True)
class Fails:
    """In place of a value: the text of an error."""

    text: str


class Remembering:
    """Remembers a value by its number, under one key for each message, as it comes or as the transaction ends."""

    def __init__(self, values, at_end):
        self.values, self.at_end = values, at_end

    def consume_message(self, transaction, message):
        number = int(message.record.key())
        value = self.values[number]
        if isinstance(value, Fails):
            raise ValueError(value.text)  # noqa: TRY004 - as applications do
        if self.at_end:
            transaction.memory[number] = value
        else:
            transaction.state.put(str(number), value)

    def finalize_txn(self, transaction):
        for number, value in transaction.memory.items():
            transaction.state.put(str(number), value)


class RememberingGroups(Remembering):
    """Remembers those of one acknowledgement by one call."""

    def consume_messages(self, transaction, messages):
        for message in messages:
            self.consume_message(transaction, message)


class Raising:
    """Raises errors of these texts."""

    def __init__(self, texts):
        self.texts = texts

    def consume_message(self, _transaction, message):
        if text := self.texts[int(message.record.key())]:
            raise ValueError(text)

    def finalize_txn(self, transaction):
        pass


class WithoutText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def ran(shard, count):
    """Run a shard until it is through so many messages, and let nothing else end it."""
    running = Running(shard.run)
    eventually(lambda: running.error is not None or shard.committed + shard.parked == count, "it is through")
    assert running.end() is None


def publish(counted, keys, group):
    publisher = counted.publisher()
    for begin in range(0, len(keys), group):
        for key in keys[begin : begin + group]:
            publisher.publish_uncommitted(counted.topic, b"v", key=key)
        publisher.acknowledge(publisher.intents())
    publisher.flush()


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "at_end", "group"),
    [
        (Remembering, False, 1),
        (Remembering, True, 1),
        (Remembering, False, 5),
        (Remembering, True, 5),
        (RememberingGroups, False, 5),
        pytest.param(RememberingGroups, True, 5, marks=pytest.mark.full),
    ],
)
def test_values_that_are_no_json_are_parked_and_the_others_kept(counted, kind, at_end, group):
    values = [value for pair in zip(NO_VALUES, GOOD * 2, strict=True) for value in pair] + [nested(), "last"]
    publish(counted, [str(number) for number in range(len(values))], group)
    store = KeyValueStore(counted.dsn, counted.place)
    ran(counted.shard(kind(values, at_end), store, max_attempts=1), len(values))
    with psycopg.connect(counted.dsn) as connection:
        kept = dict(connection.execute("SELECT key::int, value FROM consumers_state").fetchall())
    assert kept == {number: values[number] for number in range(1, len(values), 2) if values[number] is not None}
    assert [int(key) for _, key, _ in sorted(counted.parked())] == list(range(0, len(values), 2))
    reasons = {reason.split(":")[0] for *_, reason in counted.parked()}
    assert reasons == {
        "InvalidTextRepresentation",
        "RecursionError",
        "TypeError",
        "UntranslatableCharacter",
        "ValueError",
    }


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary() | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3) | st.sets(st.integers()),
    max_leaves=8,
)


def as_jsonb_spells(text):
    """Return a number as it is read back: `jsonb` writes 1e+20 with all its digits, and without a point."""
    return int(Decimal(text)) if "e+" in text else float(text)


def as_kept(value):
    """Return what is read back of a value; raises if the store cannot hold it."""
    back = json.loads(json.dumps(value, allow_nan=False), parse_float=as_jsonb_spells)
    json.dumps(back, ensure_ascii=False).encode()  # no half pair is left
    if "\\u0000" in json.dumps(back).replace("\\\\", ""):
        raise ValueError("NUL")
    return back


@pytest.mark.full
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    values=st.lists(ANY_VALUE | st.builds(Fails, ANY_TEXT), min_size=1, max_size=25),
    kind=st.sampled_from([Remembering, RememberingGroups]),
    at_end=st.booleans(),
    group=st.integers(1, 6),
)
def test_only_messages_whose_values_or_errors_say_so_are_parked(counted, values, kind, at_end, group):
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE consumers_state, consumers_parked")
        publish(counted, [str(number) for number in range(len(values))], group)
        store = KeyValueStore(counted.dsn, counted.place)
        ran(counted.shard(kind(values, at_end), store, max_attempts=1), len(values))
        kept = dict(connection.execute("SELECT key::int, value FROM consumers_state").fetchall())
    expected, refused = {}, []
    for number, value in enumerate(values):
        try:
            expected[number] = as_kept(value)
        except (TypeError, ValueError):
            refused.append(number)
    assert kept == {number: value for number, value in expected.items() if value is not None}
    assert [int(key) for _, key, _ in sorted(counted.parked())] == refused


def test_keys_that_no_index_takes_are_parked(counted):
    class Naming(Remembering):
        def consume_message(self, transaction, message):
            transaction.state.put(self.values[int(message.record.key())], 1)

    long = "".join(map(chr, range(0x4E00, 0x4E00 + 5_000)))
    counted.write(["0", "1", "2", "3"])
    store = KeyValueStore(counted.dsn, counted.place)
    ran(counted.shard(Naming(["a\0", "b", long, "\ud800"], at_end=False), store, max_attempts=2), 4)
    with psycopg.connect(counted.dsn) as connection:
        assert connection.execute("SELECT key FROM consumers_state").fetchall() == [("b",)]
    assert [offset for offset, *_ in sorted(counted.parked())] == [0, 2, 3]


@pytest.fixture
def machines(bootstrap_servers, make_topic, unique, tmp_path):
    log = make_topic(name=unique("log"), **{"cleanup.policy": "compact"})
    made = Machines({"bootstrap.servers": bootstrap_servers}, log, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_reasons_of_any_text_are_parked(counted, machines, kind):
    texts = ["", *TEXTS, "x" * 2_000_000, ""]
    counted.write([str(number) for number in range(len(texts))])
    store = machines(counted.place) if kind == "sqlite" else None
    ran(counted.shard(Raising(texts), store, max_attempts=1), len(texts))
    found = sorted(counted.parked() if kind == "postgres" else parked(machines(counted.place)))
    assert [offset for offset, *_ in found] == list(range(1, len(texts) - 1))
    assert found[0][2] == r"ValueError: \x00"
    assert found[2][2] == r"ValueError: \ud800"
    assert len(found[-1][2]) == 10_000


def parked(store):
    store.restore()
    found = store.begin().execute('SELECT "offset", key, reason FROM consumers_parked').fetchall()
    store.rollback()
    return found


def test_an_error_without_a_text_is_parked(counted):
    class Odd(Raising):
        def consume_message(self, _transaction, _message):
            raise WithoutText

    counted.write(["a"])
    ran(counted.shard(Odd(()), max_attempts=1), 1)
    assert counted.parked() == [(0, b"a", "WithoutText: its text is unavailable (RuntimeError)")]


def test_headers_that_the_client_cannot_read_hold_up_no_partition(counted):
    class Reading(Counting):
        def consume_message(self, transaction, message):
            headers = dict(message.record.headers() or ())
            assert not headers or message.record.key() == b"a"
            super().consume_message(transaction, message)

    counted.write(["a"])
    for key in (b"b", b"bad", b"c"):
        write_raw_header(counted.settings["bootstrap.servers"], counted.topic, b"\xff\xfe", key=key)
    running = Running(counted.shard(Reading(fails=("bad",)), max_attempts=1).run)
    eventually(lambda: counted.counts() == {"a": 1, "b": 1, "c": 1}, "the others are counted")
    assert running.end() is None
    assert [key for _, key, _ in counted.parked()] == [b"bad"]
    running = Running(counted.shard(Reading(), max_attempts=1).run)  # which knows the last one again
    counted.write(["d"])
    eventually(lambda: running.error is not None or counted.counts().get("d") == 1, "it goes on")
    assert running.end() is None


CONSTRAINED = (
    "CREATE TABLE IF NOT EXISTS known (id INT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS named (id INT REFERENCES known (id) DEFERRABLE INITIALLY DEFERRED)",
)


class Constrained:
    """Names what is not there, which shows only as the transaction is kept."""

    def consume_message(self, transaction, message):
        for statement in CONSTRAINED:
            transaction.state.execute(statement)
        key = int(message.record.key())
        if key != 2:
            transaction.state.execute(f"INSERT INTO known VALUES ({key})")  # noqa: S608 - a number
        transaction.state.execute(f"INSERT INTO named VALUES ({key})")  # noqa: S608 - a number

    def finalize_txn(self, transaction):
        pass


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_a_constraint_that_fails_as_the_transaction_is_kept_is_its_messages(counted, machines, kind):
    counted.write([str(number) for number in range(5)])
    store = machines(counted.place) if kind == "sqlite" else None
    ran(counted.shard(Constrained(), store, max_attempts=2), 5)
    ((offset, _, reason),) = counted.parked() if kind == "postgres" else parked(machines(counted.place))
    assert offset == 2
    assert "foreign key constraint" in reason.lower()


def test_tables_in_a_schema_whose_name_has_dots(counted):
    table = '"my.app".consumers'
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "my.app"')
        create_tables(counted.dsn, table)
        create_key_values(counted.dsn, table)
        counted.write(["0", "1"])
        store = KeyValueStore(counted.dsn, counted.place, table=table)
        ran(counted.shard(Remembering([1, math.nan], at_end=False), store, max_attempts=1), 2)
        assert connection.execute('SELECT key, value FROM "my.app".consumers_state').fetchall() == [("0", 1)]
        assert connection.execute('SELECT "offset" FROM "my.app".consumers_parked').fetchall() == [(1,)]


def test_a_table_that_is_missing_is_no_messages_fault(counted):
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE consumers_state RENAME TO elsewhere")
        counted.write(["0"])
        store = KeyValueStore(counted.dsn, counted.place)
        running = Running(counted.shard(Remembering([1], at_end=False), store, max_attempts=1).run)
        eventually(lambda: running.error is not None, "the shard fails")
        running.end()
        assert counted.parked() == []


def test_a_table_of_consumers_that_takes_no_row_is_told(counted):
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute("CREATE RULE away AS ON INSERT TO consumers DO INSTEAD NOTHING")
    with pytest.raises(DatabaseError):
        counted.store().restore()
    with psycopg.connect(counted.dsn, autocommit=True) as connection:
        connection.execute("""
            DROP RULE away ON consumers;
            CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
            CREATE TRIGGER away BEFORE INSERT ON consumers FOR EACH ROW EXECUTE FUNCTION drops()
        """)
    with pytest.raises(DatabaseError, match=r"checkpoint of .* cannot be written"):
        counted.store().restore()


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_a_message_is_parked_where_one_of_its_offset_is(counted, machines, kind):
    """As after a topic was recreated, whose shard starts over."""
    counted.write(["0"])
    makes = machines if kind == "sqlite" else lambda _: counted.store()
    for text in ("first", "second"):
        store = makes(counted.place)
        ran(counted.shard(Raising([text]), store, max_attempts=1), 1)
        store = makes(counted.place)
        store.restore()
        store.begin()
        assert store.commit(Checkpoint(shard=counted.place))
        store.close()
    found = counted.parked() if kind == "postgres" else parked(makes(counted.place))
    assert found == [(0, b"0", "ValueError: second")]
