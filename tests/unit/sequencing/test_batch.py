"""Messages in columns: as a list of them, and nobody's columns change under another."""

import pytest

from harvest_lib.consume import Batch, Message

pytestmark = pytest.mark.quick

MESSAGES = [Message(3, b"3", "three"), Message(4, None, "four"), Message(7, b"7", "seven"), Message(8, b"8", "eight")]
NEXT = Message(9, b"9", "nine")


def columns(batch):
    return list(batch.offsets), batch.ids, batch.records


def test_it_is_a_sequence_of_its_messages():
    batch = Batch.of(iter(MESSAGES))
    assert list(batch) == MESSAGES
    assert [batch[which] for which in range(-4, 4)] == [*MESSAGES, *MESSAGES]
    assert {type(message) for message in (*batch, batch[0])} == {Message}
    assert [message.record for message in batch] == batch.records == ["three", "four", "seven", "eight"]
    assert len(batch) == 4
    assert not Batch.of(())
    assert NEXT not in batch


def test_a_slice_of_it_is_one_and_its_own():
    batch = Batch.of(MESSAGES)
    for begin, end in ((0, 0), (1, 3), (2, None), (None, -1), (None, None), (3, 99)):
        part = batch[begin:end]
        assert list(part) == MESSAGES[begin:end]
        for column in (part.offsets, part.ids, part.records):
            column.append(9)
        assert columns(part) == tuple([*column, 9] for column in columns(Batch.of(MESSAGES[begin:end])))
    assert list(batch) == MESSAGES


def test_offsets_without_a_gap_are_a_range():
    batch = Batch(range(5, 8), [b"5", b"6", b"7"], list("abc"))
    assert batch[1:].offsets == range(6, 8)
    assert batch[1] == Message(6, b"6", "b")
    assert list(batch[1:]) == [Message(6, b"6", "b"), Message(7, b"7", "c")]


def test_what_is_added_to_it_stays_as_it_is():
    held, rest = Batch.of(MESSAGES[:1]), Batch(range(4, 6), [b"4", b"5"], list("ab"))
    held.extend(rest)
    held.extend(rest[:0])
    held.append(NEXT)
    assert columns(held) == ([3, 4, 5, 9], [b"3", b"4", b"5", b"9"], ["three", "a", "b", "nine"])
    assert columns(rest) == ([4, 5], [b"4", b"5"], list("ab"))
