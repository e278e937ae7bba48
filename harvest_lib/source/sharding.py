"""The shard of a key: a number from 0 to one less than the number of shards.

Promises: Python and SQL give the same number for the same key, on every supported Postgres, on every machine, until the
number of shards changes; keys spread evenly.

The shard is the first 28 bits of the MD5 of the key's bytes in UTF-8, modulo the number of shards. Postgres's own
hashes of text may change with its version; its CRC-32 came with 18. For 500,000 keys, on a single core, above the 50 ms
of counting them: this MD5 0.24 s, SHA-256 likewise 0.32 s, CRC-32 0.10 s. MD5 has no security purpose here. A server
with OpenSSL in FIPS mode refuses MD5, and cannot have more than 1 shard.

A database in another encoding than UTF-8 gives the same numbers, since its text is converted first. In SQL_ASCII text
has no encoding and is hashed as it is: the numbers are the same if the bytes written there are UTF-8.
"""

import hashlib

from psycopg import sql

_HEX_DIGITS = 7  # 28 bits: the most that make an `int` without a sign

# `mod` and not `%`: a statement with parameters needs `%%`, a statement without needs `%`.
_SHARD = "mod(('x' || left(md5(convert_to({column}, 'UTF8')), {digits}))::bit(28)::int, {shards})"


def shard_of(key: str, shards: int) -> int:
    """Return the shard, from 0 to `shards` - 1, that a key belongs to."""
    digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
    return int(digest[:_HEX_DIGITS], 16) % shards


def shard_expression(column: sql.Composable, shards: int) -> sql.Composed:
    """Return the SQL of `shard_of` for a text column: an `int`, null for null. It fits statements with and without
    parameters."""
    return sql.SQL(_SHARD).format(column=column, digits=sql.Literal(_HEX_DIGITS), shards=sql.Literal(shards))
