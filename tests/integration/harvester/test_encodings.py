"""Databases of other encodings: delivered values are UTF-8, or the bytes that are there; a record that cannot be read
holds up nobody."""

import json

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from support.encoded import prepared, write
from support.outbox import harvest_config
from typer.testing import CliRunner

from harvest_lib.audit.committed import read_query
from harvest_lib.cli import app
from harvest_lib.harvester.harvest import Harvest
from harvest_lib.outbox import OutboxTable
from harvest_lib.outbox.parking import ParkedIdTable, ParkedRecords
from harvest_lib.postgres.database import connect

pytestmark = pytest.mark.gate

ENGINES = [("mark", "barrier"), ("mark", "pipelined"), ("snapshot", "barrier"), ("transaction_id", "transactional")]


def messages(bootstrap_servers, topic):
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "r",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    numbers = consumer.list_topics(topic, 60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
    found, ended = [], 0
    while ended < len(numbers):
        message = consumer.poll(60)
        assert message is not None
        if message.error():
            ended += 1
        else:
            found.append(message)
    consumer.close()
    return {message.key(): message for message in found}


def drained(dsn, bootstrap_servers, group_id, engine):
    source, delivery = engine
    config = harvest_config(dsn, bootstrap_servers, group_id, source=source, delivery=delivery, leadership="solo")
    Harvest(config).drain(60)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("engine", ENGINES, ids="-".join)
def test_latin1_is_delivered_as_utf8(encoded, make_topic, bootstrap_servers, group_id, engine):
    topic, dsn = make_topic(partitions=2), encoded("LATIN1")
    prepared(dsn, topic, engine[0])
    write(dsn, "LATIN1", (topic.encode(), b"caf\xe9", b"na\xefve", ["h"], ["\xfcber"]))
    drained(dsn, bootstrap_servers, group_id, engine)
    message = messages(bootstrap_servers, topic)["café".encode()]
    assert message.value() == "naïve".encode()
    assert dict(message.headers())["h"] == "über".encode()


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("engine", ENGINES, ids="-".join)
def test_without_an_encoding_bytes_are_delivered_and_what_cannot_be_read_is_parked(
    encoded, make_topic, bootstrap_servers, group_id, engine
):
    topic, dsn = make_topic(partitions=2), encoded("SQL_ASCII")
    prepared(dsn, topic, engine[0])
    name = topic.encode()
    write(
        dsn,
        "SQL_ASCII",
        (name, b"first", b"1", [], []),
        (name, b"value", b"caf\xe9", [], []),
        (name, b"k\xe9y", b"key", [], []),
        (name + b"\xff", b"topic", b"topic", [], []),
        (name, b"header", b"header", [b"h"], [b"\xe9"]),
        (name, "café".encode(), "naïve".encode(), [b"h"], ["ü".encode()]),
        (name, b"k\xe9y", b"behind", [], []),
        (name, b"last", b"2", [], []),
    )
    drained(dsn, bootstrap_servers, group_id, engine)
    came = messages(bootstrap_servers, topic)
    assert set(came) == {b"first", b"value", "café".encode(), b"last"}
    assert came[b"value"].value() == b"caf\xe9"
    assert came["café".encode()].value() == "naïve".encode()
    table = OutboxTable.parse("outbox")
    with connect(dsn) as connection:
        parked = ParkedRecords(table) if engine[0] == "mark" else ParkedIdTable(table)
        listed = {each.id: each for each in parked.list(connection)}
        row = parked.show(connection, 3).row
    assert row["kafka_value"] == "key"
    assert list(listed) == [3, 4, 5, 7]
    assert listed[3].reason == r"the key is not UTF-8: k\xe9y"
    assert listed[4].reason.startswith("the topic is not UTF-8: ")
    assert listed[5].reason == r"the value of a header is not UTF-8: \xe9"
    assert listed[7].held
    committed = list(read_query(dsn, "SELECT id, kafka_key FROM outbox ORDER BY id"))
    if engine[0] != "mark":
        assert committed[2].key == b"k\xe9y"


def test_what_cannot_be_read_is_shown(encoded, make_topic, bootstrap_servers, group_id, tmp_path):
    topic, dsn = make_topic(partitions=2), encoded("SQL_ASCII")
    prepared(dsn, topic, "snapshot")
    write(dsn, "SQL_ASCII", (topic.encode(), b"k\xe9y", b"v\xff", [b"h"], [b"\xe9"]))
    drained(dsn, bootstrap_servers, group_id, ("snapshot", "barrier"))
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump({"harvest": {"dataSource": dsn, "leaderGroupID": group_id}}))
    for arguments in (["list"], ["list", "--json"], ["show", "1", "--value"], ["show", "1", "--value", "--json"]):
        result = CliRunner().invoke(app, ["park", *arguments, "-f", str(config)])
        assert result.exit_code == 0, (arguments, result.output, result.exception)
        result.output.encode()
        if "--json" in arguments:
            json.loads(result.output)
    assert "xe9" in CliRunner().invoke(app, ["park", "list", "-f", str(config)]).output
