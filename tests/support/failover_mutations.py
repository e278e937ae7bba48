"""Histories with failovers to a server that lacks something, broken in one way each. See `history_mutations`."""

from dataclasses import replace

from support.history_mutations import at, places, polled

from infra.chaos.history.events import CheckpointWrite, FailoverLoss, Produce

COPIES = {"duplicate-adjacent", "duplicate-separated", "duplicate-cross-epoch"}


def _again(events):
    """Return what came again after a failover, as its last reader got it: first the copy before, then the one after."""
    found = []
    for failover in at(events, FailoverLoss):
        before = {each.leader_id for each in events[:failover] if isinstance(each, Produce)}
        for partition in places(events):
            last = {}
            for record in partition:
                if record.leader_id in before:
                    last[record.event] = record
                elif record.event in last:
                    found.append((events[failover], last.pop(record.event), record))
    return found


def know_of_it(events, dice):
    """Have the server that takes over know that a record was delivered which comes again all the same."""
    if not (found := _again(events)):
        return None
    _, record, _ = dice.choice(found)
    return COPIES, [
        replace(each, backlog=tuple(name for name in each.backlog if name != record.event))
        if isinstance(each, FailoverLoss)
        else each
        for each in events
    ]


def come_in_disorder(events, dice):
    """Exchange two records of a key that one leader sends again after the same failover."""
    found = _again(events)
    pairs = [
        (one, two)
        for failover, _, one in found
        for other, _, two in found
        if failover is other
        and {one.event, two.event} <= set(failover.backlog)
        and (one.key, one.partition, one.leader_id) == (two.key, two.partition, two.leader_id)
        and one.offset < two.offset
    ]
    if not pairs:
        return None
    one, two = dice.choice(pairs)
    other = {(one.partition, one.offset): two, (two.partition, two.offset): one}
    return COPIES, polled(
        events,
        lambda record: other.get((record.partition, record.offset), record)._replace(
            offset=record.offset, leader_id=record.leader_id
        ),
    )


def fall_behind(events, dice):
    """Have a checkpoint stored behind the one that the server has which takes over."""
    failovers = at(events, FailoverLoss)
    found = [
        (failover, stored)
        for failover, following in zip(failovers, [*failovers, len(events)][1:], strict=True)
        for stored in at(events, CheckpointWrite)
        if failover < stored < following
    ]
    if not found:
        return None
    failover, stored = dice.choice(found)
    changed = list(events)
    (has,) = events[failover].checkpoints
    changed[failover] = replace(
        events[failover], checkpoints=(has._replace(number=events[stored].number + dice.randint(1, 3)),)
    )
    return {"checkpoint-regression"}, changed


FAILED_OVER = (know_of_it,)
NOT_PIPELINED = (come_in_disorder,)
"""Pipelined, what came in disorder may be the beginning of a run that is repeated."""
IN_CHECKPOINTS = (fall_behind,)
