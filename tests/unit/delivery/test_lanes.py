"""Lanes over producers that do as the test says: the fate of records that land late, or never."""

import uuid

import pytest
from confluent_kafka import Message
from support.brokers import begun, failed_ids, ids, send
from support.rows import LANDED, row

from harvest_lib.clock import Deadline
from harvest_lib.delivery import AtLeastOnce, Lanes, LaneSettings, Pipelined, Topics

pytestmark = pytest.mark.quick


class Slow:
    """A producer whose records land when the test says so, or never."""

    def __init__(self, settings):
        self.settings, self.callbacks, self.landing, self.message = settings, [], False, LANDED

    def produce(self, _topic, _value, _key, _partition, callback, *_):
        self.callbacks.append(callback)

    def poll(self, _seconds=0):
        while self.landing and self.callbacks:
            if (callback := self.callbacks.pop(0)) is not None:
                callback(None, self.message)
        return 0

    flush = poll

    def __len__(self):
        return len(self.callbacks)

    def purge(self, **_):
        pass

    def close(self):
        return True


def test_pipelined_what_was_overdue_and_landed_after_all_is_said_to_have_halted():
    """Else the lane would take nothing more, and nobody would begin it again."""
    made = []
    settings = LaneSettings(
        kafka={}, delivery_timeout_seconds=0.01, producer_provider=lambda given: made.append(Slow(given)) or made[-1]
    )
    delivery = begun(Pipelined(settings, Topics({})))
    assert send(delivery, row(1, "k")) == []
    delivery._give_up = Deadline(600)  # as when it is overdue
    made[0].landing = True
    seen = [delivery.poll(0) for _ in range(3)]
    assert [each.acknowledged for each in seen] == [[1], [], []]
    assert [each.halted for each in seen].count(True) == 1
    assert ids(send(delivery, row(2, "k"))) == [2], "it takes nothing before it begins"
    delivery.begin(uuid.uuid4())
    assert send(delivery, row(2, "k")) == []
    delivery.close()


def test_a_report_without_an_offset_is_the_clients_inference_and_counts_as_failed():
    made = []
    settings = LaneSettings(
        kafka={}, delivery_timeout_seconds=600, producer_provider=lambda given: made.append(Slow(given)) or made[-1]
    )
    delivery = begun(AtLeastOnce(settings, Topics({})))
    assert send(delivery, row(1, "k")) == []
    made[0].landing, made[0].message = True, Message()
    reports = delivery.poll(0)
    assert (reports.acknowledged, failed_ids(reports)) == ([], [1])
    assert not reports.failed[0].refused
    delivery.close()


@pytest.mark.parametrize("kind", [AtLeastOnce, Pipelined])
def test_a_record_that_its_producer_never_reports_is_reported_failed(kind):
    delivery = begun(kind(LaneSettings(kafka={}, delivery_timeout_seconds=600, producer_provider=Slow), Topics({})))
    send(delivery, row(1, "k"))
    assert failed_ids(delivery.abandon()) == [1]
    assert delivery.outstanding == 0


def test_the_settings_of_a_lane_show_no_secret():
    """I10."""
    assert "hunter2" not in repr(LaneSettings(kafka={"sasl.password": "hunter2"}, delivery_timeout_seconds=600))


def test_a_fatally_failed_producer_is_replaced_only_when_what_it_has_on_the_wire_has_landed():
    """Else the next one's records could be followed by these."""
    made = []
    settings = LaneSettings(
        kafka={}, delivery_timeout_seconds=600, producer_provider=lambda given: made.append(Slow(given)) or made[-1]
    )
    delivery = begun(AtLeastOnce(settings, Topics({})))
    send(delivery, row(1, "k"))
    delivery._dead, first = True, made[0]
    first.purge = lambda **_: first.callbacks.clear()  # nothing would come of it any more
    first.landing = True
    delivery.begin(uuid.uuid4())
    assert len(made) == 2
    assert delivery.poll(0).acknowledged == [1]


def test_lanes_that_are_abandoned_stop_sending_before_the_first_is_closed():
    said = []

    class Noted(Slow):
        def purge(self, **_):
            said.append(("purge", id(self)))

        def close(self):
            said.append(("close", id(self)))

    settings = LaneSettings(kafka={}, delivery_timeout_seconds=600, producer_provider=Noted)
    Lanes([AtLeastOnce(settings, Topics({})) for _ in range(3)]).abandon()
    first_close = [what for what, _ in said].index("close")
    assert len({lane for what, lane in said[:first_close] if what == "purge"}) == 3
