"""The loop in batches on fakes: a table read by pages, Kafka as a list, checkpoints and what is parked in memory."""

import threading
import uuid
from collections import Counter

from support.paged import FakePagedTable
from support.rows import row

from harvest_lib.batching.loop import BatchLoop
from harvest_lib.batching.observers import BatchObservers
from harvest_lib.batching.parking import BatchParking
from harvest_lib.batching.ports import BatchPorts
from harvest_lib.checkpoints.table import LeadershipStatus
from harvest_lib.config import Limits
from harvest_lib.delivery import Abandoned, BatchCommitted, BatchFailed
from harvest_lib.leadership import Term
from harvest_lib.record.checkpoint import OutboxCheckpoint

START = OutboxCheckpoint(generation=0)


class FakeKafka:
    """Kafka as `log`, a list of records, and the checkpoint beside it. It refuses batches with one of `poison` in them;
    `broken` is the number of the next commits that fail, after their effect if `lost`.
    Topics of `away` take nothing."""

    def __init__(self):
        self.log = []
        self.checkpoint = None
        self.poison = {}
        self.away = {}
        self.batches = []  # how many records were tried at a time, and whether they went
        self.most_of_a_key = 0  # in one of them
        self.broken, self.lost = 0, False

    @property
    def ids(self):
        return [row[0] for row in self.log]


class FakeBatchDelivery:
    """`Delivery`: transactional. The client refuses those of `refused`."""

    def __init__(self, kafka, topics=None):
        self.kafka, self.topics = kafka, topics or FakeTopics()
        self.store = FakeStore(kafka)
        self.is_exactly_once = True
        self.refused = {}
        self.leaves_behind, self.failed_keys = False, None
        self._batch = []

    def begin(self, leader_id, may_send):  # noqa: ARG002 - nothing is stamped
        self._batch = []
        return BatchCommitted()

    def send(self, rows, may_send):  # noqa: ARG002 - takes no time
        for each in rows:
            if each[0] in self.refused:
                return {each[0]: self.refused[each[0]]}
            self._batch.append(each)
        return {}

    def commit(self, checkpoint, may_send, /):  # noqa: ARG002 - as above
        batch, self._batch = self._batch, []
        bad = [row[0] for row in batch if row[0] in self.kafka.poison]
        away = {row[1] for row in batch} & self.kafka.away.keys()
        for topic in away:
            self.topics.blame(topic, self.kafka.away[topic])
        fails = self.kafka.broken > 0
        most = max(Counter(row[2] for row in batch).values(), default=0)
        self.kafka.most_of_a_key = max(most, self.kafka.most_of_a_key)
        self.kafka.batches.append((len(batch), not (bad or away or fails)))
        if bad:
            return BatchFailed(reason=self.kafka.poison[bad[0]], refused=True)
        if away:
            return BatchFailed(reason=self.kafka.away[min(away)])
        self.topics.paused -= {row[1] for row in batch}
        if fails:
            self.kafka.broken -= 1
        if not fails or self.kafka.lost:
            self.kafka.log += batch
            self.kafka.checkpoint = checkpoint
        return BatchFailed(reason="injected") if fails else BatchCommitted()

    def abandon(self):
        self._batch = []
        return Abandoned(may_arrive=self.leaves_behind, failed_keys=self.failed_keys)

    def settle(self, may_send):  # noqa: ARG002 - nothing is left to be done
        return BatchCommitted()


class FakeStore:
    """`Store`: the checkpoint in Kafka, and a mirror."""

    kept_in = "kafka"
    keeps_positions = True

    def __init__(self, kafka):
        self.kafka = kafka
        self.mirror = OutboxCheckpoint(generation=0)

    def lead(self, leader_id, after_epoch=None):
        pass

    def leadership_status(self):
        return LeadershipStatus.LEADS

    def load(self):
        return self.kafka.checkpoint or self.mirror

    def save(self, checkpoint):
        self.mirror = checkpoint
        return True

    def close(self):
        pass


class FakePlaces:
    """`ParkedIds`: id -> [(topic, key), reason, held, retry]. `fenced` says that another leads."""

    def __init__(self):
        self.rows = {}
        self.fenced = False
        self.before_release = None

    def load(self, *, each):
        lowest = {}
        for record_id, (key, *_) in sorted(self.rows.items()):
            lowest.setdefault((key, record_id if each else 0), record_id)
        return [(key, record_id) for (key, _), record_id in lowest.items()]

    def add(self, entries):
        for entry in () if self.fenced else entries:
            if not (entry.held and entry.id in self.rows):
                self.rows[entry.id] = [(entry.topic, entry.key), entry.reason, entry.held, False]
        return not self.fenced

    def matching(self, ids):
        return {each for each in ids if each in self.rows}

    def moved(self, known):
        rows = self.rows
        return [key for key, each in known if each not in rows or rows[each][2] or rows[each][3]]

    def due(self, keys, limit, *, keep_order):
        due, stays, places = [], {}, Counter()
        for record_id, (key, _, held, retry) in sorted(self.rows.items()):
            if not held and not retry:
                stays.setdefault(key, record_id)
        for record_id, (key, _, _, retry) in sorted(self.rows.items()):
            if key in keys and (record_id < stays.get(key, record_id + 1) or (retry and not keep_order)):
                due.append((places[key], record_id))
                places[key] += 1
        last = {key: record_id for record_id, (key, *_) in sorted(self.rows.items())}
        found = [(record_id, self.rows[record_id][0]) for _, record_id in sorted(due)[:limit]]
        return {record_id: key if last[key] == record_id else None for record_id, key in found}

    def release(self, ids):
        if self.before_release is not None:
            self.before_release(ids)
        for each in () if self.fenced else ids:
            self.rows.pop(each, None)
        return not self.fenced

    def retry(self, *ids):
        for each in ids:
            self.rows[each][3] = True

    @property
    def states(self):
        return {record_id: "held" if held else reason for record_id, (_, reason, held, _) in sorted(self.rows.items())}


class FakeTopics:
    """`Topics`, and its `Troubles`: refuses those of `bad`, suspects those of `large`; topics that were blamed are in
    `blamed`. Of those that fail, all but the `only` one are paused, and probed once `probes` has them."""

    def __init__(self):
        self.bad, self.large = {}, set()
        self.blamed = {}
        self.paused, self.probes, self.only = frozenset(), set(), ""

    def blame(self, topic, reason):
        self.blamed[topic] = reason
        self.paused |= {topic} - {self.only}

    def reason(self, topic):
        return self.blamed.get(topic, "")

    def may_probe(self, topic):
        may, self.probes = topic in self.probes, self.probes - {topic}
        return may

    def refused(self, rows, largest=None):  # noqa: ARG002 - `bad` has them
        return {row[0]: self.bad[row[0]] for row in rows if row[0] in self.bad}

    def oversized(self, rows, largest):  # noqa: ARG002 - `large` has them
        return {row[0] for row in rows if row[0] in self.large}

    def ask_again(self):
        pass


def look_again(loop):
    """Have a loop look for retry requests in its next turn."""
    loop._batch.redelivery._look_at = 0.0


class BatchRuns:
    """Loops on fakes, one after the other, each of which runs in this thread until it is idle.

    `term`, `ports` and `stopping` are those of the last loop.
    """

    def __init__(self, *, policy="hold_key", one_per_key=False, limits=None):
        self.table, self.kafka, self.places, self.topics = FakePagedTable(), FakeKafka(), FakePlaces(), FakeTopics()
        self.delivery = FakeBatchDelivery(self.kafka, self.topics)
        self.store = self.delivery.store
        self.policy, self.one_per_key = policy, one_per_key
        self.limits = limits or Limits(io_error_backoff_seconds=0.0)
        self.observers, self.delivered = [], 0

    def loop(self):
        self.term, self.stopping = Term(uuid.uuid4()), threading.Event()
        self.ports = BatchPorts(
            source=self.table.source(),
            delivery=self.delivery,
            store=self.store,
            is_exactly_once=self.delivery.is_exactly_once,
            observers=BatchObservers(self.observers),
            parking=BatchParking(self.policy, self.topics, self.places),
            troubles=self.topics,
            limits=self.limits,
            one_per_key=self.one_per_key,
            emit=lambda _: None,
            delivered=self._count,
        )
        self._last = BatchLoop(self.term, self.ports, self.stopping)
        return self._last

    def end(self):
        """Stop the last loop, and have it leave nothing unaccounted for."""
        self.stopping.set()
        self._last.run()

    def run(self, *, turns=2_000):
        """Harvest until there is nothing to do; return the loop, which may be asked for more turns."""
        loop = self.loop()
        for _ in range(turns):
            loop.turn()
            if loop.idle:
                return loop
        raise AssertionError(f"still busy after {turns} turns")

    def _count(self, records):
        self.delivered += records


def fill(runs, number, *, keys=50):
    """Insert records from 1 on, of some keys in turn."""
    runs.table.insert(*[row(n, f"k{n % keys}") for n in range(1, number + 1)])


def filled(number, *, keys=50, **settings):
    """Return a bench with records as of `fill`."""
    runs = BatchRuns(**settings)
    fill(runs, number, keys=keys)
    return runs


def steps_back(log):
    """Return how many records of a log went behind a later one of their key."""
    last, count = {}, 0
    for record_id, _, key, *_ in log:
        count += record_id < last.get(key, 0)
        last[key] = record_id
    return count


def assert_in_order(runs, last):
    """Assert that all records up to the last went once, those of a key in order."""
    assert sorted(runs.kafka.ids) == list(range(1, last + 1))
    assert steps_back(runs.kafka.log) == 0
