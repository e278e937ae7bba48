"""What is handed over natively is what Python hands over: keys, values, headers, order; and nothing fails unheard."""

import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from functools import partial

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from support.outbox import harvest_config

from harvest_lib import record_header
from harvest_lib.errors import ConfigError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.native import (
    NativeRows,
    NativeSender,
    close_with_sender,
    implementation,
    library,
    make_with_sender,
    rows_of,
)
from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.sequencing.message_id import HEADER_NAME as ID_HEADER
from harvest_lib.sequencing.message_id import Flag, unpack
from infra.native_build import compile_library

pytestmark = pytest.mark.skipif(
    implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
)

_COLUMNS = "id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
_INSERT = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (%s, %s, %s, %s, %s)
"""
_TEXTS = ["", "a", "key", "ключ", "鍵" * 20, "🔑", "line\nbreak", "'quoted' \"too\"", "harvest", "{}", "\x01\x7f"]


@pytest.fixture(autouse=True)
def _asked_anew():
    library.implementation.cache_clear()
    yield
    library.implementation.cache_clear()


@pytest.fixture
def handed_over(monkeypatch):
    """Count the records that go natively."""
    counted = Counter()
    send = NativeSender.send

    def counting(self, rows, **named):
        went, code = send(self, rows, **named)
        counted["records"] += went
        return went, code

    monkeypatch.setattr(NativeSender, "send", counting)
    return counted


def made_outbox(dsn, value_type="varchar"):
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox"), value_type=value_type).create(connection)


def generated(topics, count, value_type, dice):
    """Return rows of every shape that can be sent."""

    def value():
        if dice.random() < 0.1:
            return None
        if value_type == "bytea":
            return dice.randbytes(dice.choice([0, 1, 30, 3_000]))
        return dice.choice(_TEXTS) * dice.choice([1, 1, 1, 40])

    def header():
        name = dice.choice(["type", "type", "", "ключ", "n" * 300, "harvest", ID_HEADER])
        return name, None if dice.random() < 0.1 else dice.choice(_TEXTS)

    for _ in range(count):
        headers = [header() for _ in range(dice.choice([0, 1, 1, 2, 7]))]
        names, contents = [list(each) for each in zip(*headers, strict=True)] if headers else ([], [])
        yield dice.choice(topics), dice.choice(_TEXTS)[:90], value(), names, contents


def insert(dsn, rows):
    with psycopg.connect(dsn) as connection:
        connection.cursor().executemany(_INSERT, list(rows))


def messages(servers, topic):
    """Return the messages of each partition, as bytes, in order; committed ones."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    numbers = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1] for number in numbers}
    found = defaultdict(list)
    try:
        while any(
            max(0, each.offset) < ends[each.partition]
            for each in consumer.position([TopicPartition(topic, number) for number in numbers])
        ):
            for message in consumer.consume(1_000, 0.1):
                assert not message.error()
                found[message.partition()].append((message.key(), message.value(), message.headers() or []))
    finally:
        consumer.close()
    return found


def taken_apart(message):
    """Return a message without what differs from run to run: who sent it, and when."""
    key, value, headers = message
    *own, (name, stamp) = headers
    assert name == record_header.HEADER_NAME
    if own and own[0][0] == ID_HEADER and len(own[0][1] or b"") == 16:
        own = own[1:]
    return key, value, own, record_header.split(stamp)[1]


@pytest.mark.parametrize("value_type", ["varchar", "bytea"])
@pytest.mark.parametrize("delivery", ["transactional", "pipelined", "sequenced"])
@pytest.mark.parametrize("count", [3_000, pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.timeout(1_800)
def test_both_ways_write_the_same(
    dsn, bootstrap_servers, group_id, make_topic, monkeypatch, handed_over, delivery, value_type, count
):
    made_outbox(dsn, value_type)
    topics = [make_topic(partitions=3), make_topic(partitions=1)]
    insert(dsn, generated(topics, count, value_type, random.Random(f"{delivery} {value_type}")))
    ended = {}
    for way in ("python", "native"):
        monkeypatch.setenv(library.VARIABLE, way)
        library.implementation.cache_clear()
        config = harvest_config(
            dsn, bootstrap_servers, f"{group_id}.{way}", subscription=way, delivery=delivery, leadership="solo"
        )
        assert Harvest(config).drain(900).records == count
        ended[way] = handed_over["records"]
    assert ended == {"python": 0, "native": count}
    for topic in topics:
        for number, found in messages(bootstrap_servers, topic).items():
            sent = [each for each in found if each[2][-1][0] == record_header.HEADER_NAME]
            half = len(sent) // 2
            first, second = ([taken_apart(each) for each in some] for some in (sent[:half], sent[half:]))
            assert first == second, (topic, number)
            if delivery == "sequenced":
                ids = [unpack(headers[0][1]) for _, _, headers in sent[half:]]
                assert {each.flag for each in ids} == {Flag.CONTINUE_TXN}
                assert len({each.producer for each in ids}) == 1
                assert [each.clock for each in ids] == sorted({each.clock for each in ids})


def test_a_full_queue_is_waited_for(dsn, bootstrap_servers, group_id, make_topic, handed_over):
    made_outbox(dsn)
    topic = make_topic()
    insert(dsn, [(topic, "k", f"{number}", [], []) for number in range(5_000)])
    config = harvest_config(
        dsn, bootstrap_servers, group_id, leadership="solo", delivery="pipelined",
        producer_kafka_config={"queue.buffering.max.messages": 100},
    )  # fmt: skip
    assert Harvest(config).drain(60).records == 5_000
    assert handed_over["records"] == 5_000
    assert [int(value) for _, value, _ in messages(bootstrap_servers, topic)[0]] == list(range(5_000))


def test_what_fails_after_it_was_handed_over_is_heard_once_of_each_kind(bootstrap_servers, make_topic, dsn):
    made_outbox(dsn)
    topic = make_topic(**{"max.message.bytes": 1_000})
    insert(dsn, [(topic, "k", "x" * 3_000, [], [])] * 20)
    heard = []
    producer, sender = make_with_sender(
        Producer, {"bootstrap.servers": bootstrap_servers, "on_delivery": lambda *each: heard.append(each)}
    )
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(f"SELECT {_COLUMNS} FROM outbox"))  # noqa: S608
        assert sender.send(rows, stamp=None) == (20, 0)
        producer.produce(topic, "y" * 3_000)
        producer.flush(20)
    assert [(error.code(), where) for error, where in sender.take_failures()] == [
        (KafkaError.MSG_SIZE_TOO_LARGE, topic)
    ]
    assert sender.take_failures() == []
    assert [error.code() for error, _ in heard] == [KafkaError.MSG_SIZE_TOO_LARGE], "Python's own is Python's to hear"


def test_where_records_arrived_is_told_once(bootstrap_servers, make_topic, dsn):
    made_outbox(dsn)
    topics = [make_topic(partitions=3), make_topic()]
    insert(dsn, [(topic, f"{number}", "v", [], []) for number in range(50) for topic in topics])
    producer, sender = make_with_sender(Producer, {"bootstrap.servers": bootstrap_servers})
    sender.track()
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(f"SELECT {_COLUMNS} FROM outbox"))  # noqa: S608
        sender.send(rows, stamp=None)
        producer.flush(20)
    places = {(topics[0], 0), (topics[0], 1), (topics[0], 2), (topics[1], 0)}
    found = sender.take_places()
    assert set(found) == places
    assert len(found) == len(places)
    assert sender.take_places() == []


def test_a_view_of_rows_is_the_rows(dsn):
    made_outbox(dsn)
    insert(dsn, generated(["t"], 50, "varchar", random.Random(1)))
    with psycopg.connect(dsn) as connection:
        select = f"SELECT 'before', {_COLUMNS} FROM outbox ORDER BY id"  # noqa: S608 - a constant
        expected = [row[1:] for row in connection.execute(select).fetchall()]
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


@pytest.mark.parametrize(
    "select",
    [
        _COLUMNS.replace("kafka_value", "to_jsonb(kafka_value)"),
        _COLUMNS.replace("id,", "id::int,"),
        _COLUMNS.replace("kafka_header_keys", "kafka_header_keys::name[]"),
        f"{_COLUMNS}, 1",
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
        found = rows_of(connection.cursor(binary=binary).execute(f"SELECT {_COLUMNS} FROM outbox"))  # noqa: S608
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
    assert "no C compiler" in implementation().reason


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
rows = rows_of(psycopg.connect({dsn!r}).cursor(binary=True).execute("SELECT {_COLUMNS} FROM outbox"))
for producer, sender in made:
    sender.track()
    assert sender.send(rows, stamp=None) == (2000, 0)
{end}
"""  # noqa: S608 - a constant
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_memory_is_misused(tmp_path):
    """These tests once more, with a library that finds out."""
    sanitizers = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    fresh = tmp_path / "hand_over.so"
    source = library.FILE.with_suffix(".c")
    assert compile_library(source, fresh, "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover") == ""
    program = f"""
import pathlib, sys, pytest
from harvest_lib.native import library
library.FILE = pathlib.Path({str(fresh)!r})
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {__file__!r}]))
"""
    options = {
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={tmp_path}/asan",
        "UBSAN_OPTIONS": f"log_path={tmp_path}/ubsan",
    }
    environment = os.environ | options | {"LD_PRELOAD": " ".join(sanitizers)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    found = [path.read_text() for path in tmp_path.glob("*san.*")]
    assert (done.returncode, found) == (0, []), done.stdout[-3_000:] + done.stderr[-3_000:]
    assert " passed" in done.stdout


def test_producers_come_and_go(bootstrap_servers, make_topic, dsn):
    made_outbox(dsn)
    topic = make_topic()
    insert(dsn, [(topic, "k", "v", [], [])] * 10)
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(f"SELECT {_COLUMNS} FROM outbox"))  # noqa: S608
        for _ in range(50):
            producer, sender = make_with_sender(Producer, {"bootstrap.servers": bootstrap_servers})
            sender.send(rows, stamp=b"x" * 17)
            close_with_sender(producer, sender)
            assert sender.take_failures() == []
