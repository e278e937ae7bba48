"""The native hand-over gives the same as Python's: keys, values, headers, order; and nothing fails unheard."""

import random
from functools import partial

import psycopg
import pytest
from confluent_kafka import KafkaError, Producer
from support.handing_over import ALL, COLUMNS, insert, made_outbox, run_python
from support.outbox import harvest_config
from support.row_shapes import drawn, messages

from harvest_lib.clock import boot_seconds
from harvest_lib.errors import ConfigError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import (
    LATE,
    NativeRows,
    close_with_sender,
    implementation,
    library,
    make_with_sender,
    rows_of,
)
from harvest_lib.native.library import MOST_FAILURES

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(
        implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
    ),
]


@pytest.mark.parametrize("delivery", ["pipelined", "barrier"])
def test_a_full_queue_is_waited_for(dsn, bootstrap_servers, group_id, make_topic, handed_over, delivery):
    """In the middle of a page."""
    made_outbox(dsn)
    topic = make_topic()
    insert(dsn, [(topic, f"{number}", f"{number}", [], []) for number in range(5_000)])
    config = harvest_config(
        dsn, bootstrap_servers, group_id, leadership="solo", delivery=delivery,
        producer_kafka_config={"queue.buffering.max.messages": 100},
    )  # fmt: skip
    assert Harvest(config).drain(60).records == 5_000
    assert handed_over["records"] == 5_000
    assert [int(value) for _, _, _, value, _ in messages(bootstrap_servers, topic)] == list(range(5_000))


def test_what_fails_after_it_was_handed_over_is_heard_once_of_each_kind(bootstrap_servers, make_topic, dsn):
    made_outbox(dsn)
    topic = make_topic(**{"max.message.bytes": 1_000})
    insert(dsn, [(topic, "k", "x" * 3_000, [], [])] * 20)
    heard = []
    producer, sender = make_with_sender(
        Producer, {"bootstrap.servers": bootstrap_servers, "on_delivery": lambda *each: heard.append(each)}
    )
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        assert sender.send(rows, stamp=None) == (20, 0)
        producer.produce(topic, "y" * 3_000)
        producer.flush(60)
    assert [(error.code(), where) for error, where in sender.take_failures()] == [
        (KafkaError.MSG_SIZE_TOO_LARGE, topic)
    ]
    assert sender.take_failures() == []
    assert [error.code() for error, _ in heard] == [KafkaError.MSG_SIZE_TOO_LARGE], "Python's own is Python's to hear"


@pytest.mark.quick
def test_where_records_arrived_is_told_once(bootstrap_servers, make_topic, dsn):
    made_outbox(dsn)
    topics = [make_topic(partitions=3), make_topic()]
    insert(dsn, [(topic, f"{number}", "v", [], []) for number in range(50) for topic in topics])
    producer, sender = make_with_sender(Producer, {"bootstrap.servers": bootstrap_servers})
    sender.track()
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        sender.send(rows, stamp=None)
        producer.flush(60)
    places = {(topics[0], 0), (topics[0], 1), (topics[0], 2), (topics[1], 0)}
    found = sender.take_places()
    assert set(found) == places
    assert len(found) == len(places)
    assert sender.take_places() == []


def test_a_view_of_rows_is_the_rows(dsn):
    made_outbox(dsn)
    insert(dsn, drawn(["t"], 50, "varchar", random.Random(1)))
    with psycopg.connect(dsn) as connection:
        select = f"SELECT 'before', {COLUMNS}, 'after' FROM outbox ORDER BY id"  # noqa: S608 - a constant
        expected = [row[1:-1] for row in connection.execute(select).fetchall()]
        rows = rows_of(connection.cursor(binary=True).execute(select), 1)
        assert isinstance(rows, NativeRows)
        assert list(rows) == list(rows) == expected
        assert (rows[0], rows[-1], len(rows)) == (expected[0], expected[-1], 50)
        assert list(rows[10:20][5:]) == expected[15:20]
        assert list(rows[30:20]) == []
        assert [rows.count_up_to(each[0]) for each in expected] == list(range(1, 51))
        assert rows.ascends
        assert rows.summary.topics == ["t"]
        assert rows[3:].summary.largest >= rows[3:9].summary.largest
        rows.pop()
        assert list(rows) == expected[:-1]
        with pytest.raises(IndexError):
            rows[49]


def test_rows_that_are_picked_are_those_rows(dsn):
    made_outbox(dsn)
    insert(dsn, drawn(["t", "u"], 50, "varchar", random.Random(1)))
    with psycopg.connect(dsn) as connection:
        expected = connection.execute(ALL).fetchall()
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        assert rows.keys == [row[2] for row in expected]
        assert rows.topics == [row[1] for row in expected]
        picked = rows[5:45].pick([3, 30, 4, 39])
        wanted = [expected[5 + place] for place in (3, 30, 4, 39)]
        assert list(picked) == [picked[place] for place in range(4)] == wanted
        assert (picked.ids, picked.keys) == ([row[0] for row in wanted], [row[2] for row in wanted])
        assert list(picked[1:3]) == list(picked.pick([1, 2])) == wanted[1:3]
        assert {*picked.summary.topics} == {row[1] for row in wanted}
        assert picked.topics == [row[1] for row in wanted]
        assert not picked.ascends
        assert picked.pick([0, 1]).ascends
        assert (list(rows.pick([])), rows.pick([]).keys, rows.pick([]).ids) == ([], [], [])


def test_picked_rows_go_and_none_once_it_is_too_late(bootstrap_servers, make_topic, dsn):
    made_outbox(dsn)
    topic = make_topic()
    insert(dsn, [(topic, "k", f"{number}", [], []) for number in range(10)])
    producer, sender = make_with_sender(Producer, {"bootstrap.servers": bootstrap_servers})
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        assert sender.send(rows, stamp=None, until=boot_seconds()) == (0, LATE)
        assert sender.send(rows.pick([7, 2, 5])[1:], stamp=None, until=boot_seconds() + 3_600) == (2, 0)
        producer.flush(60)
    assert [value for _, _, _, value, _ in messages(bootstrap_servers, topic)] == [b"2", b"5"]


def test_records_that_timed_out_are_among_the_kinds_of_failures_however_many_those_are(dsn):
    """Such a record may still arrive. Here nothing leaves: nobody listens."""
    made_outbox(dsn)
    insert(dsn, [(f"t{number}", f"k{number}", "v", [], []) for number in range(MOST_FAILURES)])
    insert(dsn, [("late", "late", "v", [], [])])
    producer, sender = make_with_sender(
        Producer, {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 1_000, "log_level": 0}
    )
    sender.note_keys()
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        assert sender.send(rows[:-1], stamp=None) == (MOST_FAILURES, 0)
        producer.purge(in_queue=True, in_flight=True, blocking=True)
        while len(producer):
            producer.poll(0.1)
        assert sender.send(rows[-1:], stamp=None) == (1, 0)
        while len(producer):
            producer.poll(0.1)
    kinds = [(error.code(), topic) for error, topic in sender.take_failures()]
    assert len(kinds) == MOST_FAILURES
    assert {code for code, _ in kinds[:-1]} == {KafkaError._PURGE_QUEUE}
    assert kinds[-1] == (KafkaError._MSG_TIMED_OUT, "late")
    assert sender.take_failed_keys() == {b"late", *(f"k{number}".encode() for number in range(MOST_FAILURES))}


@pytest.mark.parametrize(("key", "count", "times"), [("k", 20, 1), ("k" * 90, 12_000, 8)])
def test_the_keys_of_what_failed_are_known_if_they_are_few(bootstrap_servers, make_topic, dsn, key, count, times):
    made_outbox(dsn)
    topic = make_topic(**{"max.message.bytes": 100})
    insert(dsn, [(topic, f"{key}{number}" if number else "", "x" * 300, [], []) for number in range(count)])
    producer, sender = make_with_sender(Producer, {"bootstrap.servers": bootstrap_servers})
    sender.note_keys()
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        for _ in range(times):
            assert sender.send(rows, stamp=None) == (count, 0)
        producer.flush(60)
    known = {b"", *(f"{key}{number}".encode() for number in range(1, count))}
    assert sender.take_failed_keys() == (known if count == 20 else None)
    assert sender.take_failed_keys() == set()


@pytest.mark.parametrize(
    "select",
    [
        COLUMNS.replace("kafka_value", "to_jsonb(kafka_value)"),
        COLUMNS.replace("id,", "id::int,"),
        COLUMNS.replace("kafka_header_keys", "kafka_header_keys::name[]"),
        f"1, {COLUMNS}",
    ],
)
def test_columns_of_other_types_are_left_to_python(dsn, select):
    made_outbox(dsn)
    insert(dsn, [("t", "k", '"v"', ["a"], ["b"])])
    with psycopg.connect(dsn) as connection:
        assert isinstance(rows_of(connection.cursor(binary=True).execute(f"SELECT {select} FROM outbox")), list)  # noqa: S608


@pytest.mark.parametrize(("parameters", "binary"), [({}, False), ({"client_encoding": "latin1"}, True)])
def test_results_in_another_form_are_left_to_python(dsn, parameters, binary):
    made_outbox(dsn)
    insert(dsn, [("t", "k", "é", [], [])])
    with psycopg.connect(dsn, **parameters) as connection:
        found = rows_of(connection.cursor(binary=binary).execute(ALL))
    assert isinstance(found, list)
    assert found[0][3] == "é"


@pytest.mark.parametrize(
    ("names", "contents", "is_plain"),
    [
        (["a"], ["b"], True),
        (["a"], [None], True),
        ([], [], True),
        (["a", "b"], ["b"], False),
        ([None], ["b"], False),
        ([["a"]], [["b"]], False),
        (["harvest"], ["b"], False),
        (["message-id"], ["b"], False),
    ],
)
def test_headers_that_need_a_closer_look_are_said_to(dsn, names, contents, is_plain):
    select = "SELECT 1::bigint, 't'::text, 'k'::text, NULL::text, %s::text[], %s::text[]"
    with psycopg.connect(dsn) as connection:
        found = rows_of(connection.cursor(binary=True).execute(select, (names, contents)))
        assert found.summary.is_plain is is_plain


def test_a_plugin_of_the_users_is_kept(bootstrap_servers, tmp_path):
    missing = tmp_path / "theirs.so"
    with pytest.raises(Exception, match=r"theirs\.so"):
        make_with_sender(Producer, {"bootstrap.servers": bootstrap_servers, "plugin.library.paths": str(missing)})


def test_a_wrapped_producer_sees_everything(bootstrap_servers):
    _, sender = make_with_sender(partial(Producer), {"bootstrap.servers": bootstrap_servers})
    assert sender is None


@pytest.mark.parametrize(("variable", "file"), [("other", None), ("native", "missing.so")])
def test_what_cannot_be_had_is_refused_when_it_is_asked_for(monkeypatch, tmp_path, variable, file):
    monkeypatch.setenv(library.VARIABLE, variable)
    if file:
        monkeypatch.setattr(library, "FILE", tmp_path / file)
    with pytest.raises(ConfigError, match=library.VARIABLE):
        implementation()


def test_without_the_library_python_does_it_and_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "FILE", tmp_path / "missing.so")
    assert implementation().name == "python"
    assert "without a C compiler" in implementation().reason


@pytest.mark.parametrize("end", ["", "import os; os._exit(0)", "import os; os.fork() or os._exit(0)"])
def test_an_interpreter_ends_while_records_are_on_their_way(dsn, bootstrap_servers, make_topic, end):
    made_outbox(dsn)
    topic = make_topic()
    insert(dsn, [(topic, "k", "v" * 200, [], [])] * 2_000)
    program = f"""
import psycopg
from confluent_kafka import Producer
from harvest_lib.native import make_with_sender, rows_of
made = [make_with_sender(Producer, {{"bootstrap.servers": {bootstrap_servers!r}}}) for _ in range(5)]
rows = rows_of(psycopg.connect({dsn!r}).cursor(binary=True).execute("SELECT {COLUMNS} FROM outbox"))
for producer, sender in made:
    sender.track()
    assert sender.send(rows, stamp=None) == (2000, 0)
{end}
"""  # noqa: S608 - a constant
    done = run_python(program, seconds=90)
    assert done.returncode == 0, done.stderr


def test_producers_come_and_go(bootstrap_servers, make_topic, dsn):
    made_outbox(dsn)
    topic = make_topic()
    insert(dsn, [(topic, "k", "v", [], [])] * 10)
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(ALL))
        for _ in range(50):
            producer, sender = make_with_sender(Producer, {"bootstrap.servers": bootstrap_servers})
            sender.send(rows, stamp=b"x" * 17)
            close_with_sender(producer, sender)
            assert sender.take_failures() == []


def test_a_process_that_is_frozen_amid_a_page_hands_over_no_more_of_it_once_it_is_late(dsn):
    """Frozen by a signal while the library hands over; its term was over when it thawed."""
    program = f"""
import os, signal, threading, time
import psycopg
from confluent_kafka import Producer
from harvest_lib.clock import boot_seconds
from harvest_lib.native import make_with_sender, rows_of

pid = os.getpid()
if not os.fork():
    while open(f"/proc/{{pid}}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.01)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    os._exit(0)

row = "'t'::text, 'k'::text, 'v'::text, '{{}}'::text[], '{{}}'::text[]"
select = f"SELECT id, {{row}} FROM generate_series(1::bigint, 400000) AS id"
rows = rows_of(psycopg.connect({dsn!r}).cursor(binary=True).execute(select))
settings = {{"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.messages": 1_000_000}}
producer, sender = make_with_sender(Producer, settings)

def freeze():
    while len(producer) < 1_000:
        pass
    os.kill(pid, signal.SIGSTOP)

threading.Thread(target=freeze).start()
went, code = sender.send(rows, stamp=None, until=boot_seconds() + 1)
print(code, 1_000 <= went < len(rows), flush=True)
os._exit(0)
"""  # noqa: S608 - a constant
    done = run_python(program, seconds=90)
    assert (done.stdout, done.stderr) == (f"{LATE} True\n", "")
