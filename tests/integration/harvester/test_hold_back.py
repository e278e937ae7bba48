"""After an end that left records' fate unknown, a process waits as long as another would have had to."""

import time

import pytest
from support.fakes import FakeLeadership, FakeSource, FakeTable
from support.outbox import harvest_config
from support.rows import row
from support.waiting import eventually

from harvest_lib.clock import boot_seconds
from harvest_lib.delivery import Abandoned, BatchCommitted, BatchFailed
from harvest_lib.events import LeaderAcquired
from harvest_lib.harvester.assembly.pools import make_leadership
from harvest_lib.harvester.harvest import Harvest

pytestmark = pytest.mark.gate


class HeldDelivery:
    """`Delivery` of which a batch lands at once, or never while `hold`."""

    def __init__(self):
        self.hold, self.held, self.abandoned = False, 0, 0

    def begin(self, leader_id, may_send):  # noqa: ARG002 - nothing is stamped
        return BatchCommitted()

    def send(self, rows, may_send):  # noqa: ARG002 - takes no time
        self.held = len(rows)
        return {}

    def commit(self, checkpoint, may_send, /):  # noqa: ARG002 - of no concern
        while self.hold:
            if not may_send():
                return BatchFailed(reason="not acknowledged in time")
            time.sleep(0.01)
        self.held = 0
        return BatchCommitted()

    def abandon(self):
        held, self.held = self.held, 0
        self.abandoned += held
        return Abandoned(may_arrive=bool(held))

    def settle(self, may_send):  # noqa: ARG002 - a commit has waited
        return BatchCommitted()


@pytest.mark.parametrize(("abandons", "session"), [(True, 2.0), (False, 3_600.0)])
def test_a_process_that_abandoned_records_leads_again_only_after_the_session_timeout(
    outbox, bootstrap_servers, group_id, abandons, session
):
    """Its records on the wire may arrive that long; a topic that refuses late ones then refuses them.

    Without that it waits for nothing: the session timeout is longer than a test may last.
    """
    table, delivery, leadership, acquired = FakeTable(), HeldDelivery(), FakeLeadership(), []
    table.insert(row(1, "a"))
    delivery.hold = abandons
    limits = {"heartbeat_timeout_seconds": 1.5}
    config = harvest_config(outbox.dsn, bootstrap_servers, group_id, session_timeout_seconds=session, limits=limits)
    harvest = Harvest(config, source=FakeSource(table), delivery=delivery, leadership=leadership)
    harvest.set_event_handler(
        lambda event: acquired.append(boot_seconds()) if isinstance(event, LeaderAcquired) else None
    )
    with harvest:
        eventually(lambda: delivery.held if abandons else not table.rows, "the first term is at work")
        fenced = boot_seconds()
        leadership.fence()
        eventually(lambda: not delivery.held and harvest.leader_id is None, "the end of the term")
        delivery.hold = False
        leadership.appoint()
        eventually(lambda: len(acquired) == 2, "it leads again")
    assert delivery.abandoned == int(abandons)
    assert not abandons or acquired[1] - fenced >= session


@pytest.mark.parametrize("limits", [{}, {"drain_interval_seconds": 0.1}, {"heartbeat_timeout_seconds": 2.5}])
def test_a_rebalance_waits_until_nothing_queued_can_leave(bootstrap_servers, limits):
    """The successor is elected once the loop has let go, or everything in the producer's queue has expired."""
    config = harvest_config("host=unused", bootstrap_servers, "pool", leadership="neli", limits=limits)
    waits = make_leadership(config)._settings.quiesce_timeout_seconds
    assert waits > config.delivery_timeout_seconds
    assert waits >= 2 * config.limits.drain_interval_seconds
