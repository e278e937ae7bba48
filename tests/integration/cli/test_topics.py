"""`harvest topics create` on a real broker."""

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from harvest_lib.kafka_client import topic_partitions

pytestmark = pytest.mark.gate


def test_topics_are_created_once_with_what_was_given(harvest, servers, unique, admin, bootstrap_servers):
    first, second = unique("first"), unique("second")
    options = (
        "--partitions",
        "3",
        "--replication-factor",
        "1",
        "--set",
        "retention.ms=1000",
        "--set",
        "segment.ms=500",
    )
    created = harvest("topics", "create", f"{first},{second}", *options, **servers)
    assert created.returncode == 0, created.stderr
    assert created.stdout.splitlines() == [f"created: topic {first}", f"created: topic {second}"]
    found = topic_partitions({"bootstrap.servers": bootstrap_servers})
    assert (found[first], found[second]) == (3, 3)
    resource = ConfigResource(ResourceType.TOPIC, first)
    settings = admin.describe_configs([resource])[resource].result(60)
    assert (settings["retention.ms"].value, settings["segment.ms"].value) == ("1000", "500")
    again = harvest("topics", "create", first, "--partitions", "9", **servers)
    assert (again.returncode, again.stdout) == (0, f"already exists: topic {first}\n")
    assert topic_partitions({"bootstrap.servers": bootstrap_servers})[first] == 3


def test_what_cannot_be_created_is_told(harvest, servers, unique):
    topic = unique("wrong")
    for arguments, code, text in (
        ((topic, "--set", "retention.ms"), 2, "is not NAME=VALUE"),
        ((",",), 2, "no topic is named"),
        ((topic, "--set", "no.such.setting=1"), 6, "no.such.setting"),
        ((topic, "--replication-factor", "3"), 6, "replication factor"),
        (("no@topic",), 6, "no@topic"),
    ):
        done = harvest("topics", "create", *arguments, **servers)
        assert done.returncode == code, (arguments, done.stderr)
        assert text in done.stderr
        assert "Traceback" not in done.stderr
