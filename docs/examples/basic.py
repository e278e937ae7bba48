"""Append a record in the application's own transaction, then harvest until Ctrl-C or SIGTERM.

    python docs/examples/basic.py [topic]

HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS are the addresses of Postgres and Kafka, by default on localhost. The topic,
by default `orders`, must exist: the harvester creates only its internal topics.
"""

import signal
import sys

import psycopg

from harvest_lib import Harvest, HarvestConfig, OutboxRecord, append
from harvest_lib.outbox import OutboxTable


def place_order(connection: psycopg.Connection, topic: str, order: str) -> None:
    """Change business data and write a record of it: both are committed, or neither."""
    with connection.transaction():
        connection.execute("INSERT INTO orders VALUES (%s, 'placed') ON CONFLICT DO NOTHING", (order,))
        record = OutboxRecord(topic=topic, key=order, value='{"state": "placed"}', headers=[("event", "placed")])
        append(connection, [record])


def main() -> None:
    """Create missing tables, write, and harvest."""
    topic = sys.argv[1] if len(sys.argv) > 1 else "orders"
    config = HarvestConfig(leader_group_id="example-basic")  # other settings come from HARVEST_… variables

    with psycopg.connect(config.data_source.conninfo(), autocommit=True) as connection:
        OutboxTable.parse(config.outbox_table).create(connection)  # or `harvest init`, or your own migrations
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, state text NOT NULL)")
        place_order(connection, topic, "o-1")

    harvest = Harvest(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: harvest.stop())
    with harvest:
        print("harvesting", flush=True)
        while not harvest.await_stopped(0.2):  # raises the error that ended the harvester
            pass
    print(f"stopped, {harvest.delivered_records} delivered")


if __name__ == "__main__":
    main()
