"""Databases of other encodings for tests: one of its own, its outbox, and rows whose text is any bytes."""

from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.native import Native
from support.outbox import Outbox

_INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
VALUES (now(), %s, %s, %s, %s::text[], %s::text[])
"""


@contextmanager
def databases(dsn, unique):
    """Yield what makes a database of an encoding and returns how to connect to it; drop them all afterwards."""
    made = []

    def make(encoding):
        name = unique("enc")[:63]
        made.append(name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'").format(
                    sql.Identifier(name), sql.Literal(encoding)
                )
            )
        return make_conninfo(dsn, dbname=name)

    yield make
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in made:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def prepared(dsn, topic, source):
    dsn = make_conninfo(dsn, client_encoding="utf8")  # else the test's own connection has bytes for text
    made = Outbox(dsn, topic) if source == "mark" else Native(dsn, size=1_000)
    made.connection.close()


def write(dsn, encoding, *records):
    """Insert records whose parts are bytes, as a writer of that client encoding would."""
    with psycopg.connect(dsn, autocommit=True, client_encoding=encoding) as connection:
        for record in records:
            texts = [each if isinstance(each, list) else each.decode("latin1") for each in record]
            if encoding == "SQL_ASCII":
                # Through the server: the client would refuse to send it.
                parts = [_spelled(each) for each in record]
                connection.execute(
                    b"INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys,"
                    b" kafka_header_values) VALUES (now(), " + b", ".join(parts) + b")"
                )
            else:
                connection.execute(_INSERT, texts)


def _spelled(part):
    if isinstance(part, list):
        return b"ARRAY[" + b", ".join(map(_spelled, part)) + b"]::text[]"
    return b"E'" + b"".join(b"\\x%02x" % each for each in part) + b"'"
