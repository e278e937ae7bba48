"""Random histories of concurrent transactions and of a reader between them, against what was committed."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from support.paged import through_json
from support.waiting import eventually

from harvest_lib.source.pg_snapshot import Snapshot

_WRITERS, _KEYS = 4, 3
_LIMITS = st.integers(1, 6)

BEGIN = st.tuples(st.just("begin"), st.integers(1, _WRITERS))
WRITE = st.tuples(st.just("write"), st.integers(1, _WRITERS), st.integers(1, _KEYS), st.integers(1, 5))
COMMIT = st.tuples(st.just("commit"), st.integers(1, _WRITERS))
ABORT = st.tuples(st.just("abort"), st.integers(1, _WRITERS))
READ = st.tuples(st.just("read"), _LIMITS)
REOPEN = st.tuples(st.just("reopen"))
"""Another process goes on from the last position."""


def histories(longest):
    """Return lists of steps; those that make no sense where they stand are passed over."""
    return st.lists(st.one_of(BEGIN, WRITE, WRITE, COMMIT, ABORT, READ, READ, REOPEN), max_size=longest)


@dataclass
class History:
    """Plays steps on a table and its source, and keeps account. A writer holds the keys it has written until it ends:
    a write that would have to wait is passed over."""

    table: object
    committed: dict = field(default_factory=dict)
    """Each committed record's transaction, by id."""
    positions: list = field(default_factory=list)
    """Each position that was passed on the way, and how many records had come by then."""
    delivered: list = field(default_factory=list)

    def __post_init__(self):
        self._writers, self._written, self._holders = {}, {}, {}
        self._source = self.table.source()
        self._pass(self._source.open(None))

    def play(self, steps):
        """Play the steps, end all transactions, read the rest."""
        for name, *values in steps:
            getattr(self, f"_{name}")(*values)
        for writer in list(self._writers):
            self._commit(writer)
        # A transaction open elsewhere in the cluster, a vacuum for instance, may hold the transaction_id source up.
        patience = 5 if getattr(self.table, "kind", "") == "transaction_id" else 0
        eventually(
            lambda: self.read_to_end(self._source, self.delivered, self._pass) or not self._missing(),
            "every committed record",
            seconds=patience,
        )
        self._source.close()

    def read_to_end(self, source, delivered, passed=lambda _position: None, limit=3):
        """Read until everything that was committed can have come."""
        while (page := source.read(limit)) is not None:
            assert len(page.rows) <= limit
            delivered += page.rows
            passed(page.position)

    def _missing(self):
        return self.committed.keys() - {row[0] for row in self.delivered}

    def _begin(self, writer):
        if writer not in self._writers:
            self._writers[writer] = self.table.begin()
            self._written[writer] = []

    def _write(self, writer, key, records):
        self._begin(writer)
        if self._holders.setdefault(key, writer) == writer:
            self._written[writer] += self._writers[writer].write(f"key-{key}", *map(str, range(records)))

    def _commit(self, writer):
        if (transaction := self._end(writer)) is not None:
            transaction.commit()
            self.committed.update({row[0]: transaction.id for row in self._written[writer]})

    def _abort(self, writer):
        if (transaction := self._end(writer)) is not None:
            transaction.abort()

    def _end(self, writer):
        self._holders = {key: holder for key, holder in self._holders.items() if holder != writer}
        return self._writers.pop(writer, None)

    def _read(self, limit):
        page = self._source.read(limit)
        if page is not None:
            assert len(page.rows) <= limit
            assert page.rows or page.more
            self.delivered += page.rows
            self._pass(page.position)

    def _reopen(self):
        self._source.close()
        self._source = self.table.source()
        self._source.open(self.positions[-1][0])

    def _pass(self, position):
        self.positions.append((through_json(position), len(self.delivered)))

    # -- expectations

    def check_complete(self):
        """Every committed record came once, and nothing else did."""
        ids = [row[0] for row in self.delivered]
        assert sorted(ids) == sorted(self.committed)

    def check_keys(self):
        """Each key's records came in the order in which they were committed, which is that of their ids."""
        last = {}
        for row in self.delivered:
            assert row[0] > last.get(row[2], 0)
            last[row[2]] = row[0]

    def check_batches(self):
        """Between two snapshots came what became visible between them, by id."""
        begun = 0
        for (position, before), (following, after) in zip(self.positions, self.positions[1:], strict=False):
            prev, cur = Snapshot.parse(position["prev"]), Snapshot.parse(following.get("cur", following["prev"]))
            if following["prev"] == position["prev"]:
                assert "cur" in following
                if "cur" in position:
                    assert position["cur"] == following["cur"]
                assert following["after"] == self.delivered[after - 1][0]
                continue
            became = [
                number
                for number, transaction in sorted(self.committed.items())
                if cur.sees(transaction) and not prev.sees(transaction)
            ]
            assert [row[0] for row in self.delivered[begun:after]] == became
            assert before >= begun
            begun = after

    def check_resumed(self, chosen, limit):
        """Check that from each chosen position a new reader gets exactly what came after it, in order of each key."""
        for number in chosen:
            position, passed = self.positions[number % len(self.positions)]
            source, rest = self.table.source(), []
            source.open(position)
            self.read_to_end(source, rest, limit=limit)
            source.close()
            assert sorted(rest) == sorted(self.delivered[passed:])
            for key in {row[2] for row in rest}:
                assert [row for row in rest if row[2] == key] == [r for r in self.delivered[passed:] if r[2] == key]
