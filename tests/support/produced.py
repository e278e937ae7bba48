"""A producer that takes all at once, and reports each record when it is asked to."""

from types import SimpleNamespace


class Produced:
    """A producer that keeps what it was given in `records`: topic, key, value, timestamp."""

    def __init__(self, *, room=1 << 30):
        self.records = []
        self._room = room
        self._waiting = []

    def produce(self, topic, value, key, _partition, on_delivery, _other, timestamp):
        if len(self._waiting) >= self._room:
            raise BufferError
        self.records.append((topic, key, value, timestamp))
        self._waiting.append(on_delivery)

    def __len__(self):
        return len(self._waiting)

    def poll(self, _seconds):
        waiting, self._waiting = self._waiting, []
        for place, on_delivery in enumerate(waiting):
            on_delivery(None, SimpleNamespace(offset=lambda place=place: place))

    flush = poll

    def purge(self):
        self._waiting = []

    def close(self):
        """Nothing is left."""
