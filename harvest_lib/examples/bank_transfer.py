"""Publishes a debit and a credit for each transfer: two messages out for each message in. The sum of all money never
changes.

    transfers ─► {"from", "to", "amount"} ─┬─► legs: {"account", "amount"}, a debit and a credit
                                           └─► balances, a table

If both legs are written to the same partition of the same topic, a reader of committed records sees an unchanged sum
after each transaction, because it reads a transaction as a whole. If debits and credits are in different topics, the
sum is unchanged only after the reader has read the acknowledgements in both topics, because a transaction is read as a
whole only within a partition.
"""

import json
from collections import Counter
from typing import Annotated, Any

import typer

from harvest_lib.consume import Message, Transaction
from harvest_lib.examples.running import Dsn, Listen, MinTxn, Servers, Settings, run, write_sums

_CREATE = "CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, balance BIGINT NOT NULL)"
_MOST = 10**12
_MOVE = """
INSERT INTO balances SELECT account, amount FROM unnest(%s::text[], %s::bigint[]) AS moved (account, amount)
ON CONFLICT (account) DO UPDATE SET balance = balances.balance + excluded.balance
"""


class BankTransfer:
    """The application. It publishes both legs of a transfer to the partition with the transfer's partition number."""

    def __init__(self, debits: str, credits: str) -> None:  # noqa: A002 - a bank's words
        self._debits, self._credits = debits, credits

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Publish both legs, and add their amounts to the sums in memory."""
        transfer = json.loads(message.record.value())
        if not is_transfer(transfer):  # a value that Postgres refuses fails this message, not the whole transaction
            raise ValueError("no transfer of an amount from an account to another")
        moved = transaction.memory.setdefault("moved", Counter())
        for topic, account, amount in (
            (self._debits, transfer["from"], -transfer["amount"]),
            (self._credits, transfer["to"], transfer["amount"]),
        ):
            leg = json.dumps({"transfer": transfer["id"], "account": account, "amount": amount}).encode()
            transaction.publish(topic, leg, key=account, partition=transaction.shard.partition)
            moved[account] += amount

    def finalize_txn(self, transaction: Transaction) -> None:
        """Write the sums of the transaction to the balances."""
        write_sums(transaction, _MOVE, transaction.memory.get("moved", {}))


def is_transfer(value: Any) -> bool:
    """Return True if a message's value has the valid fields of a transfer."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) and "\0" not in value[name] for name in ("from", "to"))
        and isinstance(value.get("amount"), int)
        and 0 <= value["amount"] <= _MOST
        and "id" in value
    )


def main(
    *,
    dsn: Dsn,
    servers: Servers,
    topic: Annotated[str, typer.Option(help="Where the transfers are.")] = "transfers",
    debits: Annotated[str, typer.Option(help="Where debits go, with as many partitions.")] = "legs",
    credits: Annotated[str, typer.Option(help="Where credits go, with as many partitions.")] = "legs",  # noqa: A002
    name: Annotated[str, typer.Option(help="The consumer's, and its group's.")] = "bank-transfer",
    min_txn: MinTxn = 0.0,
    listen: Listen = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new one
) -> None:
    """Make a debit and a credit of each transfer."""
    run(
        BankTransfer(debits, credits),
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
