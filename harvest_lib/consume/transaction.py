"""The user's side of a consumer: the functions that take messages in, and the transaction that they get."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.sequencing.batch import Batch, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One consumer transaction: all of it is kept, or nothing."""

    shard: ShardId
    state: Any
    """Object to change state with: the store's, a connection to Postgres or a `KeyValues`."""
    publish: Callable[..., None]
    """Takes arguments of `Publisher.publish_uncommitted`: topic, value, and a `key`, a `partition`, `headers`."""
    memory: dict[Any, Any] = field(default_factory=dict)
    """The user's own, forgotten with the transaction: sums, until `finalize_txn` writes them."""


class Application(Protocol):
    """The user's functions. Shards call them on threads of their own, and again for a message whose transaction was not
    kept. An exception rolls the transaction back; a message that fails again and again is parked."""

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Take in a message, `message.record` being the Kafka client's: change state, publish further messages."""
        ...

    def finalize_txn(self, transaction: Transaction) -> None:
        """Do the remaining work before the transaction is kept."""
        ...


@runtime_checkable
class GroupApplication(Application, Protocol):
    """An application that also takes in many messages by one call, which costs less where little is done with each.

    `consume_message` is called all the same: for single messages, for messages that are read again from the log, and
    after each failure, to find the message to blame.
    """

    def consume_messages(self, transaction: Transaction, messages: Batch) -> None:
        """Take in messages that one acknowledgement commits, in their order: at most as many as the ring holds.

        `messages.records` are the Kafka client's alone.
        """
        ...
