"""The order of keys and of polls, and copies: what each promise allows, in the smallest histories."""

from dataclasses import replace

import pytest
from support.written_history import BARRIER, LEADER, OTHER, PIPELINED, PROMISES, TRANSACTIONAL, Pen

from infra.chaos.checker import check
from infra.chaos.history.events import Poll, Write

pytestmark = pytest.mark.quick

THIRD = "leader-3"


def found(pen, promise):
    """Return how often each anomaly was found unexplained, and explained."""
    verdict = check(pen.events, promise)
    return dict(verdict.unexplained), dict(verdict.explained)


def written(names):
    """Return a pen that has written these records singly, each once, in the order of their numbers."""
    pen = Pen()
    for name in sorted(set(names.split())):
        pen.write(name)
    return pen


@pytest.mark.parametrize("promise", PROMISES)
def test_first_occurrences_out_of_order(promise):
    assert found(written("a1 a2 b1").poll("a2 b1 a1"), promise) == ({"nonmonotonic-send": 1}, {})
    assert found(Pen().write("a1 a2").poll("a2 a1"), promise) == ({"int-nonmonotonic-send": 1}, {})
    assert found(written("a1 a2 b1").poll("b1 a1 a2"), promise) == ({}, {})


@pytest.mark.parametrize("promise", PROMISES)
def test_a_write_with_another_between_its_records(promise):
    """Kafka lets writes interleave; where that is not how they were written, the order is broken as well."""
    pen = Pen().write("a1 a3").write("a2")
    assert found(pen.poll("a1 a2 a3"), promise) == ({}, {"int-send-skip": 1})
    pen = Pen().write("a1 a2").write("a3").poll("a1 a3 a2")
    assert found(pen, promise) == ({"int-send-skip": 1, "nonmonotonic-send": 1}, {})


@pytest.mark.parametrize("promise", PROMISES)
def test_records_whose_write_failed_have_no_place_in_the_order(promise):
    pen = Pen().fail("a2").write("a1").poll("a2 a1")
    assert found(pen, promise) == ({"aborted-read": 1}, {})


CROSS = "duplicate-cross-epoch"
COPIES = [
    # the key's log, what the barrier says, what pipelined says: (unexplained, explained)
    (f"a1 a2@{LEADER} a2@{OTHER} a3@{OTHER}", ({}, {CROSS: 1}), ({}, {CROSS: 1})),
    (f"a1 b1 a1@{OTHER} b1@{OTHER} a2@{OTHER}", ({}, {CROSS: 2}), ({}, {CROSS: 2})),
    (f"a1 a2 a1@{OTHER} a2@{OTHER} a3@{OTHER}", ({CROSS: 2}, {}), ({}, {CROSS: 2})),
    (f"a1 a2 a3 a1@{OTHER} a3@{OTHER}", ({CROSS: 2}, {}), ({CROSS: 2}, {})),
    (f"a1 a2 a3 a1@{OTHER} a2@{OTHER} a4@{OTHER}", ({CROSS: 2}, {}), ({CROSS: 2}, {})),
    (f"a1 a2 a1@{OTHER}", ({CROSS: 1}, {}), ({CROSS: 1}, {})),
    (f"a1 a2 a1@{OTHER} a1@third a2@third", ({CROSS: 2}, {CROSS: 1}), ({}, {CROSS: 3})),
    (f"a1 a2 a1@{OTHER} a3@{OTHER} a3@third", ({CROSS: 1}, {CROSS: 1}), ({CROSS: 1}, {CROSS: 1})),
    ("a1 a1 a2", ({"duplicate-adjacent": 1}, {}), ({"duplicate-adjacent": 1}, {})),
    ("a1 a2 a1 a2", ({"duplicate-separated": 2}, {}), ({"duplicate-separated": 2}, {})),
]


@pytest.mark.parametrize(("log", "barrier", "pipelined"), COPIES)
def test_copies(log, barrier, pipelined):
    names = " ".join(name.partition("@")[0] for name in log.split())
    pen = written(names).poll(log)
    assert found(pen, BARRIER) == barrier
    assert found(pen, PIPELINED) == pipelined
    unexplained, explained = found(pen, TRANSACTIONAL)
    assert not explained
    assert sum(unexplained.values()) == len(names.split()) - len(set(names.split()))


@pytest.mark.parametrize("promise", [BARRIER, PIPELINED])
@pytest.mark.parametrize("end", ["fail", "info"])
def test_one_term_may_send_again_what_failed(promise, end):
    pen = Pen().write("a1").produce("a1").acknowledge("a1", end=end).produce("a1").acknowledge("a1", 1).poll("a1 a1")
    assert found(pen, promise) == ({}, {"duplicate-adjacent": 1})


@pytest.mark.parametrize("promise", [BARRIER, PIPELINED])
def test_one_term_may_send_again_what_was_not_answered(promise):
    pen = Pen().write("a1").produce("a1").produce("a1").acknowledge("a1", 1).poll("a1 a1")
    assert found(pen, promise) == ({}, {"duplicate-adjacent": 1})


@pytest.mark.parametrize("promise", [BARRIER, PIPELINED])
def test_a_failure_at_another_time_explains_nothing(promise):
    pen = Pen().write("a1 b1").produce("b1").acknowledge("b1", end="fail")
    pen.produce("a1").acknowledge("a1", 0).produce("a1").acknowledge("a1", 1).poll("a1 a1 b1")
    assert found(pen, promise) == ({"duplicate-adjacent": 1}, {})


@pytest.mark.parametrize("promise", [BARRIER, PIPELINED])
def test_what_was_sent_once_stands_there_twice_only_after_a_failure(promise):
    """The client asks again by itself when it had no answer, and counts from 1 when it has given another record up."""
    sent = Pen().write("a1 b1").produce("a1 b1")
    assert found(sent.acknowledge("a1", 1).poll("a1 a1 b1"), promise) == ({"duplicate-adjacent": 1}, {})
    sent = Pen().write("a1 b1").produce("a1 b1").acknowledge("b1", end="fail")
    assert found(sent.acknowledge("a1", 1).poll("a1 a1 b1"), promise) == ({}, {"duplicate-adjacent": 1})
    sent = Pen().write("a1").produce("a1")
    assert found(sent.poll("a1 a1"), promise) == ({}, {"duplicate-adjacent": 1})


def test_a_failure_long_after_readers_saw_it_twice_explains_nothing():
    for seconds, (unexplained, explained) in (
        (9, ({}, {"duplicate-adjacent": 1})),
        (11, ({"duplicate-adjacent": 1}, {})),
    ):
        pen = Pen().write("a1 b1").produce("a1 b1").acknowledge("a1", 1).poll("a1 a1 b1")
        assert found(pen.wait(seconds).acknowledge("b1", end="fail"), BARRIER) == (unexplained, explained)


@pytest.mark.parametrize("promise", [BARRIER, PIPELINED])
@pytest.mark.parametrize(("process", "is_reason"), [(OTHER, True), (LEADER, False)])
def test_a_client_gives_up_what_an_earlier_term_of_its_process_sent(promise, process, is_reason):
    sent = Pen().write("a1 b1").produce("b1").produce("a1", leader=OTHER)
    sent.acknowledge("b1", end="info", process=process).acknowledge("a1", 1, leader=OTHER)
    copies = {"duplicate-adjacent": 1}
    assert found(sent.poll(f"a1@{OTHER} a1@{OTHER} b1"), promise) == (({}, copies) if is_reason else (copies, {}))


def zombies(*, in_flight):
    pen = Pen().write("a1 b1").term(LEADER)
    pen = pen.produce("a1").term(OTHER) if in_flight else pen.term(OTHER).produce("a1")
    return pen.produce("b1", leader=OTHER).poll(f"b1@{OTHER} a1@{LEADER}")


def test_an_old_term_behind_a_newer_one():
    assert found(zombies(in_flight=True), BARRIER) == ({}, {"dual-epoch-append": 1})
    assert found(zombies(in_flight=False), BARRIER) == ({"dual-epoch-append": 1}, {})
    assert found(zombies(in_flight=True), TRANSACTIONAL) == ({"dual-epoch-append": 1}, {})


@pytest.mark.parametrize("shards", [(0, 1), (1, 0)])
def test_terms_of_two_shards_do_not_follow_each_other(shards):
    pen = Pen().write("a1 b1 a2").term(LEADER, shard=shards[0]).term(OTHER, shard=shards[1])
    pen.poll(f"a1 b1@{OTHER} a2")
    assert found(pen, BARRIER) == ({}, {})


def test_epochs_order_terms_where_there_are_any():
    """The one whose beginning was written down later may have the lower epoch."""
    pen = Pen().write("a1 b1").term(LEADER, epoch=2).term(OTHER, epoch=1).poll(f"a1@{OTHER} b1@{LEADER}")
    assert found(pen, BARRIER) == ({}, {})


@pytest.mark.parametrize("promise", PROMISES)
def test_polls_that_pass_over_records(promise):
    pen = written("a1 a2 a3").poll("a1 a2 a3", process="whole")
    assert found(pen.poll("a1 2:a3"), promise) == ({"int-poll-skip": 1}, {})
    pen = written("a1 a2 a3").poll("a1 a2 a3", process="whole")
    assert found(pen.poll("a1").poll("2:a3"), promise) == ({"poll-skip": 1}, {})
    pen = written("a1 a2 a3").poll("a1 2:a3").poll("a1 a2 a3", process="whole")  # known to be there only later
    assert found(pen, promise) == ({"int-poll-skip": 1}, {})
    assert found(written("a1 a2 a3").poll("a1 7:a2").poll("9:a3"), promise) == ({}, {})  # nothing is known between


@pytest.mark.parametrize("promise", PROMISES)
def test_polls_that_go_back(promise):
    pen = written("a1 a2").poll("a1 a2", process="whole")
    assert found(pen.poll("a1 a2").poll("a1"), promise) == ({"nonmonotonic-poll": 1}, {})
    pen = written("a1 a2").poll("a1 1:a2 0:a1")
    assert found(pen, promise) == ({"int-nonmonotonic-poll": 1}, {})
    pen = written("a1 a2").poll("a1 0:a1").poll("1:a2")
    assert found(pen, promise) == ({"int-nonmonotonic-poll": 1}, {})


@pytest.mark.parametrize("promise", PROMISES)
def test_an_assignment_lets_a_reader_go_anywhere(promise):
    pen = written("a1 a2 a3").poll("a1 a2 a3", process="whole")
    assert found(pen.poll("a1").assign(2).poll("2:a3").assign(-2).poll("a1 a2"), promise) == ({}, {})
    assert found(pen.assign(0).poll("1:a2"), promise) == ({"poll-skip": 1}, {})


def test_committed_readers_pass_over_what_was_aborted():
    pen = written("a1 a2").poll("a1 1:a1 2:a2", isolation="uncommitted", process="all").poll("1:a1 2:a2")
    assert found(pen.assign(0).poll("1:a1"), TRANSACTIONAL) == ({}, {})
    late = {"isolation": "uncommitted", "process": "late"}
    pen = pen.poll("1:a1", **late).poll("0:a1", **late)
    assert found(pen, TRANSACTIONAL) == ({"nonmonotonic-poll": 1}, {})


@pytest.mark.parametrize("promise", [BARRIER, PIPELINED, TRANSACTIONAL])
def test_what_a_server_lacks_that_took_over_was_as_good_as_never_written(promise):
    pen = Pen().write("a1").write("a2").write("a3").harvest("a1 a2").failover("a2 a3").write("a2").poll("a1 a2")
    assert found(pen, promise) == ({}, {})
    assert "unseen" in found(Pen().write("a1").failover(), promise)[0]


@pytest.mark.parametrize("promise", PROMISES)
def test_what_a_server_that_took_over_did_not_know_of_may_come_again(promise):
    pen = Pen().write("a1 a2").harvest("a1 a2").failover(backlog="a1 a2").harvest("a1 a2", OTHER)
    assert found(pen.poll(f"a1 a2 a1@{OTHER} a2@{OTHER}"), promise) == ({}, {CROSS: 2})


@pytest.mark.parametrize("promise", PROMISES)
def test_what_a_server_that_took_over_knew_of_may_not_come_again(promise):
    pen = Pen().write("a1 a2").harvest("a1 a2").failover(backlog="a2").harvest("a1 a2", OTHER)
    assert found(pen.poll(f"a1 a2 a1@{OTHER} a2@{OTHER}"), promise) == ({CROSS: 1}, {CROSS: 1})
    pen = Pen().write("a1 a2").harvest("a1 a2").failover().harvest("a1 a2", OTHER)
    assert found(pen.poll(f"a1 a2 a1@{OTHER} a2@{OTHER}"), promise) == ({CROSS: 2}, {})


@pytest.mark.parametrize("promise", PROMISES)
def test_what_comes_again_after_a_failover_comes_in_order(promise):
    pen = Pen().write("a1 a2").harvest("a1 a2").failover(backlog="a1 a2").harvest("a2 a1", OTHER)
    assert found(pen.poll(f"a1 a2 a2@{OTHER} a1@{OTHER}"), promise) == ({CROSS: 1}, {CROSS: 1})


@pytest.mark.parametrize("promise", [BARRIER, TRANSACTIONAL])
def test_what_comes_again_after_a_failover_comes_once(promise):
    pen = Pen().write("a1 a2").harvest("a1 a2").failover(backlog="a1 a2").harvest("a1 a2", OTHER).harvest("a1", THIRD)
    pen.poll(f"a1 a2 a1@{OTHER} a2@{OTHER} a1@{THIRD}")
    assert found(pen, promise) == ({CROSS: 1}, {CROSS: 2})


def test_a_run_that_is_repeated_while_it_comes_again_goes_on_to_where_that_was():
    pen = Pen().write("a1 a2 a3").harvest("a1 a2 a3").failover(backlog="a1 a2 a3")
    pen.harvest("a1 a2", OTHER).harvest("a1 a2 a3", THIRD)
    first = f"a1 a2 a3 a1@{OTHER} a2@{OTHER}"
    assert found(pen.poll(f"{first} a1@{THIRD} a2@{THIRD} a3@{THIRD}"), PIPELINED) == ({}, {CROSS: 5})
    pen = Pen().write("a1 a2 a3").harvest("a1 a2 a3").failover(backlog="a1 a2 a3")
    pen.harvest("a1 a2", OTHER).harvest("a1 a3", THIRD)
    assert found(pen.poll(f"{first} a1@{THIRD} a3@{THIRD}"), PIPELINED) == ({CROSS: 1}, {CROSS: 3})


@pytest.mark.parametrize("promise", PROMISES)
def test_one_of_two_servers_that_took_over_did_not_know_of_it(promise):
    pen = Pen().write("a1").harvest("a1").failover(backlog="a1").failover().harvest("a1", OTHER)
    assert found(pen.poll(f"a1 a1@{OTHER}"), promise) == ({}, {CROSS: 1})


@pytest.mark.parametrize("promise", PROMISES)
def test_a_failover_before_or_after_both_sends_explains_nothing(promise):
    pen = Pen().write("a1 a2").failover(backlog="a1 a2").harvest("a1 a2").harvest("a1", OTHER).failover(backlog="a1 a2")
    assert found(pen.poll(f"a1 a2 a1@{OTHER}"), promise) == ({CROSS: 1}, {})


@pytest.mark.parametrize("promise", PROMISES)
def test_a_leader_that_began_under_the_old_server_may_be_late(promise):
    names = ({}, {CROSS: 2})
    pen = Pen().write("a1 a2").term().failover(backlog="a1 a2").harvest("a1 a2").harvest("a1 a2", OTHER)
    assert found(pen.poll(f"a1 a2 a1@{OTHER} a2@{OTHER}"), promise) == names
    pen = Pen().write("a1 a2").failover(backlog="a1 a2").term().harvest("a1 a2").harvest("a1 a2", OTHER)
    assert (found(pen.poll(f"a1 a2 a1@{OTHER} a2@{OTHER}"), promise) == names) is (promise is PIPELINED)
    pen = Pen().term().failover().write("a1").harvest("a1").harvest("a1", OTHER)
    assert found(pen.poll(f"a1 a1@{OTHER}"), promise)[0] == ({CROSS: 1} if promise is TRANSACTIONAL else {})


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize(("backlog", "names"), [("a1", ({}, {CROSS: 1})), ("", ({CROSS: 1}, {}))])
def test_a_record_without_a_key_may_come_again_if_it_was_not_known(promise, backlog, names):
    pen = Pen().write("a1").harvest("a1").failover(backlog=backlog).harvest("a1", OTHER).poll(f"a1 a1@{OTHER}")
    pen.events = [
        replace(each, records=tuple(record._replace(key=None) for record in each.records))
        if isinstance(each, Write | Poll)
        else each
        for each in pen.events
    ]
    assert found(pen, promise) == names
