"""Lines that were written before, one of each kind at least: they are read as the same events, and written the same."""

import pytest

from infra.chaos.history.events import (
    KINDS,
    Acknowledge,
    Assign,
    CheckpointWrite,
    Effect,
    FailoverLoss,
    FaultEvent,
    MarkEvent,
    Park,
    Poll,
    PolledRecord,
    Produce,
    Purge,
    ReadPosition,
    RecreatedTopic,
    Reset,
    StoredCheckpoint,
    TermEvent,
    TransactionStep,
    Write,
    WrittenRecord,
)
from infra.chaos.history.lines import from_line, to_line

pytestmark = pytest.mark.quick

BY = {"process": "p", "time": 1.5, "wall": 1700000000.25}
EVENTS = [
    Write(type="ok", **BY, transaction="t", records=(WrittenRecord("e", "topic", None, 3, "h"),), number=2),
    TermEvent(type="invoke", **BY, leader_id="l", shard=0, epoch=None),
    MarkEvent(type="ok", **BY, leader_id="l", ids=(1, 2)),
    Produce(type="invoke", **BY, leader_id="l", id=1, event="e"),
    Acknowledge(type="fail", **BY, leader_id="l", id=1, reason="no"),
    Acknowledge(type="ok", **BY, leader_id="l", id=1, topic="topic", partition=2, offset=7),
    TransactionStep(type="info", **BY, transactional_id="x", leader_id="l", step="commit"),
    Purge(type="ok", **BY, leader_id="l", ids=(), count=0),
    Reset(type="ok", **BY, leader_id="l", count=4),
    CheckpointWrite(
        type="ok",
        **BY,
        subscription="s",
        shard=1,
        generation=2,
        position={"xmin": 5, "ids": [1]},
        leader_id="l",
        number=9,
    ),
    Poll(type="ok", **BY, isolation="committed", records=(PolledRecord("topic", 2, 7, "e", None, "kü", 3, "h", None),)),
    Assign(type="ok", **BY, partitions=(ReadPosition("topic", 2, -2),)),
    Effect(type="ok", **BY, event="e", consumer="c"),
    Park(type="ok", **BY, step="retry", events=("e",)),
    FailoverLoss(
        type="ok", **BY, events=("e",), since=0.5, backlog=("f",), checkpoints=(StoredCheckpoint("s", 1, 2, 9),)
    ),
    RecreatedTopic(type="ok", **BY, topic="topic", events=(), since=0.5),
    FaultEvent(type="ok", **BY, fault="kill", step="end"),
]
LINES = """\
{"kind":"write","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"number":2,"transaction":"t","records":[{"event":"e","topic":"topic","key":null,"seq":3,"hash":"h"}]}
{"kind":"term","type":"invoke","process":"p","time":1.5,"wall":1700000000.25,"leader_id":"l","shard":0,"epoch":null}
{"kind":"mark","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"leader_id":"l","ids":[1,2]}
{"kind":"produce","type":"invoke","process":"p","time":1.5,"wall":1700000000.25,"leader_id":"l","id":1,"event":"e"}
{"kind":"acknowledge","type":"fail","process":"p","time":1.5,"wall":1700000000.25,"leader_id":"l","id":1,"reason":"no"}
{"kind":"acknowledge","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"leader_id":"l","id":1,"topic":"topic","partition":2,"offset":7}
{"kind":"transaction","type":"info","process":"p","time":1.5,"wall":1700000000.25,"transactional_id":"x","leader_id":"l","step":"commit"}
{"kind":"purge","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"leader_id":"l","ids":[],"count":0}
{"kind":"reset","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"leader_id":"l","count":4}
{"kind":"checkpoint","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"number":9,"subscription":"s","shard":1,"generation":2,"position":{"xmin":5,"ids":[1]},"leader_id":"l"}
{"kind":"poll","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"isolation":"committed","records":[{"topic":"topic","partition":2,"offset":7,"event":"e","id":null,"key":"kü","seq":3,"hash":"h","leader_id":null}]}
{"kind":"assign","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"partitions":[["topic",2,-2]]}
{"kind":"effect","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"event":"e","consumer":"c"}
{"kind":"park","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"step":"retry","events":["e"]}
{"kind":"failover","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"events":["e"],"since":0.5,"backlog":["f"],"checkpoints":[["s",1,2,9]]}
{"kind":"recreate","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"topic":"topic","events":[],"since":0.5}
{"kind":"fault","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"fault":"kill","step":"end"}
""".splitlines(keepends=True)


@pytest.mark.parametrize(("line", "event"), list(zip(LINES, EVENTS, strict=True)))
def test_a_line_written_before_is_read_as_its_event_and_written_the_same(line, event):
    assert from_line(line) == from_line(line.encode()) == event
    assert repr(from_line(line)) == repr(event)
    assert to_line(event) == line


def test_a_failover_of_which_an_earlier_version_told_has_no_backlog():
    line = '{"kind":"failover","type":"ok","process":"p","time":1.5,"wall":1700000000.25,"events":["e"],"since":1}'
    assert from_line(line) == FailoverLoss(type="ok", **BY, events=("e",), since=1)


def test_every_kind_is_among_them():
    assert {event.kind for event in EVENTS} == set(KINDS)


def test_fields_of_a_record_that_are_not_known_are_passed_over():
    line = LINES[0].replace('"hash":"h"', '"hash":"h","weather":"fine"')
    assert line != LINES[0]
    assert from_line(line) == EVENTS[0]
    with pytest.raises(ValueError, match="records"):
        from_line(line.replace('"seq":3', '"seq":"3"'))
