"""Process each record of an outbox once, from a topic with at-least-once delivery.

    CREATE TABLE taken (outbox_id bigint PRIMARY KEY, taken_at timestamptz NOT NULL DEFAULT now());

Wrap your application in it, and pass it to a `Consumer` with a `PostgresStore`.
"""

from harvest_lib.consume import Application, Message, Transaction
from harvest_lib.record.header import origin_of


class Deduplicated:
    """Passes on messages of records that were not processed before."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Store the record's id, in the transaction of its processing. Raises LookupError if it has no id."""
        origin = origin_of(message.record.headers())
        if origin is None:
            raise LookupError("the record has no header of the harvester's")
        _, outbox_id = origin
        taken = transaction.state.execute("INSERT INTO taken VALUES (%s) ON CONFLICT DO NOTHING", (outbox_id,))
        if taken.rowcount == 1:
            self._application.consume_message(transaction, message)

    def finalize_txn(self, transaction: Transaction) -> None:
        """Finalize the application's transaction."""
        self._application.finalize_txn(transaction)
