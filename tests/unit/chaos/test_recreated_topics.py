"""Topics that are deleted and recreated: the records that may be missing then, and that no others may."""

import pytest
from support.written_history import OTHER, PROMISES, Pen

from infra.chaos.checker import check
from infra.chaos.history.lines import from_line, to_line

pytestmark = [pytest.mark.quick, pytest.mark.parametrize("promise", PROMISES)]


def unexplained(pen, promise):
    return set(check(pen.events, promise).unexplained)


def before():
    """Return a history up to a deletion: a1 was read, a2 and b1 were acknowledged and read by nobody."""
    return Pen().write("a1").harvest("a1").poll("a1").write("a2 b1").harvest("a2 b1")


def read_to_the_end(pen, names):
    """Let the follower and one that comes at the end read the topic as it was recreated."""
    return pen.assign(0).poll(names).assign(0, process="last").poll(names, process="last")


def test_what_went_with_the_topic_need_not_be_seen(promise):
    pen = before().recreate("a2 b1", since=0.008).write("a3").harvest("a3")
    assert check(read_to_the_end(pen, "a3").events, promise).to_json()["unexplained"] == {}
    assert not check(pen.events, promise).explained


def test_what_is_not_said_to_have_gone_must_be_seen(promise):
    pen = before().recreate("a2", since=0.008).write("a3").harvest("a3")
    assert unexplained(read_to_the_end(pen, "a3"), promise) == {"lost-write"}


@pytest.mark.parametrize("names", ["a1", ""])
def test_a_transaction_with_a_part_in_either_topic_is_not_torn(promise, names):
    pen = Pen().write("a1 b1").transaction("begin").produce("a1 b1").acknowledge("a1", 0).recreate(names)
    pen.acknowledge("b1", 0).transaction("commit")
    lost = {"torn-transaction", "unseen"} if promise.transactional else {"lost-write"}
    assert unexplained(read_to_the_end(pen, "b1"), promise) == (set() if names else lost)


def test_what_was_answered_by_when_all_was_read_is_lost(promise):
    """Nobody has read what the one who deleted the topic says was read."""
    pen = before()
    pen.recreate("a2 b1", since=pen.events[-1].time).write("a3").harvest("a3")
    assert unexplained(read_to_the_end(pen, "a3"), promise) == {"lost-write"}


def test_what_kafka_never_acknowledged_is_lost(promise):
    pen = Pen().write("a1").harvest("a1").poll("a1").write("a2").produce("a2").recreate("a2", since=0.008)
    pen.write("a3").harvest("a3")
    assert unexplained(read_to_the_end(pen, "a3"), promise) == {"lost-write"}


def test_what_stood_before_what_was_read_is_lost(promise):
    """It was there to be read."""
    pen = Pen().write("a1").write("b1").harvest("a1 b1").poll("b1", at=1).recreate("a1").write("b2").harvest("b2")
    assert "lost-write" in unexplained(read_to_the_end(pen, "b2"), promise)


def test_a_transaction_that_was_not_to_be_committed_takes_nothing_with_it(promise):
    pen = Pen().write("a1").transaction("begin").produce("a1").acknowledge("a1", 0).transaction("abort").recreate("a1")
    expected = {"unseen"} if promise.transactional else set()
    assert unexplained(read_to_the_end(pen.write("b1").harvest("b1"), "b1"), promise) == expected


def test_what_went_may_come_again(promise):
    """Records without an answer are sent by their leader to the new topic."""
    pen = before().recreate("a2 b1").write("a3").harvest("a2 b1 a3", OTHER)
    assert unexplained(read_to_the_end(pen, f"a2@{OTHER} b1@{OTHER} a3@{OTHER}"), promise) == set()


def test_a_loss_in_the_topic_as_it_was_made_anew(promise):
    pen = before().recreate("a2 b1").write("a3").write("a4").harvest("a3").harvest("a4")
    assert unexplained(read_to_the_end(pen, "1:a4"), promise) == {"lost-write"}
    pen = before().write("a3").recreate("a2 b1 a3").harvest("a3").write("a4").harvest("a4")
    assert unexplained(read_to_the_end(pen, "1:a4"), promise) == {"lost-write"}, "it was acknowledged in the new one"


def test_the_order_of_a_key_goes_on_in_the_new_topic(promise):
    pen = before().recreate("b1").write("a3").harvest("a3 a2", OTHER)
    assert "int-nonmonotonic-send" not in unexplained(pen, promise)
    assert "nonmonotonic-send" in unexplained(read_to_the_end(pen, f"a3@{OTHER} a2@{OTHER}"), promise)
    (finding,) = (each for each in check(pen.events, promise).findings if each.name == "nonmonotonic-send")
    assert "orders/0@0 after deletion 1" in finding.sentence


def test_a_copy_in_the_new_topic_counts_as_in_the_old(promise):
    pen = Pen().write("a1").write("a2").harvest("a1 a2").poll("a1 a2").recreate().harvest("a1", OTHER)
    assert unexplained(read_to_the_end(pen, f"a1@{OTHER}"), promise) == {"duplicate-cross-epoch"}, "it steps back"
    pen = Pen().write("a1").harvest("a1").poll("a1").recreate().harvest("a1", OTHER)
    expected = {"duplicate-cross-epoch"} if promise.transactional else set()
    assert unexplained(read_to_the_end(pen, f"a1@{OTHER}"), promise) == expected


def test_the_client_may_send_again_what_was_in_flight(promise):
    """Under one leader it was handed over once, and is in both."""
    pen = Pen().write("a1").produce("a1").poll("a1").recreate().acknowledge("a1", 0)
    expected = {"duplicate-adjacent"} if promise.transactional else set()
    assert unexplained(read_to_the_end(pen, "a1"), promise) - {"unseen"} == expected
    pen = Pen().write("a1").produce("a1").poll("a1").produce("a1").acknowledge("a1", 0).acknowledge("a1", 0).recreate()
    assert unexplained(read_to_the_end(pen, "a1"), promise) == {"duplicate-adjacent"}, "for no reason"


def test_offsets_begin_again_only_if_the_topic_did(promise):
    pen = before().write("b2").harvest("b2").poll("b2", at=0)
    assert {"nonmonotonic-poll", "inconsistent-offsets"} <= unexplained(pen, promise)


def test_who_was_not_assigned_the_new_topic_is_in_the_old_one(promise):
    pen = before().recreate("a2 b1").write("a3").harvest("a3").poll("a3")
    assert {"nonmonotonic-poll", "inconsistent-offsets"} <= unexplained(pen, promise)


def test_readers_of_the_old_topic_may_be_late(promise):
    """They got it before, and were assigned nothing since."""
    pen = before().write("a3").write("b2").harvest("a3").recreate().harvest("b2")
    pen.assign(0, process="new").poll("b2", process="new").poll("a2 b1 a3", at=1)
    assert unexplained(pen, promise) == set()


def test_two_topics_after_another(promise):
    pen = before().recreate("a2 b1").write("a3").harvest("a3").assign(0).poll("a3")
    since = pen.events[-1].time
    pen.write("a4").harvest("a4").recreate("a4", since=since).write("a5").harvest("a5")
    assert unexplained(read_to_the_end(pen, "a5"), promise) == set()
    wrong = before().recreate("a2 b1").write("a3").recreate("a3").write("a4").harvest("a4")
    assert unexplained(read_to_the_end(wrong, "a4"), promise) == {"lost-write"}, "a3 was in neither"


def test_readers_that_differ_on_the_new_topic_are_inconsistent(promise):
    pen = before().recreate("a2 b1").write("a3 b2").harvest("a3 b2").assign(0).poll("a3 b2")
    pen.assign(0, process="last").poll("b2 a3", process="last")
    assert "inconsistent-offsets" in unexplained(pen, promise)


def test_a_poll_that_passes_over_is_told_with_its_offsets(promise):
    pen = before().recreate("a2 b1").write("a3").write("a4").write("a5").harvest("a3 a4 a5")
    pen.assign(0).poll("0:a3 2:a5").assign(0, process="last").poll("a3 a4 a5", process="last")
    (finding,) = check(pen.events, promise).findings
    assert finding.name == "int-poll-skip"
    assert "from 0 to 2 and passed over 1 records, the first at 1" in finding.sentence
    assert {record.offset for event in finding.events for record in event.records} == {0, 1, 2}


def test_the_event_comes_back_from_its_line(promise):
    (event,) = Pen().recreate("a1 b1", since=3.5).events
    assert from_line(to_line(event)) == event
    with pytest.raises(ValueError, match="field `topic`"):
        from_line(to_line(event).replace('"orders"', "null"))
    assert check([event], promise).ok
