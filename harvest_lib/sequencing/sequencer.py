"""Returns the committed messages of a partition: each message once, and only after its sender has committed it.

    message ─► no id, a clock of zero, or OUTSIDE_TXN ───────────► committed
               CONTINUE_TXN ─► held in the ring ─┐
               ACK_TXN ──────────────────────────┴─► committed up to its clock, rolled back above
                                                     (read again from the log, where the ring was too small)

Promises
- Each message of a producer is returned at most once, in the order of the producer's clocks. A message with a clock not
  above the highest clock seen before is a repetition, and is dropped.
- A message without an id, or with a clock of zero (as in the zero UUID), is committed at once, whatever its flag: its
  sender does not sequence it. Such messages are not tracked: each copy is returned, and no producer's state changes.
- No producer waits for another: messages are returned as soon as their producer acknowledges them, even if other
  producers have pending messages.
- All messages that an acknowledgement commits are returned together.
- The ring holds at most `ring` pending messages, with at most `ring_bytes` bytes of values. If the ring is full, the
  transaction that began first is released from the ring, and is read again from the log when it is acknowledged.
- Another sequencer needs only `offset` and `states`, read between two calls of `take`, to continue. `last` shows
  whether the log is still the same.

A limit: a producer that acknowledges with an earlier clock than before has lost its own progress, and sends some of its
messages again under new ids. The sequencer returns these messages, and counts such acknowledgements (`out_of_order`).
No message is lost, but delivery is at least once until the producer has caught up. Pure, no I/O.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from harvest_lib.record.last_read import LastRead
from harvest_lib.sequencing.batch import Batch, GrowingBatch, Message, bytes_of
from harvest_lib.sequencing.message_id import (
    CLOCKS_PER_SECOND,
    ZERO,
    Flag,
    MalformedId,
    clock_at,
    parts,
    unpack,
)
from harvest_lib.sequencing.pending_runs import find_runs
from harvest_lib.sequencing.producer_state import NOTHING_PENDING, ProducerState

RING_BYTES = 32 * 2**20
_OUTSIDE, _CONTINUE, _ACK = int(Flag.OUTSIDE_TXN), int(Flag.CONTINUE_TXN), int(Flag.ACK_TXN)


Committed: TypeAlias = Sequence[Message]
"""Messages to be processed within the same transaction, in the order of their clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A committed transaction that the ring does not hold any more. Its messages have to be read again from the log,
    from the offset `begin` to before `end`."""

    producer: int
    begin: int
    end: int
    after: int
    """Messages with clocks up to this clock were committed before."""
    through: int
    """Messages with higher clocks were rolled back."""

    def pick(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the committed messages of the transaction, in order of their offsets. `messages` are from the log."""
        last = self.after
        for message in messages:
            if message.id is None or not self.begin <= message.offset < self.end:
                continue
            try:
                producer, clock, flag = parts(message.id)
            except MalformedId:
                continue  # such a message was returned when it was first seen
            if producer == self.producer and flag == _CONTINUE and clock > last:
                last = clock
                if clock <= self.through:
                    yield message


class _Producer:
    """State of a producer. `held` has its pending messages; None if it has none, or if they have to be read again."""

    __slots__ = ("ack", "acknowledged", "begin", "held", "held_bytes", "newest")

    def __init__(self, acknowledged: int, begin: int = NOTHING_PENDING, newest: int = 0, ack: int = 0) -> None:
        self.ack = ack
        self.acknowledged = acknowledged
        self.newest = max(acknowledged, newest)
        self.begin = begin
        self.held: GrowingBatch | None = None
        self.held_bytes = 0


class Sequencer:
    """The sequencer of a partition. A single thread uses it."""

    def __init__(
        self,
        *,
        offset: int = 0,
        states: Iterable[ProducerState] = (),
        ring: int = 8_192,
        ring_bytes: int = RING_BYTES,
        last: LastRead | None = None,
    ) -> None:
        """Continue from a checkpoint's position: `offset`, `states`, and `last`, the record before `offset`. `ring` (at
        least 1) limits the number of pending messages in memory. `ring_bytes` limits the bytes of their values."""
        if ring < 1:
            raise ValueError(f"a ring holds a message at least, not {ring}")
        self.offset = offset
        """The offset of the next message to take. Every message before this offset was processed, or is pending."""
        self.held = 0
        """Number of pending messages in the ring."""
        self.held_bytes = 0
        """Bytes of the values of the messages in the ring."""
        self.duplicates = 0
        """Number of messages that were dropped because they had been seen before."""
        self.rolled_back = 0
        """Number of messages in the ring that were rolled back."""
        self.malformed = 0
        """Number of messages with an unreadable id or an unknown flag. These messages were returned."""
        self.empty = 0
        """Number of acknowledgements of a producer without pending messages."""
        self.out_of_order = 0
        """Number of acknowledgements with a clock before the last committed clock of their producer."""
        self._batch, self._last = Batch([], [], []), last  # the present batch, and the last record before it
        self._ring, self._ring_bytes = ring, ring_bytes
        self._producers = {
            each.producer: _Producer(each.acknowledged, each.begin, each.newest, each.ack) for each in states
        }
        self._holding: dict[int, _Producer] = {}  # in the order in which their transactions began

    def states(self) -> list[ProducerState]:
        """Return the state of each producer after the last message that was taken."""
        return [
            ProducerState(
                producer=producer,
                acknowledged=each.acknowledged,
                begin=each.begin,
                newest=each.newest,
                ack=each.ack,
            )
            for producer, each in self._producers.items()
        ]

    def pass_over(self, offset: int) -> None:
        """Continue at `offset`. Every message before `offset` was taken: the offsets that are skipped have no
        message."""
        self.offset = max(self.offset, offset)

    @property
    def last(self) -> LastRead | None:
        """Return the identity of the last record below `offset`; None if no such record is known."""
        return self._batch.last_below(self.offset) or self._last

    @property
    def newest(self) -> int:
        """Return the highest clock of all known producers; 0 if no producer is known."""
        return max((each.newest for each in self._producers.values()), default=0)

    def prune(self, before: int) -> int:
        """Forget producers without a message since the clock `before`. Return the number of forgotten producers.

        Pending messages of such a producer are discarded. If the producer continues its transaction after that, the
        further messages count as another transaction.
        """
        old = [producer for producer, each in self._producers.items() if each.newest < before]
        for producer in old:
            self._let_go(producer, self._producers.pop(producer))
        return len(old)

    def prune_older(self, seconds: float, now_nanoseconds: int) -> int:
        """Forget producers whose last message is older than the log's newest message by more than `seconds`. Return
        their number. `now_nanoseconds` is the present time since 1970.

        Age is counted from the log's newest time: from the present time, producers of a backlog would be forgotten
        while the backlog is read. A future time in the log does not count.
        """
        return self.prune(min(self.newest, clock_at(now_nanoseconds)) - int(seconds * CLOCKS_PER_SECOND))

    def take(self, messages: Iterable[Message]) -> Iterator[Committed | Replay]:
        """Take the next messages of the log, in order of their offsets. For each acknowledgement, yield the messages
        that it commits. A message is taken only when the next result is requested.

        A message below `offset` was taken before, and is skipped. A `Batch` costs much less than single messages.
        """
        if not isinstance(messages, Batch):
            yield from self._take(messages)
            return
        self._batch, self._last = messages, self.last
        done = 0
        for begin, end in find_runs(messages.ids):
            yield from self._take(messages[done : begin + 1])
            done = self._take_rest(messages, begin + 1, end)
        yield from self._take(messages[done:])

    def _take_rest(self, messages: Batch, begin: int, end: int) -> int:
        """Put the messages of a run, except the first message, into the ring, while the ring has room. Return the index
        after the last message that was put there. `begin` and `end` are indexes in the batch."""
        known = self._producers.get(parts(messages.ids[begin - 1] or b"")[0])
        first = messages.offsets[begin - 1]
        if known is None or not known.held or known.held.offsets[-1] != first or self.offset != first + 1:
            return begin  # the first message was dropped, not held or skipped, so the rest may be too
        rest = messages[begin : min(end, begin + self._ring - self.held)]
        size = bytes_of(rest.records)
        if size > self._ring_bytes - self.held_bytes:
            return begin  # the caller takes the messages singly, until the ring is full
        if rest:
            known.held.extend(rest)
            self._count(known, len(rest), size)
            known.newest = parts(rest.ids[-1] or b"")[1]
            self.offset = rest.offsets[-1] + 1
        return begin + len(rest)

    def _take(self, messages: Iterable[Message]) -> Iterator[Committed | Replay]:
        producers = self._producers
        for message in messages:
            offset, message_id, _ = message
            if offset < self.offset:
                continue
            self.offset = offset + 1
            if message_id is None:
                yield (message,)
                continue
            try:
                producer, clock, flag = parts(message_id)
            except MalformedId:
                self.malformed += message_id != ZERO
                yield (message,)
                continue
            if not clock:
                yield (message,)
                continue
            known = producers.get(producer)
            if known is None:
                known = producers[producer] = _Producer(clock - 1)
            if flag == _CONTINUE:
                if clock <= known.newest:
                    self.duplicates += 1
                else:
                    known.newest = clock
                    self._hold(message, producer, known)
            elif flag == _ACK:
                committed = self._acknowledge(offset, producer, known, clock)
                if committed:
                    yield committed
            elif clock <= known.acknowledged:
                self.duplicates += 1
            else:
                self.malformed += flag != _OUTSIDE
                self._settle(producer, known, clock)
                yield (message,)

    def _hold(self, message: Message, producer: int, known: _Producer) -> None:
        if known.begin == NOTHING_PENDING:
            known.begin = message.offset
            known.held = GrowingBatch([], [], [])
            self._holding[producer] = known
        if known.held is None:
            return
        size = bytes_of((message.record,))
        while self.held == self._ring or self.held_bytes + size > self._ring_bytes:
            first = next(iter(self._holding))
            self._let_go(first, self._holding[first])
            if known.held is None:
                return
        known.held.append(message)
        self._count(known, 1, size)

    def _count(self, known: _Producer, messages: int, size: int) -> None:
        self.held += messages
        self.held_bytes += size
        known.held_bytes += size

    def _let_go(self, producer: int, known: _Producer) -> None:
        if known.held is not None:
            self.held -= len(known.held)
            self.held_bytes -= known.held_bytes
            known.held, known.held_bytes = None, 0
            self._holding.pop(producer, None)

    def _settle(self, producer: int, known: _Producer, clock: int) -> None:
        """Clear the producer's pending messages, and set the producer's clock. Later messages with clocks up to this
        clock count as repetitions."""
        self._let_go(producer, known)
        known.acknowledged = known.newest = clock
        known.begin = NOTHING_PENDING

    def _acknowledge(self, offset: int, producer: int, known: _Producer, clock: int) -> Committed | Replay | None:
        begin, after, newest, held = known.begin, known.acknowledged, known.newest, known.held
        if clock < after and clock == known.ack:  # a repetition after messages outside of any transaction
            self._settle(producer, known, after)
            self.rolled_back += len(held or ())
            return None
        self._settle(producer, known, clock)
        known.ack = clock
        if clock <= after:
            self.out_of_order += clock < after
            self.rolled_back += len(held or ())
            return None
        if begin == NOTHING_PENDING:
            self.empty += 1
            return None
        if held is None:
            return Replay(producer=producer, begin=begin, end=offset, after=after, through=clock)
        if newest <= clock:
            return held
        committed = Batch.of(message for message in held if unpack(message.id or b"").clock <= clock)
        self.rolled_back += len(held) - len(committed)
        return committed
