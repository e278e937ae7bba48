"""Count orders by state: each message counts once, whatever crashes, until Ctrl-C or SIGTERM.

    python docs/examples/consumer.py [topic]

Start any number of processes: they share the topic's partitions. HARVEST_DSN and HARVEST_BOOTSTRAP_SERVERS are the
addresses of Postgres and Kafka. The topic, by default `orders`, must exist.
"""

import json
import os
import signal
import sys
import threading
from collections import Counter
from functools import partial

import psycopg

from harvest_lib.conninfo import parameters_of
from harvest_lib.consume import Consumer, Message, PostgresStore, Transaction, create_tables
from harvest_lib.consume.telemetry import ConsumerTelemetry
from harvest_lib.errors import HarvestError
from harvest_lib.telemetry.service import observed

ADD = """
INSERT INTO states VALUES (%s, %s) ON CONFLICT (state) DO UPDATE SET orders = states.orders + excluded.orders
"""


class States:
    """The application: two functions."""

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Count the order's state until the end of the transaction."""
        states = transaction.memory.setdefault("states", Counter())
        states[json.loads(message.record.value())["state"]] += 1

    def finalize_txn(self, transaction: Transaction) -> None:
        """Write the sums, a row for each state, in the same order in all shards."""
        for state, orders in sorted(transaction.memory.get("states", {}).items()):
            transaction.state.execute(ADD, (state, orders))


def main() -> None:
    """Create missing tables, and consume."""
    topic = sys.argv[1] if len(sys.argv) > 1 else "orders"
    dsn = os.environ.get("HARVEST_DSN", "host=127.0.0.1")
    create_tables(dsn)
    with psycopg.connect(**parameters_of(dsn), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS states (state text PRIMARY KEY, orders bigint NOT NULL)")

    consumer = Consumer(
        States(),
        name="order-states",
        topics=[topic],
        settings={"bootstrap.servers": os.environ.get("HARVEST_BOOTSTRAP_SERVERS", "127.0.0.1:9092")},
        store=partial(PostgresStore, dsn),
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    print("consuming", flush=True)
    with observed(ConsumerTelemetry(consumer), os.environ.get("HARVEST_LISTEN")):
        consumer.run(stopping)
    print("stopped")


if __name__ == "__main__":
    try:
        main()
    except HarvestError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)  # shows systemd whether another start helps
