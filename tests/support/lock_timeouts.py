"""A session that tells how long its changes of tables make others wait for them at most."""

import psycopg
from psycopg.pq import TransactionStatus

_HELD = """
SELECT coalesce(array_agg(DISTINCT relation), '{}') FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'
AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') AND NOT relation = ANY (%s)
"""
"""Relations which nobody else can write to."""


class Locking(psycopg.Connection):
    """A connection. Writers wait behind a request for a lock, which the lock timeout ends."""

    def watch(self):
        """Begin to note the lock timeouts, in `timeouts`, of statements that lock relations which are there by now."""
        self.timeouts = []
        self._there = {each for (each,) in super().execute("SELECT oid FROM pg_class")}

    def execute(self, query, params=None, **options):
        if self.info.transaction_status is not TransactionStatus.INTRANS:
            return super().execute(query, params, **options)
        timeout, held = self._ask("SHOW lock_timeout"), self._ask(_HELD, [[]])
        done = super().execute(query, params, **options)
        if self.info.transaction_status is TransactionStatus.INTRANS and self._there & {*self._ask(_HELD, [held])}:
            self.timeouts.append(timeout)
        return done

    def _ask(self, query, params=None):
        return super().execute(query, params).fetchone()[0]
