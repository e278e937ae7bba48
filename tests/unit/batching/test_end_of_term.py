"""The state of a loop when its term ends."""

import pytest
from support.batches import BatchRuns
from support.rows import row

from harvest_lib.batching import batch as batch_module
from harvest_lib.batching.consequence import Restart, raise_consequence
from harvest_lib.checkpoints.table import LeadershipStatus
from harvest_lib.delivery import BatchFailed
from harvest_lib.errors import CheckpointError, RecordError
from harvest_lib.leadership import TermEnd

pytestmark = pytest.mark.quick


def test_a_batch_that_failed_just_before_the_end_may_still_arrive():
    runs = BatchRuns(one_per_key=True)
    runs.delivery.is_exactly_once = False
    loop = runs.loop()
    loop._batch.in_flight = 500
    runs.term.end(TermEnd.FENCED)
    with pytest.raises(Restart) as raised:
        raise_consequence(BatchFailed(reason="not acknowledged in time"), loop._batch, runs.ports, runs.ports.size)
    loop._restart(raised.value)
    runs.end()
    assert loop.holds_off
    assert runs.term.abandoned


def test_it_is_not_idle_for_a_look_that_was_not_made():
    runs = BatchRuns()
    loop = runs.run()
    assert loop.idle
    runs.term.end(TermEnd.FENCED)
    loop.turn()
    assert not loop.idle


@pytest.mark.parametrize(("one_per_key", "sent"), [(True, 1), (False, 3)])
def test_nothing_is_sent_again_while_something_may_still_arrive(one_per_key, sent):
    """I4: behind a record and its successor the old one of the two would be a step back; without the barrier a run
    would be repeated that nothing completes."""
    runs = BatchRuns(one_per_key=one_per_key)
    runs.table.insert(*[row(number, "k") for number in range(1, 4)])
    runs.kafka.broken, runs.delivery.leaves_behind = 1, True
    loop = runs.loop()
    for _ in range(20):
        if loop._rights.may_go_on():
            loop.turn()
    assert runs.term.ended is TermEnd.FENCED
    assert runs.kafka.ids == []
    runs.end()
    assert loop.abandoned == sent


def test_what_went_before_a_record_that_the_client_refused_may_still_arrive():
    """Else the next term begins at once, and sends the same again while it is on the wire."""
    runs = BatchRuns(one_per_key=True)
    runs.table.insert(*[row(number, f"key {number}") for number in range(1, 4)])
    runs.delivery.is_exactly_once, runs.delivery.refused, runs.delivery.leaves_behind = False, {3: "never"}, True
    loop = runs.loop()
    loop.turn()
    runs.end()
    assert runs.term.ended is TermEnd.FENCED
    assert loop.holds_off
    assert runs.term.abandoned


@pytest.mark.parametrize("status", LeadershipStatus)
def test_a_checkpoint_that_does_not_fit_is_no_error_once_another_leads_or_the_subscription_was_moved(status):
    """A leader that froze before it read Kafka's checkpoint compares it with an earlier row."""
    runs = BatchRuns()
    runs.table.insert(row(1, "k"))
    said = [LeadershipStatus.LEADS, LeadershipStatus.LEADS, status]
    found = [CheckpointError("it does not fit", next_step="none")]

    def load():
        if found:
            raise found.pop()
        return runs.store.mirror

    runs.store.load = load
    runs.store.leadership_status = lambda: said.pop(0) if said else LeadershipStatus.LEADS
    loop = runs.loop()
    if status is LeadershipStatus.LEADS:
        with pytest.raises(CheckpointError):
            loop.turn()
        return
    loop.turn()
    assert runs.kafka.ids == []
    said[:0] = [status]
    loop.turn()
    assert runs.term.ended is (TermEnd.FENCED if status is LeadershipStatus.FENCED else None)
    assert runs.kafka.ids == ([] if status is LeadershipStatus.FENCED else [1])


@pytest.mark.parametrize("how", ["revoked", "stopped"])
@pytest.mark.parametrize("slices", [0, 1])
def test_a_term_that_ends_as_a_page_is_handed_over_commits_what_has_gone(monkeypatch, how, slices):
    """The rest is deferred: it is the next leader's, and nobody waits for records that were never sent."""
    monkeypatch.setattr(batch_module, "_SLICE", 2)
    runs = BatchRuns()
    runs.table.insert(*[row(number, "k") for number in range(1, 6)])
    loop, send, sent = runs.loop(), runs.delivery.send, []

    def end():
        runs.term.end(TermEnd.REVOKED) if how == "revoked" else runs.stopping.set()

    def send_and_end(rows, may_send):
        refused = send(rows, may_send)
        sent.extend(rows)
        end()
        return refused

    if slices:
        runs.delivery.send = send_and_end
    else:
        read = runs.ports.source.read
        monkeypatch.setattr(runs.ports.source, "read", lambda limit: (read(limit), end())[0])
    loop.run()
    assert len(sent) == runs.delivered == 2 * slices
    assert loop.abandoned == 0
    assert not runs.term.abandoned
    assert runs.kafka.ids == [1, 2][: 2 * slices]
    runs.delivery.send = send
    runs.run()
    assert runs.kafka.ids == [1, 2, 3, 4, 5]


def test_what_was_sent_before_a_record_that_stops_the_harvester_is_committed():
    runs = BatchRuns(policy="stop")
    runs.table.insert(*[row(number, "k") for number in range(1, 2_001)])
    runs.topics.bad = {1_900: "too large"}
    loop = runs.loop()
    with pytest.raises(RecordError, match="record 1900"):
        loop.run()
    assert runs.delivered == len(runs.kafka.ids) > 0
    assert loop.abandoned == 0


def test_a_record_that_was_refused_alone_is_not_in_doubt():
    runs = BatchRuns()
    runs.table.insert(row(1, "k"))
    runs.kafka.poison = {1: "too large"}
    loop = runs.run()
    assert runs.places.states == {1: "too large"}
    runs.end()
    assert loop.abandoned == 0


def test_a_checkpoint_that_is_refused_though_it_leads_has_the_row_read_again():
    """The subscription was moved between the two questions: the row is right."""
    runs = BatchRuns()
    runs.table.insert(row(1, "k"))
    save, load = runs.store.save, runs.store.load
    saves, loads = [], []
    runs.store.save = lambda checkpoint: saves.append(1) or (len(saves) != 2 and save(checkpoint))
    runs.store.load = lambda: loads.append(1) or load()
    loop = runs.run()
    assert len(saves) == 1, "the first place"
    loop._checkpoints._save_at = 0.0
    runs.table.insert(row(2, "k"))
    for _ in range(3):
        loop.turn()
    assert (len(loads), runs.kafka.ids) == (2, [1, 2])
