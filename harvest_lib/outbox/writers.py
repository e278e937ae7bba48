"""The psycopg or asyncpg connection behind a writer's object: a connection or session of SQLAlchemy, or Django's.

Nothing here is imported for it: a caller that hands over a session of SQLAlchemy has imported SQLAlchemy.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from harvest_lib.database import translate
from harvest_lib.errors import LifecycleError

if TYPE_CHECKING:
    import asyncpg

_TAKEN = "a psycopg connection, SQLAlchemy's Connection or Session over psycopg, or Django's connection to Postgres"
_TAKEN_ASYNC = "an async connection of psycopg, one of asyncpg, or SQLAlchemy's AsyncConnection or AsyncSession"


def driver_of(given: object) -> "psycopg.Connection[Any]":
    """Return the driver's connection, in the transaction that the writer will commit.

    Pending changes of a SQLAlchemy session are flushed first, so that business rows are locked before their records
    are inserted. Raises TypeError for a connection of another kind, LifecycleError for Django's outside a transaction
    and SQLAlchemy's in AUTOCOMMIT.
    """
    given = _flushed(given)
    if isinstance(given, psycopg.Connection):
        return given
    if hasattr(given, "ensure_connection") and hasattr(given, "in_atomic_block"):
        return _of_django(given)
    driver = getattr(getattr(given, "connection", None), "driver_connection", None)
    if not isinstance(driver, psycopg.Connection):
        raise _refused(given, driver, "append", _TAKEN)
    connection: Any = given
    if not connection.in_transaction():
        connection.begin()  # a statement past SQLAlchemy does not begin its transaction: its commit would do nothing
    _refuse_autocommit(driver)
    return driver


async def async_driver_of(given: object) -> "psycopg.AsyncConnection[Any] | asyncpg.Connection[Any]":
    """Do as `driver_of` does, for async connections. asyncpg's has to be in a transaction, or LifecycleError is raised:
    without one each statement would be committed at once."""
    driver, module = given, sys.modules.get("sqlalchemy.ext.asyncio")
    if module is not None and isinstance(given, module.AsyncSession | module.async_scoped_session):
        await given.flush()
        given = await given.connection()
    if module is not None and isinstance(given, module.AsyncConnection):
        if not given.in_transaction():
            await given.begin()
        driver = (await given.get_raw_connection()).driver_connection
        if is_asyncpg(driver) and not driver.is_in_transaction():
            await given.exec_driver_sql("SELECT 1")  # which begins asyncpg's transaction
    if isinstance(driver, psycopg.AsyncConnection):
        if driver is not given:
            _refuse_autocommit(driver)
        return driver
    if not is_asyncpg(driver):
        raise _refused(given, driver, "append_async", _TAKEN_ASYNC)
    connection: asyncpg.Connection[Any] = driver  # or its stand-in in a pool
    if not connection.is_in_transaction():
        raise _without_transaction("async with connection.transaction():")
    return connection


def is_asyncpg(connection: object) -> bool:
    """Return True if it is a connection of asyncpg, pooled or not."""
    return type(connection).__module__.partition(".")[0] == "asyncpg" and hasattr(connection, "is_in_transaction")


@contextmanager
def translated_from_asyncpg() -> Iterator[None]:
    """Turn asyncpg's errors of Postgres into ours, as `translated` does for psycopg."""
    try:
        yield
    except Exception as error:
        state = getattr(error, "sqlstate", None)
        if state is None or not type(error).__module__.startswith("asyncpg"):
            raise
        try:
            same = psycopg.errors.lookup(state)(str(error))
        except KeyError:
            same = psycopg.DatabaseError(str(error))
        raise translate(same) from same


def _flushed(given: Any) -> object:
    """Return the connection of a session of SQLAlchemy, and anything else as it is."""
    module = sys.modules.get("sqlalchemy.orm")
    if module is None or not isinstance(given, module.Session | module.scoped_session):
        return given
    given.flush()
    connection: object = given.connection()
    return connection


def _of_django(wrapper: Any) -> "psycopg.Connection[Any]":
    if wrapper.vendor != "postgresql":
        raise TypeError(f"append takes {_TAKEN}, not Django's connection to {wrapper.vendor}")
    if not wrapper.in_atomic_block and wrapper.get_autocommit():
        raise _without_transaction("with transaction.atomic():")
    wrapper.ensure_connection()
    driver = wrapper.connection
    if not isinstance(driver, psycopg.Connection):
        raise _refused(wrapper, driver, "append", _TAKEN)
    return driver


def _refuse_autocommit(driver: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Raise LifecycleError where SQLAlchemy shows a transaction that Postgres does not have."""
    if driver.autocommit:
        raise _without_transaction("with engine.begin():", "SQLAlchemy's isolation_level is AUTOCOMMIT")


def _without_transaction(
    block: str, evidence: str = "the connection commits each statement by itself"
) -> LifecycleError:
    return LifecycleError(
        "there is no transaction: the records would be committed alone, whatever becomes of the business rows",
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
