"""The user's side of a consumer: the functions that process messages, and the transaction that they get."""

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.errors import ConfigError
from harvest_lib.sequencing.batch import Batch, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transaction of a consumer: either all of its changes and messages take effect, or none of them."""

    shard: ShardId
    state: Any
    """The store's object through which the user changes state, such as a connection to Postgres or a `KeyValues`."""
    publish: Callable[..., None]
    """Publishes a message. Arguments as in `Publisher.publish_uncommitted`: topic, value, `key`, `partition`,
    `headers`."""
    memory: dict[Any, Any] = field(default_factory=dict)
    """A dictionary for the user, for example for sums that `finalize_txn` writes. It is empty in each new
    transaction."""


class Application(Protocol):
    """The user's functions. Each shard calls them on its own thread. An exception rolls the transaction back. If a
    transaction was not committed, its messages are passed again. A message that fails too often is parked."""

    def consume_message(self, transaction: Transaction, message: Message) -> None:
        """Process a message: change state, publish further messages. `message.record` is the Kafka client's record."""
        ...

    def finalize_txn(self, transaction: Transaction) -> None:
        """Do the remaining work before the transaction is committed."""
        ...


@runtime_checkable
class GroupApplication(Application, Protocol):
    """An application that also processes many messages per call, which is cheaper if there is little work per message.

    `consume_message` is still called for single messages, for messages that are read again from the log, and after each
    failure, to find the message to blame.
    """

    def consume_messages(self, transaction: Transaction, messages: Batch) -> None:
        """Process the messages of an acknowledgement, in order. There are at most `ShardLimits.ring` messages.

        `messages.records` are the Kafka client's records.
        """
        ...


def require_functions(application: Application) -> None:
    """Raise ConfigError if a function of an application is missing or does not take its arguments. Also raise it for an
    async function or a generator, because its work would be done only after it has returned."""
    for name in ("consume_message", "finalize_txn", "consume_messages"):
        function = getattr(application, name, None)
        if function is None and name == "consume_messages":
            continue
        if not callable(function):
            raise _not_usable(name, "is missing", f"define `{name}(self, transaction, …)`")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise _not_usable(name, "is async, and nothing would await it", "make it a plain function: `def`")
        if inspect.isgeneratorfunction(function):
            raise _not_usable(name, "is a generator, and nothing would iterate over it", "take `yield` out of it")
        given = ("transaction",) if name == "finalize_txn" else ("transaction", "message")
        try:
            inspect.signature(function).bind(*given)
        except TypeError as error:
            step = f"pass an object, and define `{name}(self, {', '.join(given)})`"
            raise _not_usable(name, f"is called with ({', '.join(given)}): {error}", step) from error
        except ValueError:  # of an extension: its signature is unknown
            continue


def require_done(returned: object) -> None:
    """Raise TypeError if a function returned a coroutine, an awaitable or a generator, because the work of such an
    object would never be done."""
    if inspect.isawaitable(returned) or isinstance(returned, Generator) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        kind = type(returned).__name__
        raise TypeError(f"the function returned a {kind}, and its work was not done: a returned {kind} is never run")


def _not_usable(name: str, cause: str, next_step: str) -> ConfigError:
    return ConfigError(f"the application's `{name}` {cause}", field="application", next_step=next_step)
