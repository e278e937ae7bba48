"""The SQL (SQLite) of a summary, over the tables of `harvest_lib.audit.queries`, whose copies were found before."""

from harvest_lib.audit.queries import REORDERINGS
from harvest_lib.audit.records import MUST_COME, WAITS

# A record that a query of committed records named before is the same record: the outbox knows its state.
ADD_COMMITTED = """
INSERT INTO committed (id, key, content, topic, state, since_us) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    key = excluded.key, content = excluded.content, topic = excluded.topic, state = excluded.state,
    since_us = excluded.since_us
"""

CREATE_BEGINS = """
CREATE TABLE begins (topic TEXT, partition INTEGER, offset INTEGER, PRIMARY KEY (topic, partition)) WITHOUT ROWID
"""
ADD_BEGIN = "INSERT INTO begins VALUES (?, ?, ?)"

CREATE_MISSING = """
CREATE TABLE missing AS SELECT id, topic, key, state, since_us FROM committed
WHERE NOT EXISTS (SELECT 1 FROM observed WHERE observed.id = committed.id)
"""
CREATE_STRANGE = """
CREATE TABLE strange AS SELECT observed.id FROM observed JOIN begins USING (topic, partition)
WHERE observed.id >= ? AND observed.offset < begins.offset
  AND NOT EXISTS (SELECT 1 FROM committed WHERE committed.id = observed.id)
GROUP BY observed.id
"""
CREATE_REORDERED = f"CREATE TABLE reordered AS {REORDERINGS}"
CREATE_DELAYS = """
CREATE TABLE delays AS SELECT min(timestamp_ms) - since_us / 1000.0 AS ms
FROM observed JOIN committed USING (id) WHERE since_us IS NOT NULL GROUP BY committed.id
"""
INDEX_DELAYS = "CREATE INDEX by_ms ON delays (ms)"

STEPS = (CREATE_MISSING, CREATE_REORDERED, CREATE_DELAYS, INDEX_DELAYS)

COUNTS = f"""
SELECT
    (SELECT count(*) FROM observed) + (SELECT count(*) FROM others) AS records,
    (SELECT count(*) FROM committed) AS committed,
    (SELECT count(*) FROM missing WHERE state = {MUST_COME}) AS lost,
    (SELECT count(*) FROM copies WHERE copy > 1 AND NOT explained AND adjacent) AS duplicates_adjacent,
    (SELECT count(*) FROM copies WHERE copy > 1 AND NOT explained AND NOT adjacent) AS duplicates_separated,
    (SELECT count(*) FROM copies WHERE copy > 1 AND explained) AS duplicates_cross_epoch,
    (SELECT count(*) FROM reordered) AS reordered,
    (SELECT count(*) FROM strange) AS unknown,
    (SELECT count(*) FROM others) AS other_contents,
    (SELECT count(*) FROM observed WHERE id IS NULL) AS foreign_messages,
    (SELECT count(*) FROM missing WHERE state = {WAITS}) AS backlog_records
"""  # noqa: S608 - integers
BACKLOG_SINCE = f"SELECT min(since_us) FROM missing WHERE state = {WAITS}"  # noqa: S608 - as above

COUNT_DELAYS = "SELECT count(*) FROM delays"
DELAY = "SELECT ms FROM delays ORDER BY ms LIMIT 1 OFFSET ?"

KEYLESS = f"SELECT count(*) FROM missing WHERE state = {MUST_COME} AND (key IS NULL OR topic IS NULL)"  # noqa: S608
_WRONG = f"SELECT topic, key FROM missing WHERE state = {MUST_COME} UNION SELECT topic, key FROM others"  # noqa: S608
KEYS = f"SELECT count(*) FROM (SELECT topic, key FROM observed WHERE id IS NOT NULL UNION {_WRONG})"  # noqa: S608
KEYS_WITH_GAPS = f"""
SELECT count(*) FROM (
    {_WRONG} UNION SELECT topic, key FROM reordered
    UNION SELECT topic, key FROM observed WHERE id IN (SELECT id FROM strange)
)
"""  # noqa: S608 - as above

# The columns of a finding, in the order of `harvest_lib.audit.results.AuditFinding`; `since` in microseconds.
LOST = f"""
SELECT 'lost', id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, since_us FROM missing
WHERE state = {MUST_COME} ORDER BY id LIMIT :most
"""  # noqa: S608 - as above
DUPLICATES = """
SELECT 'duplicate', id,
    CASE WHEN explained THEN 'cross_epoch' WHEN adjacent THEN 'adjacent' ELSE 'separated' END,
    id, NULL, nullif(lower(hex(leader)), ''), nullif(lower(hex(leader_before)), ''), topic, partition, offset, NULL
FROM copies WHERE copy > 1 ORDER BY id, topic, partition, offset LIMIT :most
"""
REORDERED = """
SELECT 'reordered', id, NULL, id, id_before, NULL, NULL, topic, partition, offset, NULL
FROM reordered ORDER BY id, topic, partition, offset LIMIT :most
"""
UNKNOWN = """
SELECT 'unknown', id, NULL, id, NULL, nullif(lower(hex(leader)), ''), NULL, topic, partition, offset, NULL FROM (
    SELECT id, leader, topic, partition, offset FROM (
        SELECT *, row_number() OVER (PARTITION BY id ORDER BY topic, partition, key, offset) AS copy
        FROM observed WHERE id IN (SELECT id FROM strange)
    ) WHERE copy = 1
    UNION ALL SELECT id, leader, topic, partition, offset FROM others
)
ORDER BY id, topic, partition, offset LIMIT :most
"""
FINDINGS = (LOST, DUPLICATES, REORDERED, UNKNOWN)
