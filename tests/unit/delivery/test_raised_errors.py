"""An error that a client raises in the middle of serving reports reaches the delivery, in whatever form it comes."""

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.batches import START
from support.idle_producer import IdleProducer, begun
from support.rows import row

from harvest_lib.delivery import BatchFailed

pytestmark = pytest.mark.quick

FATAL = KafkaError(KafkaError._GAPLESS_GUARANTEE, "unable to satisfy gap-less guarantee", fatal=True)


def in_a_callback(cause):
    """Return what Python makes of a callback that is called while an exception is set."""
    error = SystemError("a callback returned a result with an exception set")
    error.__cause__ = cause
    return error


class Raising(IdleProducer):
    """A producer that raises when it is asked to serve reports."""

    def __init__(self, error):
        self._error = error
        self.closed = False

    def poll(self, _timeout):
        raise self._error

    def flush(self, _timeout):
        raise self._error

    def close(self):
        self.closed = True
        raise self._error


def outcome(error):
    """Return the outcome of a batch while a client raises an error."""
    producer = Raising(error)
    made = begun(producer)
    made.send([row(1, "k")], lambda: True)
    found = made.commit(START, lambda: True)
    made.abandon()
    assert producer.closed
    return found


@pytest.mark.parametrize(
    "error", [KafkaException(FATAL), in_a_callback(KafkaException(FATAL))], ids=["raised", "in_a_callback"]
)
def test_a_fatal_error_fails_the_batch(error):
    assert outcome(error) == BatchFailed(reason="unable to satisfy gap-less guarantee", unnamed=True)


def test_a_fatal_error_that_the_client_has_lost_fails_the_batch():
    error = SystemError("<built-in method flush> returned NULL without setting an exception")
    assert isinstance(outcome(error), BatchFailed)


def test_so_does_one_that_python_has_forgotten():
    """Amid the reports it says that there is no method, where there is one."""
    made = begun(Raising(None))
    error = AttributeError("'AtLeastOnce' object has no attribute 'commit'", name="commit", obj=made)
    assert isinstance(outcome(error), BatchFailed)


@pytest.mark.parametrize("error", [in_a_callback(None), AttributeError("no such", name="no_such", obj=object())])
def test_another_error_is_not_taken_for_one(error):
    made = begun(Raising(error))
    with pytest.raises(type(error)):
        made.send([row(1, "k")], lambda: True)
