"""What a user observes with may raise: it costs its own observation, is told once, and delivery goes on."""

import logging
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from support.outbox import harvest_config, read_topic, steps_back
from support.raising_observers import Panic, Raising

from harvest_lib.harvester.harvest import Harvest

pytestmark = pytest.mark.gate

RECORDS, BATCHES = 60, 5


@pytest.fixture
def config(outbox, bootstrap_servers, group_id):
    outbox.fill(RECORDS, keys=RECORDS)

    def make(delivery="barrier", **settings):
        limits = {"max_in_flight_records": RECORDS // BATCHES}
        return harvest_config(outbox.dsn, bootstrap_servers, group_id, delivery=delivery, limits=limits, **settings)

    return make


def check(outbox, servers):
    """All were delivered once, in order."""
    found = read_topic(servers, outbox.topic, isolation="read_committed")
    assert sorted(each.outbox_id for each in found) == list(range(1, RECORDS + 1))
    assert steps_back(found) == 0
    assert outbox.count() == 0


def events(caplog, name):
    return [each for each in caplog.records if each.msg == name]


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), Panic("broken")], ids=repr)
@pytest.mark.parametrize("step", ["on_start", "on_end", "sampler", "provider"])
def test_tracing_that_raises(outbox, config, bootstrap_servers, monkeypatch, caplog, step, error):
    raising = Raising(step, error)
    raising.use(monkeypatch)
    assert Harvest(config()).drain(60).records == RECORDS
    check(outbox, bootstrap_servers)
    assert raising.calls >= (1 if step == "provider" else BATCHES), "each batch is tried again"
    told = events(caplog, "tracing_unavailable" if step == "provider" else "batch_not_observed")
    assert len(told) == 1
    assert told[0].exc_info[1] is error


def test_it_raises_after_the_commit_of_a_transaction_too(outbox, config, bootstrap_servers, monkeypatch):
    raising = Raising("on_end", ValueError("broken"))
    raising.use(monkeypatch)
    assert Harvest(config("transactional")).drain(60).records == RECORDS
    check(outbox, bootstrap_servers)
    assert raising.calls >= BATCHES


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), Panic("broken")], ids=repr)
def test_an_event_handler_that_raises(outbox, config, bootstrap_servers, caplog, error):
    calls = []

    def handle(event):
        calls.append(event)
        raise error

    made = config()
    harvest = Harvest(
        made.model_copy(update={"limits": made.limits.model_copy(update={"min_metrics_interval_seconds": 0})})
    )
    harvest.set_event_handler(handle)
    assert harvest.drain(60).records == RECORDS
    check(outbox, bootstrap_servers)
    assert len(calls) > BATCHES
    assert len(events(caplog, "event_handler_failed")) == 1


class BrokenHandler(logging.Handler):
    """A handler of logs whose `emit` raises, as those do that do not catch it."""

    calls = 0

    def emit(self, record):  # noqa: ARG002 - it is lost
        self.calls += 1
        raise ValueError("the log is full")


class BrokenFilter(BrokenHandler):
    """A handler whose filter raises."""

    def filter(self, record):
        self.emit(record)


def drain(config, place, kind):
    """Return how many records were delivered, and the calls of a handler of `kind` at a logger."""
    handler, logger = kind(), logging.getLogger(place)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return Harvest(config).drain(60).records, handler.calls


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("kind", [BrokenHandler, BrokenFilter])
@pytest.mark.parametrize("place", ["", "harvest_lib", "harvest_lib.harvester.harvest"])
def test_a_log_handler_that_raises(outbox, config, bootstrap_servers, capfd, kind, place):
    """In a process of its own: other tests leave handlers, filters and levels in this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        records, calls = processes.submit(drain, config(), place, kind).result(120)
    assert records == RECORDS
    check(outbox, bootstrap_servers)
    assert calls > 1
    assert capfd.readouterr().err.count("a log handler or filter raised") == 1
