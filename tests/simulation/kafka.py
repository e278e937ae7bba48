"""A Kafka in memory: partitions, transactional ids with their epochs, and what readers of either kind see."""

import zlib
from dataclasses import dataclass

from confluent_kafka import KafkaError

from harvest_lib.delivery.transactional import TRANSACTION_SECONDS
from harvest_lib.record.header import HEADER_NAME, unpack
from harvest_lib.sequencing import message_id

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
CHECKPOINTS = "checkpoints"
PARTITIONS = 2


@dataclass(slots=True)
class Entry:
    """A record in a partition, or an acknowledgement, which has no value."""

    topic: str
    partition: int
    offset: int
    key: str
    value: object
    leader_id: str | None
    outbox_id: int | None
    message_id: bytes | None
    state: str = COMMITTED
    at: float = 0.0


class Broker:
    """The log. `poison` are values that it refuses, with the whole batch; `reported` hears of what it commits."""

    def __init__(self, scheduler, reported):
        self.scheduler = scheduler
        self.down_until = self.slow_until = 0.0
        self.poison = set()
        self.log = []  # of the records, as they came
        self.readable = set()  # values of transactions that were committed
        self.on_append = lambda _entry: None
        self._reported = reported
        self._partitions = {}
        self._epochs = {}
        self._transactions = {}  # transactional id -> what is open of it

    def entries(self, topic, partition):
        return self._partitions.setdefault((topic, partition), [])

    def append(self, messages, transactional_id=None, epoch=None):
        """Take a batch, whole or not at all; return the error, or None, and the offsets."""
        if transactional_id is not None and self._epochs.get(transactional_id) != epoch:
            return error(KafkaError.INVALID_PRODUCER_EPOCH, "fenced", fatal=True), ()
        if any(each.value in self.poison for each in messages):
            return error(KafkaError.MSG_SIZE_TOO_LARGE, "the batch is too large"), ()
        offsets = []
        for message in messages:
            partition = message.partition if message.partition >= 0 else partition_of(message.key)
            entries = self.entries(message.topic, partition)
            origins = *origin(message.headers), dict(message.headers or ()).get(message_id.HEADER_NAME)
            entry = Entry(message.topic, partition, len(entries), message.key, message.value, *origins)
            entry.at = self.scheduler.now
            if transactional_id is not None:
                entry.state = OPEN
                self._transactions.setdefault(transactional_id, []).append(entry)
            entries.append(entry)
            if message.topic != CHECKPOINTS and message.value is not None:
                self.log.append(entry)
                self.on_append(entry)
            offsets.append((partition, entry.offset))
        return None, offsets

    def begin(self, transactional_id):
        """Give a transactional id to a producer, and abort the open transaction of its previous holder."""
        self._end(transactional_id, ABORTED)
        epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, 0) + 1
        return epoch

    def commit(self, transactional_id, epoch):
        """Commit what is open; False if the producer was fenced."""
        if self._epochs.get(transactional_id) != epoch:
            return False
        entries = self._end(transactional_id, COMMITTED)
        for entry in entries:
            if entry.topic == CHECKPOINTS:
                self._reported(entry)
        return True

    def abort(self, transactional_id, epoch):
        if self._epochs.get(transactional_id) == epoch:
            self._end(transactional_id, ABORTED)

    def committed_end(self, topic, partition):
        """Return the offset at which readers of committed records stop."""
        self._expire()
        entries = self.entries(topic, partition)
        return next((each.offset for each in entries if each.state == OPEN), len(entries))

    def committed(self):
        """Return the records that are committed, in each partition's order."""
        found = []
        for (topic, partition), entries in sorted(self._partitions.items()):
            if topic != CHECKPOINTS:
                found += [each for each in entries[: self.committed_end(topic, partition)] if each.state == COMMITTED]
        return found

    def _expire(self):
        """Abort what is open for too long, and fence its producer: nobody may come who would."""
        for transactional_id, entries in list(self._transactions.items()):
            if entries and self.scheduler.now - entries[0].at >= TRANSACTION_SECONDS:
                self.begin(transactional_id)

    def _end(self, transactional_id, state):
        entries = self._transactions.pop(transactional_id, [])
        for each in entries:
            each.state = state
            if state is COMMITTED:
                self.readable.add(each.value)
        return entries


def error(code, text, *, fatal=False):
    """Return an error as the client has it."""
    return KafkaError(code, f"simulated: {text}", fatal)


def partition_of(key):
    return zlib.crc32(key.encode()) % PARTITIONS


def origin(headers):
    """Return the leader id and the outbox id that a record was stamped with."""
    stamp = dict(headers or ()).get(HEADER_NAME)
    if stamp is None:
        return None, None
    leader_id, outbox_id = unpack(stamp)
    return str(leader_id), outbox_id


class Ended:
    """The message that says that there is no more."""

    def error(self):
        return error(KafkaError._PARTITION_EOF, "no more")


class Read:
    """A message, as a consumer has it."""

    def __init__(self, entry, offset):
        self._entry, self._offset = entry, offset

    def error(self):
        return None

    def offset(self):
        return self._offset

    def key(self):
        return self._entry.key.encode()

    def value(self):
        return self._entry.value


class Consumer:
    """The part of a consumer that the product uses to read checkpoints."""

    def __init__(self, broker, settings):
        self._broker = broker
        self._reads_committed = settings["isolation.level"] == "read_committed"
        self._waiting = []

    def get_watermark_offsets(self, place, **_named):
        self._travel()
        if self._reads_committed:
            return 0, self._broker.committed_end(place.topic, place.partition)
        return 0, len(self._broker.entries(place.topic, place.partition))

    def assign(self, places):
        place = places[0]
        entries = self._broker.entries(place.topic, place.partition)
        end = self._broker.committed_end(place.topic, place.partition) if self._reads_committed else len(entries)
        states = {COMMITTED} if self._reads_committed else {COMMITTED, OPEN}
        self._waiting = [
            Read(each, offset)
            for offset, each in enumerate(entries[place.offset : end], place.offset)
            if each.state in states
        ]
        self._waiting.append(Ended())

    def poll(self, _timeout):
        return self._waiting.pop(0)

    def close(self):
        self._waiting = []

    def _travel(self):
        scheduler = self._broker.scheduler
        late = max(0.0, self._broker.down_until - scheduler.now)
        scheduler.pause(late + scheduler.dice.uniform(0.0005, 0.003))
