"""Connections to the simulated Postgres, as psycopg's: each call takes time, and may be refused, cut off, answered to
nobody after it had its effect, or have that when nobody waits for it any more."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import psycopg
from psycopg import errors

from tests.simulation.postgres import Transaction
from tests.simulation.statements import KNOWN, OF_SHARD

_SLOW_SECONDS, _LATE_SECONDS = 0.3, 2.0

_names = {}  # id of a statement -> it, kept so that the id stays its own, the name of its meaning, and its shard


class Result:
    """Rows that a statement returned."""

    pgresult = None  # there is none of libpq's

    def __init__(self, rows=()):
        self._rows = list(rows)
        self._next = 0
        self.rowcount = len(self._rows)

    def __iter__(self):
        return iter(self.fetchall())

    def fetchall(self):
        rows, self._next = self._rows[self._next :], self.rowcount
        return rows

    def fetchone(self):
        rows = self._rows[self._next : self._next + 1]
        self._next += len(rows)
        return rows[0] if rows else None

    def scroll(self, value, mode):
        assert mode == "absolute"
        self._next = value


class Connection:
    """The part of `psycopg.Connection` that the product uses, in autocommit. `faults` says what fails, call by call."""

    info = SimpleNamespace(parameter_status=lambda _name: "UTF8", server_version=150_000)

    def __init__(self, database, statements, faults):
        self._database, self._statements, self._faults = database, statements, faults
        self._scheduler = database.scheduler
        self._boot = database.boot
        self._group = None  # the transaction that calls are a part of
        self.closed = False
        self._travel("connect")

    def execute(self, statement, values=None, *_args, **_named):
        name, of_shard = self._meaning(statement)
        if not name:
            return Result()  # a setting of the session
        if of_shard is not None:
            values = {**values, "of_shard": of_shard}
        if self._group is not None:
            return Result(getattr(self._statements, name)(values, self._group))
        with self._transaction(name, partial(self._execute_late, name, values, self._scheduler.now)):
            return Result(getattr(self._statements, name)(values, self._group))

    def cursor(self, **_named):
        return self

    def transaction(self):
        return self._transaction("transaction")

    def pipeline(self):
        return self._transaction("pipeline")

    def close(self):
        self.closed = True

    def cancel_safe(self, **_named):
        """Nothing is ever on its way when somebody else runs."""

    @contextmanager
    def _transaction(self, name, late=None):
        """Have calls as one, with all of it or nothing; faults are at its ends."""
        self._require_open()
        fault = self._travel(name, late)
        self._group = transaction = Transaction()
        try:
            yield
        except BaseException:
            self._group = None
            self._database.abort(transaction)
            raise
        self._group = None
        self._database.commit(transaction, durable=True)
        if fault == "lost":
            self._cut()
        self._travel(f"{name} answered")

    def _execute_late(self, name, values, asked_at):
        if self._database.is_up and self._boot == self._database.boot:
            transaction = Transaction()
            values = {**values, "asked_at": asked_at} if name == "save" else values
            getattr(self._statements, name)(values, transaction)
            self._database.commit(transaction, durable=True)

    def _travel(self, name, late=None):
        fault = self._faults.strike(name)
        if fault == "late" and late is not None:  # the server does it when nobody waits for it any more
            self._scheduler.after(self._scheduler.dice.uniform(0.0, _LATE_SECONDS), late)
        self._scheduler.pause(_SLOW_SECONDS if fault == "slow" else self._scheduler.dice.uniform(0.0002, 0.003))
        if fault == "refused" and not name.endswith("answered"):
            raise errors.QueryCanceled("injected: canceling statement")
        if fault in {"cut", "late"}:
            self._cut()
        if not self._database.is_up or self._boot != self._database.boot:
            self.closed = True
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return fault

    def _cut(self):
        self.closed = True
        raise psycopg.OperationalError("injected: the connection was lost")

    def _require_open(self):
        if self.closed:
            raise psycopg.OperationalError("the connection is closed")

    @staticmethod
    def _meaning(statement):
        known = _names.get(id(statement))
        if known is None:
            text = statement if isinstance(statement, str) else statement.as_string(None)
            name = KNOWN.get(text)
            if name is None:
                if text.startswith("SELECT set_config("):
                    return "", None
                if not text.lstrip().upper().startswith("SET "):
                    raise LookupError(f"the simulation does not know this statement: {text}")
                name = ""
            known = _names[id(statement)] = statement, name, OF_SHARD.get(text)
        return known[1:]
