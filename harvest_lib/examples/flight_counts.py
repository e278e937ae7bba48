"""Counts flights for each aircraft. The counts by key are exact, even if processes are killed.

    flights ─► + 1 in `flight_counts` ─► (a topic of counts, each as of a transaction)

The messages of a transaction are counted in memory. A single statement writes the counts at the end of the transaction.
"""

import json
from typing import Annotated

import typer

from harvest_lib.consume import Message, Transaction
from harvest_lib.examples.running import Dsn, Listen, MinTxn, Servers, Settings, run, write_sums

_CREATE = "CREATE TABLE IF NOT EXISTS flight_counts (key TEXT PRIMARY KEY, flights BIGINT NOT NULL)"
_ADD = """
INSERT INTO flight_counts SELECT key, flights FROM unnest(%s::text[], %s::bigint[]) AS seen (key, flights)
ON CONFLICT (key) DO UPDATE SET flights = flight_counts.flights + excluded.flights
RETURNING key, flights
"""


class FlightCounts:
    """The application. `counts` is the topic for changed counts; empty for no topic."""

    def __init__(self, counts: str = "") -> None:
        self._counts = counts

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Count one more flight of the message's key."""
        key = (message.record.key() or b"").decode(errors="replace")
        if "\0" in key:  # a key that Postgres refuses fails this message, not the whole transaction
            raise ValueError("a key holds the character NUL")
        transaction.memory[key] = transaction.memory.get(key, 0) + 1

    def finalize_txn(self, transaction: Transaction) -> None:
        """Write the counts of the transaction to the table, and publish the changed counts."""
        changed = write_sums(transaction, _ADD, transaction.memory).fetchall()
        if self._counts:
            for key, flights in changed:
                transaction.publish(self._counts, json.dumps({"key": key, "flights": flights}).encode(), key=key)


def main(
    *,
    dsn: Dsn,
    servers: Servers,
    topic: Annotated[str, typer.Option(help="Where the flights are.")] = "flights",
    counts: Annotated[str, typer.Option(help="Where the counts go, beside the table.")] = "",
    name: Annotated[str, typer.Option(help="The consumer's, and its group's.")] = "flight-counts",
    min_txn: MinTxn = 0.0,
    listen: Listen = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new one
) -> None:
    """Count flights by key into the table `flight_counts`."""
    run(
        FlightCounts(counts),
        name=name,
        topic=topic,
        create=_CREATE,
        dsn=dsn,
        servers=servers,
        settings=settings,
        min_txn=min_txn,
        listen=listen,
    )


if __name__ == "__main__":
    typer.run(main)
