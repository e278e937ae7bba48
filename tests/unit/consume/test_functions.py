"""Functions that a consumer cannot call, or whose work would never be done, are refused as it starts."""

import threading
from functools import partial

import pytest

from harvest_lib.consume import Consumer
from harvest_lib.errors import ConfigError

pytestmark = pytest.mark.quick


class Plain:
    def consume_message(self, transaction, message):
        """Take it."""

    def finalize_txn(self, transaction):
        """Write nothing."""


class Async(Plain):
    async def consume_message(self, transaction, message):
        """Take it."""


class AsyncAtTheEnd(Plain):
    async def finalize_txn(self, transaction):
        """Write nothing."""


class AsyncGroups(Plain):
    async def consume_messages(self, transaction, messages):
        """Take them."""


class Partial(Plain):
    def __init__(self):
        self.consume_message = partial(Async.consume_message, self)


class Yielding(Plain):
    def consume_message(self, transaction, message):
        yield transaction, message


class YieldingAsync(Plain):
    async def consume_message(self, transaction, message):
        yield transaction, message


class WithoutAnEnd:
    def consume_message(self, transaction, message):
        """Take it."""


class Narrow(Plain):
    def consume_message(self, message):
        """Take it."""


class AnAttribute(Plain):
    finalize_txn = None


@pytest.mark.parametrize(
    ("application", "says"),
    [
        (Async(), "`consume_message` is async"),
        (AsyncAtTheEnd(), "`finalize_txn` is async"),
        (AsyncGroups(), "`consume_messages` is async"),
        (Partial(), "`consume_message` is async"),
        (Yielding(), "`consume_message` is a generator"),
        (YieldingAsync(), "`consume_message` is async"),
        (WithoutAnEnd(), "`finalize_txn` is missing"),
        (AnAttribute(), "`finalize_txn` is missing"),
        (Narrow(), r"`consume_message` is called with \(transaction, message\): too many"),
        (Plain, r"`consume_message` is called with \(transaction, message\): missing a required"),
        (lambda _transaction, _message: None, "`consume_message` is missing"),
    ],
)
def test_it_is_refused_as_the_consumer_starts(application, says):
    consumer = Consumer(application, name="c", topics=["t"], settings={"bootstrap.servers": "127.0.0.1:1"}, store=None)
    with pytest.raises(ConfigError, match=says):
        consumer.run(threading.Event())


class Wide(Plain):
    def consume_message(self, *arguments, **more):
        """Take it."""


class Callable:
    def __init__(self):
        self.consume_message = print
        self.finalize_txn = dict


@pytest.mark.parametrize("application", [Plain(), Wide(), Callable()])
def test_others_are_called(application):
    stopping = threading.Event()
    stopping.set()
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    Consumer(application, name="c", topics=["t"], settings=settings, store=None).run(stopping)
