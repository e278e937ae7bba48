"""Adds up orders and cents for each customer. The totals are exact, even if processes are killed.

    orders ─► {"customer", "cents"} ─► + 1 and + cents in `order_totals`

The messages of a transaction are summed up in memory. A single statement writes the sums at the end of the transaction.
"""

import json
from typing import Annotated

import typer

from harvest_lib.consume import Message, Transaction
from harvest_lib.examples.running import Dsn, Listen, MinTxn, Servers, Settings, run

_CREATE = """
CREATE TABLE IF NOT EXISTS order_totals (customer TEXT PRIMARY KEY, orders BIGINT NOT NULL, cents BIGINT NOT NULL)
"""
_ADD = """
INSERT INTO order_totals
SELECT customer, orders, cents FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) AS seen (customer, orders, cents)
ON CONFLICT (customer)
DO UPDATE SET orders = order_totals.orders + excluded.orders, cents = order_totals.cents + excluded.cents
"""


class OrderTotals:
    """The application. An application consists of two functions."""

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Remember the order until the end of the transaction."""
        order = json.loads(message.record.value())
        orders, cents = transaction.memory.get(order["customer"], (0, 0))
        transaction.memory[order["customer"]] = (orders + 1, cents + order["cents"])

    def finalize_txn(self, transaction: Transaction) -> None:
        """Write the sums, customers in the same order in all shards."""
        customers = sorted(transaction.memory)
        orders, cents = ([transaction.memory[each][place] for each in customers] for place in (0, 1))
        transaction.state.execute(_ADD, (customers, orders, cents))


def main(
    *,
    dsn: Dsn,
    servers: Servers,
    topic: Annotated[str, typer.Option(help="Where the orders are.")] = "orders",
    name: Annotated[str, typer.Option(help="The consumer's, and its group's.")] = "order-totals",
    min_txn: MinTxn = 0.0,
    listen: Listen = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new one
) -> None:
    """Add up orders by customer into the table `order_totals`."""
    run(
        OrderTotals(),
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
