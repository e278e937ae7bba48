"""Programs that write: several transactions at once, on shared keys, which commit, abort or take their time.

A writer locks a key before it inserts, and takes the key's next number under that lock: so numbers are in the order in
which records of a key commit.
"""

import hashlib

from tests.simulation.postgres import Transaction

TOPIC = "orders"
_KEYS = "aegil"
"""Each of two shards has some, and each of three; and so has each partition."""
_WRITERS = 4
_RETRY_SECONDS = 0.004


class Writers:
    """Write the transactions of a plan. `committed` is what is permanently in the database: event -> (id, key, seq)."""

    def __init__(self, world, plan):
        self._world, self._database, self._plan = world, world.database, plan
        self._dice = world.scheduler.dice
        self._locks = {}
        self._left = plan.transactions
        self._busy = _WRITERS
        self.committed, self.keys = {}, {}
        for number in range(_WRITERS):
            self._go_on(self._write(f"writer-{number}"))

    @property
    def are_done(self):
        return not self._busy

    def _go_on(self, steps):
        seconds = next(steps, None)
        if seconds is None:
            self._busy -= 1
        else:
            self._world.scheduler.after(seconds, lambda: self._go_on(steps))

    def _write(self, name):
        while self._left > 0:
            self._left -= 1
            yield self._dice.uniform(0.0, 0.6)
            while not self._database.is_up:
                yield 0.05
            yield from self._transaction(name)

    def _transaction(self, name):
        boot, transaction, held, records = self._database.boot, Transaction(), [], []
        transaction_id, takes_long = str(self._world.uuid()), self._dice.random() < 0.1
        keys = sorted(self._dice.sample(_KEYS, self._dice.randint(1, 3)))
        if self._plan.source == "transaction_id":  # in which order, says who has the locks before an id
            yield from self._lock(keys, boot, held)
        for key in keys:
            if key not in held:
                yield from self._lock([key], boot, held)
            if self._database.boot != boot:
                break
            self._database.take_id(transaction)  # a row lock is written too
            for _ in range(self._dice.randint(1, 3)):
                yield self._dice.uniform(0.0, 0.5 if takes_long else 0.01)
                if self._database.boot != boot:
                    break
                records.append(self._insert(transaction, key))
        self._tell(name, "invoke", transaction_id, records)
        if self._database.boot != boot:
            self._tell(name, "fail", transaction_id, records)
            return
        if self._dice.random() < 0.2:
            self._database.abort(transaction)
            self._tell(name, "fail", transaction_id, records)
        else:
            self._commit(name, transaction, transaction_id, records)
        for key in held:
            del self._locks[key]

    def _lock(self, keys, boot, held):
        for key in keys:
            while self._database.boot == boot == self._locks.get(key):  # else its holder died with the server
                yield _RETRY_SECONDS
            if self._database.boot != boot:
                return
            self._locks[key] = boot
            held.append(key)

    def _insert(self, transaction, key):
        seq = self._database.sequences.get(key, 0) + 1
        self._database.change(transaction, self._database.sequences, key, seq)
        event = str(self._world.uuid())
        record_id = self._database.insert(transaction, (TOPIC, key, event, [], []))
        self.keys[event] = key, seq
        if self._plan.poisoned and not self._world.faults.are_over and self._dice.random() < 0.06:
            self._world.broker.poison.add(event)
        return event, record_id

    def _commit(self, name, transaction, transaction_id, records):
        written = {event: (record_id, *self.keys[event]) for event, record_id in records}

        def lost():
            for event in written:
                del self.committed[event]
            self._database.vanished.update(written)
            self._tell(name, "fail", transaction_id, records)

        transaction.on_disk = lambda: self._tell(name, "ok", transaction_id, records)
        transaction.lost = lost
        self.committed.update(written)
        self._database.commit(transaction, durable=not self._plan.commits_late)

    def _tell(self, name, how, transaction_id, records):
        listed = [self.record(event) for event, _ in records]
        self._world.history.add("write", how, name, transaction=transaction_id, records=listed)

    def record(self, event):
        """Return a record as the history has it."""
        key, seq = self.keys[event]
        return {"event": event, "topic": TOPIC, "key": key, "seq": seq, "hash": digest(event)}


def digest(event):
    return hashlib.sha256(event.encode()).hexdigest()[:16]
