"""A library that is there and cannot be used: Python does it and says why, or it is refused if it was asked for."""

import os
import shutil
import subprocess
import sys

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer

from harvest_lib.delivery import AtLeastOnce, BatchDeliverySettings, Topics
from harvest_lib.errors import ConfigError
from harvest_lib.native import close_with_sender, implementation, library, make_with_sender, rows_of, sender
from harvest_lib.outbox import NativeTable, OutboxTable
from infra.native_build import compile_library

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        implementation().library is None, reason=f"there is no native library here: {implementation().reason}"
    ),
]

_THEIRS = """
#include <stdio.h>
int conf_init(void *conf, void **opaque, char *text, size_t size) {
    FILE *file = fopen("%s", "a");
    return file == NULL || fputs("loaded ", file) < 0 || fclose(file) != 0;
}
"""
_SETTINGS = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
_EVENT = "native_hand_over_unavailable"


@pytest.fixture(autouse=True)
def _said_anew():
    sender._say_unavailable.cache_clear()


@pytest.fixture
def theirs(tmp_path):
    """A plugin of a user's: its path, and the file that it writes to when it is loaded."""
    source, plugin, said = (tmp_path / name for name in ("theirs.c", "theirs.so", "said"))
    source.write_text(_THEIRS % said)
    assert compile_library(source, plugin) == ""
    return plugin, said


def said_in(caplog):
    return [record.reason for record in caplog.records if record.getMessage() == _EVENT]


@pytest.mark.parametrize("is_there", [True, False], ids=["no library", "missing"])
def test_a_plugin_that_cannot_be_loaded_leaves_it_to_python(monkeypatch, tmp_path, caplog, is_there):
    implementation()
    file = tmp_path / "hand_over.so"
    if is_there:
        file.write_text("no library")
    monkeypatch.setattr(library, "FILE", file)
    for _ in range(2):
        producer, native = make_with_sender(Producer, _SETTINGS)
        assert native is None
        producer.close()
    (reason,) = said_in(caplog)
    assert "hand_over.so" in reason


def test_a_plugin_that_cannot_be_loaded_is_refused_when_it_was_asked_for(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(library.VARIABLE, "native")
    implementation()
    monkeypatch.setattr(library, "FILE", tmp_path / "missing.so")
    with pytest.raises(ConfigError, match=r"missing\.so"):
        AtLeastOnce(BatchDeliverySettings(kafka=_SETTINGS, delivery_timeout_seconds=60), Topics(_SETTINGS))
    assert said_in(caplog) == []


def test_another_copy_of_the_library_is_not_used(monkeypatch, tmp_path, caplog):
    """As when the package was installed again under a process that runs."""
    implementation()
    copy = tmp_path / "hand_over.so"
    shutil.copy(library.FILE, copy)
    monkeypatch.setattr(library, "FILE", copy)
    producer, native = make_with_sender(Producer, _SETTINGS)
    assert native is None
    producer.close()
    assert len(said_in(caplog)) == 1


def test_a_users_plugin_is_loaded_beside_ours(theirs, caplog):
    plugin, said = theirs
    producer, native = make_with_sender(Producer, {**_SETTINGS, "plugin.library.paths": str(plugin)})
    assert native is not None
    assert said.read_text() == "loaded "
    close_with_sender(producer, native)
    assert said_in(caplog) == []


def test_a_users_plugin_is_loaded_though_ours_cannot_be(theirs, monkeypatch, tmp_path):
    plugin, said = theirs
    implementation()
    monkeypatch.setattr(library, "FILE", tmp_path / "missing.so")
    producer, native = make_with_sender(Producer, {**_SETTINGS, "plugin.library.paths": str(plugin)})
    assert native is None
    assert said.read_text().endswith("loaded ")
    producer.close()


def test_a_setting_that_librdkafka_does_not_take_is_refused_as_ever(caplog):
    with pytest.raises(KafkaException, match="acks"):
        make_with_sender(Producer, {**_SETTINGS, "acks": "some"})
    assert said_in(caplog) == []


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("_FIRST_UNKNOWN_LIBRDKAFKA", 0x01000000, "it does not know librdkafka"),
        ("_OLDEST_LIBPQ", 990000, "it does not know libpq"),
        ("_OF_LIBRDKAFKA", ("rd_kafka_that_was",), "rd_kafka_that_was"),
        ("_OF_LIBPQ", ("PQntuples",), "another version of harvest_lib"),
    ],
)
def test_libraries_of_other_versions_are_left_to_python(monkeypatch, name, value, reason):
    monkeypatch.setattr(library, name, value)
    chosen = implementation()
    assert (chosen.name, chosen.library) == ("python", None)
    assert reason in chosen.reason


def test_a_psycopg_that_is_not_compiled_is_left_to_python(monkeypatch):
    monkeypatch.setattr(psycopg.pq, "__impl__", "python")
    assert implementation().name == "python"
    assert "psycopg" in implementation().reason


def test_what_was_closed_sends_nothing(dsn):
    producer, native = make_with_sender(Producer, _SETTINGS)
    close_with_sender(producer, native)
    native.producer_closed()
    select = "SELECT 1::bigint, 't'::text, 'k'::text, 'v'::text, '{}'::text[], '{}'::text[]"
    with psycopg.connect(dsn) as connection:
        rows = rows_of(connection.cursor(binary=True).execute(select))
        with pytest.raises(RuntimeError, match="closed"):
            native.send(rows, stamp=None)


@pytest.mark.parametrize(
    "end",
    [
        "pid = os.fork()\nif not pid:\n    os._exit(sent_in_child())",
        "import threading\npid = 0\nfor _ in range(3):\n    threading.Thread(target=forever, daemon=True).start()",
    ],
    ids=["a fork sends", "threads send while the interpreter ends"],
)
@pytest.mark.parametrize("way", ["native", "python"])
def test_forks_and_ends_amid_a_batch_end_in_order(dsn, end, way):
    program = f"""
import os, sys
import psycopg
from confluent_kafka import Producer
from harvest_lib.native import close_with_sender, make_with_sender, rows_of

connection = psycopg.connect({dsn!r})
row = "'t'::text, 'k'::text, 'v'::text, '{{}}'::text[], '{{}}'::text[]"
select = f"SELECT id, {{row}} FROM generate_series(1::bigint, 2000) AS id"
rows = rows_of(connection.cursor(binary=True).execute(select))
producer, sender = make_with_sender(Producer, {{"bootstrap.servers": "127.0.0.1:1", "log_level": 0}})
assert (sender is None) is ({way!r} == "python")

def send():
    if sender is not None:
        sender.send(rows, stamp=None)
    else:
        for row in rows:
            try:
                producer.produce(row[1], row[3], row[2])
            except BufferError:
                return

def sent_in_child():
    "Return 0 if nothing is sent where a lock may be held by a thread that is not there."
    if sender is None:
        return 0
    try:
        sender.send(rows, stamp=None)
    except RuntimeError as error:
        sender.producer_closed()
        return "forked" not in str(error)
    return 2

def forever():
    while True:
        send()

send()
{end}
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""  # noqa: S608 - a constant
    environment = {**os.environ, library.VARIABLE: way}
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("way", ["native", "python"])
@pytest.mark.parametrize("delivery", ["pipelined", "transactional"])
def test_a_harvester_that_is_started_after_a_fork_harvests(dsn, bootstrap_servers, group_id, make_topic, way, delivery):
    with psycopg.connect(dsn, autocommit=True) as connection:
        NativeTable(outbox=OutboxTable.parse("outbox")).create(connection)
        insert = "INSERT INTO outbox (kafka_topic, kafka_key) SELECT %s, 'k' FROM generate_series(1, 100)"
        connection.execute(insert, (make_topic(),))
    program = f"""
import os
from harvest_lib.config import HarvestConfig
from harvest_lib.harvester.harvest import Harvest

config = HarvestConfig(
    data_source={dsn!r},
    base_kafka_config={{"bootstrap.servers": {bootstrap_servers!r}}},
    leader_group_id={group_id!r},
    leadership="solo",
    delivery={delivery!r},
)
harvest = Harvest(config)
pid = os.fork()
if not pid:
    os._exit(harvest.drain(60).records)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 100
"""
    environment = {**os.environ, library.VARIABLE: way}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
