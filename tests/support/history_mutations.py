"""Well-formed histories, broken in one way each, as a broken system would have left them behind.

A mutation takes a list of events and dice and returns the names of which the checker must say one, and the new list;
None where a history has nothing that it could break.
"""

from dataclasses import replace

from infra.chaos.history.events import (
    Acknowledge,
    Assign,
    CheckpointWrite,
    Effect,
    Poll,
    Produce,
    Purge,
    TermEvent,
    TransactionStep,
    Write,
)

SENDS = {"nonmonotonic-send", "int-nonmonotonic-send"}


def places(events):
    """Return what final readers got, by partition, each in order: one list per partition."""
    found = {}
    for event in events:
        if isinstance(event, Poll) and event.process == "final-committed":
            for record in event.records:
                found.setdefault(record.partition, []).append(record)
    return list(found.values())


def polled(events, change):
    """Return the history with each record of each poll changed, or dropped where `change` returns None."""
    return [
        replace(event, records=tuple(filter(None, map(change, event.records)))) if isinstance(event, Poll) else event
        for event in events
    ]


def at(events, kind, **fields):
    """Return where events of a kind are that have these fields."""
    return [
        index
        for index, event in enumerate(events)
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    ]


def drop(events, dice):
    records = [record for partition in places(events) for record in partition]
    if not records:
        return None
    gone = dice.choice(records).event
    return {"lost-write"}, polled(events, lambda record: None if record.event == gone else record)


def tear(events, dice):
    """Lose one record of a transaction of which others are seen."""
    leaders = {}
    for event in events:
        if isinstance(event, Produce):
            leaders.setdefault(event.event, []).append(event.leader_id)
    transactions, open_ = [], []
    for event in events:
        if isinstance(event, TransactionStep) and event.type == "invoke":
            open_ = [] if event.step == "begin" else open_
        elif isinstance(event, Produce):
            open_.append(event.event)
        elif isinstance(event, TransactionStep) and event.step == "commit" and event.type == "ok":
            transactions += [open_] if len(open_) > 1 and all(len(leaders[name]) == 1 for name in open_) else []
    if not transactions:
        return None
    gone = dice.choice(dice.choice(transactions))
    return {"torn-transaction"}, polled(events, lambda record: None if record.event == gone else record)


def swap(events, dice):
    """Exchange two records of a key that stand there once."""
    pairs = []
    for partition in places(events):
        names = [record.event for record in partition]
        once = [record for record in partition if names.count(record.event) == 1]
        pairs += [(one, two) for one in once for two in once if one.key == two.key and one.offset < two.offset]
    if not pairs:
        return None
    one, two = dice.choice(pairs)
    other = {one.event: two, two.event: one}
    return SENDS, polled(
        events,
        lambda record: other[record.event]._replace(offset=record.offset) if record.event in other else record,
    )


def repeat(events, dice):
    """Let a record come again at the end of its partition, from the term that sent it last."""
    found = [
        (record, partition[-1].offset)
        for partition in places(events)
        for record in {record.event: record for record in partition}.values()
        if any(other.key == record.key and other.offset > record.offset for other in partition)
    ]
    if not found:
        return None
    record, end = dice.choice(found)
    copy = record._replace(offset=end + 9)
    return {"duplicate-separated"}, [
        replace(event, records=(*event.records, copy))
        if isinstance(event, Poll) and event.process == "final-committed" and record in event.records
        else event
        for event in events
    ]


def falsify(events, dice):
    """Change a hash, in one poll only or in all."""
    polls = [index for index in at(events, Poll) if events[index].records]
    if not polls:
        return None
    wrong = dice.choice(events[dice.choice(polls)].records)
    one = dice.choice(polls) if dice.random() < 0.5 else None

    def change(record):
        return record._replace(hash="other") if record == wrong else record

    changed = polled(events, change)
    if one is not None and wrong in events[one].records:
        changed = [changed[one] if index == one else event for index, event in enumerate(events)]
    return {"inconsistent-offsets"}, changed


def misplace(events, dice):
    """Acknowledge a record where another one is."""
    found = at(events, Acknowledge, type="ok")
    seen = {record.offset: record for partition in places(events) for record in partition if record.partition == 0}
    found = [index for index in found if events[index].offset in seen and events[index].partition == 0]
    offsets = {events[index].offset for index in found}
    if len(offsets) < 2:
        return None
    one = dice.choice(found)
    names = {offset for offset in offsets if seen[offset].event != seen[events[one].offset].event}
    if not names:
        return None
    events = list(events)
    events[one] = replace(events[one], offset=dice.choice(sorted(names)))
    return {"inconsistent-offsets"}, events


def purge_early(events, dice):
    purged = [row for index in at(events, Purge) for row in events[index].ids]
    if not purged:
        return None
    row = dice.choice(purged)
    late = [event for event in events if isinstance(event, Acknowledge) and event.id == row]
    return {"purge-before-ack"}, [event for event in events if event not in late] + late


def roll_back(events, dice):
    seen = {record.event for partition in places(events) for record in partition}
    found = [i for i in at(events, Write, type="ok") if any(r.event in seen for r in events[i].records)]
    if not found:
        return None
    one = dice.choice(found)
    return {"aborted-read"}, [replace(e, type="fail") if i == one else e for i, e in enumerate(events)]


def invent(events, dice):
    """Forget a write that was seen."""
    found = [event.transaction for event in events if isinstance(event, Write) and event.type == "ok"]
    if not found:
        return None
    gone = dice.choice(found)
    return {"aborted-read"}, [e for e in events if not (isinstance(e, Write) and e.transaction == gone)]


def apply_twice(events, dice):
    found = at(events, Effect)
    return ({"double-effect"}, [*events, events[dice.choice(found)]]) if found else None


def checkpoint_back(events, dice):
    found = at(events, CheckpointWrite)
    if len(found) < 2:
        return None
    one = dice.choice(found[:-1])
    return {"checkpoint-regression"}, [*events, events[one]]


def read_again(events, dice):
    found = [index for index in at(events, Poll, process="consumer") if events[index].records]
    if not found:
        return None
    one = dice.choice(found)
    return {"nonmonotonic-poll"}, [*events[: one + 1], events[one], *events[one + 1 :]]


def read_backwards(events, dice):
    found = [i for i in at(events, Poll) if any(a.partition == b.partition for a in events[i].records
             for b in events[i].records if a.offset != b.offset)]  # fmt: skip
    if not found:
        return None
    one = dice.choice(found)
    events = list(events)
    events[one] = replace(events[one], records=events[one].records[::-1])
    return {"int-nonmonotonic-poll"}, events


def pass_over(events, dice):
    """Take a record out of the middle of what a consumer got of a partition."""
    found = []
    for index in at(events, Poll, process="consumer"):
        records = events[index].records
        found += [
            (index, middle)
            for before, middle, after in zip(records, records[1:], records[2:], strict=False)
            if before.partition == middle.partition == after.partition
        ]
    if not found:
        return None
    one, gone = dice.choice(found)
    events = list(events)
    events[one] = replace(events[one], records=tuple(r for r in events[one].records if r != gone))
    return {"int-poll-skip"}, events


def miss_a_poll(events, dice):
    """Lose a poll between two others that read the same partition."""
    found, read, passed = [], set(), {}
    for index, event in enumerate(events):
        if isinstance(event, Assign) and event.process == "consumer":
            read, passed = set(), {}
        elif isinstance(event, Poll) and event.process == "consumer":
            partitions = {record.partition for record in event.records}
            found += [passed[partition] for partition in partitions & passed.keys()]
            passed.update(dict.fromkeys(partitions & read, index))
            read |= partitions
    if not found:
        return None
    gone = dice.choice(found)
    return {"poll-skip"}, [event for index, event in enumerate(events) if index != gone]


def rise_again(events, dice):
    """Let the last record of a partition come from a term that others have followed there."""
    sent = {(event.leader_id, event.event) for event in events if isinstance(event, Produce)}
    order = [event.leader_id for event in events if isinstance(event, TermEvent) and event.type == "invoke"]
    found = []
    for partition in places(events):
        *before, last = partition
        ranks = [order.index(record.leader_id) for record in before]
        if ranks and max(ranks) > 0 and (order[0], last.event) not in sent:
            found.append((last, order[0]))
    if not found:
        return None
    late, leader = dice.choice(found)
    return {"dual-epoch-append"}, polled(
        events,
        lambda record: (
            record._replace(leader_id=leader)
            if (record.partition, record.offset) == (late.partition, late.offset)
            else record
        ),
    )


def commit_late(events, dice):
    """Ask for the commit only after its records were read by committed readers."""
    found = []
    for commit in at(events, TransactionStep, type="invoke", step="commit"):
        sent = {e.event for e in events[:commit] if isinstance(e, Produce) and e.leader_id == events[commit].leader_id}
        before = {r.event for e in events[:commit] if isinstance(e, Poll) for r in e.records}
        polls = [index for index in at(events, Poll) if index > commit]
        new = {r.event for r in events[polls[0]].records if r.leader_id == events[commit].leader_id} if polls else set()
        if new & sent - before and events[commit + 1].type == "ok":
            found.append((commit, polls[0]))
    if not found:
        return None
    commit, poll = dice.choice(found)
    moved = events[commit : commit + 2]
    return {"precommitted-read"}, [*events[:commit], *events[commit + 2 : poll + 1], *moved, *events[poll + 1 :]]


ANY = (drop, swap, repeat, falsify, misplace, purge_early, roll_back, invent, apply_twice)
ANY += (read_again, read_backwards, pass_over, miss_a_poll, rise_again)
TRANSACTIONAL = (tear, commit_late, checkpoint_back)


def broken(mutation, events, dice):
    """Return the names and the history, its events in the order in which they now are, or None."""
    result = mutation(events, dice)
    if result is None:
        return None
    names, changed = result
    return names, [replace(event, time=100 + index / 1_000) for index, event in enumerate(changed)]
