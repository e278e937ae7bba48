"""Who leads: a lease that is extended while its holder is heard, and a successor once it has not been for long enough.

The holder's own clock ends its lease before anybody else is elected, and what it had on the wire has arrived by then.
A holder that is frozen learns of it when it thaws: until it looks, it believes to lead. A `split` elects another while
the first still leads.
"""

from harvest_lib.leadership import Term

LEASE_SECONDS = 1.0
SESSION_SECONDS = 2.6
_TICK_SECONDS = 0.1


class Election:
    """Appoint one of the world's harvesters after another."""

    def __init__(self, world):
        self._world, self._scheduler = world, world.scheduler
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
        ready = [each for each in self._world.harvesters if each.is_ready and each is not besides]
        if ready:
            now = self._heard_at = self._scheduler.now
            self._holder = self._scheduler.dice.choice(ready)
            self._term = Term(self._world.uuid(), lease_until=now + LEASE_SECONDS, clock=self._scheduler.seconds)
            self._holder.appoint(self._term)
