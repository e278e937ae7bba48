"""Applications of the consumer for tests, and shards that run on threads."""

import threading
from collections import Counter

from harvest_lib.consume import Sequencer, read_committed

COUNT = """
INSERT INTO counts SELECT * FROM unnest(%s::text[], %s::bigint[])
ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n
"""


class Counting:
    """Counts messages by key in the table `counts`, and publishes each to `derived`; fails for the keys in `fails`."""

    def __init__(self, derived=None, fails=(), error=ValueError):
        self.derived, self.fails, self.error = derived, fails, error
        self.calls = Counter()

    def consume_message(self, transaction, message):
        key = message.record.key().decode()
        self.calls[key] += 1
        counts = transaction.memory.setdefault("counts", Counter())
        counts[key] += 1
        if key in self.fails:
            raise self.error(f"not {key}")
        if self.derived:
            transaction.publish(self.derived, message.record.value(), key=key)

    def finalize_txn(self, transaction):
        counts = transaction.memory.get("counts")
        if counts:
            keys = sorted(counts)
            transaction.state.execute(COUNT, (keys, [counts[key] for key in keys]))


class Running:
    """A shard or a consumer on a thread of its own."""

    def __init__(self, run):
        self.error, self._stop = None, threading.Event()
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)  # a test that fails leaves it
        self._thread.start()

    def _run(self, run):
        try:
            run(self._stop)
        except BaseException as error:  # noqa: BLE001 - it is looked at
            self.error = error

    def end(self):
        """Stop it and return what it raised."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


def read_keys(settings, topic, number, partition=0):
    """Return the keys of that many committed messages, in the order of the log."""
    found = []
    for group in read_committed(settings, topic, partition, sequencer=Sequencer()):
        found += [message.record.key().decode() for message in group]
        if len(found) >= number:
            return found
    return found
