"""An application that writes to an outbox: Postgres alone commits, and a harvester sends the records.

Pass it to a `Consumer` with a `PostgresStore` on the outbox's database.
"""

from harvest_lib import OutboxRecord, append
from harvest_lib.consume import Message, Transaction
from harvest_lib.record import RecordLimits


class Invoicing:
    """Makes an invoice of each order."""

    def __init__(self, topic: str) -> None:
        """`topic` is the topic of the invoices."""
        self._topic = topic

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Write the invoice, and check its record here: an error then belongs to this message."""
        order = message.record.key().decode()
        transaction.state.execute("INSERT INTO invoices VALUES (%s, now())", (order,))
        record = OutboxRecord(topic=self._topic, key=order, value='{"invoice": "sent"}')
        record.check(RecordLimits())
        transaction.memory.setdefault("records", []).append(record)

    def finalize_txn(self, transaction: Transaction) -> None:
        """Append the records to the outbox, in the transaction of the checkpoint."""
        append(transaction.state, transaction.memory.get("records", []))
