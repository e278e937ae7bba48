"""In-memory parts for the tests of the loop. Each passes the same contract suite as the real one (tests/contract)."""

from uuid import UUID, uuid4

from harvest_lib.errors import DatabaseUnavailable
from harvest_lib.leadership import Term, TermEnd
from harvest_lib.leadership.term_registry import TermRegistry
from harvest_lib.source import ClaimedRows


class FakeTable:
    """An outbox table: id -> [row, leader id]; and the table of parked records: id -> (row, reason, held)."""

    def __init__(self):
        self.rows = {}
        self.parked = {}

    def insert(self, *rows):
        for row in rows:
            self.rows[row[0]] = [row, None]

    @property
    def ids(self):
        return sorted(self.rows)

    @property
    def parked_keys(self):
        found = {}
        for record_id, (row, *_) in sorted(self.parked.items()):
            found.setdefault(row[1:3], record_id)
        return found

    def retry(self, key):
        """Put what is parked or held of a key back."""
        for record_id, (row, _, _) in list(self.parked.items()):
            if row[2] == key:
                del self.parked[record_id]
                self.insert(row)

    def leaders(self):
        return {record_id: leader for record_id, (_, leader) in self.rows.items()}


class FakeSource:
    """`Source` over a FakeTable. `outages` of the next calls fail, `lost_answers` of them only after their effect."""

    def __init__(self, table):
        self.table = table
        self.outages = 0
        self.lost_answers = 0
        self.answers_lost = 0
        self.calls = []
        self._leader = UUID(int=0)
        self._own = set()
        self._closed = True

    def open(self, leader_id):
        self._called("open")
        self._closed = False
        self._leader = leader_id
        self._own.add(leader_id)

    def fetch(self, limit, delivered=()):
        self._called("fetch")
        if delivered:
            self.calls.append("purge")
        for record_id in delivered:
            self.table.rows.pop(record_id, None)
        rows = []
        for record_id in self.table.ids:
            row, leader = self.table.rows[record_id]
            if leader != self._leader and len(rows) < limit:
                self.table.rows[record_id][1] = self._leader
                rows.append(row)
        self._answered("fetch")
        keys = {row[2] for row in rows}
        parked = {each: first for each, first in self.table.parked_keys.items() if each[1] in keys}
        return ClaimedRows(rows, parked, bool(rows) and len(rows) == limit)

    def reset(self, ids):
        self._called("reset")
        for record_id in ids:
            entry = self.table.rows.get(record_id)
            if entry is not None and entry[1] in self._own:
                entry[1] = None
        self._answered("reset")

    def park(self, refused, behind=()):
        self._called("park")
        for record_id, reason in refused.items():
            self._move(record_id, reason, held=False)
        first = self.table.parked_keys
        held = [i for i in behind if i in self.table.rows and i > first.get(self.table.rows[i][0][1:3], i)]
        for record_id in held:
            self._move(record_id, "held", held=True)
        self._answered("park")
        return frozenset(behind) - {i for i in held if i in self.table.parked}

    def close(self):
        self.calls.append("close")
        self._closed = True

    def _move(self, record_id, reason, *, held):
        row, leader = self.table.rows.get(record_id, (None, None))
        if row is not None and leader == self._leader:
            del self.table.rows[record_id]
            self.table.parked[record_id] = (row, reason, held)

    def _called(self, name):
        self.calls.append(name)
        if self.outages or (self._closed and name != "open"):
            self.outages = max(0, self.outages - 1)
            raise DatabaseUnavailable("Postgres does not answer", evidence="injected", next_step="none")

    def _answered(self, name):
        if self.lost_answers and name != "open":
            self.lost_answers -= 1
            self.answers_lost += 1
            raise DatabaseUnavailable("Postgres does not answer", evidence="injected, after the fact", next_step="none")


class FakeLeadership:
    """`Leadership` by decree: it leads all shards from its start, until a test ends all or some of the terms."""

    def __init__(self, shards=1):
        self._shards = range(shards)
        self._registry = TermRegistry()

    def start(self):
        self.appoint()

    def term(self, timeout_seconds):
        return next(iter(self.terms(timeout_seconds)), None)

    def terms(self, timeout_seconds, known=()):
        return self._registry.wait(timeout_seconds, known)

    def stop(self, timeout_seconds):  # noqa: ARG002 - there is nobody to wait for
        self.revoke()

    def appoint(self, *shards):
        """Begin terms, each under an id of its own."""
        self._registry.take(*(Term(uuid4(), shard=shard) for shard in shards or self._shards))

    def revoke(self, *shards):
        """End terms in order."""
        self._registry.vacate(TermEnd.REVOKED, shards or None)

    def fence(self, *shards):
        """End terms as if nothing proved them any longer."""
        self._registry.vacate(TermEnd.FENCED, shards or None)
