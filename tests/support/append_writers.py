"""Writers of the outbox through each connection that `append` accepts, by name."""

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress

import asyncpg
import psycopg
import sqlalchemy
import sqlalchemy.exc
from django.conf import settings as django_settings
from django.db import connection as django_connection
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from harvest_lib.outbox import append, append_async


class Undone(Exception):
    """Raised inside a transaction, to roll it back."""


class SyncWriter:
    """Writes through psycopg."""

    def __init__(self, dsn):
        self._dsn = dsn

    def write(self, *batches, undo=False, **options):
        """Append all batches in one transaction and return what each call said."""
        with psycopg.connect(self._dsn) as connection:
            counts = [append(connection, batch, **options) for batch in batches]
            connection.rollback() if undo else connection.commit()
        return counts


class AsyncWriter(SyncWriter):
    """Writes through psycopg's async half."""

    def write(self, *batches, undo=False, **options):
        async def run():
            async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
                counts = [await append_async(connection, batch, **options) for batch in batches]
                await (connection.rollback() if undo else connection.commit())
            return counts

        return asyncio.run(run())


class SqlalchemyWriter(SyncWriter):
    """Writes through SQLAlchemy, whose transaction begins by itself."""

    def write(self, *batches, undo=False, **options):
        engine = make_engine(self._dsn)
        try:
            with engine.connect() as connection:
                counts = [append(connection, batch, **options) for batch in batches]
                connection.rollback() if undo else connection.commit()
        finally:
            engine.dispose()
        return counts


class SessionWriter(SyncWriter):
    """Writes through a session of SQLAlchemy's ORM."""

    def write(self, *batches, undo=False, **options):
        engine = make_engine(self._dsn)
        try:
            with Session(engine) as session:
                counts = [append(session, batch, **options) for batch in batches]
                session.rollback() if undo else session.commit()
        finally:
            engine.dispose()
        return counts


class AsyncpgWriter(SyncWriter):
    """Writes through asyncpg."""

    def write(self, *batches, undo=False, **options):
        async def run():
            counts = []
            try:
                async with self._connected() as connection, connection.transaction():
                    for batch in batches:
                        counts.append(await append_async(connection, batch, **options))
                    if undo:
                        raise Undone  # noqa: TRY301 - out of the block of the transaction
            except Undone:
                pass
            return counts

        return asyncio.run(run())

    @asynccontextmanager
    async def _connected(self):
        connection = await asyncpg.connect(**asyncpg_options(self._dsn))
        try:
            yield connection
        finally:
            await connection.close()


class AsyncpgPoolWriter(AsyncpgWriter):
    """Writes through a connection that a pool of asyncpg lends."""

    @asynccontextmanager
    async def _connected(self):
        async with (
            asyncpg.create_pool(min_size=1, max_size=1, **asyncpg_options(self._dsn)) as pool,
            pool.acquire() as lent,
        ):
            yield lent


class AsyncSessionWriter(SyncWriter):
    """Writes through an async session of SQLAlchemy, over psycopg."""

    def write(self, *batches, undo=False, **options):
        async def run():
            engine = self.engine()
            try:
                async with self._opened(engine) as opened:
                    counts = [await append_async(opened, batch, **options) for batch in batches]
                    await (opened.rollback() if undo else opened.commit())
            finally:
                await engine.dispose()
            return counts

        return asyncio.run(run())

    def _opened(self, engine):
        return AsyncSession(engine)

    def engine(self):
        async def connected():
            return await psycopg.AsyncConnection.connect(self._dsn)

        return create_async_engine("postgresql+psycopg://", async_creator=connected)


class AsyncpgSessionWriter(AsyncSessionWriter):
    """Writes through an async session of SQLAlchemy, over asyncpg."""

    def engine(self):
        async def connected():
            return await asyncpg.connect(**asyncpg_options(self._dsn))

        return create_async_engine("postgresql+asyncpg://", async_creator=connected)


class AsyncConnectionWriter(AsyncSessionWriter):
    """Writes through an async connection of SQLAlchemy, whose transaction nobody has begun."""

    def _opened(self, engine):
        return engine.connect()


class AsyncpgConnectionWriter(AsyncConnectionWriter, AsyncpgSessionWriter):
    """The same over asyncpg."""


class DjangoWriter(SyncWriter):
    """Writes through Django's connection, in a block of its own."""

    def write(self, *batches, undo=False, **options):
        with django_connected(self._dsn) as connection, suppress(Undone), transaction.atomic():
            counts = [append(connection, batch, **options) for batch in batches]
            if undo:
                raise Undone
        return counts


@contextmanager
def django_connected(dsn):
    """Have Django's `connection` lead to the test's database, for as long as the block lasts."""
    if not django_settings.configured:
        django_settings.configure()
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    given = {names[name]: value for name, value in conninfo_to_dict(dsn).items() if name in names}
    connections.settings = connections.configure_settings(
        {"default": {"ENGINE": "django.db.backends.postgresql", **given}}
    )
    try:
        yield django_connection
    finally:
        django_connection.close()
        del connections["default"]


def asyncpg_options(dsn):
    given = conninfo_to_dict(dsn)
    named = {"user": "user", "password": "password", "host": "host", "port": "port", "dbname": "database"}
    return {theirs: given[ours] for ours, theirs in named.items() if given.get(ours)}


def make_engine(dsn):
    return sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))


WRITERS = {
    "psycopg": SyncWriter,
    "psycopg_async": AsyncWriter,
    "sqlalchemy": SqlalchemyWriter,
    "sqlalchemy_session": SessionWriter,
    "sqlalchemy_async": AsyncSessionWriter,
    "sqlalchemy_async_connection": AsyncConnectionWriter,
    "sqlalchemy_asyncpg_connection": AsyncpgConnectionWriter,
    "sqlalchemy_asyncpg": AsyncpgSessionWriter,
    "asyncpg": AsyncpgWriter,
    "asyncpg_pool": AsyncpgPoolWriter,
    "django": DjangoWriter,
}
