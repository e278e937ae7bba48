"""A consumer whose output goes to an outbox: Postgres commits, nothing else does, and a harvester does the sending.

To be given to a `Consumer` whose store is a `PostgresStore`, on the database of the outbox.
"""

from harvest_lib import OutboxRecord, append
from harvest_lib.consume import Message, Transaction
from harvest_lib.record import RecordLimits


class Invoicing:
    """Makes an invoice of each order."""

    def __init__(self, topic: str) -> None:
        """`topic` is where the invoices go to."""
        self._topic = topic

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Write the invoice, and check what is to be said of it: a record that is no good is this message's fault."""
        order = message.record.key().decode()
        transaction.state.execute("INSERT INTO invoices VALUES (%s, now())", (order,))
        record = OutboxRecord(topic=self._topic, key=order, value='{"invoice": "sent"}')
        record.check(RecordLimits())
        transaction.memory.setdefault("records", []).append(record)

    def finalize_txn(self, transaction: Transaction) -> None:
        """Append the records to the outbox, in the transaction that the checkpoint is in."""
        append(transaction.state, transaction.memory.get("records", []))
