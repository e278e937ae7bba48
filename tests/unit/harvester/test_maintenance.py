"""The reason why a harvester does not look after segments is said once, however many terms begin meanwhile."""

import logging
import threading
import uuid

import pytest
from support.waiting import eventually

from harvest_lib.config import HarvestConfig
from harvest_lib.errors import OutboxTableError
from harvest_lib.harvester.assembly.engine import Callbacks, Engine
from harvest_lib.harvester.housekeeping.maintenance import Maintenance
from harvest_lib.leadership import Term
from harvest_lib.outbox import OutboxTable

pytestmark = pytest.mark.quick


def test_segments_neglected_is_said_once_for_all_terms(monkeypatch, caplog):
    rounds, reasons = [], iter(["not the owner", "not the owner", "not the owner", "the disk is full", "not the owner"])

    def maintain(_):
        reason = next(reasons)
        rounds.append(reason)
        raise OutboxTableError("segments cannot be made", evidence=reason, next_step="be the owner")

    monkeypatch.setattr(Maintenance, "maintain", maintain)
    named = {"leadership": "solo", "source": "snapshot", "delivery": "barrier"}
    config = HarvestConfig(**named, data_source="host=127.0.0.1 port=1 dbname=x")
    work = Engine(config, OutboxTable.parse("outbox"))
    callbacks = Callbacks(emit=lambda _: None, delivered=lambda _: None)
    with caplog.at_level(logging.WARNING, "harvest_lib.harvester.housekeeping.maintenance"):
        for number in range(1, 6):
            stopping = threading.Event()
            work.loop(Term(uuid.uuid4()), stopping, callbacks)
            eventually(lambda number=number: len(rounds) == number, "it looked after them")
            stopping.set()
            eventually(lambda: not any(each.name == "harvest-segments" for each in threading.enumerate()))
    assert [record.reason.removeprefix("segments cannot be made: ") for record in caplog.records] == [
        *("not the owner", "the disk is full", "not the owner")
    ]
    assert {record.next_step for record in caplog.records} == {"be the owner"}


@pytest.mark.parametrize("kind", [KeyError, SystemExit, GeneratorExit])
def test_segments_are_looked_after_again_after_an_error_of_any_kind(monkeypatch, caplog, kind):
    rounds = []

    def maintain(_):
        rounds.append(kind)
        if len(rounds) < 3:
            raise kind("catalogue")

    monkeypatch.setattr(Maintenance, "maintain", maintain)
    monkeypatch.setattr("harvest_lib.harvester.housekeeping.maintenance._EVERY_SECONDS", 0.01)
    monkeypatch.setattr("harvest_lib.process.threads._LOOK_SECONDS", 0.01)
    config = HarvestConfig(leadership="solo", data_source="host=127.0.0.1 port=1 dbname=x")
    stopping = threading.Event()
    with caplog.at_level(logging.WARNING, "harvest_lib.harvester.housekeeping.maintenance"):
        Maintenance(config, OutboxTable.parse("outbox")).begin(Term(uuid.uuid4()), stopping)
        eventually(lambda: len(rounds) > 3, "it goes on")
        stopping.set()
    assert [record.reason for record in caplog.records] == [kind.__name__]
