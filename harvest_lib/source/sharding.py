"""The shard of a key: an integer from 0 up to, but not including, the number of shards.

Promises: until the number of shards changes, Python and SQL compute the same shard for a key, on every supported
version of Postgres and on every machine. Keys spread evenly over the shards.

The shard is the first 28 bits of the MD5 of the key in UTF-8, modulo the number of shards. Postgres' own hashes of text
may change with its version, and its CRC-32 exists only from version 18 on. Measured for 500,000 keys on a single core,
in addition to the 50 ms of counting the keys: MD5 0.24 s, SHA-256 0.32 s, CRC-32 0.10 s. MD5 has no security purpose
here. A server with OpenSSL in FIPS mode refuses MD5, and is limited to 1 shard.

A database with another encoding than UTF-8 computes the same shards, since the statement converts the key to UTF-8
first. In an SQL_ASCII database text has no encoding, and the key's bytes are hashed unconverted: the shards are equal
if writers write UTF-8.
"""

import hashlib

from psycopg import sql

_HEX_DIGITS = 7  # 28 bits: the most hex digits that always give an `int` of at least 0

# The expression uses `mod` instead of `%`: a statement with parameters needs `%%`, and a statement without needs `%`.
_SHARD = "mod(('x' || left(md5(convert_to({column}, 'UTF8')), {digits}))::bit(28)::int, {shards})"


def shard_of(key: str, shards: int) -> int:
    """Return the shard, from 0 to `shards` - 1, that a key belongs to."""
    digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
    return int(digest[:_HEX_DIGITS], 16) % shards


def shard_expression(column: sql.Composable, shards: int) -> sql.Composed:
    """Return the SQL expression of `shard_of` for a text column: an `int`, or null for a null key. Statements with and
    without parameters can contain it."""
    return sql.SQL(_SHARD).format(column=column, digits=sql.Literal(_HEX_DIGITS), shards=sql.Literal(shards))
