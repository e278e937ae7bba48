"""Each anomaly in the smallest history that has it, and in one that lacks it by a hair."""

import pytest
from support.written_history import BARRIER, LEADER, OTHER, PIPELINED, PROMISES, TRANSACTIONAL, Pen

from infra.chaos.checker import ANOMALIES, check

pytestmark = pytest.mark.quick


def found(pen, promise):
    """Return the names of what is not explained, and of what is."""
    verdict = check(pen.events, promise)
    for finding in verdict.findings:
        assert finding.events, finding
        assert finding.sentence
    return set(verdict.unexplained), set(verdict.explained)


def unexplained(pen, *promises):
    """Return the names of what is not explained, under each of the promises the same."""
    names = [found(pen, promise)[0] for promise in promises or PROMISES]
    assert all(name == names[0] for name in names), names
    return names[0]


@pytest.mark.parametrize("promise", PROMISES)
def test_all_is_well(promise):
    pen = Pen().write("a1 b1", transaction="x").write("a2").fail("a3!").write("a3").unknown("b2")
    pen.harvest("a1 b1").harvest("a2 a3").poll("a1 b1 a2").poll("a3", at=3).effect("a1").effect("b1")
    assert found(pen, promise) == (set(), set())


def test_an_empty_history_is_well():
    assert check([], BARRIER).ok


@pytest.mark.parametrize("promise", PROMISES)
def test_a_record_behind_which_others_of_its_key_were_seen_is_lost(promise):
    pen = Pen().write("a1").write("a2").poll("a2")
    assert found(pen, promise) == ({"lost-write"}, set())


def test_a_record_that_kafka_acknowledged_is_lost():
    pen = Pen().write("a1").produce("a1").acknowledge("a1", 0)
    assert unexplained(pen, BARRIER, PIPELINED) == {"lost-write"}
    assert unexplained(pen, TRANSACTIONAL) == {"unseen"}  # its transaction may have been aborted


@pytest.mark.parametrize("promise", PROMISES)
def test_a_record_that_was_purged_is_lost(promise):
    pen = Pen().write("a1").harvest("a1")
    assert found(pen, promise)[0] == {"lost-write"}


def test_a_write_of_unknown_outcome_may_be_seen_or_not_but_not_in_part():
    assert unexplained(Pen().unknown("a1 b1")) == set()
    assert unexplained(Pen().unknown("a1 b1").poll("a1 b1")) == set()
    assert unexplained(Pen().unknown("a1 b1").poll("a1")) == {"unseen"}
    assert unexplained(Pen().killed("a1 a2").poll("a2")) == {"lost-write"}
    assert unexplained(Pen().unknown("a1").harvest("a1")) == {"lost-write"}  # a row that was purged was there


def test_a_committed_record_of_which_nothing_was_heard_is_unseen():
    assert unexplained(Pen().write("a1")) == {"unseen"}
    assert unexplained(Pen().write("a1").poll("a1")) == set()


def test_committed_readers_count_where_transactions_are_promised():
    assert unexplained(Pen().write("a1").poll("a1", isolation="uncommitted"), TRANSACTIONAL) == {"unseen"}


def test_a_record_that_was_rolled_back_is_an_aborted_read():
    assert unexplained(Pen().fail("a1").poll("a1")) == {"aborted-read"}
    assert unexplained(Pen().fail("a1").poll("a1", isolation="uncommitted")) == {"aborted-read"}
    assert unexplained(Pen().fail("a1")) == set()
    assert unexplained(Pen().fail("a1").harvest("a1")) == set()  # nor is it missed


def test_a_record_that_nobody_wrote_is_an_aborted_read():
    assert unexplained(Pen().poll("a1")) == {"aborted-read"}


def test_a_record_of_an_aborted_transaction_is_an_aborted_read():
    pen = Pen().write("a1").transaction("begin").produce("a1").transaction("abort")
    assert unexplained(pen.poll("a1"), TRANSACTIONAL) == {"aborted-read"}


def test_a_record_read_before_its_write_began_is_a_precommitted_read():
    assert unexplained(Pen().poll("a1").write("a1")) == {"precommitted-read"}


def test_a_record_read_before_its_transaction_commits_is_a_precommitted_read():
    pen = Pen().write("a1").transaction("begin").produce("a1").acknowledge("a1", 0).poll("a1").transaction("commit")
    assert unexplained(pen, TRANSACTIONAL) == {"precommitted-read"}
    assert unexplained(pen, BARRIER, PIPELINED) == set()
    pen = Pen().write("a1").transaction("begin").produce("a1").acknowledge("a1", 0)
    pen.poll("a1", isolation="uncommitted", process="other").transaction("commit").poll("a1")
    assert unexplained(pen, TRANSACTIONAL) == set()


def test_a_commit_before_the_record_was_sent_does_not_commit_it():
    pen = Pen().write("a1 b1").harvest("b1").transaction("begin").produce("a1").acknowledge("a1", 1).poll("b1 a1")
    assert unexplained(pen.transaction("commit"), TRANSACTIONAL) == {"precommitted-read"}


@pytest.mark.parametrize("end", ["ok", "info"])
def test_a_transaction_of_which_a_part_is_seen_is_torn(end):
    pen = Pen().write("a1 b1").transaction("begin").produce("a1 b1").transaction("commit", end=end)
    assert unexplained(pen.poll("a1"), TRANSACTIONAL) == {"torn-transaction", "unseen"}
    pen.produce("b1", leader=OTHER).poll("b1", leader=OTHER, at=1)  # heals the loss, not the tear
    assert unexplained(pen, TRANSACTIONAL) == {"torn-transaction"}


def test_a_record_sent_in_two_transactions_tells_nothing_of_either():
    pen = Pen().write("a1 b1")
    pen.transaction("begin").produce("a1 b1").transaction("commit", end="info")  # aborted in truth
    pen.transaction("begin").produce("a1").transaction("commit").poll("a1")
    pen.transaction("begin", leader=OTHER).produce("b1", leader=OTHER).transaction("commit", leader=OTHER)
    assert unexplained(pen.poll("b1", leader=OTHER, at=1), TRANSACTIONAL) == set()


def test_a_record_sent_while_two_transactions_are_open_tells_nothing_of_either():
    pen = Pen().write("a1 b1").transaction("begin").transaction("begin", by="outbox-1").produce("a1 b1")
    pen.transaction("commit").transaction("abort", by="outbox-1").poll("a1")
    pen.transaction("begin", leader=OTHER).produce("b1", leader=OTHER).transaction("commit", leader=OTHER)
    assert unexplained(pen.poll("b1", leader=OTHER, at=1), TRANSACTIONAL) == set()


def test_readers_that_differ_on_an_offset_are_inconsistent():
    pen = Pen().write("a1 b1").poll("a1 b1").poll("b1", at=0, process="second").poll("b1", process="third", at=1)
    assert "inconsistent-offsets" in unexplained(pen)
    pen = Pen().write("a1").poll("a1").poll("a1", process="second", leader=OTHER)
    assert unexplained(pen) == {"inconsistent-offsets"}


def test_contents_other_than_were_written_are_inconsistent():
    assert unexplained(Pen().write("a1").poll("a1", hash="other")) == {"inconsistent-offsets"}
    pen = Pen().poll("a1", hash="other").write("a1")
    assert unexplained(pen) == {"inconsistent-offsets", "precommitted-read"}


def test_an_offset_other_than_was_acknowledged_is_inconsistent():
    pen = Pen().write("a1 b1").produce("a1 b1").acknowledge("a1", 1).acknowledge("b1", 0).poll("a1 b1")
    assert unexplained(pen) == {"inconsistent-offsets"}


def test_a_purge_before_the_acknowledgement():
    pen = Pen().write("a1").produce("a1").purge("a1").acknowledge("a1", 0).poll("a1")
    assert unexplained(pen, BARRIER, PIPELINED) == {"purge-before-ack"}
    assert unexplained(Pen().write("a1").produce("a1").acknowledge("a1", end="fail").purge("a1").poll("a1")) == {
        "purge-before-ack"
    }


def test_a_purge_before_the_commit():
    pen = Pen().write("a1").transaction("begin").produce("a1").acknowledge("a1", 0).purge("a1")
    pen.transaction("commit").poll("a1")
    assert unexplained(pen, TRANSACTIONAL) == {"purge-before-ack"}
    assert unexplained(pen, BARRIER, PIPELINED) == set()


def test_a_record_that_is_parked_is_not_missed_until_it_is_sent_again():
    parked = Pen().write("a1 a2").harvest("b1").park("a1 a2")
    assert unexplained(parked) == set()
    assert unexplained(parked.park("a1", "drop").park("a2", "retry")) == {"unseen"}
    assert unexplained(parked.harvest("a2").poll("a2", at=1)) == set()


def test_a_record_that_is_seen_while_it_is_parked():
    assert unexplained(Pen().write("a1").park("a1").harvest("a1").poll("a1")) == {"parked-read"}
    dropped = Pen().write("a1").park("a1").park("a1", "drop")
    assert unexplained(dropped.harvest("a1").poll("a1")) == {"parked-read"}
    assert unexplained(Pen().write("a1").park("a1").park("a1", "retry").harvest("a1").poll("a1")) == set()


def test_an_effect_that_comes_twice():
    pen = Pen().write("a1").poll("a1").effect("a1").effect("a1", consumer="another")
    assert unexplained(pen) == set()
    assert unexplained(pen.effect("a1")) == {"double-effect"}


def test_a_checkpoint_that_goes_back():
    pen = Pen().checkpoint(1, 1).checkpoint(1, 2).checkpoint(1, 2).checkpoint(1, 3, shard=1).checkpoint(2, 1)
    assert unexplained(pen) == set()
    assert unexplained(Pen().checkpoint(1, 2).checkpoint(1, 1)) == {"checkpoint-regression"}
    assert unexplained(Pen().checkpoint(2, 1).checkpoint(1, 5)) == {"checkpoint-regression"}
    assert unexplained(Pen().checkpoint(1, 1, at=7).checkpoint(1, 1, at=8)) == {"checkpoint-regression"}
    assert unexplained(Pen().checkpoint(1, 2).checkpoint(1, 1, end="fail")) == set()


def test_a_checkpoint_whose_answer_comes_late_may_have_been_stored_before():
    late = Pen().checkpoint(1, 1).checkpoint(1, 2, end="invoke").checkpoint(1, 3, process=OTHER).checkpoint(1, 2)
    assert unexplained(late) == set()
    assert unexplained(late.checkpoint(1, 3, process=OTHER)) == set()
    assert unexplained(late.checkpoint(1, 2, end="invoke").checkpoint(1, 2)) == {"checkpoint-regression"}
    of_another = Pen().checkpoint(1, 1, end="invoke").checkpoint(1, 3, process=OTHER).checkpoint(1, 2, process=OTHER)
    assert unexplained(of_another) == {"checkpoint-regression"}


def test_checkpoints_go_on_from_those_of_a_server_that_takes_over():
    behind = Pen().checkpoint(1, 9).checkpoint(1, 9, shard=1).failover(checkpoints=[(1, 5), (1, 7)])
    assert unexplained(behind.checkpoint(1, 5, at=7).checkpoint(1, 6).checkpoint(1, 8, shard=1)) == set()
    assert unexplained(Pen().checkpoint(1, 9).failover(checkpoints=[(1, 5)]).checkpoint(1, 4)) == {
        "checkpoint-regression"
    }
    assert unexplained(Pen().checkpoint(1, 9).failover().checkpoint(1, 1).checkpoint(1, 2)) == set()


def test_every_anomaly_has_a_small_history():
    """A name that is added needs its own, here or in the tests of orders and polls."""
    assert set(ANOMALIES) == {
        *("lost-write", "unseen", "aborted-read", "precommitted-read", "torn-transaction", "inconsistent-offsets"),
        *("purge-before-ack", "parked-read", "double-effect", "checkpoint-regression"),
        *("duplicate-adjacent", "duplicate-separated", "duplicate-cross-epoch", "dual-epoch-append"),
        *("nonmonotonic-send", "int-nonmonotonic-send", "int-send-skip"),
        *("poll-skip", "int-poll-skip", "nonmonotonic-poll", "int-nonmonotonic-poll"),
    }


def test_a_finding_shows_only_the_records_concerned():
    verdict = check(
        Pen().write("a1 b1 c1 d1").poll("a1 b1 c1 d1").poll("a1", hash="other", process="x").events, BARRIER
    )
    (finding,) = verdict.findings
    assert [len(event.records) for event in finding.events] == [1, 1]
    assert LEADER in str(finding.to_json())


def test_findings_are_counted_beyond_those_kept():
    pen = Pen().write(" ".join(f"k{number}" for number in range(9)))
    verdict = check(pen.events, BARRIER, keep=2)
    assert verdict.unexplained == {"unseen": 9}
    assert len(verdict.findings) == 2
