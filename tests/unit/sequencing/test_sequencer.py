"""The fate of single messages, as the sequencer counts them."""

import pytest

from harvest_lib.consume import Batch, Flag, Message, ProducerState, Replay, Sequencer, pack

pytestmark = pytest.mark.quick

A, B = 1, 2


def messages(*ids, start=0):
    """Messages of ids such as (A, 1, "continue"), None, or bytes."""
    flags = {"outside": Flag.OUTSIDE_TXN, "continue": Flag.CONTINUE_TXN, "ack": Flag.ACK_TXN}
    packed = [pack(each[0], each[1], flags[each[2]]) if isinstance(each, tuple) else each for each in ids]
    return [Message(offset, message_id, offset) for offset, message_id in enumerate(packed, start)]


def offsets(found):
    return [[message.offset for message in group] for group in found]


def test_nobody_waits_for_anothers_transaction():
    sequencer = Sequencer()
    log = messages((A, 1, "continue"), (B, 1, "continue"), (B, 2, "outside"), (B, 3, "continue"), (B, 4, "ack"))
    assert offsets(sequencer.take(log)) == [[2], [3]]
    assert sequencer.held == 1


def test_what_stands_alone_gives_up_what_was_pending_before_it():
    """As the two are not to be mixed."""
    sequencer = Sequencer()
    log = messages((A, 1, "continue"), (A, 2, "outside"), (A, 3, "ack"))
    assert offsets(sequencer.take(log)) == [[1]]
    assert sequencer.empty == 1


@pytest.mark.parametrize("as_batch", [False, True])
@pytest.mark.parametrize("flag", ["outside", "continue", "ack", None])
def test_a_message_of_clock_zero_is_committed_at_once_each_time_and_is_not_tracked(flag, as_batch):
    """Gazette's way to opt out: there is nothing to sequence it by."""
    zero = bytes(16) if flag is None else (A, 0, flag)
    sequencer = Sequencer()
    log = messages(zero, zero, *((A, clock, "continue") for clock in range(1, 9)), zero, (A, 9, "ack"), zero)
    found = sequencer.take(Batch.of(log) if as_batch else log)
    assert offsets(found) == [[0], [1], [10], [*range(2, 10)], [12]]
    assert (sequencer.offset, sequencer.held, sequencer.duplicates, sequencer.malformed) == (13, 0, 0, 0)
    assert [(each.producer, each.acknowledged) for each in sequencer.states()] == [(A, 9)]


@pytest.mark.parametrize("message_id", [b"short", b"x" * 16])
def test_an_id_that_nobody_can_read_is_as_none(message_id):
    sequencer = Sequencer()
    assert offsets(sequencer.take(messages(message_id, None))) == [[0], [1]]
    assert sequencer.malformed == 1


def test_an_unknown_flag_stands_for_itself_and_repetitions_of_it_are_dropped():
    sequencer = Sequencer()
    odd = pack(A, 5, 7)
    assert offsets(sequencer.take(messages(odd, odd))) == [[0]]
    assert (sequencer.malformed, sequencer.duplicates) == (1, 1)


def test_an_acknowledgement_of_nothing_is_counted():
    sequencer = Sequencer()
    assert offsets(sequencer.take(messages((A, 1, "ack"), (A, 1, "ack")))) == []
    assert sequencer.empty == 1


def test_a_producer_that_lost_its_progress_is_read_again_rather_than_not_at_all():
    sequencer = Sequencer()
    log = messages((A, 5, "continue"), (A, 6, "ack"), (A, 2, "ack"), (A, 3, "continue"), (A, 4, "ack"))
    assert offsets(sequencer.take(log)) == [[0], [3]]
    assert sequencer.out_of_order == 1


def test_a_repeated_acknowledgement_rolls_back_what_is_pending():
    sequencer = Sequencer()
    log = messages((A, 1, "continue"), (A, 2, "ack"), (A, 3, "continue"), (A, 2, "ack"), (A, 4, "ack"))
    assert offsets(sequencer.take(log)) == [[0]]
    assert (sequencer.rolled_back, sequencer.held) == (1, 0)


def test_an_acknowledgement_written_again_behind_a_message_that_stood_for_itself_takes_nothing_back():
    log = messages((A, 1, "continue"), (A, 2, "ack"), (A, 3, "outside"), (A, 2, "ack"), (A, 3, "outside"))
    first = Sequencer()
    assert offsets(first.take(log[:3])) == [[0], [2]]
    for sequencer in (first, Sequencer(offset=3, states=first.states())):
        assert offsets(sequencer.take(log)) == []
        assert (sequencer.duplicates, sequencer.out_of_order) == (1, 0)


def test_the_first_to_begin_is_let_go_and_read_again():
    sequencer = Sequencer(ring=2)
    log = messages((A, 1, "continue"), (B, 1, "continue"), (A, 2, "continue"), (B, 2, "ack"), (A, 3, "ack"))
    second, first = sequencer.take(log)
    assert [message.offset for message in second] == [1]
    assert first == Replay(producer=A, begin=0, end=4, after=0, through=3)
    assert [message.offset for message in first.pick(log)] == [0, 2]


class Alive:
    """Counts how many of it there are."""

    number = highest = 0

    def __init__(self):
        Alive.number += 1
        Alive.highest = max(Alive.highest, Alive.number)

    def __del__(self):
        Alive.number -= 1


def test_whoever_never_acknowledges_takes_no_more_than_the_ring_and_keeps_nobody_waiting():
    sequencer, ring, every = Sequencer(ring=500), 500, 1_000
    log = (
        Message(offset, pack(A if offset % every else B, offset + 1, flag), Alive())
        for offset in range(300_000)
        for flag in [Flag.CONTINUE_TXN if offset % every else Flag.OUTSIDE_TXN]
    )
    for number, (message,) in enumerate(sequencer.take(log)):
        assert message.offset == number * every  # at once, not when something else is acknowledged
        assert sequencer.held <= ring
    assert number == 299
    assert ring <= Alive.highest <= ring + 5, "what is not held any more is let go of"
    assert sequencer.states()[1] == ProducerState(producer=A, acknowledged=1, begin=1, newest=300_000)


def test_old_producers_are_forgotten_with_what_they_have_pending():
    sequencer = Sequencer()
    list(sequencer.take(messages((A, 1, "outside"), (B, 2, "continue"), (3, 9, "continue"))))
    assert sequencer.prune(before=5) == 2
    assert sequencer.held == 1
    assert [each.producer for each in sequencer.states()] == [3]
    assert offsets(sequencer.take(messages((B, 6, "ack"), (3, 10, "ack"), start=3))) == [[2]]


def test_what_is_pending_and_new_is_kept_after_a_restart_too():
    first = Sequencer()
    list(first.take(messages((A, 1, "outside"), (A, 50, "continue"))))
    second = Sequencer(offset=first.offset, states=first.states())
    assert second.prune(before=10) == 0
    (replay,) = second.take(messages((A, 51, "ack"), start=2))
    assert (replay.begin, replay.end) == (1, 2)


def test_what_was_taken_before_is_passed_over():
    sequencer = Sequencer(offset=1)
    assert offsets(sequencer.take(messages(None, None))) == [[1]]


def test_of_a_run_too_what_was_taken_before_is_passed_over():
    log = Batch.of(messages(*((A, clock, "continue") for clock in range(1, 41)), (A, 41, "ack")))
    sequencer = Sequencer()
    assert list(sequencer.take(log[:5])) == []
    sequencer.pass_over(8)
    assert offsets(sequencer.take(log[4:])) == [[*range(5), *range(8, 40)]]
    again = Sequencer()
    assert list(again.take(log[:20])) == []
    assert offsets(again.take(log[10:])) == [[*range(40)]]


def test_a_run_of_repetitions_is_dropped():
    run = [(A, 16 * clock, "continue") for clock in range(1, 31)]  # in one run only by other times
    log = Batch.of(messages(*run, *run[10:], (A, 16 * 31, "continue"), (A, 16 * 32, "ack")))
    sequencer = Sequencer()
    assert offsets(sequencer.take(log)) == [[*range(30), 50]]
    assert sequencer.duplicates == 20
    behind = Sequencer(offset=len(log))  # of a producer that it never saw
    assert list(behind.take(log)) == []
    assert behind.states() == []


def test_an_acknowledgement_commits_the_message_at_its_own_clock_and_none_above():
    log = messages((A, 1, "continue"), (A, 2, "continue"), (A, 3, "continue"), (A, 2, "ack"))
    sequencer = Sequencer()
    assert offsets(sequencer.take(log)) == [[0, 1]]
    assert sequencer.rolled_back == 1
    (replay,) = Sequencer(ring=1).take(log)
    assert [message.offset for message in replay.pick(log)] == [0, 1]


def test_what_was_handed_out_and_what_it_was_taken_from_stay_as_they_are():
    run = [(A, clock, "continue") for clock in range(1, 9)]
    log = Batch.of(messages(*run, (A, 9, "ack"), *((A, clock + 9, "continue") for _, clock, _ in run), (A, 18, "ack")))
    before, sequencer = list(log), Sequencer()
    first, second = list(sequencer.take(log))
    assert offsets([first, second]) == [[*range(8)], [*range(9, 17)]]
    pending = Batch.of(messages((A, 19, "continue"), (A, 20, "continue"), start=18))
    assert list(sequencer.take(pending)) == []
    assert offsets([first, second, pending]) == [[*range(8)], [*range(9, 17)], [18, 19]]
    assert list(log) == before


def test_a_ring_holds_something():
    with pytest.raises(ValueError, match="a message at least"):
        Sequencer(ring=0)


@pytest.mark.parametrize("as_batch", [False, True])
def test_the_ring_is_bounded_by_bytes_and_the_rest_is_read_again(as_batch):
    def of(producer, clock, flag, size, offset):
        return Message(offset, pack(producer, clock, flag), b"v" * size)

    pending, ack = Flag.CONTINUE_TXN, Flag.ACK_TXN
    log = [of(A, clock, pending, 100, clock - 1) for clock in range(1, 21)]
    log += [of(B, clock, pending, 50, 19 + clock) for clock in range(1, 11)]
    log += [of(B, 11, ack, 0, 30), of(A, 21, ack, 0, 31)]
    sequencer, highest, found = Sequencer(ring_bytes=600), 0, []
    for part in (log[:12], log[12:25], log[25:]):
        for group in sequencer.take(Batch.of(part) if as_batch else part):
            found.append(group)
        highest = max(highest, sequencer.held_bytes)
    assert 0 < highest <= 600
    assert sequencer.held_bytes == sequencer.held == 0
    committed, replay = found
    assert offsets([committed]) == [[*range(20, 30)]]
    assert offsets([replay.pick(log)]) == [[*range(20)]]


def test_a_message_larger_than_the_ring_is_read_again():
    sequencer = Sequencer(ring_bytes=10)
    log = [Message(0, pack(A, 1, Flag.CONTINUE_TXN), b"v" * 11), Message(1, pack(A, 2, Flag.ACK_TXN), None)]
    (replay,) = sequencer.take(log)
    assert offsets([replay.pick(log)]) == [[0]]
    assert sequencer.held_bytes == 0
