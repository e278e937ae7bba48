"""Readers of messages with ids: the product's own sequencer over each partition, which restarts now and then."""

from harvest_lib.sequencing.batch import Batch, Message
from harvest_lib.sequencing.sequencer import Replay, Sequencer
from tests.simulation.kafka import PARTITIONS

_RING = 4
"""Of pending messages so few are held that others are read again from the log."""
_STARTS_ANEW = 0.1


class Reader:
    """Of one topic. `entries` are what it has processed, in this order."""

    def __init__(self, broker, topic):
        self._broker, self._topic, self._dice = broker, topic, broker.scheduler.dice
        self._sequencers = [Sequencer(ring=_RING) for _ in range(PARTITIONS)]
        self.entries = []
        self.out_of_order = self.malformed = 0
        """Of messages that no publisher of ours may send; see `Sequencer`."""

    def go_on(self):
        """Process what was acknowledged since."""
        for partition, sequencer in enumerate(self._sequencers):
            log = self._broker.entries(self._topic, partition)
            messages = [Message(offset, each.message_id, each) for offset, each in enumerate(log)]
            for committed in sequencer.take(Batch.of(messages[sequencer.offset :])):
                found = committed.pick(messages) if isinstance(committed, Replay) else committed
                self.entries += [each.record for each in found]
            self.out_of_order += sequencer.out_of_order
            self.malformed += sequencer.malformed
            sequencer.out_of_order = sequencer.malformed = 0
            if self._dice.random() < _STARTS_ANEW:
                self._sequencers[partition] = Sequencer(offset=sequencer.offset, states=sequencer.states(), ring=_RING)
