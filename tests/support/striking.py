"""A harvester that a signal strikes at a step of its own choosing: `python -m support.striking -f reaper.yaml`.

The steps are those of its own parts, which are wrapped here; the product knows nothing of it.

    leading, lead  around raising the epoch      produce  a record is about to be handed to librdkafka
    begin     the delivery is about to begin     landed   all of the batch has been acknowledged
    begun     it has begun                       commit   the transaction is about to be committed
    save      a checkpoint is about to be        committed  it was
              written to Postgres                committing  it is being, for so many milliseconds
    saved     it was                             purge, purged  around a purge of marked records
    fetched   records were marked                park, parked  around parking records
                                                 release, released  around forgetting that they were
    keep, kept   around keeping a checkpoint with acknowledgements   keeping  it is being, for so many milliseconds
    acknowledge  an acknowledgement is about to be handed to librdkafka
"""

import argparse
import os
import signal
import sys
import threading
import time
from multiprocessing import forkserver, get_context
from unittest.mock import patch

from confluent_kafka import Producer

from harvest_lib.batching.parking import BatchParking
from harvest_lib.cli.log_output import configure_logging
from harvest_lib.config import load
from harvest_lib.consume import Flag, unpack
from harvest_lib.delivery import BatchCommitted, Sequenced, Transactional
from harvest_lib.harvester.assembly import engine
from harvest_lib.harvester.assembly.factory import make_source
from harvest_lib.harvester.harvest import Harvest, State
from harvest_lib.outbox import OutboxTable
from harvest_lib.sequencing.message_id import HEADER_NAME as MESSAGE_ID
from harvest_lib.source import MarkPages

_BEGIN_SECONDS = 10.0


class Strike:
    """Send this process a signal when it comes to a step for the n-th time."""

    def __init__(self, step, nth, number, delay_seconds=0.0):
        self._step = step
        self._left = nth
        self._number = number
        self._delay_seconds = delay_seconds
        self.outstanding = False
        """Records were handed over since all had been acknowledged."""

    def at(self, step):
        """Strike if the step comes for the n-th time; return True if it did."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._number)
                return True
        return False

    def during(self, step):
        """As `at`, but a little later, while this thread goes on."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                threading.Thread(target=self._later, daemon=True).start()

    def _later(self):
        time.sleep(self._delay_seconds)  # when it strikes is what is being varied
        os.kill(os.getpid(), self._number)


class Wrapped:
    """Something that does all that another does."""

    def __init__(self, inner, strike):
        self._inner = inner
        self._strike = strike

    def __getattr__(self, name):
        return getattr(self._inner, name)


def _is_acknowledgement(*arguments, headers=None, **_named):
    message_id = dict(headers or (arguments[-1] if len(arguments) == 7 else None) or []).get(MESSAGE_ID)
    return message_id is not None and unpack(message_id).flag == Flag.ACK_TXN


class StrikingProducer(Wrapped):
    """A producer; its records to the topics of harvesters themselves do not count."""

    def __len__(self):
        return len(self._inner)

    def produce(self, topic, *rest, **named):
        if _is_acknowledgement(*rest, **named):
            self._strike.at("acknowledge")
        elif not topic.endswith((".neli", ".checkpoint")):
            self._strike.at("produce")
            self._strike.outstanding = True
        self._inner.produce(topic, *rest, **named)

    def init_transactions(self, timeout):
        if self._strike.at("begin"):
            timeout = _BEGIN_SECONDS  # a zombie that gives up before it has fenced anybody proves nothing
        self._inner.init_transactions(timeout)
        self._strike.at("begun")

    def commit_transaction(self, timeout):
        self._strike.at("commit")
        self._strike.during("committing")
        self._inner.commit_transaction(timeout)
        self._strike.at("committed")


def _made(settings, strike):
    """A producer; that which tries out transactions at the start is let be."""
    producer = Producer(settings)
    is_try_out = str(settings.get("transactional.id", "")).endswith(".check")
    return producer if is_try_out else StrikingProducer(producer, strike)


class StrikingStore(Wrapped):
    def save_pending(self, checkpoint, intents):
        self._strike.at("keep")
        self._strike.during("keeping")
        is_kept = self._inner.save_pending(checkpoint, intents)
        self._strike.at("kept")
        return is_kept

    def lead(self, leader_id, after_epoch=None):
        self._strike.at("leading")
        self._inner.lead(leader_id, after_epoch)
        self._strike.at("lead")

    def save(self, checkpoint):
        self._strike.at("save")
        saved = self._inner.save(checkpoint)
        self._strike.at("saved")
        return saved


def strike_once_landed(delivery, strike):
    """Wrap how a delivery waits until nothing is outstanding; the client may have heard all before it is asked."""
    producer = delivery._producer
    flush = producer.flush

    def flushed(may_send):
        outcome = flush(may_send)
        if strike.outstanding and isinstance(outcome, BatchCommitted):
            strike.outstanding = False
            strike.at("landed")
        return outcome

    producer.flush = flushed


class StrikingPlaces(Wrapped):
    """The list of what is parked."""

    def add(self, entries):
        self._strike.at("park")
        added = self._inner.add(entries)
        self._strike.at("parked")
        return added

    def release(self, ids):
        self._strike.at("release")
        released = self._inner.release(ids)
        self._strike.at("released")
        return released


class StrikingMarks(Wrapped):
    """A source that marks, and purges what was delivered."""

    def fetch(self, limit, delivered=()):
        if delivered:
            self._strike.at("purge")
        batch = self._inner.fetch(limit, delivered)
        if delivered:
            self._strike.at("purged")
        if batch.rows:
            self._strike.at("fetched")
        return batch


def striking(config, strike):
    """Return a harvester all of whose parts are wrapped."""
    make_delivery, make_purging = engine.make_delivery, engine.make_purging_delivery
    make_pages, make_parking = engine.make_batch_source, engine.make_parking

    def make_striking_delivery(*args, **named):
        delivery, store = make_delivery(*args, **named)
        store = StrikingStore(store, strike)
        if isinstance(delivery, Sequenced):
            delivery._keep = store.save_pending
        if not isinstance(delivery, Transactional):  # there is no step between its reports and its commit
            strike_once_landed(delivery, strike)
        return delivery, store

    engine.make_delivery = make_striking_delivery

    def make_striking_purge(*args, **named):
        delivery, store = make_purging(*args, **named)
        strike_once_landed(delivery, strike)
        return delivery, store

    engine.make_purging_delivery = make_striking_purge

    def make_striking_pages(*args, **named):
        pages = make_pages(*args, **named)
        if isinstance(pages, MarkPages):
            pages._source = StrikingMarks(pages._source, strike)
        return pages

    engine.make_batch_source = make_striking_pages

    def parking(*args, **named):
        made = make_parking(*args, **named)
        if isinstance(made, BatchParking):
            made._parked_ids = StrikingPlaces(made._parked_ids, strike)
        return made

    engine.make_parking = parking
    marks = config.source == "mark" and not config.exactly_once
    source = make_source(config, OutboxTable.parse(config.outbox_table)) if marks else None
    return Harvest(
        config,
        source=source and StrikingMarks(source, strike),
        kafka_producer_provider=lambda settings: _made(settings, strike),
    )


_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


def _have_forks():
    """Start the process to fork from, with the path of this one: it says nothing where it cannot import."""
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()


class Struck:
    """A harvester in a process of its own, forked from one that has imported everything and started nothing."""

    def __init__(self, arguments, log):
        self.log = log
        _have_forks()
        self._process = _FORKS.Process(target=_run, args=([str(each) for each in arguments], str(log)))
        self._process.start()

    def wait(self, seconds):
        """Return its exit code; raises AssertionError if it does not end in time, and then ends it."""
        self._process.join(seconds)
        if (code := self._process.exitcode) is None:
            self._process.kill()
            self._process.join()
            raise AssertionError(f"it did not end within {seconds} s: {self.log.read_text()}")
        return code


_IMPORTED_BY = os.getpid()


def _run(arguments, log):
    assert os.getpid() != _IMPORTED_BY, "it was forked from a process that could not import this"
    for name in [each for each in os.environ if each.startswith("HARVEST_")]:
        del os.environ[name]
    with open(log, "w") as stderr, open(os.devnull, "w") as stdout:  # noqa: PTH123 - descriptors are what is wanted
        os.dup2(stderr.fileno(), 2)
        os.dup2(stdout.fileno(), 1)
    main(arguments)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("-f", dest="config", required=True)
    parser.add_argument("--step", default="")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--signal", default="SIGKILL")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--drain", action="store_true", help="end when there is nothing left")
    parser.add_argument("--log-format", default="json")
    asked = parser.parse_args(arguments)
    configure_logging(asked.log_format, "info")
    strike = Strike(asked.step, asked.nth, signal.Signals[asked.signal], asked.delay_ms / 1000)
    harvest = striking(load(asked.config).harvest, strike)
    signal.signal(signal.SIGTERM, lambda *_: harvest.stop())
    if asked.drain:
        harvest.drain(60)
        return
    with harvest:
        while harvest.state is State.RUNNING:
            harvest.await_stopped(0.2)


if __name__ == "__main__":
    main()
