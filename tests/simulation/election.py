"""Elections: a lease that is extended while its holder is heard, and a successor once it has not been for long enough.

The holder's own clock ends its lease before anybody else is elected, and its requests on the wire have arrived by then.
A holder that is frozen learns of it when it thaws: until it looks, it believes to lead. A `split` elects another while
the first still leads. Each shard has an election of its own.

By the lock in Postgres another has it, and all shards, as soon as the server has lost the session of the leader. It is
the product's own choice if it then waits for that one's leases to end, and its requests on the wire to arrive.
"""

from harvest_lib.leadership import Term
from harvest_lib.leadership.last_leaders import UNKNOWN, SubscriptionRows
from tests.simulation.session import Result
from tests.simulation.statements import KNOWN, SUBSCRIPTION, SUBSCRIPTIONS, Statements

LEASE_SECONDS = 1.0
SESSION_SECONDS = 2.6
_TICK_SECONDS = 0.1


class Election:
    """Appoint one of the world's harvesters after another to a shard."""

    def __init__(self, world, shard=0):
        self._world, self._scheduler, self._shard = world, world.scheduler, shard
        self._holder = self._term = None
        self._heard_at = self._free_at = 0.0
        self._tick()

    @property
    def holder(self):
        return self._holder

    def release(self, term, *, may_arrive):
        """Hear that a term is over."""
        if term is self._term:
            self._holder = self._term = None
            self._free_at = self._scheduler.now + (SESSION_SECONDS if may_arrive else 0.0)

    def split(self):
        """Appoint another beside the one that leads."""
        if self._holder is not None:
            self._appoint(besides=self._holder)

    def _tick(self):
        now, holder = self._scheduler.now, self._holder
        if holder is not None and holder.is_heard and self._term.is_live():
            self._term.extend(now + LEASE_SECONDS)
            self._heard_at = now
        elif holder is not None and (holder.process.dead or now > self._heard_at + SESSION_SECONDS):
            self._holder = self._term = None
            self._free_at = self._heard_at + SESSION_SECONDS
        if self._holder is None and now >= self._free_at:
            self._appoint()
        self._scheduler.after(_TICK_SECONDS, self._tick)

    def _appoint(self, besides=None):
        ready = [each for each in self._world.harvesters if each.is_ready(self._shard) and each is not besides]
        if ready:
            self._heard_at = self._scheduler.now
            self._holder = self._scheduler.dice.choice(ready)
            self._term = begin_term(self._world, self._holder, self._shard)


class LockElection:
    """Give the lock, and with it all shards, to one of the world's harvesters after another."""

    def __init__(self, world):
        self._world, self._scheduler = world, world.scheduler
        self._locked = None  # who has the lock
        self._terms = {}  # shard -> its term, once there are
        self._waits_until = 0.0
        self._is_free_in_order = False  # because its last holder has left in order
        self._may_arrive = False  # requests of the holder under a term that is over
        self._tick()

    @property
    def holder(self):
        return self._locked if self._terms else None

    def release(self, term, *, may_arrive):
        """Hear that a term is over."""
        if self._terms.get(term.shard) is term:
            del self._terms[term.shard]
            self._may_arrive = self._may_arrive or may_arrive
            if not self._terms:
                self._lose(in_order=not self._may_arrive)

    def split(self):
        """Have the server lose the session of who leads: it does not know."""
        if self._terms:
            self._lose(in_order=False)

    def _lose(self, *, in_order):
        self._locked, self._is_free_in_order, self._may_arrive = None, in_order, False
        self._terms.clear()

    def _tick(self):
        if not self._world.database.is_up:
            if self._locked is not None:
                self._lose(in_order=False)
        elif self._locked is None:
            # A member that stands back has the lock too.
            if idle := [each for each in self._world.harvesters if each.is_idle]:
                self._locked = self._scheduler.dice.choice(idle)
                self._waits_until = self._scheduler.now + (0.0 if self._is_free_in_order else SESSION_SECONDS)
        elif not self._locked.is_heard:
            self._lose(in_order=False)
        else:
            self._hold()
        self._scheduler.after(_TICK_SECONDS, self._tick)

    def _hold(self):
        """Extend the terms that there are, and begin those that there are not."""
        now, holder = self._scheduler.now, self._locked
        for shard, term in list(self._terms.items()):
            term.extend(now + LEASE_SECONDS)
            if not term.is_live():
                del self._terms[shard]
                self._may_arrive = True
        missing = [each for each in range(self._world.plan.shards) if each not in self._terms]
        if not missing or holder.is_stopping:
            return
        rows = subscription_rows(self._world.plan, holder.delivery)
        before = UNKNOWN if rows is None else rows.read(Asked(self._world.database))
        if before.are_fenced or now >= self._waits_until:
            for shard in missing:
                if holder.shards[shard].term is None:
                    self._terms[shard] = begin_term(self._world, holder, shard, before)


def begin_term(world, harvester, shard, before=UNKNOWN):
    """Grant a harvester a term of a shard, and return it."""
    term = Term(
        world.uuid(),
        shard=shard,
        lease_until=world.scheduler.now + LEASE_SECONDS,
        clock=world.scheduler.seconds,
        after_epoch=before.epochs.get(shard),
        fences=before.are_fenced,
    )
    world.promises.granted(term)
    harvester.appoint(term)
    return term


class Asked:
    """The connection of the session that has the lock. Nothing goes wrong with it: then it would not have the lock."""

    def __init__(self, database):
        self._statements = Statements(database, None)

    def execute(self, statement, values):
        return Result(
            getattr(self._statements, KNOWN[statement if isinstance(statement, str) else statement.as_string(None)])(
                values, None
            )
        )


def subscription_rows(plan, delivery):
    """Return what the product makes of a member's configuration; None where terms have no row."""
    if not plan.has_epochs:
        return None
    fence = fence_of(plan, delivery)
    return SubscriptionRows(table=SUBSCRIPTIONS, subscription=SUBSCRIPTION.name, shards=plan.shards, fence=fence)


def fence_of(plan, delivery):
    """Return the means by which a member fences the old leader."""
    return FENCES.get(delivery, "") if plan.source != "mark" else ""


FENCES = {"transactional": "transactional", "sequenced": "epoch"}
