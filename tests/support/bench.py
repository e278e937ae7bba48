"""The loop of one term on fakes, for tests of what it does."""

import threading
import uuid

from support.fakes import FakeDelivery, FakeSource, FakeTable, Inline

from harvest_lib.config import Limits
from harvest_lib.leadership import Term
from harvest_lib.marking.loop import MarkLoop
from harvest_lib.marking.ports import MarkPorts
from harvest_lib.outbox.parking_rules import ParkingRules
from harvest_lib.source import SourceThread


class Bench:
    """A loop on fakes, run in this thread until the table is empty or `until` says so, or turn by turn."""

    threaded = False
    """True if the source is asked on a thread of its own, instead of at once."""

    def __init__(self, *, parking="hold_key", one_per_key=True, **limits):
        self.table, self.delivery, self.events = FakeTable(), FakeDelivery(), []
        self.source = FakeSource(self.table)
        self.stopping = threading.Event()
        self.term = Term(uuid.uuid4())
        self.delivered, self.refusals = 0, {}
        self.limits = Limits(
            **{"io_error_backoff_seconds": 0.0, "mark_backoff_seconds": 0.0, "drain_interval_seconds": 60.0, **limits}
        )
        ports = MarkPorts(
            source=SourceThread(self.source) if self.threaded else Inline(self.source),
            parking=ParkingRules(
                parking, lambda rows: {row[0]: self.refusals[row[0]] for row in rows if row[0] in self.refusals}
            ),
            one_per_key=one_per_key,
            delivery=self.delivery,
            limits=self.limits,
            emit=self.events.append,
            delivered=self._count,
        )
        self.loop = MarkLoop(self.term, ports, self.stopping)

    def _count(self, records):
        self.delivered += records

    def begin(self):
        self.loop.begin()
        return self

    def turns(self, number):
        for _ in range(number):
            self.loop.turn()

    def run(self, until=None, seconds=60.0):
        """Run the loop; `until` is asked from a watcher thread, which then stops the loop."""
        done = until or (lambda: not self.table.rows)
        finished = threading.Event()

        def watch():
            for _ in range(int(seconds / 0.002)):
                if finished.wait(0.002) or done():
                    break
            self.stopping.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.loop.run()
        finally:
            finished.set()
            watcher.join()
        return self
