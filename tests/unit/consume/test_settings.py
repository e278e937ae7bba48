"""Settings of librdkafka that a consumer makes itself: refused by their names, before anything is connected to."""

import threading

import pytest

from harvest_lib.consume import Consumer
from harvest_lib.consume.group_settings import group_settings
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("name", "value"),
    [("group.protocol", "classic"), ("group.id", "c"), ("enable.auto.commit", False), ("enable.auto.commit", "false")],
)
def test_a_setting_that_is_the_consumer_s_own_may_be_repeated(name, value):
    assert group_settings({name: value}, "c")["group.id"] == "c"


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("group.protocol", "consumer", "classic protocol"),
        ("group.id", "mine", "consumer's `name`"),
        ("enable.auto.commit", True, "checkpoints"),
        ("auto.offset.reset", "earliest", "begins with the log"),
        ("isolation.level", "read_uncommitted", "parameter `isolation`"),
        ("partition.assignment.strategy", "range", "not given up"),
    ],
)
def test_a_setting_that_the_consumer_makes_itself_is_refused(name, value, instead):
    settings = {"bootstrap.servers": "127.0.0.1:1", name: value}
    consumer = Consumer(None, name="c", topics=["t"], settings=settings, store=None)
    with pytest.raises(ConfigError, match=instead) as error:
        consumer.run(threading.Event())
    assert error.value.next_step == f"leave out `{name}`"
    assert error.value.exit_code == 3


def test_a_topic_that_is_no_list_is_refused():
    """Its letters would be the topics."""
    with pytest.raises(ConfigError, match="`topics` must be a list") as error:
        Consumer(None, name="c", topics="returns", settings={"bootstrap.servers": "127.0.0.1:1"}, store=None)
    assert error.value.next_step == "write `topics=['returns']`"
