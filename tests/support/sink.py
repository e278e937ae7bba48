"""An outbox that the sink fills, and queries of its contents."""

import psycopg
from psycopg import sql

from harvest_lib.outbox import NativeTable, OutboxTable
from harvest_lib.spark.outbox_sink import Records

ORDERS = """
CREATE TYPE mood AS ENUM ('fair', 'foul');
CREATE TABLE orders (
    number bigserial PRIMARY KEY, id uuid NOT NULL, customer varchar(20), price numeric(10, 2), "%d of" jsonb,
    mood mood, at timestamptz, batch text NOT NULL, since timestamptz NOT NULL DEFAULT clock_timestamp())
"""
RECORDS = Records(topic="orders", key="customer")


class Database:
    """A database with an outbox, to be looked at."""

    def __init__(self, dsn, layout="goharvest", value_type="varchar"):
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        table = OutboxTable.parse("outbox")
        if layout == "native":
            NativeTable(outbox=table, segment_size=100, value_type=value_type).create(self.connection)
        else:
            table.create(self.connection)

    def ask(self, statement, *values):
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def records(self):
        return self.ask("SELECT kafka_key, kafka_value, kafka_header_keys, kafka_header_values FROM outbox ORDER BY id")

    def counts(self, beside="outbox"):
        count = "SELECT count(*) FROM {}"
        tables = (*dict.fromkeys(("outbox", beside)), f"{beside}_staging", f"{beside}_batches")
        return {
            name: self.ask(sql.SQL(count).format(sql.Identifier(name)))[0][0]
            for name in tables
            if self.ask("SELECT to_regclass(%s)", name)[0][0]
        }


def left_behind(database, batch, *, connection=None):
    """Stage a row as a task of another run would."""
    (connection or database.connection).execute(
        "INSERT INTO outbox_staging (batch, run, partition, row, row_hash) VALUES (%s, gen_random_uuid(), 0, 0, 0)",
        (batch,),
    )


def swallow(connection, table, condition="true"):
    """Have rows of a condition vanish on their way into a table."""
    connection.execute(
        f"CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN IF {condition} THEN RETURN NULL; END IF; RETURN new; END$$; "
        f"CREATE TRIGGER swallow BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION swallow()"
    )


def by_key(pairs):
    """Return the values of each key, in order, of pairs that begin with both."""
    found = {}
    for key, value, *_ in pairs:
        found.setdefault(key, []).append(value)
    return found
