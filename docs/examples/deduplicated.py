"""Take each record of an outbox in once, from a topic to which a harvester delivers at least once.

    CREATE TABLE taken (outbox_id bigint PRIMARY KEY, taken_at timestamptz NOT NULL DEFAULT now());

To be given to a `Consumer` whose store is a `PostgresStore`, around the application that does the work.
"""

from harvest_lib.consume import Application, Message, Transaction
from harvest_lib.record.header import origin_of


class Deduplicated:
    """Passes on what was not taken in before."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Remember the record's id, in the transaction of what is done with it. Raises where there is none."""
        origin = origin_of(message.record.headers())
        if origin is None:
            raise LookupError("the record has no header of the harvester's")
        _, outbox_id = origin
        taken = transaction.state.execute("INSERT INTO taken VALUES (%s) ON CONFLICT DO NOTHING", (outbox_id,))
        if taken.rowcount == 1:
            self._application.consume_message(transaction, message)

    def finalize_txn(self, transaction: Transaction) -> None:
        """Leave the end to the application."""
        self._application.finalize_txn(transaction)
