"""Bad input, with real servers: the result of each is defined, and the same for both implementations."""

import ctypes
import logging
import shutil
import threading
from types import MappingProxyType

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.handing_over import SOURCES, insert, made_outbox, parked
from support.outbox import harvest_config, read_topic
from support.row_shapes import ends, messages
from support.waiting import eventually

from harvest_lib.delivery.producer import BatchProducer
from harvest_lib.errors import ConfigError
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.local_stack.kafka import KafkaCluster
from harvest_lib.native import implementation, library
from infra.chaos.link import Links
from infra.native_build import compile_library

pytestmark = pytest.mark.full

_KILOBYTE, _MEGABYTE = 1_000, 1_000_000
_QUEUE, _DELAY_SECONDS = 200, 0.02
_PLUGIN = """
#include <stddef.h>
int made = 0;
int conf_init(void *conf, void **opaque, char *text, size_t size) { made++; return 0; }
"""


_SAYS_ITS_VERSION = f"int harvest_interface(void) {{ return {library.INTERFACE}; }}"
_CHANGES = {
    "of-other-functions": ("count != FUNCTIONS", "count != FUNCTIONS + 1"),
    "of-another-version": (_SAYS_ITS_VERSION, "int harvest_interface(void) { return 0; }"),
    "of-an-earlier-build": (_SAYS_ITS_VERSION, ""),
}


def drain(dsn, servers, group, **settings):
    return Harvest(harvest_config(dsn, servers, group, leadership="solo", **settings)).drain(120).records


def is_delivered_by_python(dsn, servers, group, topic, handed_over):
    """Have a few records delivered, and tell that Python has done it."""
    made_outbox(dsn)
    insert(dsn, [(topic, "k", f"{number}", [], []) for number in range(20)])
    assert drain(dsn, servers, group) == 20
    assert [value for _, _, _, value, _ in messages(servers, topic)] == [b"%d" % number for number in range(20)]
    return not handed_over["records"]


# -- libraries


class Older(ctypes.CDLL):
    """The clients' own libraries, which say that they are of another version."""

    said = MappingProxyType({})

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for name, version in self.said.items():
            setattr(self, name, lambda version=version: version)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"rd_kafka_version": 0x010902FF}, "librdkafka"),
        ({"rd_kafka_version": 0x030000FF}, "librdkafka"),
        ({"PQlibVersion": 130_009}, "libpq"),
    ],
)
def test_a_client_of_another_version_is_pythons(
    dsn, bootstrap_servers, group_id, make_topic, monkeypatch, use, handed_over, said, reason
):
    library.implementation.cache_clear()
    monkeypatch.setattr(library, "CDLL", type("Other", (Older,), {"said": said}))
    assert implementation().name == "python"
    assert f"does not know {reason}" in implementation().reason
    assert is_delivered_by_python(dsn, bootstrap_servers, group_id, make_topic(), handed_over)
    use("native")
    with pytest.raises(ConfigError, match=reason):
        implementation()


@pytest.mark.parametrize("what", ["cut-short", "something-else", "without-functions", *_CHANGES])
def test_a_library_that_cannot_be_used_is_left(
    dsn, bootstrap_servers, group_id, make_topic, monkeypatch, tmp_path, use, handed_over, what
):
    file, sources = tmp_path / "hand_over.so", tmp_path / "sources"
    if what == "cut-short":
        file.write_bytes(library.FILE.read_bytes()[:2_000] if library.FILE.exists() else b"\x7fELF")
    elif what == "something-else":
        file.write_text("#!/bin/sh\n" * 100)
    else:
        if what == "without-functions":
            sources.mkdir()
            (sources / "plugin.c").write_text(_PLUGIN)
        else:
            shutil.copytree(SOURCES, sources)
            source = sources / "hand_over.c"
            changed, other = _CHANGES[what]
            assert source.read_text().count(changed) == 1
            source.write_text(source.read_text().replace(changed, other))
        if reason := compile_library(sources, file):
            pytest.skip(f"there is no C compiler here: {reason}")
    monkeypatch.setattr(library, "FILE", file)
    assert implementation().name == "python"
    assert is_delivered_by_python(dsn, bootstrap_servers, group_id, make_topic(), handed_over)
    use("native")
    with pytest.raises(ConfigError, match=library.VARIABLE):
        implementation()


@pytest.mark.usefixtures("built")
def test_a_library_that_goes_away_while_it_is_used_is_left(
    dsn, bootstrap_servers, group_id, make_topic, monkeypatch, tmp_path, handed_over, caplog
):
    """As when the package is installed again under a process that runs."""
    monkeypatch.setattr(library, "FILE", tmp_path / "gone.so")
    with caplog.at_level(logging.WARNING):
        assert is_delivered_by_python(dsn, bootstrap_servers, group_id, make_topic(), handed_over)
    assert [each.message for each in caplog.records if each.name.startswith("harvest_lib.native")] == [
        "native_hand_over_unavailable"
    ]


@pytest.mark.parametrize("delivery", ["transactional", "pipelined", "sequenced"])
def test_a_plugin_of_the_users_is_loaded_too(
    dsn, bootstrap_servers, group_id, make_topic, tmp_path, impl, handed_over, delivery
):
    source, plugin = tmp_path / "theirs.c", tmp_path / "theirs.so"
    source.write_text(_PLUGIN)
    if reason := compile_library(source, plugin):
        pytest.skip(f"there is no C compiler here: {reason}")
    made_outbox(dsn)
    topic = make_topic()
    insert(dsn, [(topic, "k", f"{number}", [], []) for number in range(20)])
    settings = {"delivery": delivery, "producer_kafka_config": {"plugin.library.paths": str(plugin)}}
    made = ctypes.c_int.in_dll(ctypes.CDLL(str(plugin)), "made")  # librdkafka unloads it with the last producer
    assert drain(dsn, bootstrap_servers, group_id, **settings) == 20
    assert made.value >= 1
    assert handed_over["records"] == (20 if impl == "native" else 0)


def test_a_plugin_of_the_users_that_is_missing_is_refused(dsn, bootstrap_servers, group_id, tmp_path, impl):
    made_outbox(dsn)
    theirs = {"plugin.library.paths": str(tmp_path / "theirs.so")}
    with pytest.raises(ConfigError, match=r"theirs\.so"):
        drain(dsn, bootstrap_servers, group_id, producer_kafka_config=theirs)


# -- rows


@pytest.mark.parametrize("delivery", ["transactional", "pipelined", "sequenced"])
def test_large_values_arrive_whole_where_they_may_and_are_parked_elsewhere(
    dsn, bootstrap_servers, group_id, make_topic, impl, delivery
):
    made_outbox(dsn, "text")
    usual, wide = make_topic(), make_topic(**{"max.message.bytes": 30 * _MEGABYTE})
    small, large = "ж" * (450 * _KILOBYTE), "ж" * (10 * _MEGABYTE)  # two bytes each
    values = ["first", small, large, "last"]
    for topic in (usual, wide):
        insert(dsn, [(topic, f"{number}", value, ["a"], ["b"]) for number, value in enumerate(values)])
    wider = {"message.max.bytes": 30 * _MEGABYTE}
    drain(dsn, bootstrap_servers, group_id, delivery=delivery, producer_kafka_config=wider)
    for topic, arrived in ((usual, ["first", small, "last"]), (wide, values)):
        came = messages(bootstrap_servers, topic)
        assert [value.decode() for _, _, _, value, headers in came if ("a", b"b") in headers] == arrived
    assert [(record_id, "max.message.bytes" in reason) for record_id, reason in parked(dsn)] == [(3, True)]


def test_keys_that_are_null_are_the_same_for_both(dsn, bootstrap_servers, group_id, make_topic, impl):
    """No table of ours has one; a table whose constraint was dropped can."""
    made_outbox(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE outbox ALTER kafka_key DROP NOT NULL")
    topic = make_topic()
    insert(dsn, [(topic, key, f"{number}", [], []) for number, key in enumerate(["a", None, "b", None])])
    drain(dsn, bootstrap_servers, group_id, delivery="pipelined")
    found = [(key, value) for _, _, key, value, _ in messages(bootstrap_servers, topic)]
    assert found == [(b"a", b"0"), (None, b"1"), (b"b", b"2"), (None, b"3")]


# -- a queue that is full for long


@pytest.fixture(scope="module")
def far(parts, tmp_path_factory):
    """A broker behind a link, and the link."""
    with Links() as links:
        link = links.add()
        cluster = KafkaCluster(tmp_path_factory.mktemp("kafka"), parts=parts, detours={"detour": [link.port]})
        try:
            cluster.start()
            link.forward_to("127.0.0.1", cluster.ports["detour-1"])
            yield cluster, link
        finally:
            cluster.kill()


@pytest.mark.parametrize("delivery", ["transactional", "pipelined", "sequenced"])
def test_a_queue_that_stays_full_loses_nothing_and_changes_no_order(
    dsn, group_id, far, impl, handed_over, delivery, caplog, monkeypatch
):
    """The broker is away for longer than a record may wait: the batch is given up, and read again, and that twice."""
    cluster, link = far
    servers, topic, count = cluster.bootstrap_servers, f"topic-{group_id}", 20_000
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    made_outbox(dsn)
    insert(dsn, [(topic, f"{number % 5}", f"{number}", [], []) for number in range(count)])
    config = harvest_config(
        dsn, f"127.0.0.1:{link.port}", group_id, leadership="solo", delivery=delivery,
        producer_kafka_config={"queue.buffering.max.messages": _QUEUE, "delivery.timeout.ms": 1_500},
        session_timeout_seconds=6.0, limits={"heartbeat_timeout_seconds": 3.0},  # it waits so long once
    )  # fmt: skip

    def read():
        return [int(each.value) for each in read_topic(servers, topic, isolation="read_committed")]

    is_cut, wait_for_room = threading.Event(), BatchProducer._wait_for_room

    def cut_in_the_middle(*given):
        if not is_cut.is_set() and ends(servers, topic)[0] > _QUEUE:
            link.cut()
            is_cut.set()
        return wait_for_room(*given)

    monkeypatch.setattr(BatchProducer, "_wait_for_room", cut_in_the_middle)
    link.delay(_DELAY_SECONDS)  # so that the queue is full for long
    try:
        with Harvest(config):
            eventually(is_cut.is_set)
            eventually(lambda: [each.message for each in caplog.records].count("batch_failed") >= 2)
            assert ends(servers, topic)[0] < count
            link.heal()
            eventually(lambda: read()[-1:] == [count - 1])
    finally:
        link.heal()
    found = read()
    assert list(dict.fromkeys(found)) == list(range(count))
    if delivery != "pipelined":
        assert len(found) == count
    assert bool(handed_over["records"]) is (impl == "native")
