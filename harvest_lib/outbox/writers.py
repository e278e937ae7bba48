"""Adapters that run statements on a writer's connection: of psycopg, asyncpg, SQLAlchemy (also a session) or Django.

The statements run through the same library as the writer's own statements. So errors have the same types and effects:
Django demands a rollback of the block, and SQLAlchemy invalidates a lost connection.

This module does not import SQLAlchemy or Django at run time: a caller that passes a session of SQLAlchemy has imported
SQLAlchemy already.
"""

import re
import sys
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.rows import tuple_row

from harvest_lib.errors import LifecycleError

if TYPE_CHECKING:
    import asyncpg

_TAKEN = "a psycopg connection, SQLAlchemy's Connection or Session over psycopg, or Django's connection to Postgres"
_TAKEN_ASYNC = "an async connection of psycopg or asyncpg, or SQLAlchemy's AsyncConnection or AsyncSession"
_NOT_STREAMED = {"stream_results": False}
"""Execution options of SQLAlchemy: on a connection with `stream_results`, an INSERT would become DECLARE CURSOR."""


class Way(Protocol):
    """Runs statements, with `%s` as placeholders, in the writer's transaction."""

    @property
    def driver(self) -> object:
        """The driver's connection."""

    def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        """Execute a statement and return its first row, or None."""

    def insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement once for each of `rows`."""


class AsyncWay(Protocol):
    """The asynchronous form of `Way`."""

    @property
    def driver(self) -> object:
        """The driver's connection."""

    async def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        """Execute a statement and return its first row, or None."""

    async def insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement once for each of `rows`."""


def way_of(given: object) -> Way:
    """Return the adapter for a writer's connection. The adapter's statements run in the writer's transaction.

    Pending changes of a SQLAlchemy session are flushed first, so that business rows are locked before their records
    are inserted. Raises TypeError for a connection of another library. Raises LifecycleError for a Django connection
    outside a transaction, and for a SQLAlchemy connection in AUTOCOMMIT.
    """
    given = _flushed(given)
    if isinstance(given, psycopg.Connection):
        return _Psycopg(given)
    if hasattr(given, "ensure_connection") and hasattr(given, "in_atomic_block"):
        return _of_django(given)
    driver = getattr(getattr(given, "connection", None), "driver_connection", None)
    if not isinstance(driver, psycopg.Connection):
        raise _refused(given, driver, "append", _TAKEN)
    connection: Any = given
    if not connection.in_transaction():
        connection.begin()
    _refuse_autocommit(driver)
    return _Sqlalchemy(connection, driver)


async def async_way_of(given: object) -> AsyncWay:
    """Return the adapter for an async connection, as `way_of` does. Raises LifecycleError for an asyncpg connection
    outside a transaction: each statement would be committed at once."""
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    if module is not None and isinstance(given, module.AsyncSession | module.async_scoped_session):
        await given.flush()
        given = await given.connection()
    if module is not None and isinstance(given, module.AsyncConnection):
        return await _of_sqlalchemy_async(given)
    if isinstance(given, psycopg.AsyncConnection):
        return _AsyncPsycopg(given)
    if not is_asyncpg(given):
        raise _refused(given, None, "append_async", _TAKEN_ASYNC)
    connection: Any = given  # asyncpg's, or its pool's proxy
    if not connection.is_in_transaction():
        raise _without_transaction("async with connection.transaction():")
    return _Asyncpg(connection)


async def _of_sqlalchemy_async(given: Any) -> AsyncWay:
    if not given.in_transaction():
        await given.begin()
    driver = (await given.get_raw_connection()).driver_connection
    if is_asyncpg(driver):
        if not driver.is_in_transaction():
            await given.exec_driver_sql("SELECT 1")  # the first statement begins asyncpg's transaction
        if not driver.is_in_transaction():
            raise _without_transaction("async with engine.begin():", "SQLAlchemy's isolation_level is AUTOCOMMIT")
    elif isinstance(driver, psycopg.AsyncConnection):
        _refuse_autocommit(driver)
    else:
        raise _refused(given, driver, "append_async", _TAKEN_ASYNC)
    return _AsyncSqlalchemy(given, driver)


class _Psycopg:
    def __init__(self, driver: "psycopg.Connection[Any]") -> None:
        self.driver = driver

    def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        with self.driver.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(statement.encode(), values).fetchone()

    def insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self.driver.cursor() as cursor:
            cursor.executemany(statement.encode(), rows)


class _Sqlalchemy:
    def __init__(self, connection: Any, driver: "psycopg.Connection[Any]") -> None:
        self._connection, self.driver = connection, driver

    def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        row: Sequence[Any] | None = self._connection.exec_driver_sql(statement, tuple(values), _NOT_STREAMED).first()
        return row

    def insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.exec_driver_sql(statement, list(rows), _NOT_STREAMED)


class _Django:
    def __init__(self, wrapper: Any) -> None:
        self._wrapper, self.driver = wrapper, wrapper.connection

    def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        with self._wrapper.cursor() as cursor:
            cursor.execute(statement, values)
            row: Sequence[Any] | None = cursor.fetchone()
            return row

    def insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._wrapper.cursor() as cursor:
            cursor.executemany(statement, rows)


class _AsyncPsycopg:
    def __init__(self, driver: "psycopg.AsyncConnection[Any]") -> None:
        self.driver = driver

    async def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        async with self.driver.cursor(row_factory=tuple_row) as cursor:
            return await (await cursor.execute(statement.encode(), values)).fetchone()

    async def insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        async with self.driver.cursor() as cursor:
            await cursor.executemany(statement.encode(), rows)


class _Asyncpg:
    def __init__(self, driver: "asyncpg.Connection[Any]") -> None:
        self.driver = driver

    async def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        row: Sequence[Any] | None = await self.driver.fetchrow(numbered(statement), *values)
        return row

    async def insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        await self.driver.executemany(numbered(statement), rows)


class _AsyncSqlalchemy:
    def __init__(self, connection: Any, driver: object) -> None:
        self._connection, self.driver = connection, driver

    async def fetch(self, statement: str, values: Sequence[Any]) -> Sequence[Any] | None:
        found = await self._connection.exec_driver_sql(self._spelled(statement), tuple(values), _NOT_STREAMED)
        row: Sequence[Any] | None = found.first()
        return row

    async def insert(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        await self._connection.exec_driver_sql(self._spelled(statement), list(rows), _NOT_STREAMED)

    def _spelled(self, statement: str) -> str:
        return numbered(statement) if is_asyncpg(self.driver) else statement


def numbered(statement: str) -> str:
    """Convert a statement to asyncpg's syntax: each `%s` becomes `$1`, `$2` and so on, and `%%` becomes `%`."""
    numbers = count(1)
    return re.sub("%[s%]", lambda found: f"${next(numbers)}" if found[0] == "%s" else "%", statement)


def postgres_error(error: BaseException) -> psycopg.Error | None:
    """Find the error of Postgres that caused an error of a driver, of SQLAlchemy or of Django. Return it as an error of
    psycopg, or None if Postgres is not the cause."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, psycopg.Error):
            return seen if seen.sqlstate else None
        state, module = getattr(seen, "sqlstate", None), type(seen).__module__.partition(".")[0]
        if isinstance(state, str) and module == "asyncpg":
            try:
                return psycopg.errors.lookup(state)(str(seen))
            except KeyError:
                return None
        seen = getattr(seen, "orig", None) or seen.__cause__
    return None


def is_asyncpg(connection: object) -> bool:
    """Return True if `connection` is a connection of asyncpg, pooled or not."""
    return type(connection).__module__.partition(".")[0] == "asyncpg" and hasattr(connection, "is_in_transaction")


def _flushed(given: Any) -> object:
    """Flush a SQLAlchemy session and return its connection. Return any other object unchanged."""
    module = sys.modules.get("sqlalchemy.orm")
    if module is None or not isinstance(given, module.Session | module.scoped_session):
        return given
    given.flush()
    connection: object = given.connection()
    return connection


def _of_django(wrapper: Any) -> Way:
    if wrapper.vendor != "postgresql":
        raise TypeError(f"append takes {_TAKEN}, not Django's connection to {wrapper.vendor}")
    if not wrapper.in_atomic_block and wrapper.get_autocommit():
        raise _without_transaction("with transaction.atomic():")
    wrapper.ensure_connection()
    driver = wrapper.connection
    if not isinstance(driver, psycopg.Connection):
        raise _refused(wrapper, driver, "append", _TAKEN)
    return _Django(wrapper)


def _refuse_autocommit(driver: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Raise LifecycleError if the driver is in autocommit: SQLAlchemy then reports a transaction that Postgres has not
    begun."""
    if driver.autocommit:
        raise _without_transaction("with engine.begin():", "SQLAlchemy's isolation_level is AUTOCOMMIT")


def _without_transaction(
    block: str, evidence: str = "the connection commits each statement by itself"
) -> LifecycleError:
    return LifecycleError(
        "there is no transaction: the records would be committed without the business rows",
        evidence=evidence,
        next_step=f"write business rows and records in one block, `{block}`",
    )


def _refused(given: object, driver: object, function: str, taken: str) -> TypeError:
    kind, inner = type(given), given if driver is None else driver
    over = "" if inner is given else f" over {type(inner).__module__.partition('.')[0]}"
    hint = ""
    if type(inner).__module__.startswith("psycopg2"):
        hint = ": install psycopg (version 3), and with SQLAlchemy write postgresql+psycopg:// in the address"
    elif isinstance(inner, psycopg.AsyncConnection) or is_asyncpg(inner):
        hint = ": use append_async"
    elif isinstance(inner, psycopg.Connection):
        hint = ": use append"
    return TypeError(f"{function} takes {taken}, not {kind.__module__}.{kind.__qualname__}{over}{hint}")
