"""The SQL (SQLite) of the comparison, with a query for each result of the audit.

The query of an anomaly returns a row (topic, partition, offset, id, key) for each occurrence.
"""

CREATE_TABLES = """
CREATE TABLE committed (
    id INTEGER PRIMARY KEY, key BLOB, content BLOB, topic TEXT, state INTEGER, since_us INTEGER
);
CREATE TABLE pending (id INTEGER PRIMARY KEY);
CREATE TABLE arrivals (id INTEGER PRIMARY KEY, key BLOB, content BLOB);
CREATE TABLE observed (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL, timestamp_ms INTEGER NOT NULL,
    key BLOB, id INTEGER, leader BLOB, content BLOB
);
"""

ADD_COMMITTED = "INSERT OR IGNORE INTO committed (id, key, content) VALUES (?, ?, ?)"
ADD_PENDING = "INSERT OR IGNORE INTO pending VALUES (?)"
ADD_ARRIVALS = "INSERT OR IGNORE INTO arrivals VALUES (?, ?, ?)"
ADD_OBSERVED = "INSERT INTO observed VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

# Two indexes sort the records once: by id, and by key and offset. The windows below read the second index in its order.
INDEX_IDS = "CREATE INDEX ids ON observed (id) WHERE id IS NOT NULL"
INDEX_SEQUENCES = """
CREATE INDEX sequences ON observed (topic, key, partition, offset, id) WHERE id IS NOT NULL
"""

# Arrivals are the rows of the second query, which also has records that were committed while the audit read. Only
# records that are in Kafka are added.
KEEP_ARRIVALS_SEEN = """
INSERT OR IGNORE INTO committed (id, key, content)
SELECT id, key, content FROM arrivals WHERE EXISTS (SELECT 1 FROM observed WHERE observed.id = arrivals.id)
"""

# Others are records in Kafka with another content than the committed record of the same id: the id was assigned twice,
# so that they are different records.
SET_OTHERS_ASIDE = """
CREATE TABLE others AS
SELECT observed.rowid AS record, observed.topic, partition, offset, observed.id, observed.key, leader
FROM observed NOT INDEXED JOIN committed ON committed.id = observed.id
WHERE observed.content <> committed.content
"""
FORGET_OTHERS = "DELETE FROM observed WHERE rowid IN (SELECT record FROM others)"

# A step is a record with an id that is not greater than the previous id of its key in the partition: the id is smaller
# (a step back) or the same (a repeat).
CREATE_STEPS = """
CREATE TABLE steps AS
SELECT * FROM (
    SELECT
        rowid AS record, topic, partition, offset, id, key,
        lag(id) OVER (PARTITION BY topic, key, partition ORDER BY offset) AS id_before
    FROM observed
    WHERE id IS NOT NULL
)
WHERE id <= id_before
"""
INDEX_STEPS = "CREATE UNIQUE INDEX steps_by_record ON steps (record)"

# All copies, including the first, of each record that is in Kafka more than once.
# A copy is explained if another term sent the record before. It is unexplained if the same term sent the record twice,
# or if the sender is unknown because a header is missing.
CREATE_COPIES = """
CREATE TABLE copies AS
SELECT
    record, topic, partition, offset, id, key, leader_before, leader, copy, copy_in_sequence,
    leader IS NOT NULL AND leader_before IS NOT NULL AND copy_of_leader = 1 AS explained,
    EXISTS (SELECT 1 FROM steps WHERE steps.record = numbered.record AND steps.id_before = steps.id) AS adjacent
FROM (
    SELECT
        rowid AS record, topic, partition, offset, id, key, leader,
        row_number() OVER in_log AS copy,
        lag(leader) OVER in_log AS leader_before,
        row_number() OVER (PARTITION BY id, leader ORDER BY topic, partition, offset) AS copy_of_leader,
        row_number() OVER (PARTITION BY topic, key, partition, id ORDER BY offset) AS copy_in_sequence
    FROM observed
    WHERE id IN (SELECT id FROM observed WHERE id IS NOT NULL GROUP BY id HAVING count(*) > 1)
    WINDOW in_log AS (PARTITION BY id ORDER BY topic, partition, offset)
) AS numbered
"""
INDEX_COPIES = "CREATE UNIQUE INDEX copies_by_record ON copies (record)"

LOST = """
SELECT NULL, NULL, NULL, id, key FROM committed
WHERE NOT EXISTS (SELECT 1 FROM observed WHERE observed.id = committed.id)
  AND NOT EXISTS (SELECT 1 FROM pending WHERE pending.id = committed.id)
"""
PENDING = """
SELECT NULL, NULL, NULL, id, NULL FROM pending
WHERE NOT EXISTS (SELECT 1 FROM observed WHERE observed.id = pending.id)
"""
UNKNOWN = """
SELECT topic, partition, offset, id, key FROM observed
WHERE id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM committed WHERE committed.id = observed.id)
GROUP BY id
"""
OTHER_CONTENTS = "SELECT topic, partition, offset, id, key FROM others"
WRONG_KEY = """
SELECT observed.topic, partition, offset, observed.id, observed.key
FROM observed NOT INDEXED JOIN committed ON committed.id = observed.id
WHERE committed.key IS NOT NULL AND observed.key IS NOT committed.key
"""
ADJACENT_DUPLICATES = "SELECT topic, partition, offset, id, key FROM copies WHERE adjacent"
SEPARATED_DUPLICATES = "SELECT topic, partition, offset, id, key FROM copies WHERE copy > 1 AND NOT adjacent"
UNEXPLAINED_DUPLICATES = "SELECT topic, partition, offset, id, key FROM copies WHERE copy > 1 AND NOT explained"
# First occurrences that are out of order, with the id of the previous first occurrence of the key.
REORDERINGS = """
SELECT topic, partition, offset, id, key, id_before FROM (
    SELECT
        topic, partition, offset, id, key,
        lag(id) OVER (PARTITION BY topic, key, partition ORDER BY offset) AS id_before
    FROM observed
    WHERE id IS NOT NULL AND key IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM copies WHERE copies.record = observed.rowid AND copy_in_sequence > 1)
)
WHERE id < id_before
"""
REORDERED = f"SELECT topic, partition, offset, id, key FROM ({REORDERINGS})"  # noqa: S608 - as above
ORDER_VIOLATIONS = "SELECT topic, partition, offset, id, key FROM steps WHERE id < id_before AND key IS NOT NULL"
SPLIT_KEYS = """
SELECT topic, partition, offset, id, key FROM observed
WHERE id IS NOT NULL AND key IS NOT NULL
GROUP BY topic, key HAVING min(partition) <> max(partition)
"""

# For each partition: the number of keys that were in another partition before, and the first record of such a key.
MOVED_KEYS = """
WITH split AS (
    SELECT topic, key FROM observed WHERE id IS NOT NULL AND key IS NOT NULL
    GROUP BY topic, key HAVING min(partition) <> max(partition)
), firsts AS (
    SELECT topic, key, partition, min(timestamp_ms) AS first_ms, min(offset) AS first_offset,
        row_number() OVER (PARTITION BY topic, key ORDER BY min(timestamp_ms), partition) AS place
    FROM observed JOIN split USING (topic, key) WHERE id IS NOT NULL GROUP BY topic, key, partition
)
SELECT topic, partition, count(*), min(first_ms), min(first_offset) FROM firsts
WHERE place > 1 GROUP BY topic, partition ORDER BY topic, partition
"""

COUNT_COMMITTED = "SELECT count(*) FROM committed"
COUNT_DELIVERED = (
    "SELECT count(*) FROM committed WHERE EXISTS (SELECT 1 FROM observed WHERE observed.id = committed.id)"
)
COUNT_FOREIGN = "SELECT count(*) FROM observed WHERE id IS NULL"
COUNT_RECORDS = "SELECT (SELECT count(*) FROM observed) + (SELECT count(*) FROM others)"

EXPLANATIONS = """
SELECT leader_before, leader, count(*) FROM copies
WHERE copy > 1 AND explained
GROUP BY leader_before, leader
ORDER BY min(topic), min(partition), min(offset)
"""
LEADERS = """
SELECT leader, count(*), min(timestamp_ms), max(timestamp_ms) FROM observed
WHERE leader IS NOT NULL
GROUP BY leader
ORDER BY 3, 1
"""
