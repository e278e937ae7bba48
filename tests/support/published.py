"""A partition's log as publishers write it, crashes and repetitions and all, and what is to be read of it."""

from dataclasses import dataclass, field

from harvest_lib.consume import Batch, Clock, Flag, Message, Replay, pack


@dataclass
class Publisher:
    """One that writes to a log in transactions. Its checkpoint outlives it: the acknowledgement to write again."""

    number: int
    log: "Log"
    alive: bool = True
    pending: list = field(default_factory=list)
    sent: list = field(default_factory=list)
    acknowledgement: bytes | None = None

    def publish(self, flag):
        message_id = pack(self.number, self.log.clock.tick(), flag)
        record = self.log.new()
        self.sent.append((message_id, record))
        (self.pending if flag == Flag.CONTINUE_TXN else self.log.expected).append(record)
        self.log.append(message_id, record)

    def decide(self):
        """Commit the checkpoint: from here on, what is pending will be read."""
        self.acknowledgement = pack(self.number, self.log.clock.tick(), Flag.ACK_TXN)
        self.log.expected += self.pending
        self.pending = []

    def acknowledge(self):
        self.log.append(self.acknowledgement, None)

    def end(self):
        """Crash; who comes after writes what the checkpoint has, under this one's id, and goes on under its own."""
        self.alive = False
        if self.acknowledgement is not None:
            self.acknowledge()


class Log:
    """Messages by offset, and the records of which each has to be read once."""

    def __init__(self):
        self.clock = Clock(lambda: 0)
        self.messages = []
        self.expected = []
        self._records = 0

    def new(self):
        self._records += 1
        return self._records

    def append(self, message_id, record):
        self.messages.append(Message(len(self.messages), message_id, record))


class Reading:
    """A reader of a log that may crash: its processed messages are kept up to its checkpoint only."""

    def __init__(self, log, make, ring):
        self.log, self.make, self.ring = log, make, ring
        self.kept, self.checkpoint = [], (0, [])
        self.restart()

    def restart(self):
        self.processed = []
        offset, states = self.checkpoint
        self.sequencer = self.make(offset=offset, states=states, ring=self.ring)

    def take(self, number, commit_after=()):
        """Take so many messages more; commit after these of the things that came of them."""
        start = self.sequencer.offset
        batch = Batch.of(self.log.messages[start : start + number])
        for turn, found in enumerate(self.sequencer.take(batch)):
            if isinstance(found, Replay):
                found = list(found.pick(self.log.messages[found.begin : found.end]))  # noqa: PLW2901
            self.processed.append([message.record for message in found])
            assert self.sequencer.held <= self.ring
            if turn in commit_after:
                self.commit()

    def commit(self):
        self.kept += self.processed
        self.processed = []
        self.checkpoint = (self.sequencer.offset, self.sequencer.states())

    def read_all(self):
        self.take(len(self.log.messages))
        self.commit()
        return [record for group in self.kept for record in group]
