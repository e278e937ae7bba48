"""An audit that finds what a test says: for what happens around an audit. Its command line is the real one's."""

import argparse
import json
import os
import sys

import psycopg

from harvest_lib.errors import FOUND_EXIT_CODE

CREATE = """
CREATE SCHEMA IF NOT EXISTS harvest_audit;
CREATE TABLE IF NOT EXISTS harvest_audit.summary (
  audit_id text, at timestamptz, records bigint, committed bigint, lost bigint, duplicates_adjacent bigint,
  duplicates_separated bigint, duplicates_cross_epoch bigint, reordered bigint, unknown bigint,
  other_contents bigint, foreign_messages bigint, delay_p50_ms double precision, delay_p95_ms double precision,
  delay_p99_ms double precision, delay_max_ms double precision, backlog_records bigint,
  backlog_age_seconds double precision, keys bigint, keys_with_gaps bigint);
CREATE TABLE IF NOT EXISTS harvest_audit.audited (audit_id text, outbox text, kafka_topic text);
"""


def insert(connection, audit_id, *, topics=("t",), outbox='"public"."outbox"', age_hours=0, **numbers):
    """Put the row of an audit, and its subject, where the audit puts them."""
    duplicates = ("duplicates_adjacent", "duplicates_separated", "duplicates_cross_epoch")
    counts = ("lost", *duplicates, "reordered", "unknown", "other_contents")
    row = {
        **dict.fromkeys((*counts, "foreign_messages", "backlog_records", "backlog_age_seconds"), 0),
        "records": 100,
        "committed": 100,
        **numbers,
    }
    connection.execute(CREATE)
    names, values = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    connection.execute(
        f"INSERT INTO harvest_audit.summary (audit_id, at, {names}) "  # noqa: S608 - names of this file
        f"VALUES (%(audit_id)s, clock_timestamp() - make_interval(hours => %(age)s), {values})",
        {**row, "audit_id": audit_id, "age": age_hours},
    )
    for topic in topics:
        connection.execute("INSERT INTO harvest_audit.audited VALUES (%s, %s, %s)", (audit_id, outbox, topic))


def main():
    parser = argparse.ArgumentParser()
    for option in ("--audit-id", "--table", "--finds", "--state", "--metrics-file"):
        parser.add_argument(option)
    parser.add_argument("--topic", action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--allow-empty", action="store_true")
    options = parser.parse_args()
    finds = json.loads(options.finds or "{}")
    if "error" in finds:
        sys.stderr.write(f"error: {finds['error']}\n")
        return 6
    if "nothing" not in finds:
        with psycopg.connect(os.environ["HARVEST_DSN"], autocommit=True) as connection:
            insert(connection, options.audit_id, topics=options.topic, **finds)
    asked = {"audit_id": options.audit_id, "topic": options.topic, "state": options.state}
    sys.stdout.write(json.dumps({**asked, "metrics": options.metrics_file, **finds}) + "\n")
    return FOUND_EXIT_CODE if finds else 0


if __name__ == "__main__":
    sys.exit(main())
