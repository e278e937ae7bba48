"""The user's side of a consumer: the functions that take messages in, and the transaction that they get."""

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from harvest_lib.consume.checkpoint import ShardId
from harvest_lib.errors import ConfigError
from harvest_lib.sequencing.batch import Batch, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A consumer transaction: all of it is kept, or nothing."""

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
    """An application that also takes in many messages per call, which costs less if it does little with each message.

    `consume_message` is called all the same: for single messages, for messages that are read again from the log, and
    after each failure, to find the message to blame.
    """

    def consume_messages(self, transaction: Transaction, messages: Batch) -> None:
        """Take in the messages of an acknowledgement, in their order: at most as many as the ring holds.

        `messages.records` are the Kafka client's alone.
        """
        ...


def require_functions(application: Application) -> None:
    """Raise ConfigError if a function of an application is not there, does not take its two arguments, or does its work
    only after it has returned."""
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
    """Raise TypeError if a function returned unfinished work instead of its result: it would never be done."""
    if inspect.isawaitable(returned) or isinstance(returned, Generator) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        kind = type(returned).__name__
        raise TypeError(f"the function returned a {kind}, and its work was not done: a returned {kind} is never run")


def _not_usable(name: str, cause: str, next_step: str) -> ConfigError:
    return ConfigError(f"the application's `{name}` {cause}", field="application", next_step=next_step)
