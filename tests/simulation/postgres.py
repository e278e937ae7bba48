"""A Postgres in memory: transactions that overlap, snapshots, a log that is flushed now and then, and crashes.

It is like the real one where it matters. A transaction takes its id with its first write, rows take theirs when they
are inserted, and neither says in which order they commit. A commit with `synchronous_commit=off` is visible at once and
on disk later; a crash takes back what was not, and the ids are given out again.
"""

from dataclasses import dataclass, field

from harvest_lib.source.pg_snapshot import Snapshot

_FIRST_TRANSACTION = 10


@dataclass(slots=True)
class Record:
    """A row of the outbox."""

    row: tuple
    transaction_id: int
    leader_id: object = None


@dataclass(slots=True)
class Transaction:
    """The changes of an open transaction, to be taken back, and the callbacks for its outcome."""

    undo: list = field(default_factory=list)
    id: int | None = None
    on_disk: object = None
    lost: object = None


class Server:
    """The data and the log of one server. `boot` counts its starts: a connection belongs to one."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.boot = 1
        self.is_up = True
        self.rows = {}  # id -> Record
        self.parked = {}  # id -> (Record, reason, held)
        self.parked_ids = {}  # id -> [topic, key, reason, held, retry, shard]
        self.subscriptions = {}  # shard -> the row of it
        self.sequences = {}  # key -> the seq of its last record
        self.vanished = set()  # events that were committed, not flushed, and lost in a crash
        self._next_transaction, self._next_id = _FIRST_TRANSACTION, 1
        self._on_disk = self._next_transaction, self._next_id
        self._lsn = 1
        self._open = {}  # id of a transaction -> Transaction
        self._ended = {}  # id -> whether it committed
        self._unflushed = []

    # -- transactions

    def take_id(self, transaction):
        """Give a transaction its id, if it has none."""
        if transaction.id is None:
            transaction.id = self._next_transaction
            self._next_transaction += 1
            self._open[transaction.id] = transaction
        return transaction.id

    def insert(self, transaction, row):
        """Add a row to the outbox, and return its id."""
        record_id, self._next_id = self._next_id, self._next_id + 1
        self.rows[record_id] = Record((record_id, *row), self.take_id(transaction))
        transaction.undo.append(lambda: self.rows.pop(record_id, None))
        return record_id

    def commit(self, transaction, *, durable):
        """Make a transaction visible, and wait for the disk if it is to be durable."""
        self._lsn += 1
        if transaction.id is not None:
            del self._open[transaction.id]
            self._ended[transaction.id] = True
            self._unflushed.append(transaction)
        if durable and transaction.id is not None:
            self.flush()

    def abort(self, transaction):
        if transaction.id is not None:
            self._open.pop(transaction.id, None)
            self._ended[transaction.id] = False
        for undo in reversed(transaction.undo):
            undo()

    def flush(self):
        """Have on disk all that was done so far."""
        done, self._unflushed = self._unflushed, []
        self._on_disk = self._next_transaction, self._next_id
        for each in done:
            if each.on_disk is not None:
                each.on_disk()

    def crash(self):
        """Stop at once: open transactions, and those not on disk, never were."""
        self.is_up = False
        self.boot += 1
        lost = [*self._unflushed, *self._open.values()]
        for transaction in reversed(lost):
            for undo in reversed(transaction.undo):
                undo()
            self._ended.pop(transaction.id, None)
        self._next_transaction, self._next_id = self._on_disk
        self._ended = {each: how for each, how in self._ended.items() if each < self._next_transaction}
        self._open.clear()
        self._unflushed.clear()
        for transaction in lost:
            if transaction.lost is not None:
                transaction.lost()

    def start(self):
        self.is_up = True

    # -- visible rows

    @property
    def lsn(self):
        return f"0/{self._lsn:X}"

    @property
    def flushed_up_to(self):
        """Return the LSN if all that was done so far is on disk, else None."""
        is_flushed = not self._unflushed and self._on_disk[0] == self._next_transaction
        return self.lsn if is_flushed else None

    def snapshot(self):
        open_ids = sorted(self._open)
        following = self._next_transaction
        return Snapshot(open_ids[0] if open_ids else following, following, tuple(open_ids))

    def visible(self):
        """Return the committed records, by id."""
        ended = self._ended
        return [record for _, record in sorted(self.rows.items()) if ended.get(record.transaction_id)]

    def change(self, transaction, table, key, value=None):
        """Set or remove an entry of one of the tables, so that it can be taken back."""
        self.take_id(transaction)
        before = table.get(key)
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
        transaction.undo.append(lambda: table.pop(key, None) if before is None else table.__setitem__(key, before))
